"""Everything at once: placement, canaries, lazy adapters, versioned names, unreadable records, and restarts."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from registry.etcd3.ops import KeyValue
from registry.model.names import matches, name_key
from registry.model.placement import Member
from registry.model.records import AdapterRecord, CanaryRollout
from registry.model.replica_state import parse_status
from sidecar.desired.informer import Informer
from sidecar.plan.handoff import evaluate_handoff
from sidecar.plan.names import engine_name, key_of, names_of
from sidecar.plan.types import Load, Plan, Swap, Unload
from tests.properties.plan.mixed_replica import MISSING, REFUSED, MixedReplica, source_of, staged_from
from tests.support.examples import examples
from tests.support.records import POOL, deletion, put, record
from tests.support.worlds import owns, pool

NAMES = ["a", "B", "c", "d"]
LABELS = {"r0": {"zone": "x"}, "r1": {"zone": "x"}, "r2": {"zone": "y"}}
SOURCES = ["v1", "v2", "v3", MISSING, REFUSED]


class Fleet:
    """Three replicas of one pool, and what stands in the registry."""

    def __init__(self, names: str, room: int | None) -> None:
        self.informer = Informer(POOL)
        self.revision = 1
        self.records: dict[str, AdapterRecord] = {}
        self.generations: dict[str, int] = {}
        limits = {"max_adapters": room} if room else {}
        self.spec = pool(names=names, **limits)
        self.replicas = {name: MixedReplica(name, labels, self.informer, self.spec) for name, labels in LABELS.items()}
        self.live = set(LABELS)
        for name in self.replicas:
            self.hear(name)

    @property
    def members(self) -> dict[str, Member]:
        return {name: Member(name, LABELS[name], self.replicas[name].capacity) for name in sorted(self.live)}

    def write(
        self, name: str, source: str, *, load: str, replicas: object, zone: str, priority: int, canary: bool
    ) -> None:
        """Applies a spec as the admin service does: weights by a strategy come to canaries first."""
        placement = {"replicas": replicas, "selector": {"zone": zone} if zone else {}}
        strategy = {"canary": {"replicas": 1}} if canary else None
        if load == "lazy":
            placement, strategy = {"replicas": "all"}, None
        key, self.revision = name_key(name), self.revision + 1
        before = self.records.get(key)
        made = record(
            name, self.next_generation(key), source=source, load=load, placement=placement, priority=priority,
            strategy=strategy,
        )  # fmt: skip
        if before is not None and strategy and load == before.spec.load and before.spec.source != made.spec.source:
            kept = before.rollout or CanaryRollout(stable_generation=before.generation, stable_spec=before.spec)
            made = made.model_copy(update={"rollout": kept})
        self.records[key] = made
        self.informer.apply(self.revision, [put(name, self.revision, made.to_bytes())])

    def next_generation(self, key: str) -> int:
        self.generations[key] = self.generations.get(key, 0) + 1
        return self.generations[key]

    def promote(self, name: str) -> None:
        key = name_key(name)
        if key in self.records and self.records[key].rollout is not None:
            self.revision += 1
            self.records[key] = self.records[key].model_copy(update={"rollout": None})
            self.informer.apply(self.revision, [put(name, self.revision, self.records[key].to_bytes())])

    def delete(self, name: str) -> None:
        self.revision += 1
        self.records.pop(name_key(name), None)
        self.informer.apply(self.revision, [deletion(name, self.revision)])

    def garble(self, name: str) -> None:
        """A record of a schema that nobody here knows; what was good before stays desired."""
        self.revision += 1
        self.informer.apply(self.revision, [put(name, self.revision, b'{"schema": 99}')])

    def hear(self, name: str) -> None:
        one = self.replicas[name]
        one.state, one.members, one.spec = self.informer.state, self.members, self.spec

    def ask(self, name: str) -> None:
        """Has a replica told what those say who are to take over."""
        one = self.replicas[name]
        statuses = {other: self.replicas[other].status for other in self.live}
        said = {
            other: parse_status(KeyValue(b"", status.to_bytes(), 1, 1, 1))
            for other, status in statuses.items()
            if status is not None
        }
        revisions = {raw_key: raw.revision for raw_key, raw in self.informer.raw.items()}
        one.handed = {}
        for leaving in one.leaving:
            fitting = tuple(
                sorted(other for other in self.live if matches(leaving.terms.placement.selector, LABELS[other]))
            )
            owners = fitting if leaving.owners is None else leaving.owners
            one.handed[leaving] = evaluate_handoff(leaving, owners, said, revisions.get(leaving.key, 0))

    def round(self, name: str, steps: int) -> None:
        one = self.replicas[name]
        plan = one.plan()
        check_calls(one, plan)
        check_status(one, plan)
        kept = {adapter.name for key, adapter in one.state.adapters.items() if self.is_promised(one, key)}
        one.carry_out(plan, steps)
        for kept_name in kept:
            assert any(self.replicas[other].lists(kept_name) for other in self.live), f"{kept_name} left service"
        one.now += 1.0

    def is_promised(self, one: MixedReplica, key: str) -> bool:
        """True for what the engine has and the newest record wants somewhere: it goes only once it is there."""
        newest, mine = self.informer.state.adapters.get(key), one.state.adapters[key]
        is_over = any(key == other for _, other in one.chosen.over)
        return newest == mine and one.lists(mine.name) and not is_over


def check_calls(one: MixedReplica, plan: Plan) -> None:
    """R4, R11: only staged files of the version that this replica is to serve, or of what stands in for it."""
    names = names_of(one.spec)
    for call in plan.calls:
        match call:
            case Unload(_, path):
                assert owns(path)
            case Load(name, path, ref) | Swap(name, _, path, ref):
                adapter = one.state.adapters.get(key_of(name))
                version = one.share.version(adapter) if adapter else one.demand.resident(key_of(name))
                assert version is not None
                assert (name, ref) in [(engine_name(each, names), each.ref) for each in (version, *version.fallbacks)]
                assert path == staged_from(ref).path


def check_status(one: MixedReplica, plan: Plan) -> None:
    """R9: every eager adapter of this replica's is said to be served, pending or failed, and served only if listed."""
    said = [entry.name for group in (plan.served, plan.pending) for entry in group]
    failed = [entry.name for entry in plan.failed if entry.generation]
    ours = [adapter.name for adapter in one.chosen.adapters]
    assert len(said) == len(set(said))
    assert set(ours) <= {*said, *failed}
    for entry in plan.served:
        adapter = one.share.version(one.state.adapters[name_key(entry.name)])
        assert entry.generation == adapter.generation
        assert one.engine.adapters[engine_name(adapter, names_of(one.spec))] == staged_from(adapter.ref).path


