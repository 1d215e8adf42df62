"""The replay checker finds what is wrong: a good history, and one deliberate wrong in it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from registry.etcd3.ops import Event, Put, Txn
from registry.model.keys import last_part
from registry.model.records import AdapterRecord, AdapterSpec, Canary, CanaryRollout, SourceSpec, Strategy
from registry.model.status import Presence
from registry.tools.verify.history import HistoryBase, Revision, Step
from registry.tools.verify.replay import replay
from registry.tools.verify.replicas import EngineListing, check_listings
from registry.transactions.changes import ApplyAdapters, DrainReplica, HaltRollout, PromoteRollout, Upsert
from sidecar.desired.informer import record_hash
from tests.support.changes import KEYS, POOL, Author, applying, creating, upsert
from tests.support.memory_etcd import MemoryEtcd
from tests.unit.verify.conftest import found, steps_of


def without(steps: list[Step], at: int, part: str) -> list[Step]:
    """The history in which one revision lacks the keys with `part`."""
    return [
        replace(step, events=tuple(event for event in step.events if part.encode() not in event.key))
        if isinstance(step, Revision) and step.revision == at
        else step
        for step in steps
    ]


def rewritten(steps: list[Step], at: int, part: str, **fields: object) -> list[Step]:
    """The history in which a value of one revision has other fields."""

    def other(event: Event) -> Event:
        if event.kv is None or part.encode() not in event.key:
            return event
        value = json.dumps(json.loads(event.kv.value) | fields).encode()
        return replace(event, kv=replace(event.kv, value=value))

    return [
        replace(step, events=tuple(map(other, step.events)))
        if isinstance(step, Revision) and step.revision == at
        else step
        for step in steps
    ]


def test_a_good_history_has_no_findings(author):
    fold = replay(KEYS, steps_of(author))
    assert (fold.findings, sorted(fold.changing)) == ([], [1, 2, 3, 4, 5, 6])


@pytest.mark.parametrize(
    ("at", "part", "expected"),
    [
        (3, "/audit/", ("W7", 3)),
        (3, "/history/", ("W2", 3)),
        (3, "/requests/", ("W2", 3)),
        (2, "/tenants/", ("W5", 2)),
        (4, "/adapters/", ("W7", 4)),
    ],
)
def test_a_missing_part_of_a_change_is_found(author, at, part, expected):
    """W2 atomic-set, W5 quota-never, W7 audit-complete."""
    assert expected in found(without(steps_of(author), at, part))


@pytest.mark.parametrize(
    ("at", "part", "fields", "expected"),
    [
        (3, "/adapters/", {"generation": 5}, ("W6", 3)),
        (6, "/tenants/", {"max_adapters": 0}, ("W5", 6)),
        (4, "/tenants/", {"adapters": 1}, ("W5", 4)),
        (3, "/audit/", {"request_id": "q9"}, ("W7", 3)),
        (3, "/audit/", {"principal": ""}, ("W7", 3)),
        (3, "/audit/", {"changes": []}, ("W7", 3)),
        (3, "/history/", {"name": "other"}, ("W2", 3)),
    ],
)
def test_a_wrong_value_is_found(author, at, part, fields, expected):
    """W2, W5, W6 one-digest, W7."""
    assert expected in found(rewritten(steps_of(author), at, part, **fields))


def test_what_is_written_past_the_admin_service_is_no_deletion(author):
    """W7, W5: it is told for what it is."""
    first = next(event for event in steps_of(author)[1].events if b"/adapters/" in event.key)
    other = first.key.replace(b"%2Fa", b"%2Fc")
    author.etcd.put(other, first.kv.value)
    told = [(one.guarantee, one.message) for one in replay(KEYS, steps_of(author)).findings]
    assert told == [
        ("W5", "its counter says 1, it has 2 adapters"),
        ("W7", "0 audit records for 1 changes"),
    ]


def test_the_hash_of_a_pool_is_what_a_sidecar_says_of_the_same_records(author):
    """R2: after each revision, with what came, was replaced and went."""
    fold = replay(KEYS, steps_of(author))
    assert fold.hash_at(POOL, 1) == 0
    stands: dict[str, int] = {}
    for revision, events in author.etcd.history:
        for event in (one for one in events if b"/adapters/" in one.key):
            key = last_part(event.key)
            stands.pop(key, None)
            stands |= {key: record_hash(key, revision, event.kv.value)} if event.kv else {}
        assert fold.hash_at(POOL, revision) == sum(stands.values()) % (1 << 256), revision
    assert len(stands) == 1


def test_the_same_spec_under_a_new_generation_is_found(author):
    """W6: one more if and only if the spec changed."""
    steps = steps_of(author)
    first = next(event for event in steps[1].events if b"/adapters/" in event.key)
    spec = json.loads(first.kv.value)["spec"]
    assert ("W6", 3) in found(rewritten(steps, 3, "/adapters/", spec=spec))


def canaried() -> Author:
    """Generation 1 for all at 2; 2 for canaries at 3, halted at 4, for all at 5; 3 and 4 for canaries."""
    made = Author(MemoryEtcd(revision=0))
    strategy = Strategy(canary=Canary(replicas=1))
    made.change(creating(), "q1")
    made.change(applying(upsert("acme/a")), "q2")
    made.change(applying(upsert("acme/a", "v2", strategy=strategy)), "q3")
    made.change(HaltRollout(POOL, "acme/a", 2, 3, "why"), "q4")
    made.change(PromoteRollout(POOL, "acme/a"), "q5")
    made.change(applying(upsert("acme/a", "v3", strategy=strategy)), "q6")
    made.change(applying(upsert("acme/a", "v4", strategy=strategy)), "q7")
    return made


def test_a_right_rollout_is_right():
    """W2, W6, W7: promoted and halted generations stay the same, and history keeps nothing of them."""
    assert found(steps_of(canaried())) == set()


def test_a_retry_is_a_generation_that_is_written_again(author):
    """W6: it says by whom; one that does not is found."""
    author.change(ApplyAdapters(POOL, (upsert("acme/a"),)))
    before = found(steps_of(author))
    author.change(ApplyAdapters(POOL, (upsert("acme/a"),), retry=True), "again")
    steps = steps_of(author)
    assert found(steps) == before
    at = author.etcd.revision
    assert ("W6", at) in found(rewritten(steps, at, "/adapters/", retry=None))
    assert ("W6", at) in found(rewritten(steps, at, "/adapters/", rollout={"halted": "why"})), "it is no rollout's"


def test_a_wrong_rollout_is_found():
    """W6: what all others serve is what they served before; a generation stays what it is but for its rollout."""
    steps = steps_of(canaried())
    first = AdapterRecord.parse(next(event for event in steps[1].events if b"/adapters/" in event.key).kv.value)
    other = CanaryRollout(stable_generation=7, stable_spec=first.spec).model_dump(mode="json")
    for at in (3, 4, 5, 6, 7):
        assert ("W6", at) in found(rewritten(steps, at, "/adapters/", rollout=other)), at
    for at in (4, 5):
        assert ("W6", at) in found(rewritten(steps, at, "/adapters/", updated_by="somebody")), at
    halted = next(event for event in steps[3].events if b"/adapters/" in event.key)
    assert ("W6", 5) in found(rewritten(steps, 5, "/adapters/", **json.loads(halted.kv.value)))


def test_what_all_others_serve_may_be_older_than_the_history():
    """R4: of a rollout that had begun before a compaction, the record itself tells what they serve."""
    specs = [AdapterSpec(source=SourceSpec(uri=f"file:///{n}", digest="sha256:" + str(n) * 64)) for n in (1, 2)]
    author = Author(MemoryEtcd(revision=0))
    author.change(creating())
    strategy = Strategy(canary=Canary(replicas=1))
    author.change(applying(Upsert("acme/a", specs[0]), Upsert("acme/b", specs[0])))
    author.change(applying(Upsert("acme/a", specs[1].model_copy(update={"strategy": strategy}))))
    fold = replay(KEYS, [HistoryBase(author.etcd.revision, tuple(author.etcd.kvs.values()))])
    at = author.etcd.revision
    paths = [f"/s/adapters/sha256-{number * 64}" for number in "12"]
    looks = [
        EngineListing(replica="r1", revision=at, adapters={"acme/b": paths[0], "acme/a": paths[1]}),
        EngineListing(replica="r2", revision=at, adapters={"acme/b": paths[0], "acme/a": paths[0]}),
    ]
    assert check_listings(fold, POOL, looks) == []


def test_a_generation_that_neither_the_record_nor_its_rollout_allows_is_found():
    """R4: while a rollout is on a replica serves new weights or stable ones, and afterwards only those of all."""
    specs = [AdapterSpec(source=SourceSpec(uri=f"file:///{n}", digest="sha256:" + str(n) * 64)) for n in (1, 2, 3)]
    author, strategy = Author(MemoryEtcd(revision=0)), Strategy(canary=Canary(replicas=1))
    author.change(creating())
    for spec in specs:
        author.change(applying(Upsert("acme/a", spec)))
    author.change(applying(Upsert("acme/a", specs[0].model_copy(update={"strategy": strategy}))))
    author.change(PromoteRollout(POOL, "acme/a"))
    fold = replay(KEYS, steps_of(author))

    def of(*looks: tuple[int, int], unservable: tuple[str, ...] = ()) -> list[str]:
        """What is found if each artifact was listed at a revision, by a replica with which nothing was pending."""
        paths = [(at, f"/s/adapters/sha256-{str(number) * 64}") for at, number in looks]
        told = {"replica": "r1", "settled": True, "unservable": list(unservable)}
        listings = [EngineListing(revision=at, adapters={"acme/a": path}, **told) for at, path in paths]
        return [one.guarantee for one in check_listings(fold, POOL, listings)]

    assert of((2, 1), (3, 2), (4, 3), (5, 3), (5, 1), (6, 1)) == []
    assert of((3, 2), (5, 2)) == ["R4"]
    assert of((4, 3), (6, 3)) == ["R4"]
    assert of((3, 2), (5, 2), unservable=("acme/a",)) == []


def test_a_request_that_is_settled_twice_is_found(author):
    """W3 idempotent."""
    (request,) = [event for event in steps_of(author)[1].events if b"/requests/" in event.key]
    again = Revision(7, (replace(request, mod_revision=7, kv=replace(request.kv, mod_revision=7)),))
    assert ("W3", 7) in found([*steps_of(author), again])


def test_what_was_before_a_compaction_is_taken_as_it_stood(author):
    """A production store keeps only its last hours."""
    kvs = tuple(author.etcd.kvs.values())
    author.change(applying(upsert("acme/a", "v3"), upsert("acme/b")), "q7")
    revision, events = author.etcd.history[-1]
    fold = replay(KEYS, [HistoryBase(revision - 1, kvs), Revision(revision, events)])
    assert (fold.findings, list(fold.changing)) == ([], [revision])
    assert fold.hash_at(POOL, revision) == replay(KEYS, steps_of(author)).hash_at(POOL, revision)


def test_orders_to_replicas_are_changes_with_an_audit_record(author):
    """W7 audit-complete, R20: that one goes with its lease is none."""
    presence = Presence(pool=POOL, replica="r1", incarnation="i", owner="o", started_at="").to_bytes()
    author.etcd.txn(Txn((), (Put(KEYS.replica(POOL, "r1"), presence, 7),)))
    author.change(DrainReplica(POOL, "r1", drain=True), "q7")
    author.change(DrainReplica(POOL, "r1", drain=False), "q8")
    author.etcd.delete(KEYS.drain(POOL, "r1"))
    assert found(steps_of(author)) == set()
    author.etcd.put(KEYS.drain(POOL, "r1"), b"{}")
    assert found(steps_of(author)) == {("W7", author.etcd.revision)}
