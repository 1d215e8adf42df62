"""Rollouts that canaries begin: when there is one, what all others serve meanwhile, and how it ends."""

from __future__ import annotations

import pytest

from registry.etcd3.ops import Put, Txn
from registry.model.errors import Conflict, FailedPrecondition, NotFound, Reason
from registry.model.records import (
    AdapterRecord,
    AuditRecord,
    Canary,
    Expect,
    ExpectedAnswer,
    Placement,
    Prepare,
    RetiredRecord,
    Strategy,
)
from registry.model.status import Presence
from registry.transactions.changes import AbortRollout, HaltRollout, PromoteRollout, Remove, RollbackAdapter
from tests.support.changes import KEYS, POOL, Author, applying, upsert
from tests.support.history_check import check_history
from tests.unit.transactions.conftest import etag, record, refused

NAME = "acme/a"
QUARTER = Strategy(canary=Canary(replicas="25%"))
ONE = Strategy(canary=Canary(replicas=1))
PROMOTE, ABORT = PromoteRollout(POOL, NAME), AbortRollout(POOL, NAME)


@pytest.fixture
def author(author: Author) -> Author:
    """An adapter at generation 1, which all serve."""
    author.change(applying(upsert(NAME, "v1", strategy=QUARTER)))
    return author


def put(author: Author, source: str, **spec) -> AdapterRecord:
    author.change(applying(upsert(NAME, source, **{"strategy": QUARTER, **spec})))
    return record(author)


def alive(
    author: Author, *, leaving: bool = False, reports: bool = True, by_reports: bool = True, **labels: str
) -> None:
    name = f"r{author.etcd.revision}"
    about = {"pool": POOL, "replica": name, "incarnation": "i", "owner": "o", "started_at": "t"}
    presence = Presence(**about, labels=labels, leaving=leaving, by_reports=by_reports)
    stands(author, name, presence.to_bytes(), reports=reports)


def stands(author: Author, name: str, presence: bytes, *, reports: bool = True) -> None:
    """A presence, and beside it a status that is under its lease, or is not."""
    puts = Put(KEYS.replica(POOL, name), presence, 7), Put(KEYS.status(POOL, name), b"{}", 7 if reports else 8)
    author.etcd.txn(Txn((), puts))


def test_new_weights_come_to_canaries_first(author):
    first = record(author)
    assert first.rollout is None
    second = put(author, "v2")
    assert second.generation == 2
    assert (second.rollout.stable_generation, second.rollout.stable_spec) == (1, first.spec)
    assert second.rollout.halted == ""


@pytest.mark.parametrize(
    "spec",
    [
        {"base_model": "other"},
        {"credentials": "s3"},
        {"prepare": Prepare(dora="strip")},
        {"expect": Expect(answers=[ExpectedAnswer(prompt=[1], tokens=[2])])},
    ],
    ids=str,
)
def test_what_decides_about_weights(author, spec):
    assert put(author, "v1", **spec).rollout is not None


def test_whatever_else_changes_comes_to_all_at_once(author):
    other = put(author, "v1", priority=3, labels={"a": "b"}, description="d", load="lazy", strategy=ONE)
    assert (other.generation, other.rollout) == (2, None)


def test_without_a_strategy_new_weights_come_to_all_at_once(author):
    put(author, "v2")
    third = put(author, "v3", strategy=None)
    assert (third.generation, third.rollout) == (3, None)


def test_a_canary_upon_a_canary_keeps_what_the_others_serve(author):
    first = record(author)
    put(author, "v2")
    third = put(author, "v3")
    assert (third.rollout.stable_generation, third.rollout.stable_spec) == (1, first.spec)


def test_back_to_the_weights_of_the_others_is_no_rollout(author):
    put(author, "v2")
    assert put(author, "v1", priority=1).rollout is None


def test_a_change_of_nothing_else_goes_on_and_is_tried_anew(author):
    put(author, "v2")
    author.change(HaltRollout(POOL, NAME, 2, etag(author), "1 of 1 canaries refuse it"))
    assert record(author).rollout.halted
    third = put(author, "v2", priority=1)
    assert (third.generation, third.rollout.stable_generation, third.rollout.halted) == (3, 1, "")


