"""Properties of what happens to lazy adapters: played against an engine that loads by itself whatever it is told of."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sidecar.artifacts.types import Staged
from sidecar.desired.informer import Informer
from sidecar.engines.observed import Observed
from sidecar.plan.planner import make_plan
from sidecar.plan.selection import stay
from sidecar.plan.types import LazyCandidates, Load, Plan, PlanContext, Swap, Unload
from sidecar.resolver.demand import BIND_SECONDS, Answered, ResidentSet
from sidecar.resolver.policy import Catalogue
from tests.support.records import POOL, kv
from tests.support.worlds import observed, path_of, pool, relisted

KEYS = [f"k{number}" for number in range(6)]
EAGER = ["e1", "e2"]
IDLE_SECONDS = 100.0
used = st.dictionaries(st.sampled_from(KEYS), st.floats(0, 1000))


@given(used, st.sets(st.sampled_from(KEYS)), st.integers(0, 8), st.floats(0, 2000))
def test_room_is_never_exceeded_by_more_than_the_questions(used_at, asked, room, now):
    """R16 bounded: and what is used stays, what was asked for stays, in the order of use."""
    candidates = LazyCandidates(used_at=used_at, bound=asked, idle_seconds=IDLE_SECONDS)
    kept = stay(candidates, room=room, now=now)
    assert kept <= used_at.keys()
    assert kept >= used_at.keys() & asked
    assert len(kept) <= max(room, len(used_at.keys() & asked))
    left = {key for key in used_at.keys() - kept if now - used_at[key] <= IDLE_SECONDS}
    assert not left or len(kept) >= room
    for key in kept - asked:
        assert all(used_at[other] <= used_at[key] for other in left)


class Replica:
    """A loop and an engine with room for three, two of which are taken by eager adapters."""

    def __init__(self, versions: dict[str, str]) -> None:
        self.informer = Informer(POOL)
        self.demand = ResidentSet(Catalogue(self.informer), idle_seconds=IDLE_SECONDS)
        self.engine = observed(dict.fromkeys(EAGER, "v1"), max_cpu_loras=3)
        self.now = 0.0
        self.revision = 0
        self.desire(versions)

    def desire(self, versions: dict[str, str]) -> None:
        self.revision += 1
        lazy = [kv(name, self.revision, source=version, load="lazy") for name, version in versions.items()]
        self.informer.replace(self.revision, [*lazy, *(kv(name, 1) for name in EAGER)])

    def tell(self, key: str) -> None:
        """The resolver's step: the engine is told, and will list it."""
        adapter = self.demand.catalogue.whole(self.informer.state, key)
        if adapter is not None:
            path = path_of(adapter.ref.uri.rsplit("/", 1)[-1])
            self.demand.tell(key, Answered(adapter.name, path, self.now))
            if adapter.name not in self.engine.adapters:
                self.engine = relisted(self.engine, {**self.engine.adapters, adapter.name: path})

    def round(self) -> Plan:
        state = self.informer.state
        lazy = self.demand.candidates(state, self.engine, now=self.now)
        adapters = (*state.adapters.values(), *lazy.whole.values())
        staged = {one.ref: _staged(one.ref.uri.rsplit("/", 1)[-1]) for one in adapters}
        context = PlanContext(staged, set(), {}, set(), lazy=lazy)
        plan = make_plan(state, pool(), self.engine, context, now=self.now)
        self.demand.follow(plan)
        self.engine = relisted(self.engine, _carried_out(plan, self.engine))
        return plan


def _staged(source: str) -> Staged:
    return Staged(source, path_of(source), "", 8)


def _carried_out(plan: Plan, engine: Observed) -> dict[str, str]:
    adapters = dict(engine.adapters)
    for call in plan.calls:
        match call:
            case Swap(name, old, new):
                assert adapters[name] == old
                adapters[name] = new
            case Unload(name, path):
                assert adapters.pop(name) == path
            case Load():
                raise AssertionError("nobody but the engine loads what is asked for")
    return adapters


steps = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from(KEYS)),
        st.tuples(st.just("wait"), st.sampled_from([0.5, 3.0, 60.0])),
        st.tuples(st.just("desire"), st.dictionaries(st.sampled_from(KEYS), st.sampled_from(["v1", "v2"]))),
    ),
    max_size=30,
)


@given(steps, st.sampled_from(KEYS))
def test_nothing_eager_goes_nothing_asked_about_is_touched_and_all_that_is_listed_is_desired(script, asked):
    """R3, R4, R6, R16, and the deadlock rule."""
    replica = Replica(dict.fromkeys(KEYS, "v1"))
    asked_at: dict[str, float] = {}
    for verb, argument in script:
        match verb:
            case "ask":
                replica.tell(argument)
                asked_at[argument] = replica.now
            case "wait":
                replica.now += argument
            case "desire":
                replica.desire(argument)
        with replica.demand.asking(asked):
            plan = replica.round()
        assert all(call.name not in {*EAGER, asked} for call in plan.calls)
        recent = {key for key, at in asked_at.items() if replica.now - at < BIND_SECONDS} | {asked}
        loaded = replica.engine.adapters.keys() - set(EAGER)
        assert len(loaded) <= 1 + len(recent & loaded)
    replica.now += BIND_SECONDS
    replica.round()
    assert len(replica.engine.adapters) <= len(EAGER) + 1
    for name, path in replica.engine.adapters.items():
        if name not in EAGER:
            adapter = replica.demand.catalogue.whole(replica.informer.state, name)
            assert adapter is not None
            assert path == path_of(adapter.ref.uri.rsplit("/", 1)[-1])
