"""History of a backup: put behind what stands, never over it, and explained to the replay."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from registry.access.principal import operator
from registry.model.errors import InvalidArgument, Reason
from registry.model.records import AdapterRecord, Restoration, RetiredRecord
from registry.model.stored import MAX_RECORD_BYTES
from registry.transactions.changes import Remove, RestoreHistory, RollbackAdapter
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


def restoring(*generations: int, name: str = NAME) -> RestoreHistory:
    """A history of these generations, as somebody gives it."""
    values = [
        {
            "name": name,
            "pool": POOL,
            "tenant": "acme",
            "generation": one,
            "spec": {"source": {"uri": f"file:///theirs/{one}"}},
            "updated_at": "2020-01-01T00:00:00Z",
            "updated_by": "carol",
            "retired_by_request": "",
            "deleted": False,
        }
        for one in generations
    ]
    return make_restore_history(POOL, name, [json.dumps(one).encode() for one in values], b"")


@pytest.mark.parametrize(
    ("standing", "told", "field"),
    [
        (0, [2**53 - 1], "generations[0].generation"),
        (0, [1_000_000_001], "generations[0].generation"),
        (0, [5, 1006], "generations[1].generation"),
        (3, [4, 2**53 - 1], "generations[1].generation"),
        (3, [1004], "generations[0].generation"),
        (3, [1003], ""),
        (0, [*range(49_991, 50_001)], ""),
        (0, [1_000_000_000], ""),
    ],
)
def test_no_name_is_used_up_by_what_somebody_restores(author, standing, told, field):
    """X3 given-back: a generation is at most 1,000 above the newest known, so that its name has a next one."""
    for priority in range(standing):
        author.change(applying(upsert(NAME, f"v{priority}")))
    if standing:
        author.change(applying(Remove(NAME)))
    change = restoring(*told)
    if field:
        error = refused(author, change)
        assert (error.reason, error.field) == (Reason.GENERATION_TOO_HIGH, field)
    else:
        while author.change(change).reply.etag is None:
            pass
        author.change(applying(upsert(NAME)))
        # What was never deleted was followed by a generation that is lost.
        assert record_of(author, NAME).generation == told[-1] + 2
    last = restoring(2**53 - 1, name="acme/other").generations[0]
    error = refused(author, RestoreHistory(POOL, "acme/other", (), last))
    assert (error.reason, error.field) == (Reason.GENERATION_TOO_HIGH, "last.generation")


def test_a_past_that_somebody_else_tells_is_served_only_where_it_is_asked_for(author):
    """W7 audit-complete: who restored a generation stands in it, whatever it says itself, and in its audit record."""
    mallory = replace(author, principal=operator("mallory"))
    change = restoring(1, 2)
    claimed = Restoration(principal="alice", at="2020-01-01T00:00:00Z")
    faked = [one.model_copy(update={"restored_by": claimed}) for one in change.generations]
    while mallory.change(replace(change, generations=tuple(faked))).reply.etag is None:
        pass
    marks = [
        RetiredRecord.parse(author.etcd.kvs[KEYS.history(POOL, NAME, number)].value).restored_by for number in (1, 2)
    ]
    assert [one.principal for one in marks if one is not None] == ["mallory", "mallory"]
    assert claimed.at not in {one.at for one in marks if one is not None}
    for wanted in (0, 1, 2):
        error = refused(author, RollbackAdapter(POOL, NAME, wanted))
        assert (error.reason, error.field) == (Reason.GENERATION_RESTORED, "restored")
        assert "mallory restored it at 2026-01-01T" in error.message
        assert "--restored" in error.message
    author.change(RollbackAdapter(POOL, NAME, 1, restored=True))
    assert record_of(author, NAME).spec.source.uri == "file:///theirs/1"
    author.change(applying(upsert(NAME, "mine")))
    author.change(RollbackAdapter(POOL, NAME))  # W6: to what was retired here nobody has to say a word
    assert record_of(author, NAME).spec.source.uri == "file:///theirs/1"
    check_history(KEYS, author.etcd.history)


def test_history_does_not_grow_with_each_restoration(author):
    """R16 bounded: what is older than history keeps goes, as it does with a change."""
    for first in range(1, 4001, 1000):
        change = restoring(*range(first, first + 10))
        while author.change(change).reply.etag is None:
            pass
        assert kept(author) == list(range(first, first + 10))


def test_a_record_that_would_be_too_large_with_its_mark_is_refused(author):
    """R14 nack: nobody could read it."""
    (one,) = restoring(1).generations
    room = MAX_RECORD_BYTES - len(one.to_bytes())
    long = one.model_copy(update={"spec": one.spec.model_copy(update={"x": "y" * (room - 8)})})
    assert len(long.to_bytes()) <= MAX_RECORD_BYTES
    error = refused(author, RestoreHistory(POOL, NAME, (long,), None))
    assert (error.reason, error.field) == (Reason.TOO_LARGE, "generations")


def test_fields_that_only_a_later_release_knows_are_restored_too(author):
    """R14 nack: of the record, of its spec, and of who restored it before."""
    more = {"signed": 1, "restored_by": {"principal": "x", "at": "t", "why": "y"}}
    (one,) = restoring(1).generations
    value = one.model_dump(by_alias=True) | more
    value["spec"] |= {"quantized": True}
    author.change(make_restore_history(POOL, NAME, [json.dumps(value).encode()], b""))
    stands = json.loads(author.etcd.kvs[KEYS.history(POOL, NAME, 1)].value)
    assert (stands["signed"], stands["spec"]["quantized"]) == (1, True)
    assert stands["restored_by"]["principal"] == "alice"


def spec(uri: str = "s3://b/x", **fields: object) -> dict[str, object]:
    return {"spec": {"source": {"uri": uri}, **fields}}


def rollout(generation: int = 1, uri: str = "s3://b/x", **fields: object) -> dict[str, object]:
    return {"rollout": {"stable_generation": generation, "stable_spec": {"source": {"uri": uri}}, **fields}}


CANARIES = {"placement": {"replicas": 1}, "strategy": {"canary": {"replicas": 2}}}
WRONG: dict[str, tuple[dict[str, object], str]] = {
    "no generation": ({"generation": 0}, "generation"),
    "a generation that is no number": ({"generation": "4"}, "generation"),
    "no uri": (spec("nonsense"), "spec.source.uri"),
    "a scheme of nobody": (spec("ftp://x/y"), "spec.source.uri"),
    "a line break in a label": (spec(labels={"a": "b\nc"}), "spec.labels.a"),
    "a line break in a text": (spec(description="a\nb"), "spec.description"),
    "lazy, and placed": (spec(load="lazy", placement={"replicas": 1}), "spec.placement"),
    "a priority without end": (spec(priority=10**9), "spec.priority"),
    "another letter that is read as the same": ({"name": "acme/\u212a"}, "name"),
    "another tenant": ({"tenant": "victim"}, "tenant"),
    "no time": ({"updated_at": "yesterday"}, "updated_at"),
    "a line break in an author": ({"updated_by": "a\nb"}, "updated_by"),
    "an author without end": ({"updated_by": "a" * 1025}, "updated_by"),
    "no request": ({"request_id": "a b"}, "request_id"),
    "no request that replaced it": ({"retired_by_request": "a/b"}, "retired_by_request"),
    "no request for a retry": ({"retry": {"request_id": "a b"}}, "retry.request_id"),
    "what others serve, refused": (rollout(uri="ftp://x"), "rollout.stable_spec.source.uri"),
    "what others serve, later": (rollout(4), "rollout.stable_generation"),
    "a halt without end": (rollout(halted="a" * 1025), "rollout.halted"),
    "nobody who restored it": ({"restored_by": 5}, "restored_by"),
}


@pytest.mark.parametrize(("fields", "at"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("is_last", [False, True])
def test_what_no_change_could_make_is_not_restored(fields, at, is_last):
    """X2 unbreakable: each field is what a change has to have there, and is named as one names it."""
    if is_last and at in {"retired_by_request", "restored_by"}:
        pytest.skip("a present record has no such field of ours")
    name = "acme/k" if at == "name" else NAME
    (one,) = restoring(3, name=name).generations
    value = json.dumps(one.model_dump(by_alias=True) | fields).encode()
    with pytest.raises(InvalidArgument) as told:
        make_restore_history(POOL, name, [] if is_last else [value], value if is_last else b"")
    assert told.value.field == ("last." if is_last else "generations[0].") + at
    assert "\n" not in told.value.message


@pytest.mark.parametrize(
    "fields", [spec(**CANARIES), rollout(stable_spec=spec(**CANARIES)["spec"])], ids=["its own", "of all others"]
)
def test_more_canaries_than_places_are_restored(fields):
    """W6: releases before this one left them behind where canaries were taken back."""
    (one,) = restoring(3).generations
    value = json.dumps(one.model_dump(by_alias=True) | fields).encode()
    assert make_restore_history(POOL, NAME, [value], b"").generations[0].generation == one.generation


def test_a_generation_of_canaries_is_restored_as_it_was():
    """W6 one-digest: with what all others served; and of a later release's record nothing is guessed."""
    (one,) = restoring(3).generations
    stable = {"stable_generation": 2, "stable_spec": {"source": {"uri": "file:///theirs/2"}}}
    value = one.model_dump(by_alias=True) | {"rollout": stable}
    (made,) = make_restore_history(POOL, NAME, [json.dumps(value).encode()], b"").generations
    assert made.rollout is not None
    assert made.rollout.stable_generation == 2
    with pytest.raises(InvalidArgument) as told:
        make_restore_history(POOL, NAME, [json.dumps(value | {"schema": 2}).encode()], b"")
    assert (told.value.reason, told.value.field) == (Reason.FUTURE_SCHEMA, "generations[0]")
    with pytest.raises(InvalidArgument) as told:
        make_restore_history(POOL, NAME, [b"?"] * 65, b"")
    assert (told.value.reason, told.value.field) == (Reason.TOO_LARGE, "generations"), "before any is read"
    with pytest.raises(InvalidArgument) as told:
        make_restore_history(POOL, NAME, [b"?"] * 64, b"")
    assert told.value.field == "generations[0]", "so many are looked at"


@pytest.mark.parametrize("calls", [1, 2, 9, 10, 11])
def test_a_name_goes_on_from_wherever_its_restoration_broke_off(author, saved, calls):
    """W2, W6, W7: history keeps ten, each put in by itself, the newest last, and no generation of it is given again."""
    change = RestoreHistory(POOL, NAME, *saved)
    for newest in range(3, 3 + calls):
        assert author.change(change).reply.etag == (0 if newest == 13 else None)
        assert kept(author) == list(range(3, min(newest, 12) + 1))
    author.change(applying(upsert(NAME)))
    # What was never deleted was followed by a generation that is lost; the last one was.
    assert record_of(author, NAME).generation == (calls + 4 if calls < 10 else 13)
    check_history(KEYS, author.etcd.history)


def test_what_exists_has_a_history_of_its_own_and_what_is_in_no_pool_has_none(author, saved):
    author.change(applying(upsert(NAME)))
    assert "has a history of its own" in str(refused(author, RestoreHistory(POOL, NAME, *saved)))
    told = refused(author, RestoreHistory("gone", NAME, *saved))
    assert (told.reason, told.field) == (Reason.POOL_NOT_FOUND, "pool")
