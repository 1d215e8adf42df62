"""R20 drain: which names stay in the engine's list while its replica drains."""

from __future__ import annotations

from dataclasses import replace

import pytest

from registry.etcd3.ops import KeyValue
from sidecar.desired.placement import NOBODY
from sidecar.plan.handoff import Handoff, HandoffVerdict, OtherReplica, Stuck, Taken, Waiting
from sidecar.plan.takeover import EVERYWHERE, common_selectors, has_placed, needed_names
from sidecar.plan.types import Plan, Selection, ServedAdapter
from tests.support.records import kv
from tests.support.worlds import desired, placed_at


def record(name: str, at: int | str, zone: str) -> KeyValue:
    return kv(name, 2, placement=placed_at(at, zone=zone))


STATE = desired(kv("all", 1), record("here", "all", "x"), kv("one", 3, placement=placed_at(1)), kv("lazy", 4))


ALL, HERE, ONE = (STATE.adapters[name] for name in ("all", "here", "one"))
BEFORE = Plan(1, (), (), (), (), (), None, chosen=Selection(adapters=(ALL, HERE, ONE)))
LEAVING = Handoff("one", "one@1", 3, 1, pinned=True, terms=ONE.terms, owners=("r2",), among=NOBODY)  # type: ignore[arg-type]
OUT = replace(BEFORE, leaving=(LEAVING,), chosen=Selection(adapters=(ALL, HERE)))
LISTED = ("all", "here", "one@1", "theirs")
IN_X, IN_Y = OtherReplica({"zone": "x"}, ready=True), OtherReplica({"zone": "y"}, ready=True)


@pytest.mark.parametrize(
    ("verdict", "needed"),
    [
        (None, True),
        (Waiting(), True),
        (Stuck("no room"), True),
        (Waiting(elsewhere=True), False),
        (Stuck("no room", elsewhere=True), False),
        (Taken(), False),
        (Taken(routers_know=False), False),
    ],
)
def test_what_is_handed_over_stays_until_one_who_is_to_serve_it_does(verdict: HandoffVerdict | None, needed: bool):
    verdicts = {} if verdict is None else {LEAVING: verdict}
    assert needed_names(OUT, LISTED, verdicts, [IN_X]) == {*(("one@1",) if needed else ())}


def test_all_of_it_stays_before_it_is_known_who_takes_it():
    assert needed_names(BEFORE, LISTED, {}, [IN_X]) == {"one@1"}
    undecided = replace(OUT, leaving=(), chosen=Selection(adapters=(ALL, HERE), undecided=(ONE.rank,)))
    assert needed_names(undecided, LISTED, {}, [IN_X]) == {"one@1"}, "nor who lives"


def test_what_all_serve_stays_while_none_of_them_is_ready():
    taken = {LEAVING: Taken()}
    assert needed_names(OUT, LISTED, taken, []) == {"all", "here"}, "that of others is nobody's business"
    assert needed_names(OUT, LISTED, taken, [IN_Y]) == {"here"}
    assert needed_names(OUT, LISTED, taken, [IN_Y, replace(IN_X, ready=False)]) == {"here"}
    assert needed_names(OUT, LISTED, taken, [IN_X]) == frozenset()


def test_what_only_some_serve_and_what_all_do_are_told_apart():
    common = replace(BEFORE, chosen=Selection(adapters=(HERE,)))
    assert (has_placed(BEFORE), has_placed(OUT), has_placed(common)) == (True, True, False)
    assert common_selectors(common) == {frozenset({("zone", "x")})}
    lazy = replace(common, residents=(ServedAdapter("lazy", 1, "d", is_pinned=True),))
    assert common_selectors(lazy) == {frozenset({("zone", "x")}), EVERYWHERE}
