"""Rollouts that canaries begin: when there is one, what all others serve meanwhile, and how it ends."""

from __future__ import annotations

import pytest

from registry.model.errors import Conflict, FailedPrecondition, InvalidArgument, NotFound, Reason
from registry.model.records import (
    AdapterRecord,
    AuditRecord,
    Canary,
    Placement,
    Prepare,
    RetiredRecord,
    SourceSpec,
    Strategy,
)
from registry.model.status import Presence
from registry.transactions.changes import AbortRollout, HaltRollout, PromoteRollout, Remove, RollbackAdapter, tenants_of
from registry.transactions.plan import may_be_guessed
from registry.transactions.validate import make_rollout_change, make_upsert
from tests.support.changes import KEYS, POOL, Desk, applying, upsert
from tests.support.history_check import check_history
from tests.unit.transactions.conftest import etag, record, refused

NAME = "acme/a"
QUARTER = Strategy(canary=Canary(replicas="25%"))
ONE = Strategy(canary=Canary(replicas=1))
PROMOTE, ABORT = PromoteRollout(POOL, NAME), AbortRollout(POOL, NAME)


@pytest.fixture
def desk(desk: Desk) -> Desk:
    """An adapter at generation 1, which all serve."""
    desk.change(applying(upsert(NAME, "v1", strategy=QUARTER)))
    return desk


def put(desk: Desk, source: str, **spec) -> AdapterRecord:
    desk.change(applying(upsert(NAME, source, **{"strategy": QUARTER, **spec})))
    return record(desk)


def alive(desk: Desk, *, leaving: bool = False, **labels: str) -> None:
    name = f"r{desk.etcd.revision}"
    about = {"pool": POOL, "replica": name, "incarnation": "i", "owner": "o", "started_at": "t"}
    presence = Presence(**about, labels=labels, leaving=leaving)
    desk.etcd.put(KEYS.replica(POOL, name), presence.to_bytes())


def test_new_weights_come_to_canaries_first(desk):
    first = record(desk)
    assert first.rollout is None
    second = put(desk, "v2")
    assert second.generation == 2
    assert (second.rollout.stable_generation, second.rollout.stable_spec) == (1, first.spec)
    assert second.rollout.halted == ""


@pytest.mark.parametrize(
    "spec",
    [
        {"base_model": "other"},
        {"credentials": "s3"},
        {"prepare": Prepare(dora="strip")},
    ],
    ids=str,
)
def test_what_decides_about_weights(desk, spec):
    assert put(desk, "v1", **spec).rollout is not None


def test_whatever_else_changes_comes_to_all_at_once(desk):
    other = put(desk, "v1", priority=3, labels={"a": "b"}, description="d", load="lazy", strategy=ONE)
    assert (other.generation, other.rollout) == (2, None)


def test_without_a_strategy_new_weights_come_to_all_at_once(desk):
    put(desk, "v2")
    third = put(desk, "v3", strategy=None)
    assert (third.generation, third.rollout) == (3, None)


def test_a_canary_upon_a_canary_keeps_what_the_others_serve(desk):
    first = record(desk)
    put(desk, "v2")
    third = put(desk, "v3")
    assert (third.rollout.stable_generation, third.rollout.stable_spec) == (1, first.spec)


def test_back_to_the_weights_of_the_others_is_no_rollout(desk):
    put(desk, "v2")
    assert put(desk, "v1", priority=1).rollout is None


def test_a_change_of_nothing_else_goes_on_and_is_tried_anew(desk):
    put(desk, "v2")
    desk.change(HaltRollout(POOL, NAME, 2, etag(desk), "1 of 1 canaries refuse it"))
    assert record(desk).rollout.halted
    third = put(desk, "v2", priority=1)
    assert (third.generation, third.rollout.stable_generation, third.rollout.halted) == (3, 1, "")


def test_the_same_again_changes_nothing(desk):
    put(desk, "v2")
    before = desk.etcd.revision
    put(desk, "v2")
    assert desk.etcd.revision == before


def test_promotion_is_the_same_generation_for_all(desk):
    """W2, W6, W7: one revision with its audit record; history has nothing to keep, and shows what came before."""
    put(desk, "v2")
    before = record(desk)
    desk.change(PROMOTE, "q")
    after = record(desk)
    assert after == before.model_copy(update={"rollout": None})
    assert KEYS.history(POOL, NAME, 2) not in desk.etcd.kvs
    audit = AuditRecord.parse(
        max(desk.etcd.kvs.items(), key=lambda kv: (kv[0].startswith(KEYS.audits()), kv[0]))[1].value
    )
    assert (audit.method, audit.request_id) == ("PromoteRollout", "q")
    assert desk.change(PROMOTE, "q").reply.adapters[0].record == after, "W3: the first reply again"
    check_history(KEYS, desk.etcd.history)


