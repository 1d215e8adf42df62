"""History of a backup: put behind what stands, never over it, and explained to the replay."""

from __future__ import annotations

import pytest

from registry.etcd3.ops import Put, Txn
from registry.model.errors import InvalidArgument, Reason
from registry.model.records import AdapterRecord, RetiredRecord
from registry.transactions.changes import Remove, RestoreHistory, tenants_of
from registry.transactions.validate import make_restore_history
from tests.support.changes import KEYS, POOL, Author, applying, upsert
from tests.support.history_check import check_history
from tests.unit.transactions.conftest import record as record_of
from tests.unit.transactions.conftest import refused

NAME = "acme/a"


def kept(author: Author) -> list[int]:
    prefix = KEYS.history_of(POOL, NAME)
    return sorted(int(key.rsplit(b"/", 1)[1]) for key in author.etcd.kvs if key.startswith(prefix))


@pytest.fixture
def saved(author: Author) -> tuple[tuple[RetiredRecord, ...], AdapterRecord]:
    """Twelve generations of an adapter that the author's own store never had: eleven retired, and the last."""
    author.change(applying(upsert("x")))
    one = record_of(author, "x").model_copy(update={"name": NAME, "tenant": "acme"})
    made = [one.model_copy(update={"generation": number}) for number in range(1, 13)]
    values = [each.model_dump(by_alias=True) | {"retired_by_request": "r", "deleted": False} for each in made[:-1]]
    return tuple(map(RetiredRecord.model_validate, values)), made[-1]


def test_names_go_on_from_the_backup(author, saved):
    """W2, W6, W7: history keeps ten; the newest goes in last; the next generation is one more."""
    change = RestoreHistory(POOL, NAME, *saved)
    assert tenants_of(change) == ("acme",)
    assert author.change(change).reply.etag is None
    assert kept(author) == list(range(3, 12))
    assert author.change(change).reply.etag is None
    assert kept(author) == list(range(3, 13))
    assert RetiredRecord.parse(author.etcd.kvs[KEYS.history(POOL, NAME, 12)].value).deleted
    assert author.change(change).reply.etag == 0
    author.change(applying(upsert(NAME)))
    assert record_of(author, NAME).generation == 13
    check_history(KEYS, author.etcd.history)


def test_what_stands_is_not_written_over_nor_put_before(author, saved):
    """W6 one-digest: a name that has gone further than the backup keeps its own history."""
    for priority in range(3):
        author.change(applying(upsert(NAME, f"v{priority}")))
    author.change(applying(Remove(NAME)))
    before = dict(author.etcd.kvs)
    retired, _ = saved
    assert author.change(RestoreHistory(POOL, NAME, retired[:3], None)).reply.etag == 0
    assert {key: kv for key, kv in author.etcd.kvs.items() if b"/history/" in key} == {
        key: kv for key, kv in before.items() if b"/history/" in key
    }


def test_an_adapter_that_exists_has_a_history_of_its_own(author, saved):
    author.change(applying(upsert(NAME)))
    assert "has a history of its own" in str(refused(author, RestoreHistory(POOL, NAME, *saved)))


def test_history_of_a_pool_that_is_not_there_is_refused(author, saved):
    """Nobody would ever see it, nor take it away."""
    told = refused(author, RestoreHistory("gone", NAME, *saved))
    assert (told.reason, told.field) == (Reason.POOL_NOT_FOUND, "pool")


@pytest.mark.parametrize("standing", [True, False])
def test_the_replay_finds_history_that_was_written_over(author, saved, standing):
    """W6 one-digest: of a name that stands, or where something stood."""
    author.change(applying(upsert(NAME), upsert("other")))
    author.change(applying(upsert(NAME, "v2")))
    if not standing:
        author.change(applying(Remove(NAME)))
    key = KEYS.history(POOL, NAME, 1)
    author.etcd.txn(Txn((), (Put(key, saved[0][0].to_bytes()),)))
    with pytest.raises(AssertionError, match="history of what exists was written anew"):
        check_history(KEYS, author.etcd.history)


def test_only_records_of_that_adapter(saved):
    retired, last = saved
    value = retired[0].to_bytes()
    made = make_restore_history(POOL, NAME, [value], last.to_bytes())
    assert (made.generations, made.last) == (retired[:1], last)
    assert make_restore_history(POOL, NAME, [], b"").last is None
    for told, arguments in {
        "stands twice": (POOL, NAME, [value, value], b""),
        "is a record of": (POOL, "acme/z", [value], b""),
        "Field required": (POOL, NAME, [], b"{}"),
    }.items():
        with pytest.raises(InvalidArgument, match=told):
            make_restore_history(*arguments)