def test_the_same_again_changes_nothing(author):
    put(author, "v2")
    before = author.etcd.revision
    put(author, "v2")
    assert author.etcd.revision == before


def test_promotion_is_the_same_generation_for_all(author):
    """W2, W6, W7: one revision with its audit record; history has nothing to keep, and shows what came before."""
    put(author, "v2")
    before = record(author)
    author.change(PROMOTE, "q")
    after = record(author)
    assert after == before.model_copy(update={"rollout": None})
    assert KEYS.history(POOL, NAME, 2) not in author.etcd.kvs
    audit = AuditRecord.parse(
        max(author.etcd.kvs.items(), key=lambda kv: (kv[0].startswith(KEYS.audits()), kv[0]))[1].value
    )
    assert (audit.method, audit.request_id) == ("PromoteRollout", "q")
    assert author.change(PROMOTE, "q").reply.adapters[0].record == after, "W3: the first reply again"
    check_history(KEYS, author.etcd.history)


def test_abortion_is_a_new_generation_that_is_as_before(author):
    """W2, W6: the generation that never got past its canaries stays in history, and says so."""
    first = record(author)
    put(author, "v2", priority=5)
    author.change(ABORT)
    after = record(author)
    assert (after.generation, after.spec, after.rollout) == (3, first.spec, None)
    kept = RetiredRecord.parse(author.etcd.kvs[KEYS.history(POOL, NAME, 2)].value)
    assert kept.rollout.stable_generation == 1
    check_history(KEYS, author.etcd.history)


def test_promotion_and_abortion_of_what_is_halted(author):
    put(author, "v2")
    author.change(HaltRollout(POOL, NAME, 2, etag(author), "they refuse it"))
    revision = author.etcd.revision
    author.change(HaltRollout(POOL, NAME, 2, etag(author), "they refuse it"))
    assert author.etcd.revision == revision
    author.change(PROMOTE)
    put(author, "v3")
    author.change(HaltRollout(POOL, NAME, 3, etag(author), "they refuse it"))
    author.change(ABORT)
    assert record(author).spec.source.uri == "file:///a/v2"
    check_history(KEYS, author.etcd.history)


def test_a_rollback_is_for_all_at_once(author):
    put(author, "v2")
    author.change(PROMOTE)
    put(author, "v3")
    author.change(RollbackAdapter(POOL, NAME))
    assert (record(author).generation, record(author).rollout, record(author).spec.source.uri) == (
        4,
        None,
        "file:///a/v2",
    )
    put(author, "v5")
    author.change(RollbackAdapter(POOL, NAME, 5))
    assert (record(author).generation, record(author).rollout) == (5, None), "the present one, then for all"
    check_history(KEYS, author.etcd.history)


def test_a_name_that_comes_back_has_nothing_to_go_back_to(author):
    put(author, "v2")
    author.change(applying(Remove(NAME)))
    assert put(author, "v3").rollout is None
    author.etcd.put(KEYS.adapter(POOL, NAME), b"?")
    assert put(author, "v4").rollout is None


def test_stored_rollout_of_nothing_new_is_ended_without_a_new_generation(author):
    """W6: what was written by hand may claim that others serve the very same."""
    second = put(author, "v2")
    odd = second.rollout.model_copy(update={"stable_spec": second.spec})
    author.etcd.put(KEYS.adapter(POOL, NAME), second.model_copy(update={"rollout": odd}).to_bytes())
    author.change(ABORT)
    assert (record(author).generation, record(author).rollout) == (2, None)