def wanted(one: MixedReplica) -> Iterator[tuple[str, str]]:
    for adapter in one.chosen.adapters:
        if source_of(adapter.ref) not in (MISSING, REFUSED):
            yield engine_name(adapter, names_of(one.spec)), staged_from(adapter.ref).path


writes = st.fixed_dictionaries(
    {
        "source": st.sampled_from(SOURCES),
        "load": st.sampled_from(["eager", "eager", "eager", "lazy"]),
        "replicas": st.sampled_from(["all", "all", 1, 2, 9]),
        "zone": st.sampled_from(["", "", "x", "y", "nowhere"]),
        "priority": st.integers(0, 1),
        "canary": st.booleans(),
    }
)
names = st.sampled_from(NAMES)
replicas = st.sampled_from(sorted(LABELS))
steps = st.one_of(
    st.tuples(st.just("write"), names, writes),
    st.tuples(st.just("write"), names.map(str.swapcase), writes),
    st.tuples(st.sampled_from(["promote", "delete", "garble"]), names),
    st.tuples(
        st.sampled_from(["lose", "return", "flap", "hear", "hear", "ask", "restart_engine", "restart_sidecar"]),
        replicas,
    ),
    st.tuples(st.just("request"), replicas, names),
    st.tuples(st.just("rename"), st.sampled_from(["plain", "versioned"])),
    st.tuples(st.just("round"), replicas, st.integers(0, 4)),
    st.sampled_from([("settle",), ("settle",), ("everyone",), ("everyone",)]),
)


def play(fleet: Fleet, step: tuple) -> None:  # noqa: C901, PLR0912 - one verb each
    match step:
        case "write", name, spec:
            fleet.write(name, **spec)
        case "promote" | "delete" | "garble" as verb, name:
            getattr(fleet, verb)(name)
        case "lose", name if len(fleet.live) > 1:
            fleet.live.discard(name)
            fleet.replicas[name].restart_engine()
        case "return", name:
            fleet.live.add(name)
            fleet.hear(name)
        case "flap", name:
            for verb in ("lose", "settle", "return", "settle", "lose", "settle", "return", "everyone"):
                play(fleet, (verb, name) if verb in ("lose", "return") else (verb,))
        case "hear" | "ask" as verb, name if name in fleet.live:
            getattr(fleet, verb)(name)
        case "restart_engine" | "restart_sidecar" as verb, name if name in fleet.live:
            getattr(fleet.replicas[name], verb)()
        case "request", name, key if name in fleet.live:
            fleet.replicas[name].ask(name_key(key))
        case "rename", way:
            fleet.spec = fleet.spec.model_copy(update={"engine_names": way})
        case "round", name, count if name in fleet.live:
            fleet.round(name, count)
        case ("everyone",):
            for name in sorted(fleet.live):
                fleet.hear(name)
                fleet.round(name, 9)
        case ("settle",):
            settle(fleet)


def settle(fleet: Fleet) -> None:
    """Everybody hears everything, and has the time to do all of it."""
    for _ in range(25):
        for name in sorted(fleet.live):
            fleet.hear(name)
            fleet.ask(name)
            fleet.round(name, 3)


@examples(100)
@given(st.sampled_from(["plain", "versioned"]), st.sampled_from([None, 2, 3]), st.lists(steps, max_size=40))
def test_whatever_happens_at_once_nothing_leaves_service_and_all_come_to_rest(way, room, script):
    """R3, R4, R6, R9, R11, R14: with all features together, in any order."""
    fleet = Fleet(way, room)
    for step in script:
        play(fleet, step)
    settle(fleet)
    for name in sorted(fleet.live):
        one = fleet.replicas[name]
        plan = one.plan()
        assert (plan.stage, plan.calls) == ((), ()), "it comes to rest"
        assert not [entry for entry in plan.pending if entry.reason != "over_capacity"], plan.pending
        expected, listed = dict(wanted(one)), dict(one.engine.adapters)
        assert expected.items() <= listed.items()
        left = {key_of(other) for other in listed.keys() - expected.keys()}
        kept = {leaving.key for leaving in one.leaving} | set(one.state.refused) | set(one.state.lazy)
        failing = {name_key(entry.name) for entry in plan.failed}
        assert left <= kept | failing, "nothing else stays"