def test_abortion_is_a_new_generation_that_is_as_before(desk):
    """W2, W6: the generation that never got past its canaries stays in history, and says so."""
    first = record(desk)
    put(desk, "v2", priority=5)
    desk.change(ABORT)
    after = record(desk)
    assert (after.generation, after.spec, after.rollout) == (3, first.spec, None)
    kept = RetiredRecord.parse(desk.etcd.kvs[KEYS.history(POOL, NAME, 2)].value)
    assert kept.rollout.stable_generation == 1
    check_history(KEYS, desk.etcd.history)


def test_promotion_and_abortion_of_what_is_halted(desk):
    put(desk, "v2")
    desk.change(HaltRollout(POOL, NAME, 2, etag(desk), "they refuse it"))
    revision = desk.etcd.revision
    desk.change(HaltRollout(POOL, NAME, 2, etag(desk), "they refuse it"))
    assert desk.etcd.revision == revision
    desk.change(PROMOTE)
    put(desk, "v3")
    desk.change(HaltRollout(POOL, NAME, 3, etag(desk), "they refuse it"))
    desk.change(ABORT)
    assert record(desk).spec.source.uri == "file:///a/v2"
    check_history(KEYS, desk.etcd.history)


def test_a_rollback_is_for_all_at_once(desk):
    put(desk, "v2")
    desk.change(PROMOTE)
    put(desk, "v3")
    desk.change(RollbackAdapter(POOL, NAME))
    assert (record(desk).generation, record(desk).rollout, record(desk).spec.source.uri) == (4, None, "file:///a/v2")
    put(desk, "v5")
    desk.change(RollbackAdapter(POOL, NAME, 5))
    assert (record(desk).generation, record(desk).rollout) == (5, None), "the present one, then for all"
    check_history(KEYS, desk.etcd.history)


def test_a_name_that_comes_back_has_nothing_to_go_back_to(desk):
    put(desk, "v2")
    desk.change(applying(Remove(NAME)))
    assert put(desk, "v3").rollout is None
    desk.etcd.put(KEYS.adapter(POOL, NAME), b"?")
    assert put(desk, "v4").rollout is None


def test_stored_rollout_of_nothing_new_is_ended_without_a_new_generation(desk):
    """W6: what was written by hand may claim that others serve the very same."""
    second = put(desk, "v2")
    odd = second.rollout.model_copy(update={"stable_spec": second.spec})
    desk.etcd.put(KEYS.adapter(POOL, NAME), second.model_copy(update={"rollout": odd}).to_bytes())
    desk.change(ABORT)
    assert (record(desk).generation, record(desk).rollout) == (2, None)


@pytest.mark.parametrize("kind", [PromoteRollout, AbortRollout])
def test_refusals(desk, kind):
    none = refused(desk, kind(POOL, NAME))
    assert (type(none), none.reason) == (FailedPrecondition, Reason.NO_ROLLOUT)
    put(desk, "v2")
    assert refused(desk, kind(POOL, NAME, 0, etag(desk) - 1)).reason is Reason.ETAG_MISMATCH
    other = refused(desk, kind(POOL, NAME, 1))
    assert (type(other), other.reason, other.metadata) == (Conflict, Reason.GENERATION_MISMATCH, {"generation": "2"})
    absent = refused(desk, kind(POOL, "acme/none"))
    assert (type(absent), absent.reason) == (NotFound, Reason.ADAPTER_NOT_FOUND)
    assert refused(desk, kind("q", NAME)).reason is Reason.POOL_NOT_FOUND
    desk.etcd.put(KEYS.adapter(POOL, NAME), b"?")
    assert refused(desk, kind(POOL, NAME)).reason is Reason.UNREADABLE_RECORD


def test_what_is_asked_for():
    made = make_rollout_change(PromoteRollout, POOL, NAME, 3, "7")
    assert made == PromoteRollout(POOL, NAME, 3, 7)
    assert tenants_of(made) == ()
    for wrong in (("p/", NAME, 0, ""), (POOL, "a,b", 0, ""), (POOL, NAME, -1, ""), (POOL, NAME, 0, "0")):
        with pytest.raises(InvalidArgument):
            make_rollout_change(AbortRollout, *wrong)


