"""Residency over random pools: what changed is found without deriving everything, and rollouts say the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from registry.admin.rpc import encode_residency
from registry.etcd3.ops import KeyValue
from registry.model.keys import last_part
from registry.model.names import name_key
from registry.model.placement import Member, Selector, looks_at_room
from registry.model.records import Canary, CanaryRollout, Placement, Strategy
from registry.model.replica_state import ParsedStatus, ReplicaState
from registry.model.status import Failed, Found, Kept, Lazy, Leaving, Pending, ReplicaStatus, Resident
from registry.residency.derive import DerivedResidence, changed, counted, residency
from registry.residency.hub import ResidencyUpdate
from registry.residency.view import PoolView, renew_view
from registry.rollout.pool import PoolSnapshot, PoolValues, Values, read_presence, without_strangers
from registry.rollout.status import Question, ReplicaRollout, derive_rollout
from registry.v1 import registry_pb2 as pb
from tests.support.examples import examples
from tests.support.records import KEYS, POOL, kv, record
from tests.support.residency_world import (
    LEASE,
    World,
    among,
    assigned,
    engine_status,
    pool_snapshot,
    presence,
    replica_status,
)

NAMES = st.sampled_from(["a", "b", "t/c"])
REPLICAS = st.sampled_from(["r1", "r2", "r3"])
REVISIONS = st.integers(1, 6)
OBSERVED = st.sampled_from([1, 2, 3, 4, 4, 4, 5, 6])
LEASES = st.sampled_from([LEASE] * 6 + [0, LEASE + 1])
CAPACITIES = st.sampled_from([None, 2, 3])
Kvs = dict[bytes, KeyValue]


def several(names: st.SearchStrategy[str], max_size: int | None = None) -> st.SearchStrategy[list[str]]:
    """Some names in order: that of a set is another one in each process, and what is drawn for each would be, too."""
    return st.sets(names, max_size=max_size).map(sorted)


# A replica serves something only where its presence and its status are both there.
MOST = st.just(["r1", "r2", "r3"]) | several(REPLICAS)
# Among whom a replica found its share, and what it knew to take their room.
Claim = tuple[Sequence[Member], Mapping[Selector, int]]
FORMER: Sequence[Claim] = [
    (tuple(Member(name, {}, capacity) for name, capacity in found.items()), {frozenset(): count})
    for found in ({}, {"r1": 2}, {"r1": 2, "r2": 3}, {"r1": 2, "r2": 3, "r3": None})
    for count in range(3)
]


def claims_about(record_kvs: Values, presence_kvs: Values) -> Sequence[Claim]:
    """What replicas may say: as often as not the truth."""
    everywhere = pool_snapshot([], [], record_kvs.values()).rooms[-1].everywhere
    live = without_strangers(read_presence(kv)[0] for kv in presence_kvs.values())
    return [*[(live, everywhere)] * 8, *((live, {frozenset(): count}) for count in range(4)), *FORMER]


@st.composite
def records(draw: st.DrawFn) -> Kvs:
    found = {}
    for name in draw(several(NAMES)):
        revision = draw(REVISIONS)
        placement = Placement(
            replicas=draw(st.sampled_from(["all", 1, 2])), selector=draw(st.sampled_from([{}, {}, {"z": "1"}]))
        )
        strategy = Strategy(canary=Canary(replicas=1)) if draw(st.booleans()) else None
        load = draw(st.sampled_from(["eager", "eager", "lazy"]))
        made = record(name, 2, pinned=draw(st.booleans()), load=load, placement=placement, strategy=strategy)
        if strategy is not None and draw(st.booleans()):
            made = made.model_copy(
                update={"rollout": CanaryRollout(stable_generation=1, stable_spec=record(name, pinned=False).spec)}
            )
        one = kv(name, revision, draw(st.sampled_from([made.to_bytes()] * 7 + [b"?"])))
        found[one.key] = one
    return found


@st.composite
def presences(draw: st.DrawFn) -> Kvs:
    found = {}
    for name in draw(MOST):
        labels = draw(st.sampled_from([{}, {"z": "1"}]))
        value = presence(name, labels=labels, capacity=draw(CAPACITIES)).to_bytes()
        key = KEYS.replica(POOL, name)
        found[key] = KeyValue(key, draw(st.sampled_from([value] * 7 + [b"?"])), 1, draw(REVISIONS), 1, draw(LEASES))
    return found


@st.composite
def statuses(draw: st.DrawFn, claims: Sequence[Claim]) -> Kvs:
    found = {}
    for name in draw(MOST):
        claim = among(*draw(st.sampled_from(claims)))
        value = replica_status(name, draw(OBSERVED), **draw(complaints()), **claim).to_bytes()
        key = KEYS.status(POOL, name)
        found[key] = KeyValue(key, draw(st.sampled_from([value] * 7 + [b"?"])), 1, draw(REVISIONS), 1, draw(LEASES))
    return found


@st.composite
def complaints(draw: st.DrawFn) -> dict[str, Any]:
    if draw(st.booleans()):  # most of what is said of replicas that are well can be said of them alone
        return {"lazy": Lazy(count=1, servable=True)}
    failed = [
        Failed(name=name, generation=2, reason="BAD", message="", attempts=1, retry_at=None)
        for name in draw(several(NAMES))
    ]
    used = [Resident(name=name, generation=2, last_used="t") for name in draw(several(NAMES))]
    digests = st.sampled_from(["sha256:1", "sha256:2"])
    return {
        "stale": draw(st.sampled_from([False, False, False, True])),
        "failed": failed if draw(st.booleans()) else [],
        "pending": [Pending(name=name, generation=2, reason="staging") for name in draw(several(NAMES, 1))],
        "found": [Found(name=name, generation=2, digest=draw(digests)) for name in draw(several(NAMES))],
        "lazy": Lazy(count=1, servable=draw(st.booleans()), resident=used),
        "leaving": [Leaving(name=name, generation=2) for name in draw(several(NAMES, 1))],
        "omitted": draw(st.sampled_from([0, 0, 0, 1])),
        "omitted_reason": draw(st.sampled_from(["", "over_capacity"])),
        "kept": [Kept(name=name, generation=1) for name in draw(several(NAMES))],
        "serves": draw(st.none() | several(NAMES).map(lambda names: [(name, 2) for name in names])),
        "engine": engine_status(names=draw(st.sampled_from(["plain", "versioned"]))),
    }


@st.composite
def pool_values(draw: st.DrawFn) -> PoolValues:
    revision, record_kvs, presence_kvs = draw(st.integers(4, 6)), draw(records()), draw(presences())
    claims = claims_about(record_kvs, presence_kvs)
    return PoolValues(presence_kvs, draw(statuses(claims)), record_kvs, revision=revision, holds_back=True)


@examples(150)
@given(st.lists(pool_values(), min_size=1, max_size=4))
def test_counts_are_those_of_what_is_derived_one_by_one(history: list[PoolValues]) -> None:
    """R9 status-truth: adapters that are taken to stand alike do."""
    view = PoolView(PoolSnapshot(POOL))
    for now in history:
        view = renew_view(view, now)
        for key, found in counted(view, sorted(view.records)):
            whole = residency(view, key)
            told = found and (found.name, found.generation, found.lazy, found.note)
            assert told == (whole and (whole.name, whole.generation, whole.lazy, whole.note))
            ways = [
                (one.state, one.reason, (one.wanted.state, one.wanted.reason) if one.wanted else None)
                for one in (whole.replicas if whole else ())
            ]
            counts = found.counts.items() if found else ()
            assert {(one.state, one.reason, one.wanted): count for one, count in counts} == Counter(ways)


@examples(150)
@given(st.lists(pool_values(), min_size=1, max_size=4))
def test_messages_and_pages_are_those_of_what_is_derived_one_by_one(history: list[PoolValues]) -> None:
    """R9 status-truth: what is said of an adapter in the words of another that stands alike is true of it."""
    view = PoolView(PoolSnapshot(POOL))
    for now in history:
        view = renew_view(view, now)
        keys = tuple(sorted(view.records))
        found = [one for key in keys if (one := residency(view, key)) is not None]
        update = ResidencyUpdate(1, view, keys, snapshot=True)
        said = encode_residency.response(update, 0, pb.WatchResidencyRequest.REPLICAS)
        assert list(said.adapters) == [encode_residency._derived_adapter(one) for one in found]
        written = [one for part in encode_residency.documents(view, keys) for one in part]
        assert written == [encode_residency._derived_document(one) for one in found]


@examples(150)
@given(st.lists(pool_values(), min_size=1, max_size=4))
def test_what_changed_is_what_is_derived_otherwise(history: list[PoolValues]) -> None:
    """No subscriber misses a change, and none is told of what stayed as it was."""
    view = PoolView(PoolSnapshot(POOL))
    for now in history:
        old, view = view, renew_view(view, now)
        keys = {*old.records, *view.records}
        assert changed(old, view) == {key for key in keys if _all_told(old, key) != _all_told(view, key)}


def _all_told(view: PoolView, key: str) -> tuple[object, ...]:
    found, entry = residency(view, key), view.records.get(key)
    return found, *counted(view, [key]), entry and found is None and entry.kv


@examples(100)
@given(st.lists(pool_values(), min_size=1, max_size=4))
def test_a_view_of_what_changed_is_that_of_everything(history: list[PoolValues]) -> None:
    """Records that nobody wrote need not be compared."""
    view, whole, former = PoolView(PoolSnapshot(POOL)), PoolView(PoolSnapshot(POOL)), Kvs()
    for now in history:
        records = now.records or {}
        changed_keys = frozenset(key for key in {*former, *records} if former.get(key) != records.get(key))
        view, whole = renew_view(view, replace(now, changed=changed_keys)), renew_view(whole, now)
        former = dict(records)
        assert (view.records, view.order.steps) == (whole.records, whole.order.steps)
        assert view.snapshot.rooms[-1].everywhere == whole.snapshot.rooms[-1].everywhere
        assert view.snapshot.taken == whole.snapshot.taken


@examples(200)
@given(pool_values())
def test_a_rollout_says_the_same(now: PoolValues) -> None:
    """R9: rollout and residency give one answer, but for who still serves by what lived or took room before."""
    view = renew_view(PoolView(PoolSnapshot(POOL)), now)
    assert now.records is not None
    for record_kv in now.records.values():
        found = residency(view, last_part(record_kv.key))
        if found is None:
            continue
        pool = view.snapshot  # a status that speaks of later records waits in both
        told = {one.replica: one for one in derive_rollout(Question(POOL, found.name, 0), record_kv, pool).replicas}
        live = without_strangers(one.member for one in pool.replicas.values())
        behind = _behind(view, record_kv, among(live, pool.rooms[-1].everywhere))
        here = {one.replica: one for one in found.replicas}
        for name in {*told, *here}:
            if _say_the_same(told.get(name), here.get(name)):
                continue
            if here[name].reason in {"membership_not_seen", "room_not_seen"}:  # told where nobody is known to serve
                assert here[name].state is ReplicaState.UNKNOWN
                assert ReplicaState.SERVING not in {one.state for one in found.replicas}
                continue
            assert name in behind or (behind and here[name].reason == "digests_differ")


def test_serving_is_proven() -> None:
    """R9 status-truth, by a check of its own: no replica is said to serve what by its own word it does not."""
    proven: list[str] = []

    @examples(200)
    @given(st.lists(pool_values(), min_size=1, max_size=3))
    def is_proven(history: list[PoolValues]) -> None:
        proven.extend(_all_proven(history))

    is_proven()
    assert len(proven) > 50, "too little was served for this to say anything"


def _all_proven(history: list[PoolValues]) -> Iterator[str]:
    """The replicas that are said to serve something, each of them proven."""
    view, claims = (
        PoolView(PoolSnapshot(POOL)),
        [claim for now in history for claim in claims_about(now.records or {}, now.presences)],
    )
    for now in history:
        view = renew_view(view, now)
        for key in view.records:
            found = residency(view, key)
            for one in found.replicas if found else ():
                if one.state is ReplicaState.SERVING:
                    _proves(view, one, key, claims)
                    yield one.replica


@examples(50)
@given(st.lists(st.integers(1, 6), min_size=2, max_size=4), st.integers(0, 4), st.integers(0, 4))
def test_a_share_is_what_its_replica_found(capacities: list[int], then: int, now: int) -> None:
    """R9: by the room that it reckoned with, whatever else became of it meanwhile, and by which event."""
    world, live = World(), [Member(f"r{i}", {}, capacity) for i, capacity in enumerate(capacities)]
    for name in (names := [f"n{i}" for i in range(10)]):
        world.put(name, placement=Placement(replicas=1))
    for one in live:
        world.alive(one.replica, capacity=one.capacity)
    for count in (then, now):
        world.records = {key: one for key, one in world.records.items() if b"big" not in key}
        for i in range(count):
            world.put(f"big{i}")
        world.look()
    for one in live:
        world.says(one.replica, **among(live, {frozenset(): then}))
    for name in names:
        spec = record(name, placement=Placement(replicas=1)).spec
        serving = [replica for replica, (state, _) in world.states(name).items() if state is ReplicaState.SERVING]
        assert serving == list(assigned(POOL, name, spec, live, {frozenset(): then}).serving)


def _behind(view: PoolView, record_kv: KeyValue, newest: Mapping[str, str]) -> set[str]:
    """Who keeps an adapter for others, or found its share by something else than what lives and takes room now."""
    adapter = view.adapter(last_part(record_kv.key))
    assert adapter is not None
    said = {name: one.reading.status for name, one in view.replicas.items() if isinstance(one.reading, ParsedStatus)}
    fields = [*newest] if looks_at_room(adapter.spec) else ["members"] if adapter.is_chosen else []
    answering = {name for name, one in said.items() if adapter.key in {key for key, _ in _told(one)}}
    return answering | {name for name, one in said.items() if any(getattr(one, of) != newest[of] for of in fields)}


def _say_the_same(told: ReplicaRollout | None, here: DerivedResidence | None) -> bool:
    if told is None or here is None:
        return False
    if here.wanted is not None:
        wanted = (here.wanted.generation, here.wanted.state, here.wanted.reason)
        return (told.generation, told.state, told.reason, told.kept) == (*wanted, here.generation)
    return (told.generation, told.state, told.reason) == (here.generation, here.state, here.reason)


def _proves(view: PoolView, part: DerivedResidence, key: str, claims: Sequence[Claim]) -> None:
    adapter, kv_said = view.adapter(key), view.everybody[part.replica].status
    assert adapter is not None
    assert kv_said is not None
    status = ReplicaStatus.parse(kv_said.value)
    assert not status.stale
    assert view.revision >= status.observed_revision
    if (key, part.generation) in _told(status):
        return
    if status.observed_revision < adapter.revision:
        before = view.stood(key, status.observed_revision)
        assert before is not None
        assert status.observed_revision >= before.revision
        adapter = before
    else:
        assert part.wanted is None
    assert part.generation in {adapter.generation, 1 if adapter.rollout else adapter.generation}
    assert key not in {name_key(one.name) for one in (*status.failed, *status.pending)}
    assert not status.omitted or (key, part.generation) in _serves(status)
    assert status.lazy.servable or not adapter.lazy
    if adapter.is_chosen:
        told = {"members": status.members, "weights": status.weights}
        claim = next(one for one in claims if among(*one) == told)
        assert part.replica in assigned(POOL, key, adapter.spec, *claim).serving


def _told(status: ReplicaStatus) -> set[tuple[str, int]]:
    """What it says by the name itself that its engine answers to."""
    said = [(name_key(one.name), one.generation) for one in (*status.kept, *status.leaving, *status.lazy.resident)]
    return {*said, *_serves(status)}


def _serves(status: ReplicaStatus) -> set[tuple[str, int]]:
    return {(name_key(name), generation) for name, generation in status.serves or ()}
