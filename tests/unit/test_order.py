"""Files that share an engine are there, and play on one worker in the order that starts it least."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from tests.support import order

ROOT = Path(__file__).parents[2]


def item(nodeid: str, *, is_engine: bool) -> SimpleNamespace:
    marker = object() if is_engine else None
    path = ROOT / nodeid.partition("::")[0]
    return SimpleNamespace(nodeid=nodeid, path=path, get_closest_marker=lambda _: marker)


def test_all_of_them_are_there():
    """One that was renamed would start an engine of its own, and nobody would see why the suite takes longer."""
    assert [file for file in order._ON_ONE_ENGINE if not (ROOT / file).is_file()] == []


def test_those_that_share_an_engine_come_first_and_then_those_of_engines_alone():
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
    assert [one.nodeid.rpartition("::")[2] for one in items] == [
        "test_simulated",
        "test_it",
        "test_all",
        "test_half",
        "test_other_half",
        "test_a",
    ]


def test_one_worker_has_all_that_share_an_engine():
    scheduler = order.ByEngine.__new__(order.ByEngine)
    assert len({scheduler._split_scope(f"{file}::test_it") for file in order._ON_ONE_ENGINE}) == 1
    assert scheduler._split_scope("tests/unit/test_a.py::test_a") == "tests/unit/test_a.py"