def test_more_canaries_than_live_replicas(desk):
    """Both numbers are told; a share always fits, and where nobody lives nothing can be said."""
    three = Strategy(canary=Canary(replicas=3))
    assert put(desk, "v1", strategy=three).generation == 2
    alive(desk, zone="a")
    alive(desk, zone="b")
    desk.etcd.put(KEYS.replica(POOL, "odd"), b"?")
    assert put(desk, "v2", strategy=three).rollout is not None, "three live, one of which cannot be read"
    narrow = Placement(selector={"zone": "a"})
    told = refused(desk, applying(upsert(NAME, "v1", strategy=Strategy(canary=Canary(replicas=2)), placement=narrow)))
    assert (type(told), told.reason) == (FailedPrecondition, Reason.CANARY_TOO_LARGE)
    assert (told.field, told.metadata) == (
        "changes[0].upsert.spec.strategy.canary.replicas",
        {"canaries": "2", "replicas": "1"},
    )
    assert put(desk, "v3", placement=narrow).generation == 4


def test_a_replica_that_goes_forbids_no_other_change(desk):
    """Only where the number is new, or canaries are about to begin, does it have to be there."""
    two = Strategy(canary=Canary(replicas=2))
    alive(desk)
    desk.etcd.put(KEYS.replica(POOL, "other"), b"?")
    put(desk, "v1", strategy=two)
    desk.etcd.delete(KEYS.replica(POOL, "other"))
    assert put(desk, "v1", strategy=two, priority=1).generation == 3
    assert refused(desk, applying(upsert(NAME, "v2", strategy=two))).reason is Reason.CANARY_TOO_LARGE
    desk.change(applying(Remove(NAME)))
    assert refused(desk, applying(upsert(NAME, "v2", strategy=two))).reason is Reason.CANARY_TOO_LARGE


def test_two_specs_must_fit_into_one_record(desk):
    """A record that history could not keep readable is refused whole."""
    many = {f"k{number:060}": "v" * 250 for number in range(64)}
    large = {"labels": many, "placement": Placement(selector=many)}
    put(desk, "v1", **large)
    told = refused(desk, applying(upsert(NAME, "v2", strategy=QUARTER, **large)))
    assert (told.reason, told.field) == (Reason.TOO_LARGE, "changes[0].upsert.spec")


def test_a_plan_that_looks_at_replicas_is_not_made_from_a_guess():
    counted = upsert(NAME, strategy=ONE)
    assert not may_be_guessed(applying(counted, upsert("b")))
    assert may_be_guessed(applying(upsert(NAME, strategy=QUARTER), Remove("b")))
    assert may_be_guessed(PROMOTE)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"strategy": {}}, "strategy"),
        ({"strategy": {"canary": {"replicas": 0}}}, "strategy.canary.replicas"),
        ({"strategy": {"canary": {"replicas": "150%"}}}, "strategy.canary.replicas"),
        ({"strategy": {"canary": {"replicas": "few"}}}, "strategy.canary.replicas"),
        ({"strategy": {"canary": {"replicas": 1}, "promote": "soon"}}, "strategy.promote"),
        ({"strategy": {"canary": {"replicas": 1}, "max_failures": -1}}, "strategy.max_failures"),
        ({"strategy": {"canary": {"replicas": 1}, "soak_seconds": -1}}, "strategy.soak_seconds"),
        ({"strategy": {"canary": {"replicas": 3}}, "placement": {"replicas": 2}}, "strategy.canary.replicas"),
    ],
    ids=str,
)
def test_a_wrong_strategy_is_one_clear_error(values, field, monkeypatch):
    monkeypatch.setattr("registry.transactions.supported.UNSUPPORTED", ())
    with pytest.raises(InvalidArgument) as told:
        make_upsert(NAME, {"source": {"uri": "file:///a"}, **values}, "", field="changes[0]")
    assert told.value.field.startswith(f"changes[0].upsert.spec.{field}")


def test_a_right_strategy(monkeypatch):
    monkeypatch.setattr("registry.transactions.supported.UNSUPPORTED", ())
    values = {"source": {"uri": "file:///a"}, "strategy": {"canary": {"replicas": 2}}, "placement": {"replicas": 2}}
    made = make_upsert(NAME, values, "", field="changes[0]")
    assert made.spec.strategy == Strategy(canary=Canary(replicas=2))
    assert made.spec.source == SourceSpec(uri="file:///a")


def test_a_replica_that_drains_is_no_canary(desk):
    """R20 drain: it takes nothing new."""
    two = Strategy(canary=Canary(replicas=2))
    alive(desk)
    alive(desk, leaving=True)
    assert refused(desk, applying(upsert("other", strategy=two))).reason is Reason.CANARY_TOO_LARGE
    alive(desk)
    desk.change(applying(upsert("other", strategy=two)))
