"""Which interpreter runs vLLM with which plugin, what is installed for it, and the programs of this room."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from registry.tools.devstack import engine_environment
from registry.tools.devstack.engine_environment import (
    PACKAGE,
    VARIABLE,
    EngineNotFound,
    find_engine_python,
    plugin_environment,
    plugin_folder,
)
from registry.tools.devstack.tiny_adapters import write_adapter
from sidecar import vllm_plugin


def interpreter(folder: Path) -> Path:
    """The engine environment of a folder."""
    python = folder / ".venv-engine" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    return python


@pytest.fixture
def places(tmp_path, monkeypatch) -> SimpleNamespace:
    """Folders in which nothing is yet: the current one, and the project."""
    made = SimpleNamespace(here=tmp_path / "here", project=tmp_path / "project")
    made.here.mkdir()
    monkeypatch.chdir(made.here)
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(engine_environment, "_BESIDE_US", made.project)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    return made


def test_the_engine_that_is_named_is_taken_then_that_of_this_folder_then_the_projects(places, monkeypatch, tmp_path):
    """What cannot be run is none; no other is taken for what is named. A relative name is made absolute. Without any
    our own has to have vLLM.
    """
    asked: list[str] = []
    with pytest.raises(EngineNotFound, match=r"\.venv-engine\) is not there.*--engine sim"):
        find_engine_python()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: (asked.append(name), object())[1])
    assert (find_engine_python(), asked) == (Path(sys.executable), ["vllm"])
    of_project = interpreter(places.project)
    assert find_engine_python() == of_project
    of_here = interpreter(places.here)
    assert find_engine_python() == of_here
    of_here.chmod(0o644)
    assert find_engine_python() == of_project
    (places.here / "python").symlink_to(interpreter(tmp_path / "named"))
    monkeypatch.setenv(VARIABLE, "python")
    assert find_engine_python() == places.here / "python", "a link is that environment, what it leads to another"
    monkeypatch.setenv(VARIABLE, "pythonx")
    with pytest.raises(EngineNotFound, match=rf"pythonx is not there; make it with: make engine.*{VARIABLE}"):
        find_engine_python()


def test_vllm_finds_the_plugin_of_this_installation(tmp_path):
    """One that moved, or is another, would leave vLLM with the old plugin, or none."""
    folder = tmp_path / "deep" / "plugin"
    for _ in range(2):
        assert plugin_folder(folder) == folder
        assert (folder / PACKAGE).readlink() == Path(vllm_plugin.__file__).parent
    (folder / PACKAGE).unlink()
    (folder / PACKAGE).symlink_to(tmp_path / "gone")
    assert (plugin_folder(folder) / PACKAGE).readlink() == Path(vllm_plugin.__file__).parent
    expected = {"PYTHONPATH": str(folder), "VLLM_PLUGINS": "loraplane", "LORAPLANE_PLUGIN": "1"}
    assert plugin_environment(folder) == expected


def test_an_adapter_is_written_into_a_folder_that_is_there_or_not(tmp_path):
    for _ in range(2):
        write_adapter(tmp_path / "deep" / "a", seed=1)
    found = sorted(file.name for file in (tmp_path / "deep" / "a").iterdir())
    assert found == ["adapter_config.json", "adapter_model.safetensors"]
