"""How the suite is played: in which order, what is measured, and what a test may not leave."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support import order
from tests.support.ordered import left, ordered

ROOT = Path(__file__).parents[2]


def item(nodeid: str, *, is_engine: bool) -> SimpleNamespace:
    marker = object() if is_engine else None
    path = ROOT / nodeid.partition("::")[0]
    return SimpleNamespace(nodeid=nodeid, path=path, get_closest_marker=lambda _: marker)


def test_files_that_share_an_engine_come_first_and_play_on_one_worker():
    """One that was renamed would start an engine of its own, and nobody would see why the suite takes longer."""
    assert [file for file in order._ON_ONE_ENGINE if not (ROOT / file).is_file()] == []
    last, first = order._ON_ONE_ENGINE[-1], order._ON_ONE_ENGINE[0]
    items = [
        item("tests/unit/test_a.py::test_a", is_engine=False),
        item("tests/e2e/test_b.py::test_half", is_engine=True),
        item("tests/e2e/test_b.py::test_other_half", is_engine=False),
        item("tests/e2e/test_c.py::test_all", is_engine=True),
        item(f"{last}::test_it", is_engine=True),
        item(f"{first}::test_simulated", is_engine=False),
    ]
    order.sort(items)
    names = ["simulated", "it", "all", "half", "other_half", "a"]
    assert [one.nodeid.rpartition("::test_")[2] for one in items] == names
    scheduler = order.ByEngine.__new__(order.ByEngine)
    for files in (order._WITH_THE_PLUGIN, order._WITHOUT_IT):
        assert len({scheduler._split_scope(f"{file}::test_it") for file in files}) == 1
    assert scheduler._split_scope("tests/unit/test_a.py::test_a") == "tests/unit/test_a.py"


def test_what_was_collected_is_not_looked_through_for_garbage_again():
    """Each world of the simulation begins with a collection, which would take half a second."""
    assert gc.get_freeze_count() > 0


def test_a_fault_that_was_ordered_and_never_struck_is_told_once():
    struck = list[str]()
    ordered("one", lambda: "one" in struck)
    ordered("two", lambda: "two" in struck)
    struck.append("two")
    assert (left(), left()) == (["one"], [])


def _is_free(config: pytest.Config) -> bool:
    """Nothing looks at each line, unless all tests are to be measured."""
    return sys.gettrace() is None or not config.getoption("--cov-pure")


@pytest.fixture
def is_free(request) -> bool:
    return _is_free(request.config)


@pytest.mark.parametrize("after", [pytest.param("", marks=pytest.mark.no_cover), "one that pytest-cov pauses for"])
def test_what_needs_no_coverage_runs_without_it(request, is_free, after):
    """Only the unit tests of the pure rooms are measured: the others would take twice as long."""
    assert (is_free, _is_free(request.config)) == (True, True), "a fixture, and the test itself"
