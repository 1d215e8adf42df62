"""Properties of the planner: carried out to the letter, with or without mishaps, plans lead to what is desired."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sidecar.artifacts.types import Stage
from sidecar.engines.observed import Observed
from sidecar.plan.names import engine_name, key_of
from sidecar.plan.planner import make_plan
from sidecar.plan.types import Load, Plan, Swap, Unload
from tests.support.records import kv
from tests.support.worlds import chosen, desired, known, observed, owns, path_of, pool, relisted

NAMES = ["a", "b", "acme/c", "d", "base"]
SOURCES = ["v1", "v2", "v3"]
records = st.fixed_dictionaries(
    {},
    optional={
        name: st.tuples(st.sampled_from(SOURCES), st.sampled_from(["eager", "lazy"]), st.integers(-2, 2))
        for name in NAMES
    },
)
listings = st.dictionaries(
    st.sampled_from([*NAMES[:-1], "foreign", "old"]), st.sampled_from([*SOURCES, "/elsewhere/x"]), max_size=5
)
ways = st.sampled_from(["plain", "versioned"])
capacities = st.one_of(st.none(), st.integers(1, 4))


def carry_out(plan: Plan, engine: Observed, in_store: set[str], steps: int) -> Observed:
    """An engine and a store that do what they are told, at most `steps` calls of it."""
    in_store |= {stage.ref.uri.rsplit("/", 1)[-1] for stage in plan.stage}
    adapters = dict(engine.adapters)
    for call in plan.calls[:steps]:
        match call:
            case Load(name, path):
                assert name not in adapters, "a loaded name is never loaded again"
                adapters[name] = path
            case Swap(name, old, new):
                assert adapters[name] == old
                adapters[name] = new
            case Unload(name, path):
                assert adapters.pop(name) == path
    return relisted(engine, adapters)


def state_of(wanted) -> object:
    return desired(
        *(kv(n, i + 1, source=s, load=load, priority=p) for i, (n, (s, load, p)) in enumerate(wanted.items()))
    )


@given(records, listings, capacities, st.data())
def test_plans_converge_and_then_do_nothing(wanted, listing, capacity, data):
    """R3 converge, R5, R11: the engine's own set ends as the eligible desired set, foreign adapters are untouched."""
    state = state_of(wanted)
    engine = observed(listing)
    spec = pool(max_adapters=capacity) if capacity else pool()
    foreign = {name: path for name, path in engine.adapters.items() if owns(path) is None}
    in_store: set[str] = set()
    for _ in range(20):
        plan = make_plan(state, spec, engine, known(state, *in_store), now=0.0)
        engine = carry_out(plan, engine, in_store, data.draw(st.integers(1, 5)))
    plan = make_plan(state, spec, engine, known(state, *in_store), now=0.0)
    assert (plan.stage, plan.calls) == ((), ())
    assert plan.is_settled
    order = sorted((-p, n.replace("/", "%2F"), n) for n, (_, load, p) in wanted.items() if load == "eager")
    eligible = [n for _, _, n in order[:capacity] if n != "base" and n not in foreign]
    assert engine.adapters == foreign | {name: path_of(wanted[name][0]) for name in eligible}
    assert {adapter.name for adapter in plan.served} == set(eligible)


@given(records, listings)
def test_nothing_is_called_with_what_is_not_in_the_store(wanted, listing):
    """R4 digest-true: a load or a swap only ever names the staged path of the record's own digest."""
    state = state_of(wanted)
    plan = make_plan(state, pool(), observed(listing), known(state, "v1"), now=0.0)
    for call in plan.calls:
        if isinstance(call, Load | Swap):
            path = call.path if isinstance(call, Load) else call.new
            assert path == path_of("v1")
            assert wanted[call.name][0] == "v1"
    assert all(isinstance(stage, Stage) for stage in plan.stage)


@given(records, listings)
def test_every_eager_name_is_in_exactly_one_list(wanted, listing):
    """R9 status-truth: served, pending and failed are disjoint and complete."""
    state = state_of(wanted)
    plan = make_plan(state, pool(), observed(listing), known(state, "v1", "v3"), now=0.0)
    said = [entry.name for group in (plan.served, plan.pending, plan.failed) for entry in group]
    assert sorted(said) == sorted(name for name, (_, load, _) in wanted.items() if load == "eager")


@given(records, listings, capacities, st.lists(ways, min_size=1, max_size=3), st.data())
def test_names_change_without_a_gap(wanted, listing, capacity, ways, data):
    """R3: what is served stays so under one name or the other, whichever way the pool names adapters meanwhile."""
    wanted = {name: one for name, one in wanted.items() if name != "base"}
    listing = {name: source for name, source in listing.items() if source in SOURCES}
    state, engine, in_store = state_of(wanted), observed(listing), set(SOURCES)
    limits = {"max_adapters": capacity + 1} if capacity else {}
    for way in ways:
        spec = pool(names=way, **limits)
        keep = {one.key for one in chosen(state, engine, spec=spec).adapters}
        for _ in range(30):
            before = {key_of(name) for name, path in engine.adapters.items() if owns(path)}
            plan = make_plan(state, spec, engine, known(state, *in_store), now=0.0)
            engine = carry_out(plan, engine, in_store, data.draw(st.integers(1, 5)))
            after = {key_of(name) for name, path in engine.adapters.items() if owns(path)}
            assert before & keep <= after
            assert not capacity or len([p for p in engine.adapters.values() if owns(p)]) <= max(capacity + 2, 5)
        assert make_plan(state, spec, engine, known(state, *in_store), now=0.0).is_settled
        names = {engine_name(state.adapters[key], way) for key in keep}
        assert {name for name, path in engine.adapters.items() if owns(path)} == names
