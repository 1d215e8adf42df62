"""Rollouts that canaries begin: when there is one, what all others serve meanwhile, and how it ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from registry.model.errors import Conflict, FailedPrecondition, NotFound, Reason
from registry.model.expected_answers import Expect, ExpectedAnswer
from registry.model.records import Canary, Placement, Prepare, RetiredRecord, Strategy
from registry.transactions.changes import (
    AbortRollout,
    ApplyAdapters,
    Change,
    HaltRollout,
    PromoteRollout,
    Remove,
    RollbackAdapter,
    Upsert,
)
from registry.transactions.supported import check_supported
from tests.support.changes import KEYS, POOL, Author, applying, spec, upsert
from tests.support.history_check import check_history
from tests.unit.transactions.conftest import audits, etag, lives, record, refused

NAME = "acme/a"
QUARTER, ONE, TWO = (Strategy(canary=Canary(replicas=number)) for number in ("25%", 1, 2))
PROMOTE, ABORT, BACK = PromoteRollout(POOL, NAME), AbortRollout(POOL, NAME), RollbackAdapter(POOL, NAME)


def put(source: str, **spec) -> ApplyAdapters:
    return applying(upsert(NAME, source, **{"strategy": QUARTER, **spec}))


@pytest.fixture
def author(author: Author) -> Author:
    """An adapter at generation 1, which all serve."""
    author.change(put("v1"))
    return author


V2, V3, GONE = put("v2"), put("v3"), applying(Remove(NAME))
HALT_2, HALT_3 = (HaltRollout(POOL, NAME, number, 0, "they refuse it") for number in (2, 3))
OTHERS = {"priority": 3, "labels": {"a": "b"}, "description": "d", "load": "lazy"}
EXPECT = Expect(answers=[ExpectedAnswer(prompt=[1], tokens=[2])])
# What is changed, the source that stands then, its generation, and whether all others serve the first meanwhile.
COURSES: dict[str, tuple[list[Change], tuple[str, int, bool]]] = {
    "new weights": ([V2], ("v2", 2, True)),
    "of another base": ([put("v1", base_model="other")], ("v1", 2, True)),
    "of other credentials": ([put("v1", credentials="s3")], ("v1", 2, True)),
    "prepared otherwise": ([put("v1", prepare=Prepare(dora="strip"))], ("v1", 2, True)),
    "expected to answer otherwise": ([put("v1", expect=EXPECT)], ("v1", 2, True)),
    "whatever else": ([put("v1", **OTHERS, strategy=ONE)], ("v1", 2, False)),
    "without a strategy": ([V2, put("v3", strategy=None)], ("v3", 3, False)),
    "canaries upon canaries": ([V2, V3], ("v3", 3, True)),
    "the weights of the others": ([V2, put("v1", priority=1)], ("v1", 3, False)),
    "tried anew": ([V2, HALT_2, put("v2", priority=1)], ("v2", 3, True)),
    "the same again": ([V2, V2], ("v2", 2, True)),
    "promoted": ([V2, HALT_2, PROMOTE], ("v2", 2, False)),
    "aborted": ([put("v2", priority=5), ABORT], ("v1", 3, False)),
    "aborted after a promotion": ([V2, PROMOTE, V3, HALT_3, ABORT], ("v2", 4, False)),
    "deleted, and new": ([V2, GONE, V3], ("v3", 3, False)),
    "rolled back": ([V2, PROMOTE, V3, BACK], ("v2", 4, False)),
    "rolled back to itself": ([V2, replace(BACK, to_generation=2)], ("v2", 2, False)),
    "rolled back from what canaries refuse": ([V2, HALT_2, V3, BACK], ("v1", 4, False)),
    "rolled back past an abortion": ([V2, PROMOTE, V3, ABORT, put("v5", strategy=None), BACK], ("v2", 6, False)),
    "rolled back to what only canaries had": ([V2, ABORT, replace(BACK, to_generation=2)], ("v2", 4, False)),
    "rolled back to a number": ([V2, PROMOTE, V3, replace(BACK, to_generation=1)], ("v1", 4, False)),
    "rolled back from an abortion": ([V2, ABORT, BACK], ("v1", 3, False)),
    "rolled back to what history forgot": ([*(put(f"v{n}") for n in range(2, 16)), BACK], ("v1", 16, False)),
    "deleted, and rolled back": ([V2, GONE, BACK], ("v1", 3, False)),
}


@pytest.mark.parametrize(("course", "end"), COURSES.values(), ids=COURSES)
def test_what_all_serve_is_never_what_only_canaries_have_seen(author, course, end):
    """W2, W6, W7: unless its number is given, or it is promoted."""
    first = record(author).spec
    for change in course:
        author.change(replace(change, etag=etag(author)) if isinstance(change, HaltRollout) else change)
    found = record(author)
    assert (found.spec.source.uri.rpartition("/")[2], found.generation, found.rollout is not None) == end
    if found.rollout:
        assert (found.rollout.stable_generation, found.rollout.stable_spec, found.rollout.halted) == (1, first, "")
    check_history(KEYS, author.etcd.history)


def test_promotion_is_the_same_generation_for_all(author):
    """W2, W3, W7: one revision with its audit record; history has nothing to keep."""
    author.change(V2)
    before = record(author)
    author.change(PROMOTE, "q")
    after = record(author)
    assert after == before.model_copy(update={"rollout": None})
    assert KEYS.history(POOL, NAME, 2) not in author.etcd.kvs
    audit = audits(author)[-1]
    assert (audit.method, audit.request_id) == ("PromoteRollout", "q")
    assert author.change(PROMOTE, "q").reply.adapters[0].record == after


def test_who_takes_canaries_back_leaves_where_it_is_served(author):
    """A2 deny-by-default: whoever may end a rollout has nothing served again that somebody disabled, nor moves it to
    where it was. What else came with the weights goes with them.
    """
    author.change(applying(upsert(NAME, "v2", strategy=ONE, labels={"step": "2"})))
    meant = {"enabled": False, "priority": 3, "placement": Placement(selector={"zone": "a"})}
    author.change(applying(upsert(NAME, "v2", strategy=ONE, labels={"step": "2"}, **meant)))
    assert record(author).rollout is not None
    author.change(applying(upsert(NAME, "v3", strategy=ONE, labels={"step": "3"}, **meant)))
    author.change(ABORT)
    found = record(author)
    assert (found.spec, found.rollout) == (spec(strategy=QUARTER, **meant), None)


def test_who_takes_canaries_back_of_what_was_lazy_makes_nothing_that_no_sidecar_does(author):
    """W6: all replicas load it at once when it becomes eager, and a placement is of eager adapters alone."""
    author.change(put("v1", load="lazy", strategy=None))
    author.change(put("v2", strategy=ONE, placement=Placement(replicas=2)))
    author.change(ABORT)
    assert record(author).spec == spec(strategy=None, placement=Placement(replicas=2))
    check_supported(record(author).spec, field="spec")


def test_who_takes_canaries_back_leaves_no_more_of_them_than_there_are_places(author):
    """W6: else whoever publishes next, and says nothing of canaries, is refused; so is a backup of that."""
    three = Strategy(canary=Canary(replicas=3))
    author.change(put("v1", strategy=three, placement=Placement(replicas=3)))
    author.change(put("v2", strategy=ONE, placement=Placement(replicas=2)))
    author.change(ABORT)
    assert record(author).spec == spec("v1", strategy=ONE, placement=Placement(replicas=2))
    author.change(applying(Upsert(NAME, spec("v3"), fields=("source",))))
    assert record(author).rollout.stable_generation == 4


def test_history_tells_of_what_never_got_past_its_canaries(author):
    """W6: a halt that is told again is none, and a rollback from an abortion changes nothing."""
    author.change(V2)
    author.change(replace(HALT_2, etag=etag(author)))
    assert record(author).rollout.halted == "they refuse it"
    revision = author.etcd.revision
    author.change(replace(HALT_2, etag=etag(author)))
    assert author.etcd.revision == revision
    author.change(ABORT)
    kept = RetiredRecord.parse(author.etcd.kvs[KEYS.history(POOL, NAME, 2)].value)
    assert kept.rollout.stable_generation == 1
    assert author.change(BACK).reply.adapters[0].outcome == "unchanged"


def test_records_that_somebody_else_wrote(author):
    """W6: what is damaged has nothing to go back to, and others may be said to serve the very same."""
    author.change(V2)
    second = record(author)
    author.etcd.put(KEYS.adapter(POOL, NAME), b"?")
    author.change(V3)
    assert record(author).rollout is None
    odd = second.rollout.model_copy(update={"stable_spec": second.spec})
    author.etcd.put(KEYS.adapter(POOL, NAME), second.model_copy(update={"rollout": odd}).to_bytes())
    author.change(ABORT)
    assert (record(author).generation, record(author).rollout) == (2, None)


def test_what_others_serve_is_gone_back_to_whatever_became_of_history(author):
    """W6: the record itself says what that is."""
    author.change(V2)
    author.etcd.delete(KEYS.history(POOL, NAME, 1))
    author.change(BACK)
    assert (record(author).spec.source.uri.rpartition("/")[2], record(author).generation) == ("v1", 3)


@pytest.mark.parametrize("kind", [PromoteRollout, AbortRollout])
def test_refusals(author, kind):
    none = refused(author, kind(POOL, NAME))
    assert (type(none), none.reason) == (FailedPrecondition, Reason.NO_ROLLOUT)
    author.change(V2)
    assert refused(author, kind(POOL, NAME, 0, etag(author) - 1)).reason is Reason.ETAG_MISMATCH
    other = refused(author, kind(POOL, NAME, 1))
    assert (type(other), other.reason, other.metadata) == (Conflict, Reason.GENERATION_MISMATCH, {"generation": "2"})
    absent = refused(author, kind(POOL, "acme/none"))
    assert (type(absent), absent.reason) == (NotFound, Reason.ADAPTER_NOT_FOUND)
    assert refused(author, kind("q", NAME)).reason is Reason.POOL_NOT_FOUND


ONLY_A = {"placement": Placement(selector={"zone": "a"})}
ZONES = [{"labels": {"zone": zone}} for zone in "ab"]
# Those who live, what is asked for, and how many replicas there are for it; None: enough.
LIVING = {
    "nobody, so nothing can be said": ([], {"strategy": TWO}, None),
    "one": ([{}], {"strategy": TWO}, "1"),
    "one that cannot be read": ([{}, {"readable": False}], {"strategy": TWO}, None),
    "a presence alone": ([{"reports": False}], {"strategy": TWO}, None),
    "a presence alone, beside one": ([{}, {"reports": False, "readable": False}], {"strategy": TWO}, "1"),
    "an earlier release": ([{"by_reports": False}, {"reports": False}], {"strategy": TWO}, None),
    "one that drains": ([{}, {"leaving": True}], {"strategy": TWO}, "1"),
    "both": (ZONES, {"strategy": TWO}, None),
    "one of them placed": (ZONES, {"strategy": TWO} | ONLY_A, "1"),
    "a share, which always fits": (ZONES, ONLY_A, None),
}


@pytest.mark.parametrize(("living", "spec", "found"), LIVING.values(), ids=LIVING)
def test_canaries_are_replicas_that_live(author, living, spec, found):
    """X2, R20: a number that somebody makes up who only writes to etcd would give new weights to all at once."""
    for number, says in enumerate(living):
        lives(author, f"r{number}", **says)
    if found is None:
        author.change(put("v2", **spec))
        assert record(author).rollout is not None
        return
    told = refused(author, put("v2", **spec))
    assert (type(told), told.reason, told.field, told.metadata) == (
        FailedPrecondition,
        Reason.CANARY_TOO_LARGE,
        "changes[0].upsert.spec.strategy.canary.replicas",
        {"canaries": "2", "replicas": found},
    )


def test_a_replica_that_goes_forbids_no_other_change(author):
    """Only where the number is new, or canaries are about to begin, does it have to be there."""
    lives(author, "one")
    assert refused(author, put("v1", strategy=TWO)).reason is Reason.CANARY_TOO_LARGE
    lives(author, "other")
    author.change(put("v1", strategy=TWO))
    author.etcd.delete(KEYS.replica(POOL, "other"))
    author.change(put("v1", strategy=TWO, priority=1))
    assert record(author).generation == 3
    assert refused(author, put("v2", strategy=TWO)).reason is Reason.CANARY_TOO_LARGE
    author.change(GONE)
    assert refused(author, put("v2", strategy=TWO)).reason is Reason.CANARY_TOO_LARGE


def test_two_specs_must_fit_into_one_record(author):
    """A record that history could not keep readable is refused whole."""
    many = {f"k{number:060}": "v" * 250 for number in range(64)}
    large = {"labels": many, "placement": Placement(selector=many)}
    author.change(put("v1", **large))
    told = refused(author, put("v2", **large))
    assert (told.reason, told.field) == (Reason.TOO_LARGE, "changes[0].upsert.spec")
