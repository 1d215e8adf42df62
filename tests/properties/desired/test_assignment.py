"""Properties of shares over arbitrary histories of records and replicas."""

from __future__ import annotations

import json
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from registry.etcd3.ops import Event, KeyValue
from registry.model.placement import Member, canaries, members_digest
from registry.model.status import ReportedLimits
from registry.rollout.pool import PoolSnapshot, PoolValues, renew
from registry.runtime.process import Repeats
from sidecar.desired.assignment import Assigner
from sidecar.desired.informer import DesiredState, Informer
from sidecar.desired.members import BELIEVE_SECONDS, Attendance, Membership
from tests.support.records import KEYS, POOL, deletion, put
from tests.support.residency_world import LEASE, engine_status, presence, replica_status
from tests.support.worlds import rolling

REPLICAS = [f"r{number}" for number in range(5)]
LABELS = {"r0": {"zone": "a"}, "r1": {"zone": "a"}}
selectors = st.sampled_from([{}, {"zone": "a"}])
placements = st.builds(
    lambda replicas, selector: {"replicas": replicas, "selector": selector},
    st.sampled_from(["all", "all", 1, 2, 4]),
    selectors,
)
records = st.one_of(
    st.none(),
    st.just(b"?"),
    st.tuples(placements, st.integers(0, 2), st.sampled_from([None, 1, "50%"]), st.booleans()),
)
changes = st.lists(
    st.tuples(st.sampled_from([f"n{number}" for number in range(8)]), records), max_size=4, unique_by=lambda one: one[0]
)
fleets = st.one_of(
    st.none(),
    st.dictionaries(st.sampled_from(REPLICAS), st.sampled_from([None, 4, 10, 100]), min_size=1),
)
histories = st.lists(st.tuples(changes, fleets), min_size=1, max_size=10)


def event(name: str, what, revision: int) -> Event:
    if what is None:
        return deletion(name, revision)
    if isinstance(what, bytes):
        return put(name, revision, what)
    placement, priority, canary, is_rolling = what
    strategy = {"canary": {"replicas": canary}} if canary else None
    spec = {"placement": placement, "priority": priority, "strategy": strategy}
    if not is_rolling:
        return put(name, revision, **spec)
    kv = rolling(name, revision, **spec)
    return Event(kv.key, revision, kv)


def members_of(fleet) -> dict[str, Member] | None:
    return None if fleet is None else {name: Member(name, LABELS.get(name, {}), room) for name, room in fleet.items()}


def check_agreement(state: DesiredState, members: dict[str, Member]) -> None:
    """Every adapter is served by exactly whom its placement says, and canaries alone take a rollout's generation."""
    shares = {name: Assigner(POOL, name, LABELS.get(name, {})).find(state, members) for name in members}
    for key, adapter in state.adapters.items():
        terms = adapter.terms
        serving = {name for name, share in shares.items() if adapter.rank in share.order}
        selector = dict(terms.selector) if terms else {}
        fitting = {name for name, one in members.items() if selector.items() <= one.labels.items()}
        wanted = terms.placement.replicas if terms else "all"
        assert serving <= fitting
        assert len(serving) == (len(fitting) if wanted == "all" else min(wanted, len(fitting)))
        if terms is None or terms.stable is None:
            continue
        ranked = tuple(replica for _, replica in next(iter(shares.values())).placed[key])
        new = canaries(terms.canary, ranked) if terms.canary else frozenset()
        for name in serving:
            version = shares[name].version(adapter)
            assert (version.generation, version.ref) == (
                (adapter.generation, adapter.ref) if name in new else (terms.stable.generation, terms.stable.ref)
            )


@given(histories)
def test_what_is_remembered_only_saves_work_and_all_replicas_agree(history):
    informer = Informer(POOL)
    remembering = Assigner(POOL, "r0", LABELS["r0"])
    for revision, (batch, fleet) in enumerate(history, start=1):
        informer.apply(revision, [event(name, what, revision) for name, what in batch])
        members = members_of(None if fleet is None else {"r0": 10} | fleet)
        share = remembering.find(informer.state, members)
        assert share == Assigner(POOL, "r0", LABELS["r0"]).find(informer.state, members)
        assert share == remembering.find(informer.state, members)
        if members is not None:
            check_agreement(informer.state, members)
        elif informer.state.tally.by_members:
            assert not set(share.order) & set(share.undecided)


@dataclass(frozen=True)
class Told:
    """What stands in etcd of a replica. `lease`: of its status; None: it has none. `held`: what its engine holds."""

    leaving: bool
    by_reports: bool
    capacity: int | None
    lease: int | None
    held: int | None


told = st.builds(
    Told,
    leaving=st.booleans(),
    by_reports=st.sampled_from([True, True, True, False]),
    capacity=st.sampled_from([None, 0, 4, 200, 1_000_000, 1_000_001]),
    lease=st.sampled_from([LEASE, LEASE, LEASE, LEASE + 1, None]),
    held=st.sampled_from([None, 2, 150, 2**62]),
)


def presence_kv(name: str, said: Told) -> KeyValue:
    document = presence(name, leaving=said.leaving, by_reports=said.by_reports).model_dump(by_alias=True)
    value = json.dumps(document | {"capacity": said.capacity}).encode()
    return KeyValue(KEYS.replica(POOL, name), value, 1, 1, 1, LEASE)


def status_kv(name: str, said: Told) -> KeyValue | None:
    engine = engine_status(limits=ReportedLimits(max_cpu_loras=said.held))
    value = replica_status(name, 1, engine=engine).to_bytes()
    return None if said.lease is None else KeyValue(KEYS.status(POOL, name), value, 1, 1, 1, said.lease)


@given(st.dictionaries(st.sampled_from(REPLICAS[1:]), told), st.booleans(), st.randoms(use_true_random=False))
def test_sidecars_and_the_admin_service_find_the_same_members(others, is_leaving, rng):
    """R24, R20, X3: of one state, in whatever order it is heard, releases mixed or not, ghosts and liars among them."""
    everybody = {**others, "r0": Told(leaving=is_leaving, by_reports=True, capacity=10, lease=LEASE, held=10)}
    presences = {(kv := presence_kv(name, said)).key: kv for name, said in everybody.items()}
    statuses = {kv.key: kv for name, said in everybody.items() if (kv := status_kv(name, said)) is not None}
    attendance, roll, names = Attendance(Repeats()), Membership("r0"), sorted(everybody)
    rng.shuffle(names)
    attendance.call(presences.values())
    for name in names:
        kv = attendance.presence(name)
        attendance.prove(name, kv, statuses.get(KEYS.status(POOL, name)))
    assert attendance.unproven == []
    roll.call(dict(attendance.members), 0.0)
    roll.look(BELIEVE_SECONDS)
    assert roll.members is not None
    pool = renew(PoolSnapshot(POOL), PoolValues(presences, statuses))
    assert pool.inputs_now(by_room=False).members == members_digest(roll.members.values())
    if all(said.by_reports for said in everybody.values()):
        reporting = {name for name, said in everybody.items() if said.lease == LEASE and said.capacity != 1_000_001}
        assert roll.members.keys() == {name for name in reporting if not everybody[name].leaving}
    for name, one in roll.members.items():
        said = everybody[name]
        if said.lease == LEASE and said.held is not None:
            assert (100 if one.capacity is None else one.capacity) <= said.held
