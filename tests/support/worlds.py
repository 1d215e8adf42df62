"""Desired and observed states for tests of the planner."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from registry.etcd3.ops import KeyValue
from registry.model.records import EngineNames, PoolLimits, PoolSpec
from sidecar.artifacts.types import ArtifactRef, Staged
from sidecar.desired import DesiredState, Informer
from sidecar.failures import Failure
from sidecar.known import Known
from sidecar.observed import EngineFacts, EngineLimits, Observed
from tests.support.records import POOL, kv

STORE = "/store/adapters/sha256-"


def owns(path: str) -> str | None:
    """The artifact id of a path in the test's store."""
    return path.removeprefix(STORE) if path.startswith(STORE) else None


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


def observed(adapters: Mapping[str, str] | None = None, *, incarnation: str = "e1", **limits: Any) -> Observed:
    """An engine that lists the given names, each with the path of a source or, if it starts with /, with that path."""
    facts = EngineFacts("vllm", "0.32.0", "http://e", incarnation, EngineLimits(**limits))
    return Observed(facts, ("base",), paths(adapters or {}))


def forgetless(adapters: Mapping[str, str], past: Mapping[str, str]) -> Observed:
    """An engine that remembers what it computed with weights, by the name that they had."""
    facts = EngineFacts("vllm", "0.30.0", "http://e", "e1", swap="refused")
    return Observed(facts, ("base",), paths(adapters), past=paths(past))


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
) -> Known:
    """Known facts: these sources staged, and by default nothing in progress and nothing failed."""
    return Known(staged(state, *sources), staging, failures or {}, unsettled, owns)


def pool(*base_models: str, names: EngineNames = "plain", **limits: Any) -> PoolSpec:
    """A pool's record."""
    bases = list(base_models or ("base",))
    return PoolSpec(name=POOL, base_models=bases, limits=PoolLimits(**limits), engine_names=names)
