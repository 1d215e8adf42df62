"""Earlier generations that are served beside the newest, under names of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from registry.etcd3.ops import KeyValue
from registry.lora.findings import AdapterWarning
from registry.model.records import KeptGeneration
from sidecar.artifacts.types import Stage, Staged
from sidecar.desired.assignment import Assigner
from sidecar.desired.informer import DesiredState
from sidecar.loop.executor import _keys_of
from sidecar.plan.backoff import Failure
from sidecar.plan.conditions import KEPT_NOT_SERVED
from sidecar.plan.planner import make_plan
from sidecar.plan.types import Load, Plan, Swap
from tests.support.records import POOL, kv, record
from tests.support.worlds import desired, known, observed, path_of, placed_at, pool
from tests.unit.plan.test_planner import called

VERSIONED = pool(names="versioned")


def keeping(name: str, generation: int, *earlier: int, **spec: Any) -> KeyValue:
    """A record of a generation made of ``vN``, that keeps earlier ones."""
    kept = [KeptGeneration(generation=one, spec=record(name, source=f"v{one}").spec) for one in earlier]
    made = record(name, generation, source=f"v{generation}", keep=len(earlier) + 1, **spec)
    return kv(name, generation, made.model_copy(update={"kept": kept}).to_bytes())


def staged(state: DesiredState, *sources: str) -> dict[Any, Staged]:
    refs = {one.ref for adapter in state.adapters.values() for one in (adapter, *adapter.beside)}
    here = {ref: ref.uri.rpartition("/")[2] for ref in refs}
    return {ref: Staged(name, path_of(name), ref.digest or "", 8) for ref, name in here.items() if name in sources}


def plan(state: DesiredState, engine, *sources: str, spec=VERSIONED, **changes: Any) -> Plan:
    facts = replace(known(state), staged=staged(state, *sources), **changes)
    return make_plan(state, spec, engine, facts, now=1000.0)


def beside(made: Plan) -> list[tuple[str, int]]:
    return [(one.name, one.generation) for one in made.beside]


ALL = ("v1", "v2", "v3", "v4")


def test_what_is_kept_stays_and_what_is_not_goes_once_the_newest_is_served():
    """R25 ends-once: the one that is too far behind, and no other."""
    state = desired(keeping("a", 4, 3, 2))
    before = {f"a@{one}": f"v{one}" for one in (1, 2, 3)}
    first = plan(state, observed(before), *ALL)
    assert (called(first), beside(first)) == (["Load a@4"], [("a", 3), ("a", 2)])
    for listed in (before, dict(reversed(before.items()))):
        told = plan(state, observed(listed), *ALL).kept
        assert [(one.name, one.generation) for one in told] == [("a", 3)], "of several that answer the newest is told"
    then = plan(state, observed(before | {"a@4": "v4"}), *ALL)
    assert (called(then), beside(then)) == (["Unload a@1"], [("a", 3), ("a", 2)])
    done = plan(state, observed({f"a@{one}": f"v{one}" for one in (2, 3, 4)}), *ALL)
    assert (called(done), done.is_settled, [one.generation for one in done.served]) == ([], True, [4])


def test_an_engine_that_begins_anew_gets_the_newest_first_and_then_what_is_kept():
    """R3, R19: nothing waits for an earlier generation, and its failure has a key of its own."""
    state = desired(keeping("a", 4, 3, 2), keeping("b", 2, 1))
    made = plan(state, observed(), *ALL)
    assert called(made) == ["Load a@4", "Load b@2", "Load a@3", "Load b@1", "Load a@2"]
    loads = [call for call in made.calls if isinstance(call, Load)]
    assert [(one.key, one.beside) for one in loads[2:]] == [("a@3", True), ("b@1", True), ("a@2", True)]
    assert [list(_keys_of(one)) for one in (loads[0], loads[2])] == [["a@4", "a"], ["a@3"]]


def test_the_files_of_what_is_kept_are_brought_in_and_used():
    """R7: so the store keeps them."""
    state = desired(keeping("a", 3, 2))
    made = plan(state, observed({"a@3": "v3"}), "v3")
    assert [stage.name for stage in made.stage] == ["a@2"]
    assert isinstance(made.stage[0], Stage)
    assert not made.is_settled
    told = plan(state, observed({"a@3": "v3", "a@2": "v2"}), "v3", "v2")
    assert {name for name, _ in told.chosen.versions} == {"a@3", "a@2"}


def test_the_oldest_has_no_room_first_and_never_the_newest():
    """R16: room for one is left free, since the next one is loaded beside the others."""
    state = desired(keeping("a", 4, 3, 2), keeping("b", 2, 1))
    made = plan(state, observed(), *ALL, spec=pool(names="versioned", max_adapters=5))
    assert called(made) == ["Load a@4", "Load b@2", "Load a@3", "Load b@1"]
    [told] = [one for one in made.warnings if one.reason == KEPT_NOT_SERVED]
    assert (told.name, "the oldest 1 of" in told.message) == ("a", True)
    least = plan(state, observed(), *ALL, spec=pool(names="versioned", max_adapters=3))
    assert called(least) == ["Load a@4", "Load b@2"]


def test_what_fails_of_an_earlier_generation_is_a_warning_and_holds_nothing_up():
    """R8 isolation."""
    state = desired(keeping("a", 3, 2))
    ref = state.adapters["a"].beside[0].ref
    failure = Failure(ref, "e1", "engine_refused", "no", 1, 2000.0)
    made = plan(state, observed({"a@3": "v3"}), *ALL, failures={"a@2": failure})
    assert (called(made), made.failed, made.is_settled, made.wake_at) == ([], (), True, 2000.0)
    assert [(one.name, one.generation, one.reason) for one in made.warnings] == [("a", 2, KEPT_NOT_SERVED)]


def test_of_what_is_kept_it_is_told_that_its_source_is_gone_and_nothing_else():
    """Nobody could roll back to it; whatever else is to be said was said of it when it was the newest."""
    state = desired(keeping("a", 3, 2))
    found = staged(state, *ALL)
    warned = tuple(AdapterWarning(reason, "m") for reason in ("modules_missing", "source_gone"))
    facts = replace(known(state), staged={ref: replace(one, warnings=warned) for ref, one in found.items()})
    made = make_plan(state, VERSIONED, observed({"a@3": "v3", "a@2": "v2"}), facts, now=1000.0)
    told = [(3, "modules_missing"), (3, "source_gone"), (2, "source_gone")]
    assert [(one.generation, one.reason) for one in made.warnings] == told


def test_what_is_kept_is_replaced_by_nothing():
    """R4: a name that has a generation in it means that one."""
    state = desired(keeping("a", 3, 2))
    made = plan(state, observed({"a@3": "v3", "a@2": "v9"}), *ALL)
    assert not [call for call in made.calls if isinstance(call, Swap)]


def test_of_what_others_are_to_serve_the_newest_generation_is_told():
    """R24: all of it stays until they do."""
    state = desired(keeping("a", 3, 2, placement=placed_at("all", zone="nowhere")))
    share = Assigner(POOL, "r1", {}).find(state, None)
    here = {"a@2": "v2", "a@3": "v3"}
    generations = {("a@2", path_of("v2")): 2, ("a@3", path_of("v3")): 3}
    facts = replace(known(state), staged=staged(state, *ALL), share=share, generations=generations)
    for listed in (here, dict(reversed(here.items()))):
        made = make_plan(state, VERSIONED, observed(listed), facts, now=1000.0)
        assert ([one.name for one in made.leaving], called(made)) == ([*listed], [])
        assert [(one.name, one.generation) for one in made.still_served] == [("a", 3)]
