"""Desired states, live replicas and observed engines as values, for tests of placement and of the planner."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

from registry.etcd3.ops import KeyValue
from registry.lora.base import BaseModules
from registry.lora.engine_base import EngineBase
from registry.model.placement import Member
from registry.model.records import AdapterSpec, CanaryRollout, EngineNames, PoolLimits, PoolSpec, SourceSpec
from sidecar.artifacts.types import ArtifactRef, Staged
from sidecar.desired.assignment import Share
from sidecar.desired.informer import DesiredState, Informer
from sidecar.engines.observed import EngineFacts, EngineLimits, Observed
from sidecar.plan.backoff import Failure
from sidecar.plan.planner import make_plan
from sidecar.plan.selection import select
from sidecar.plan.types import LazySelection, PlanContext, Selection
from sidecar.resolver.demand import ResidentSet
from tests.support.records import KEYS, POOL, digest, kv, record

STORE = "/store/adapters/sha256-"


def owns(path: str) -> str | None:
    """The artifact id of a path in the test's store."""
    return path.removeprefix(STORE) if path.startswith(STORE) else None


def ours(listing: Mapping[str, str]) -> frozenset[str]:
    """Which of the paths of a listing are in the test's store."""
    return frozenset(path for path in listing.values() if owns(path))


def path_of(source: str) -> str:
    """Where the artifact named `source` stands once it is staged."""
    return STORE + source


def desired(*kvs: KeyValue, revision: int = 100) -> DesiredState:
    """A desired state made of records."""
    informer = Informer(POOL)
    informer.replace(revision, kvs)
    return informer.state


def wants(names: Mapping[str, str], **kwargs: Any) -> DesiredState:
    """A desired state in which each name asks for the artifact named by its source."""
    return desired(*(kv(name, i + 1, source=source, **kwargs) for i, (name, source) in enumerate(names.items())))


# Nothing speaks against it.
SEEN_BASE = EngineBase(own=BaseModules({}))


def observed(adapters: Mapping[str, str] | None = None, *, incarnation: str = "e1", **limits: Any) -> Observed:
    """An engine that lists the given names, each with the path of a source or, if it starts with /, with that path."""
    facts = EngineFacts("vllm", "0.32.0", "http://e", incarnation, EngineLimits(**limits), base=SEEN_BASE)
    return Observed(facts, ("base",), listing := paths(adapters or {}), ours=ours(listing))


def relisted(engine: Observed, listing: Mapping[str, str]) -> Observed:
    """The same engine, which lists other paths."""
    return replace(engine, adapters=listing, ours=ours(listing))


def forgetless(adapters: Mapping[str, str], past: Mapping[str, str]) -> Observed:
    """An engine that remembers what it computed with weights, by the name that they had."""
    facts = EngineFacts("vllm", "0.30.0", "http://e", "e1", swap="refused", base=SEEN_BASE)
    return Observed(facts, ("base",), listing := paths(adapters), past=paths(past), ours=ours(listing))


def paths(adapters: Mapping[str, str]) -> dict[str, str]:
    """Names with the paths of sources, or with those that start with /."""
    return {name: where if where.startswith("/") else path_of(where) for name, where in adapters.items()}


def staged(state: DesiredState, *sources: str, rank: int = 8) -> dict[ArtifactRef, Staged]:
    """What the store holds: the artifacts of the given sources, as far as `state` asks for them."""
    refs = {ref for adapter in state.adapters.values() for _, ref in adapter.versions}
    found = {ref: ref.uri.rsplit("/", 1)[-1] for ref in refs}
    return {ref: Staged(s, path_of(s), ref.digest or "", rank) for ref, s in found.items() if s in sources}


def known(
    state: DesiredState,
    *sources: str,
    staging: AbstractSet[ArtifactRef] = frozenset(),
    failures: Mapping[str, Failure] | None = None,
    unsettled: AbstractSet[str] = frozenset(),
) -> PlanContext:
    """Known facts: these sources staged, and by default nothing in progress and nothing failed."""
    return PlanContext(staged(state, *sources), staging, failures or {}, unsettled)


def pool(*base_models: str, names: EngineNames = "plain", **limits: Any) -> PoolSpec:
    """A pool's record."""
    bases = list(base_models or ("base",))
    return PoolSpec(name=POOL, base_models=bases, limits=PoolLimits(**limits), engine_names=names)


def chosen(
    state: DesiredState, engine: Observed, *, spec: PoolSpec | None = None, share: Share | None = None
) -> Selection:
    """What is chosen of the eager adapters."""
    return select(state, spec, engine, PlanContext({}, set(), {}, set(), share=share), now=0.0)


def review(
    demand: ResidentSet, state: DesiredState, engine: Observed, *, now: float, spec: PoolSpec | None = None
) -> LazySelection:
    """One round of a replica with an empty store, as far as lazy adapters go; gives what was chosen of them."""
    lazy = demand.candidates(state, engine, now=now)
    context = PlanContext({}, set(), {}, set(), lazy=lazy)
    plan = make_plan(state, spec or pool(), engine, context, now=now)
    demand.follow(plan)
    return plan.chosen.lazy


def fleet(*names: str, capacity: int | None = None, **labels: str) -> dict[str, Member]:
    """Replicas that are alike, by name."""
    return {name: Member(name, labels, capacity) for name in names}


def placed_at(replicas: int | str, **selector: str) -> dict[str, Any]:
    """What a record says of its placement."""
    return {"replicas": replicas, "selector": selector}


def rolling(name: str, revision: int, *, generation: int = 2, stable: str = "v1", **spec: Any) -> KeyValue:
    """A record whose generation only canaries take; the others keep the source `stable` of the generation before."""
    kept = AdapterSpec(source=SourceSpec(uri=f"file:///a/{stable}", digest=digest(stable)))
    rollout = CanaryRollout(stable_generation=generation - 1, stable_spec=kept)
    made = record(name, generation, source="v2", **spec).model_copy(update={"rollout": rollout})
    return KeyValue(KEYS.adapter(POOL, name), made.to_bytes(), 1, revision, 1)


def keys_of(order: Iterable[tuple[int, str]]) -> list[str]:
    """The name keys of some ranks."""
    return [key for _, key in order]


def without(members: Mapping[str, Member], *names: str) -> dict[str, Member]:
    """The others."""
    return {name: one for name, one in members.items() if name not in names}
