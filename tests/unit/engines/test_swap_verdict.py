"""The judge of answers under swaps would find each wrong kind."""

from __future__ import annotations

import time

import pytest

from sidecar.engines.observed import EngineGone, Outcome
from tests.support.swap_load import SwapLoad
from tests.support.swap_verdict import Answer, Era, Sequenced, judge

OLD = Sequenced(("1", "2", "3"), (-1.0, -2.0, -3.0))
NEW = Sequenced(("4", "5", "6"), (-4.0, -5.0, -6.0))
REFERENCES = {("/old", "p"): OLD, ("/new", "p"): NEW}
ERAS = [Era("x", "/old", float("-inf"), 10.0), Era("x", "/new", 9.0, float("inf"))]


@pytest.mark.parametrize(
    ("sent_at", "ended_at", "said", "kind"),
    [
        (1, 2, OLD, "right"),
        (1, 2, NEW, "stale"),
        (8, 11, OLD, "right"),
        (8, 11, NEW, "right"),
        (9.5, 9.7, OLD, "right"),
        (11, 12, OLD, "stale"),
        (11, 12, None, "failed"),
        (11, 12, Sequenced(("4", "2"), (-4.0, -2.0)), "mixed"),
        (11, 12, Sequenced(("4", "5"), (-4.0, -5.1)), "mixed"),
        (11, 12, Sequenced(("4", "5"), (-4.001, -5.0)), "right"),
        (11, 12, Sequenced((), ()), "mixed"),
    ],
)
def test_each_kind_is_told(sent_at, ended_at, said, kind):
    """Fault 23."""
    verdict = judge([Answer("x", "p", sent_at, ended_at, said)], ERAS, REFERENCES)
    assert (verdict.failed, verdict.mixed, verdict.stale) == tuple(kind == one for one in ("failed", "mixed", "stale"))
    assert verdict.spanning == (sent_at < 10 and ended_at >= 9)
    assert "1 answers" in verdict.line()


class Ends:
    """An engine that ends amid a swap."""

    async def begin(self, name: str, version: str) -> None:
        raise AssertionError(name, version)

    async def swap(self, _name: str, _old: str, _new: str) -> Outcome:
        return EngineGone("all connections were refused")


async def test_of_a_swap_that_found_the_engine_gone_either_version_may_be_seen():
    load = SwapLoad([], {"x": ("/old", "/new")})
    await load._swap_on(Ends(), 1, 0.0)
    before, after = (Answer("x", "p", 1.0, 2.0, said) for said in (OLD, NEW))
    late = Answer("x", "p", time.monotonic(), time.monotonic(), NEW)
    assert judge([before, late], load.eras, REFERENCES).stale == 0
    assert judge([after], load.eras, REFERENCES).stale == 1
