"""The informer: what a record means, what is refused, and in which order adapters come."""

from __future__ import annotations

import hashlib

import pytest

from sidecar.desired import informer as module
from sidecar.desired.informer import DesiredState, Informer, record_hash
from tests.support.records import POOL, deletion, kv, put, record
from tests.support.worlds import placed_at, rolling


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


@pytest.mark.parametrize(("name", "key"), [("sql", "sql"), ("acme/sql", "acme%2Fsql"), ("Acme/SQL-x", "acme%2Fsql-x")])
def test_an_adapter_has_the_name_of_its_record_and_the_key_of_etcd(name, key):
    """R9: by the one requests ask for it, by the other it is told from its twins."""
    [(found, adapter)] = informer(kv(name, 1)).state.adapters.items()
    assert (found, adapter.key, adapter.name) == (key, key, name)


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


def test_the_hash_of_a_state_can_be_found_by_others():
    """R2 replay-equal: the checkers count it anew, so its form is written down: a sum of digests, modulo 2**256."""
    kvs = [kv(f"n{number}", number + 1) for number in range(20)]
    digests = (
        hashlib.sha256(f"n{number}\0{number + 1}\0".encode() + kvs[number].value).hexdigest() for number in range(20)
    )
    assert informer(*kvs).state.state_hash == sum(int(one, 16) for one in digests) % 2**256
    assert informer().state.state_hash == DesiredState().state_hash == 0


def test_what_is_desired_under_a_key_is_found_whether_it_is_eager_or_lazy():
    state = informer(kv("a", 1), kv("b", 2, load="lazy")).state
    assert (state.of("a"), state.of("b"), state.of("c")) == (state.adapters["a"], state.lazy["b"], None)
    assert state.lazy["b"] is not None


def test_a_list_tells_records_apart_by_revision_and_by_content():
    """R2: of two stores, records that differ may have one revision, and those that are alike two."""
    made = informer(kv("a", 1), kv("b", 2), kv("c", 3))
    other = kv("b", 2, generation=7)
    assert made.replace(20, [kv("a", 9), other, kv("c", 3)]) == ["a", "b"]
    assert (made.state.adapters["a"].revision, made.state.adapters["b"].generation) == (9, 7)
    assert made.state.state_hash == informer(kv("a", 9), other, kv("c", 3)).state.state_hash


def test_a_list_that_is_followed_takes_the_revision_back_with_it():
    """R1, R15: whether it may be, the guard has said."""
    made = informer(kv("a", 1))
    made.replace(5, [kv("a", 1)])
    assert made.state.revision == 5


def test_what_has_changed_since_is_known_for_a_while():
    """R16 bounded: whoever asks too late looks at everything."""
    made = informer()
    before = made.state.changes
    assert list(made.state.changed_since(before)) == []
    made.apply(11, [put("a", 11), put("b", 11)])
    middle = made.state.changes
    made.apply(12, [put("c", 12)])
    assert list(made.state.changed_since(before)) == ["a", "b", "c"]
    assert list(made.state.changed_since(middle)) == ["c"]
    assert made.state.changed_since(made.state.changes + 1) is None, "it was counted in another state"
    for revision in range(13, 63):
        made.apply(revision, [put("d", revision)])
    assert list(made.state.changed_since(middle)) == ["c", *("d",) * 50]
    for revision in range(63, 263):
        made.apply(revision, [put("d", revision)])
    assert made.state.changed_since(middle) is None
    assert len(made.state.recent) <= 200


def test_each_generation_that_somebody_is_to_serve_is_named_the_newest_first():
    rollout, plain, labelled = rolling("a", 5), kv("b", 1), kv("c", 1, placement=placed_at("all", zone="x"))
    adapters = informer(rollout, plain, labelled).state.adapters
    sources = {key: [(n, ref.uri[-2:]) for n, ref in one.versions] for key, one in adapters.items()}
    assert sources == {"a": [(2, "v2"), (1, "v1")], "b": [(1, "v1")], "c": [(1, "v1")]}


@pytest.mark.parametrize("prepare", [{"drop": ["mlp.gate"]}, {"a_later_field": "on"}, {"remap": "off"}])
def test_what_may_be_done_to_files_is_part_of_what_is_asked_for(prepare):
    """R4, R14: other files come of it; also where a later release wrote what this one does not know."""
    made = informer(kv("usual", 1), kv("a", 2, prepare=prepare))
    ref = made.state.adapters["a"].ref
    assert ref.prepare != made.state.adapters["usual"].ref.prepare
    assert all(name in ref.prepare for name in prepare)


def test_a_fault_of_our_own_is_not_taken_for_a_bad_record(monkeypatch):
    """Fail stop: every record would be refused for it, and that by name."""

    def broken(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(module, "parse_adapter", broken)
    with pytest.raises(RuntimeError):
        informer(kv("a", 1))
