"""The informer: what a record means, what is refused, and in which order adapters come."""

from __future__ import annotations

import pytest

from sidecar.desired.informer import Informer, record_hash
from tests.support.records import POOL, deletion, kv, put, record


def informer(*kvs) -> Informer:
    made = Informer(POOL)
    made.replace(10, kvs)
    return made


def test_a_list_becomes_adapters_in_order_of_priority_then_name():
    state = informer(kv("b", 1), kv("a", 2), kv("first", 3, priority=5), kv("lazy", 4, load="lazy")).state
    assert [key for _, key in state.order] == ["first", "a", "b"]
    assert state.revision == 10
    assert state.lazy["lazy"].generation == 1
    assert state.count == 4
    assert state.adapters["a"].request_id == "req-a-1"


def test_an_unpinned_source_is_pinned_by_pool_name_and_generation():
    state = informer(kv("acme/sql", 1, generation=4, pinned=False), kv("pinned", 2)).state
    assert state.adapters["acme%2Fsql"].ref.pin_key == "p/acme%2Fsql@4"
    assert state.adapters["pinned"].ref.pin_key == ""


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"{", "unreadable_record"),
        (b"\xff\x00", "unreadable_record"),
        (b'{"schema":2,"new":1}', "future_schema"),
        (b'{"schema":"x"}', "unreadable_record"),
        (b"[]", "unreadable_record"),
        (b'"x' + b"y" * 70_000 + b'"', "unreadable_record"),
        (record("other").to_bytes(), "key_mismatch"),
        (record("a").model_copy(update={"pool": "q"}).to_bytes(), "key_mismatch"),
        (record("a").model_copy(update={"name": "../etc"}).to_bytes(), "invalid_name"),
    ],
)
def test_a_bad_record_is_refused_by_name_and_its_last_good_generation_stays(value, reason):
    """R14 nack: refused by name, last good generation kept, all others proceed."""
    made = informer(kv("a", 1, generation=3), kv("b", 2))
    made.apply(11, [put("a", 11, value), put("b", 11, generation=2, source="v2")])
    assert made.state.refused["a"].reason == reason
    assert made.state.adapters["a"].generation == 3
    assert made.state.adapters["b"].generation == 2


def test_a_reserved_name_is_refused_without_a_last_good_generation():
    """R14 nack, for a record that was never good."""
    made = informer(kv("text", 1))
    assert made.state.refused["text"].reason == "reserved_name"
    assert "text" not in made.state.adapters


def test_a_refused_record_that_is_mended_is_followed_and_one_that_is_deleted_is_forgotten():
    made = informer(kv("a", 1), kv("b", 1))
    made.apply(11, [put("a", 11, b"?"), put("b", 11, b"?")])
    made.apply(12, [put("a", 12, b"??")])
    assert made.raw["a"].good == (kv("a", 1).value, 1)
    made.apply(13, [put("a", 13, generation=2), deletion("b", 13)])
    assert not made.state.refused
    assert dict(made.state.adapters) == {"a": made.state.adapters["a"]}
    assert made.raw["a"].good is None


def test_restoring_brings_back_good_and_refused_records():
    """R12, R14: a restart knows the last good generation of what is refused now."""
    made = informer(kv("a", 1, generation=3), kv("b", 2))
    made.apply(11, [put("a", 11, b"?")])
    again = Informer(POOL)
    again.restore(11, made.raw)
    assert again.state == made.state
    assert again.raw == made.raw


def test_a_list_is_taken_by_difference():
    made = informer(kv("a", 1), kv("b", 2))
    changed = made.replace(20, [kv("a", 1), kv("c", 15)])
    assert sorted(changed) == ["b", "c"]
    assert set(made.state.adapters) == {"a", "c"}
    assert made.state.revision == 20


def test_the_revision_never_goes_back():
    """R1 monotonic."""
    made = informer(kv("a", 1))
    made.advance(30)
    made.advance(20)
    made.apply(25, [])
    assert made.state.revision == 30


def test_the_hash_is_that_of_the_records():
    """R2 replay-equal: the hash depends on keys, revisions and values, not on how they arrived."""
    made = informer(kv("a", 1), kv("b", 2))
    made.apply(11, [deletion("b", 11), deletion("never", 11)])
    assert made.state.state_hash == record_hash("a", 1, kv("a", 1).value)


def test_many_changes_at_once_keep_the_order():
    made = informer(*(kv(f"n{i:03}", i + 1) for i in range(200)))
    made.apply(11, [deletion(f"n{i:03}", 11) for i in range(100)])
    assert [key for _, key in made.state.order] == [f"n{i:03}" for i in range(100, 200)]
