"""Which kinds of engine have a driver: the entry points that are installed, and no list beside them."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints

import pytest

from registry.runtime import engine_drivers
from registry.runtime.engine_drivers import GROUP, NoDriver, check_kind, load_driver
from sidecar.engines.driver import EngineOptions, make_engine

OURS = ["axolotl", "pegainfer", "sglang", "vllm"]


@pytest.fixture
def install(monkeypatch):
    """Installs exactly these: a kind and what its entry point refers to."""

    def only(*drivers: tuple[str, str]) -> None:
        points = EntryPoints(EntryPoint(name, value, GROUP) for name, value in drivers)
        monkeypatch.setattr(engine_drivers, "_installed", lambda: tuple(points))

    return only


@pytest.mark.parametrize("kind", OURS)
async def test_each_of_our_kinds_has_its_driver(tmp_path, kind):
    """Fails where this installation is older than pyproject.toml: make install."""
    engine = make_engine(kind, EngineOptions("http://127.0.0.1:1", state=tmp_path))
    assert (engine.kind, engine.url) == (kind, "http://127.0.0.1:1")
    await engine.aclose()


def test_a_kind_without_a_driver_is_refused_by_those_that_have_one():
    """Of a kind that had one in earlier releases too."""
    for kind in ("dynamo", "vlllm", ""):
        with pytest.raises(NoDriver, match=f"of '{kind}' is installed: use one of {', '.join(OURS)}, or install"):
            check_kind(kind)


def test_somebody_elses_driver_is_found_by_its_entry_point_alone(install):
    install(("theirs", "tests.unit.runtime.test_engine_drivers:OURS"))
    assert (check_kind("theirs"), load_driver("theirs")) == ("theirs", OURS)
    with pytest.raises(NoDriver, match="use one of theirs"):
        check_kind("vllm")


def test_metadata_of_an_earlier_state_hide_no_driver(tmp_path, monkeypatch):
    """A build leaves them in the project's folder, which comes first for whoever runs there."""
    (tmp_path / "loraplane.egg-info").mkdir()
    (tmp_path / "loraplane.egg-info" / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: loraplane\nVersion: 0.0\n")
    (tmp_path / "loraplane.egg-info" / "entry_points.txt").write_text("[console_scripts]\nloraplane = a:b\n")
    monkeypatch.syspath_prepend(tmp_path)
    engine_drivers._installed.cache_clear()
    assert check_kind("vllm") == "vllm"


@pytest.mark.parametrize(
    ("drivers", "said"),
    [
        ([], "not whole: install it anew, with: make install"),
        ([("x", "a:b"), ("x", "c:d")], "several packages bring a driver of 'x': a:b and c:d; uninstall all but one"),
        ([("x", "no.such.module:b")], "the driver of 'x', no.such.module:b, cannot be imported: No module named 'no'"),
        ([("x", "json:nothing")], "cannot be imported: .*nothing"),
    ],
)
def test_what_cannot_be_made_says_what_to_do(install, drivers, said):
    install(*drivers)
    with pytest.raises(NoDriver, match=said):
        load_driver("x")
