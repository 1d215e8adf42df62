"""When an adapter is let go of: what those who are to serve it have to prove."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from registry.etcd3.ops import KeyValue
from registry.model.records import Canary, Placement
from registry.model.replica_state import StatusReading, parse_status
from registry.model.status import Failed, Found, Pending, Warned
from sidecar.artifacts.types import ArtifactRef
from sidecar.desired.placement import NOBODY, MembershipDigest, PlacementSpec, Stable
from sidecar.plan.handoff import (
    Handoff,
    HandoffVerdict,
    Need,
    OtherReplica,
    Stuck,
    Taken,
    Waiting,
    evaluate_handoff,
    need_of_common,
    need_of_placed,
)
from tests.support.residency_world import engine_status, replica_status

AMONG = MembershipDigest("m", "w")
ON_TWO = PlacementSpec(Placement(replicas=2), frozenset())
LEAVING = Handoff("a", "a", 7, 2, pinned=True, terms=ON_TWO, owners=("r2", "r3"), among=AMONG)
ENGINE = engine_status()
PENDING = Pending(name="a", generation=2, reason="loading")
FAILED = Failed(name="a", generation=2, reason="rank_too_high", message="", attempts=1, retry_at=None)
WARNED = Warned(name="", generation=0, reason="blocked", message="")


def status(replica: str = "r2", **changes: Any) -> StatusReading:
    said = {"engine": ENGINE, "observed_revision": 7, "members": "m", "weights": "w"} | changes
    written = replica_status(replica, said.pop("observed_revision"), **said).to_bytes()
    return parse_status(KeyValue(b"", written, 1, 1, 1))


def found(digest: str, generation: int = 2) -> list[Found]:
    return [Found(name="a", generation=generation, digest=digest)]


def verdict(*, revision: int = 7, **changes: Any) -> HandoffVerdict:
    statuses = {"r2": status(**changes), "r3": status("r3")}
    return evaluate_handoff(LEAVING, LEAVING.owners or (), statuses, revision)


def test_it_is_taken_once_everybody_proves_it():
    assert verdict() == Taken()
    assert verdict(observed_revision=9) == Taken()
    assert verdict(ready=False) == Taken()
    assert verdict(pending=[PENDING.model_copy(update={"name": "b"})]) == Taken()
    for other in ({"name": "b"}, {"reason": "base_unknown"}):
        assert verdict(warnings=[WARNED.model_copy(update=other)]) == Taken(), "it is about one, or no reason to wait"


@pytest.mark.parametrize(
    "changes",
    [
        {"members": "others"},
        {"weights": "others"},
        {"members": "", "weights": ""},
        {"observed_revision": 6},
        {"stale": True},
        {"engine": ENGINE.model_copy(update={"incarnation": ""})},
        {"pending": [PENDING]},
        {"failed": [FAILED.model_copy(update={"retry_at": "2026-01-01T00:00:00.000Z"})]},
        {"omitted": 1},
        {"warnings": [WARNED]},
    ],
    ids=repr,
)
def test_it_is_waited_for_while_somebody_does_not_prove_it(changes):
    """Load before unload; what is tried again is waited for, as a rollout does."""
    assert verdict(**changes) == Waiting()


def test_the_proof_must_be_about_the_record_that_stands():
    assert verdict(revision=8) == Waiting()
    assert verdict(revision=0) == Waiting()
    assert evaluate_handoff(LEAVING, ("r2", "r3"), {"r2": status()}, 7) == Waiting()
    unreadable = parse_status(KeyValue(b"", b"?", 1, 1, 1))
    assert evaluate_handoff(LEAVING, ("r2", "r3"), {"r2": status(), "r3": unreadable}, 7) == Waiting()


def test_it_is_kept_where_somebody_cannot_and_where_there_is_nobody():
    stuck = verdict(failed=[FAILED], pending=[PENDING])
    assert isinstance(stuck, Stuck)
    assert "r2 is to serve it and cannot: rank_too_high" in stuck.message
    stuck = verdict(pending=[PENDING.model_copy(update={"reason": "over_capacity"})])
    assert isinstance(stuck, Stuck)
    assert "r2 is to serve it and has no room" in stuck.message
    assert isinstance(evaluate_handoff(LEAVING, (), {}, 7), Stuck)


def test_it_is_told_whether_one_of_those_who_are_to_serve_it_does():
    """R20 drain: from then on routers need not come here; it is kept all the same until all do."""
    waiting, stuck = verdict(pending=[PENDING]), verdict(failed=[FAILED], pending=[PENDING])
    assert [one.elsewhere for one in (waiting, stuck) if isinstance(one, Waiting | Stuck)] == [True, True]
    for nobody in (
        verdict(revision=8),
        evaluate_handoff(LEAVING, (), {}, 7),
        evaluate_handoff(LEAVING, ("r2",), {}, 7),
    ):
        assert isinstance(nobody, Waiting | Stuck)
        assert not nobody.elsewhere


def test_it_is_kept_while_those_who_took_it_found_different_files():
    """R9: nobody knows which files the generation means, so none of them serves it."""
    unpinned = replace(LEAVING, pinned=False)
    statuses = {"r2": status(found=found("sha256:1")), "r3": status("r3", found=found("sha256:2"))}
    stuck = evaluate_handoff(unpinned, ("r2", "r3"), statuses, 7)
    assert stuck == Stuck("r2 is to serve it and cannot: digests_differ")
    statuses["r3"] = status("r3", found=found("sha256:1"))
    assert evaluate_handoff(unpinned, ("r2", "r3"), statuses, 7) == Taken()
    statuses["r3"] = status("r3", found=found("sha256:2"))
    assert evaluate_handoff(LEAVING, ("r2", "r3"), statuses, 7) == Taken(), "the record has a digest"


def test_only_what_was_found_of_one_generation_is_compared():
    """Canaries and the others serve two generations of a rollout, each with files of its own."""
    stable = Stable(1, ArtifactRef("s3://b/v1/", None, "{}"))
    rollout = replace(LEAVING, pinned=False, terms=replace(ON_TWO, stable=stable, canary=Canary(replicas=1)))
    canary = status(found=found("sha256:2", generation=2))
    statuses = {"r2": canary, "r3": status("r3", found=found("sha256:1", generation=1))}
    assert evaluate_handoff(rollout, ("r2", "r3"), statuses, 7) == Taken()
    nobody_first = replace(rollout, terms=replace(ON_TWO, stable=stable))
    statuses = {one: status(one, found=found(f"sha256:{one}", generation=1)) for one in ("r2", "r3")}
    assert isinstance(evaluate_handoff(nobody_first, ("r2", "r3"), statuses, 7), Stuck)
    pinned = replace(stable, ref=replace(stable.ref, digest="sha256:1"))
    assert (
        evaluate_handoff(replace(rollout, terms=replace(ON_TWO, stable=pinned)), ("r2", "r3"), statuses, 7) == Taken()
    )


def test_what_only_labels_decide_needs_no_word_on_the_live_replicas():
    """Nor does it matter what they say of these, who serve other adapters that are placed by number."""
    by_label = replace(LEAVING, owners=None, among=NOBODY, terms=PlacementSpec(Placement(), frozenset()))
    for said in ({"members": "", "weights": ""}, {"members": "m", "weights": "w"}):
        assert evaluate_handoff(by_label, ("r2",), {"r2": status(**said)}, 7) == Taken()


def test_a_replica_that_leaves_is_needed_until_others_took_over_what_is_placed_on_it():
    """R20 drain: what nobody can take over is told apart from what somebody is about to."""
    other = replace(LEAVING, key="b", name="b")
    assert need_of_placed([], {}) is Need.NOTHING
    assert need_of_placed([LEAVING], {}) is Need.TAKEOVER
    assert need_of_placed([LEAVING, other], {LEAVING: Stuck("it cannot"), other: Waiting()}) is Need.TAKEOVER
    assert need_of_placed([LEAVING, other], {LEAVING: Stuck("it cannot"), other: Taken()}) is Need.NOBODY
    taken = {LEAVING: Taken(routers_know=False), other: Taken()}
    assert need_of_placed([LEAVING, other], taken) is Need.NOTHING


def test_it_is_needed_for_what_all_serve_until_another_is_ready():
    """R20 drain: with the labels that are selected."""
    everywhere, in_x = frozenset[tuple[str, str]](), frozenset({("zone", "x")})
    x, y = OtherReplica({"zone": "x"}, ready=True), OtherReplica({"zone": "y"}, ready=True)
    assert need_of_common([], []) is Need.NOTHING
    assert need_of_common([everywhere], []) is Need.NOBODY
    assert need_of_common([everywhere], [x]) is Need.NOTHING
    assert need_of_common([everywhere, in_x], [y]) is Need.NOBODY
    assert need_of_common([everywhere, in_x], [y, replace(x, ready=False)]) is Need.TAKEOVER
    assert need_of_common([everywhere, in_x], [y, x]) is Need.NOTHING
