"""The informer: what a record means, what is refused, and in which order adapters come."""

from __future__ import annotations

import hashlib

import pytest
from immutables import Map

from sidecar.desired import informer as module
from sidecar.desired.informer import DesiredState, Informer
from sidecar.vllm_plugin.protocol import ExpectedAnswers, PromptedAnswer, read_expected
from tests.support.records import POOL, deletion, kv, put, record
from tests.support.worlds import placed_at, rolling


def informer(*kvs) -> Informer:
    made = Informer(POOL)
    made.replace(10, kvs)
    return made


@pytest.mark.parametrize("load", ["eager", "lazy"])
def test_what_is_disabled_is_desired_no_more_until_it_is_enabled(load):
    """R2 replay-equal, R6: its record counts as it stands; what was served of it is forgotten, as by a deletion."""
    made = informer(kv("a", 1, load=load), kv("b", 2))
    made.note_served([("a", 1)])
    off = kv("a", 11, generation=2, load=load, enabled=False)
    made.apply(11, [put("a", 11, off.value)])
    assert (made.state.of("a"), made.state.count, made.state.refused) == (None, 1, Map())
    assert made.state.state_hash == informer(off, kv("b", 2)).state.state_hash
    assert made.state.order == informer(kv("b", 2)).state.order
    made.apply(12, [put("a", 12, generation=3, load=load)])
    on = made.state.of("a")
    assert on is not None
    assert (on.generation, getattr(on, "last_good", None)) == (3, None)


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


def test_a_refused_record_that_is_mended_is_followed_and_one_that_is_deleted_is_forgotten():
    made = informer(kv("a", 1), kv("b", 1))
    made.apply(11, [put("a", 11, b"?"), put("b", 11, b"?")])
    made.apply(12, [put("a", 12, b"??")])
    assert made.raw["a"].good == (kv("a", 1).value, 1)
    made.apply(13, [put("a", 13, generation=2), deletion("b", 13)])
    assert not made.state.refused
    assert dict(made.state.adapters) == {"a": made.state.adapters["a"]}
    assert made.raw["a"].good is None


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


def test_a_list_is_taken_by_difference_and_only_a_list_takes_the_revision_back():
    """R1, R2, R15: of two stores, records that differ may have one revision, and those that are alike two."""
    made = informer(kv("a", 1), kv("b", 2), kv("c", 3), kv("d", 4, load="lazy"), kv("e", 5))
    other = kv("b", 2, generation=7)
    assert sorted(made.replace(20, [kv("a", 9), other, kv("c", 3), kv("d", 4, load="lazy")])) == ["a", "b", "e"]
    state = made.state
    assert (state.revision, state.adapters["a"].revision, state.adapters["b"].generation) == (20, 9, 7)
    assert state.state_hash == informer(kv("a", 9), other, kv("c", 3), kv("d", 4, load="lazy")).state.state_hash
    assert (state.of("a"), state.of("d"), state.of("e")) == (state.adapters["a"], state.lazy["d"], None)
    assert made.record("b").value == other.value
    made.advance(30)
    made.advance(20)
    made.apply(25, [])
    assert made.state.revision == 30
    made.replace(5, [kv("a", 9)])
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
def test_what_may_be_done_to_files_and_what_they_are_to_answer_is_part_of_what_is_asked_for(prepare):
    """R4, R14, R22: other files come of it; also where a later release wrote what this one does not know."""
    expect = {"answers": [{"prompt": [1], "tokens": [2], "logprobs": [-1.0]}], "tolerance": 0.25}
    made = informer(kv("usual", 1), kv("a", 2, prepare=prepare, expect=expect))
    ref, usual = made.state.adapters["a"].ref, made.state.adapters["usual"].ref
    assert ref.prepare != usual.prepare
    assert all(name in ref.prepare for name in prepare)
    assert usual.expect == ""
    assert read_expected(ref.expect) == ExpectedAnswers((PromptedAnswer((1,), (2,), (-1.0,)),), 0.25)


def test_a_fault_of_our_own_is_not_taken_for_a_bad_record(monkeypatch):
    """Fail stop: every record would be refused for it, and that by name."""

    def broken(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(module, "parse_adapter", broken)
    with pytest.raises(RuntimeError):
        informer(kv("a", 1))


def test_what_was_followed_from_its_making_on_is_known_whole():
    """R2: an engine may still have files of an adapter that had the name before."""
    made = Informer(POOL)
    made.replace(10, [kv("a", 1)])
    assert made.state.adapters["a"].made == 0, "nobody knows what came before the first list"
    made.apply(11, [put("a", 11, generation=2), put("b", 11)])
    assert [made.state.adapters[key].made for key in "ab"] == [0, 1]
    made.apply(12, [deletion("a", 12)])
    made.apply(13, [put("a", 13, generation=3)])
    made.apply(14, [put("a", 14, generation=4)])
    assert made.state.adapters["a"].made == 3
    made.replace(20, [put("a", 19, generation=5).kv, put("b", 11).kv])
    assert [made.state.adapters[key].made for key in "ab"] == [0, 1], "others may have come between"
    restored = Informer(POOL)
    restored.restore(20, made.raw)
    assert restored.state.adapters["b"].made == 0