@pytest.mark.parametrize("kind", [PromoteRollout, AbortRollout])
def test_refusals(author, kind):
    none = refused(author, kind(POOL, NAME))
    assert (type(none), none.reason) == (FailedPrecondition, Reason.NO_ROLLOUT)
    put(author, "v2")
    assert refused(author, kind(POOL, NAME, 0, etag(author) - 1)).reason is Reason.ETAG_MISMATCH
    other = refused(author, kind(POOL, NAME, 1))
    assert (type(other), other.reason, other.metadata) == (Conflict, Reason.GENERATION_MISMATCH, {"generation": "2"})
    absent = refused(author, kind(POOL, "acme/none"))
    assert (type(absent), absent.reason) == (NotFound, Reason.ADAPTER_NOT_FOUND)
    assert refused(author, kind("q", NAME)).reason is Reason.POOL_NOT_FOUND
    author.etcd.put(KEYS.adapter(POOL, NAME), b"?")
    assert refused(author, kind(POOL, NAME)).reason is Reason.UNREADABLE_RECORD


def test_more_canaries_than_live_replicas(author):
    """Both numbers are told; a share always fits, and where nobody lives nothing can be said."""
    three = Strategy(canary=Canary(replicas=3))
    assert put(author, "v1", strategy=three).generation == 2
    alive(author, zone="a")
    alive(author, zone="b")
    stands(author, "odd", b"?")
    assert put(author, "v2", strategy=three).rollout is not None, "three live, one of which cannot be read"
    narrow = Placement(selector={"zone": "a"})
    told = refused(author, applying(upsert(NAME, "v1", strategy=Strategy(canary=Canary(replicas=2)), placement=narrow)))
    assert (type(told), told.reason) == (FailedPrecondition, Reason.CANARY_TOO_LARGE)
    assert (told.field, told.metadata) == (
        "changes[0].upsert.spec.strategy.canary.replicas",
        {"canaries": "2", "replicas": "1"},
    )
    assert put(author, "v3", placement=narrow).generation == 4


def test_a_presence_alone_is_no_canary(author):
    """X2: a number that somebody who only writes to etcd makes up for would give new weights to all at once."""
    two = Strategy(canary=Canary(replicas=2))
    alive(author, reports=False)
    assert put(author, "v1", strategy=two).generation == 2, "nobody lives, so nothing can be said"
    alive(author)
    stands(author, "ghost", b"?", reports=False)
    told = refused(author, applying(upsert(NAME, "v2", strategy=two)))
    assert (told.reason, told.metadata["replicas"]) == (Reason.CANARY_TOO_LARGE, "1")
    alive(author)
    assert put(author, "v2", strategy=two).rollout is not None


def test_a_sidecar_of_an_earlier_release_counts_every_presence(author):
    """As it places adapters, and so finds canaries."""
    alive(author, by_reports=False)
    alive(author, reports=False)
    assert put(author, "v2", strategy=Strategy(canary=Canary(replicas=2))).rollout is not None


def test_a_replica_that_goes_forbids_no_other_change(author):
    """Only where the number is new, or canaries are about to begin, does it have to be there."""
    two = Strategy(canary=Canary(replicas=2))
    alive(author)
    stands(author, "other", b"?")
    put(author, "v1", strategy=two)
    author.etcd.delete(KEYS.replica(POOL, "other"))
    assert put(author, "v1", strategy=two, priority=1).generation == 3
    assert refused(author, applying(upsert(NAME, "v2", strategy=two))).reason is Reason.CANARY_TOO_LARGE
    author.change(applying(Remove(NAME)))
    assert refused(author, applying(upsert(NAME, "v2", strategy=two))).reason is Reason.CANARY_TOO_LARGE


def test_two_specs_must_fit_into_one_record(author):
    """A record that history could not keep readable is refused whole."""
    many = {f"k{number:060}": "v" * 250 for number in range(64)}
    large = {"labels": many, "placement": Placement(selector=many)}
    put(author, "v1", **large)
    told = refused(author, applying(upsert(NAME, "v2", strategy=QUARTER, **large)))
    assert (told.reason, told.field) == (Reason.TOO_LARGE, "changes[0].upsert.spec")


def test_a_replica_that_drains_is_no_canary(author):
    """R20 drain: it takes nothing new."""
    two = Strategy(canary=Canary(replicas=2))
    alive(author)
    alive(author, leaving=True)
    assert refused(author, applying(upsert("other", strategy=two))).reason is Reason.CANARY_TOO_LARGE
    alive(author)
    author.change(applying(upsert("other", strategy=two)))
