"""A folder that gives vLLM the plugin of this installation."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pytest

import sidecar
from registry.tools.devstack import engine_environment
from registry.tools.devstack.engine_environment import PACKAGE, PluginNotInstalled, plugin_environment, plugin_folder


def test_the_package_is_that_of_this_installation_whatever_it_was_before(tmp_path):
    """An installation that moved, or is another, would leave vLLM with the old plugin, or none."""
    ours = Path(sidecar.__file__).parent
    for _ in range(2):
        assert (plugin_folder(tmp_path) / PACKAGE).readlink() == ours
    (tmp_path / PACKAGE).unlink()
    (tmp_path / PACKAGE).symlink_to(tmp_path / "gone")
    assert (plugin_folder(tmp_path) / PACKAGE).readlink() == ours


POINTS = [
    EntryPoint("loraplane", "a:general", "vllm.general_plugins"),
    EntryPoint("loraplane", "a:endpoint", "vllm.endpoint_plugins"),
    EntryPoint("loraplane", "a:command", "console_scripts"),
]


def test_vllm_finds_our_entry_points_there_and_nothing_else(tmp_path, monkeypatch):
    found = SimpleNamespace(entry_points=POINTS, version="1.2.3")
    monkeypatch.setattr(engine_environment, "distribution", lambda name: found if name == "loraplane" else None)
    assert plugin_folder(tmp_path / "deep" / "plugin") == tmp_path / "deep" / "plugin"
    info = tmp_path / "deep" / "plugin" / "loraplane-1.2.3.dist-info"
    assert (info / "METADATA").read_text() == "Metadata-Version: 2.1\nName: loraplane\nVersion: 1.2.3\n"
    assert (info / "entry_points.txt").read_text() == (
        "[vllm.general_plugins]\nloraplane = a:general\n[vllm.endpoint_plugins]\nloraplane = a:endpoint\n"
    )
    assert plugin_environment(tmp_path) == {
        "PYTHONPATH": str(tmp_path),
        "VLLM_PLUGINS": "loraplane",
        "LORAPLANE_PLUGIN": "1",
    }


@pytest.mark.parametrize(
    ("points", "spec"),
    [
        (POINTS[1:], SimpleNamespace(origin="/x/y.py")),
        (POINTS[:1], SimpleNamespace(origin="/x/y.py")),
        ([*POINTS[:1]] * 2, SimpleNamespace(origin="/x/y.py")),
        ([], SimpleNamespace(origin="/x/y.py")),
        (POINTS, None),
        (POINTS, SimpleNamespace(origin=None)),
    ],
    ids=["no general", "no endpoint", "one twice", "none", "no package", "a package without files"],
)
def test_an_installation_without_the_plugin_is_told_before_anything_is_written(tmp_path, monkeypatch, points, spec):
    found = SimpleNamespace(entry_points=points, version="1")
    monkeypatch.setattr(engine_environment, "distribution", lambda _: found)
    monkeypatch.setattr(engine_environment, "find_spec", lambda _: spec)
    with pytest.raises(PluginNotInstalled, match="make install"):
        plugin_folder(tmp_path / "plugin")
    assert not (tmp_path / "plugin").exists()
