"""A time to live in a record: what it changes, what it does not, and the transaction that ends an adapter."""

from __future__ import annotations

from typing import Any

import pytest

from registry.model.errors import Conflict, InvalidArgument, NotFound, Reason
from registry.model.records import Canary, PoolSpec, RetiredRecord, Strategy, TenantRecord
from registry.transactions.changes import AbortRollout, ExpireAdapter, PromoteRollout, Remove, RollbackAdapter
from registry.transactions.steps import later
from registry.transactions.supported import check_engine_can, check_supported
from registry.transactions.validate import make_update
from tests.support.changes import KEYS, POOL, Author, applying, spec, upsert
from tests.support.history_check import check_history
from tests.unit.transactions.conftest import audits, etag, record, refused

NAME = "acme/a"
TTL = 600


def put(source: str = "v1", **spec: Any):
    return applying(upsert(NAME, source, **spec))


def ending(author: Author) -> ExpireAdapter:
    return ExpireAdapter(POOL, NAME, etag(author))


def test_what_has_ended_is_deleted_with_history_counter_and_a_reason_in_the_audit(author: Author):
    """R25 ends-once, W2, W5, W7: quotas count what lives."""
    author.change(put(ttl_seconds=TTL))
    ending_now = ending(author)
    ended = author.change(ending_now, "expire-1")
    assert ended.reply.adapters[0].outcome == "deleted"
    assert KEYS.adapter(POOL, NAME) not in author.etcd.kvs
    retired = RetiredRecord.parse(author.etcd.kvs[KEYS.history(POOL, NAME, 1)].value)
    assert (retired.deleted, retired.spec.ttl_seconds) == (True, TTL)
    assert TenantRecord.parse(author.etcd.kvs[KEYS.tenant("acme")].value).adapters == 0
    assert [(one.method, one.reason) for one in audits(author) if one.reason] == [("ExpireAdapter", "ttl")]
    check_history(KEYS, author.etcd.history)
    again = author.change(ending_now, "expire-1")
    assert again == ended, "who asks with the same id gets the same answer, and changes nothing"
    author.change(put("v2"))
    assert record(author).generation == 2


def test_what_was_written_meanwhile_does_not_end(author: Author):
    """R25 ends-once: the etag says which record had ended."""
    author.change(put(ttl_seconds=TTL))
    before = ending(author)
    author.change(put("v2", ttl_seconds=TTL))
    assert refused(author, before).reason is Reason.ETAG_MISMATCH
    author.change(put("v2"))
    forever = refused(author, ending(author))
    assert (type(forever), forever.message) == (Conflict, "'acme/a' has no ttl, so it does not end")
    author.change(applying(Remove(NAME)))
    assert isinstance(refused(author, before), NotFound)
    check_history(KEYS, author.etcd.history)


@pytest.mark.parametrize("before", [None, TTL])
def test_another_ttl_is_no_other_generation(author: Author, before: int | None):
    """W6: nothing is loaded anew, and history has nothing to keep; the time begins anew."""
    author.change(put(ttl_seconds=before))
    first = record(author)
    author.change(put(ttl_seconds=2 * TTL))
    now = record(author)
    assert now == first.model_copy(update={"spec": now.spec, "expires_at": now.expires_at})
    assert now.expires_at is not None
    assert (now.spec.ttl_seconds, now.expires_at > later(now.updated_at, 2 * TTL)) == (2 * TTL, True)
    author.change(put(ttl_seconds=None))
    assert (record(author).expires_at, record(author).generation) == (None, 1)
    author.change(put("v2", ttl_seconds=TTL))
    assert (record(author).generation, record(author).expires_at is None) == (2, False)
    assert not [key for key in author.etcd.kvs if key.startswith(KEYS.history(POOL, NAME, 2))]
    check_history(KEYS, author.etcd.history)


def test_going_back_changes_the_weights_and_not_how_long_it_lives(author: Author):
    """W6: by roll-back, and by the end of a rollout amid which it was changed; which goes on meanwhile."""
    strategy = Strategy(canary=Canary(replicas=1))
    author.change(put(strategy=strategy, ttl_seconds=TTL))
    author.change(put("v2", strategy=strategy, ttl_seconds=TTL))
    update = make_update(NAME, {"ttl_seconds": 3 * TTL}, ["ttl_seconds"], "", field="changes[0]")
    author.change(applying(update))
    amid = record(author)
    assert (amid.generation, amid.rollout is not None, amid.spec.ttl_seconds) == (2, True, 3 * TTL)
    author.change(AbortRollout(POOL, NAME))
    assert (record(author).spec.source.uri[-2:], record(author).spec.ttl_seconds) == ("v1", 3 * TTL)
    author.change(RollbackAdapter(POOL, NAME, 2))
    assert (record(author).spec.source.uri[-2:], record(author).spec.ttl_seconds) == ("v2", 3 * TTL)
    author.change(put("v3", strategy=strategy, ttl_seconds=TTL))
    author.change(PromoteRollout(POOL, NAME))
    assert (record(author).generation, record(author).spec.ttl_seconds) == (5, TTL)
    check_history(KEYS, author.etcd.history)


@pytest.mark.parametrize("seconds", [0, -1, 9, 315_360_001])
def test_a_ttl_that_nobody_can_keep_is_refused_with_what_to_write(seconds: int):
    """R14 nack: it would end at once, or before anybody looks."""
    with pytest.raises(InvalidArgument) as error:
        make_update(NAME, {"ttl_seconds": seconds}, ["ttl_seconds"], "", field="changes[0]")
    assert error.value.field == "changes[0].update.spec.ttl_seconds"
    assert error.value.message.startswith("use a whole number of seconds from 10 to 315360000")


def test_the_time_of_an_end():
    assert later("2026-12-31T23:59:59.500Z", 1) == "2027-01-01T00:00:00.500Z"


def test_where_a_ttl_begins_is_none_of_a_generations_and_needs_a_ttl(author: Author):
    """R25: a change of it alone makes none; and what nobody can tell of is refused with what to write instead."""
    author.change(put(ttl_seconds=TTL))
    author.change(put(ttl_seconds=TTL, ttl_from="use"))
    assert (record(author).generation, record(author).spec.ttl_from) == (1, "use")
    for load in ("eager", "lazy"):
        check_supported(spec("v1", ttl_seconds=TTL, ttl_from="use", load=load), field="spec")
    with pytest.raises(InvalidArgument) as told:
        check_supported(spec("v1", ttl_from="use"), field="spec")
    assert told.value.field == "spec.ttl_from"


def test_engines_that_tell_no_uses_take_no_ttl_from_a_use():
    pool = PoolSpec(name="p", base_models=["b"], engine="sglang")
    with pytest.raises(InvalidArgument) as told:
        check_engine_can(pool, spec("v1", ttl_seconds=TTL, ttl_from="use"), field="spec")
    assert (told.value.field, told.value.reason) == ("spec.ttl_from", Reason.UNSUPPORTED)
