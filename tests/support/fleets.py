"""Live replicas and what they share, for tests of placement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from registry.etcd3.ops import KeyValue
from registry.model.placement import Member
from registry.model.records import AdapterSpec, CanaryRollout, Source
from tests.support.records import KEYS, POOL, digest, record


def fleet(*names: str, capacity: int | None = None, **labels: str) -> dict[str, Member]:
    """Replicas that are alike, by name."""
    return {name: Member(name, labels, capacity) for name in names}


def placed_at(replicas: int | str, **selector: str) -> dict[str, Any]:
    """What a record says of its placement."""
    return {"replicas": replicas, "selector": selector}


def rolling(name: str, revision: int, *, generation: int = 2, stable: str = "v1", **spec: Any) -> KeyValue:
    """A record whose generation only canaries take; the others keep the source `stable` of the generation before."""
    kept = AdapterSpec(source=Source(uri=f"file:///a/{stable}", digest=digest(stable)))
    rollout = CanaryRollout(stable_generation=generation - 1, stable_spec=kept)
    made = record(name, generation, source="v2", **spec).model_copy(update={"rollout": rollout})
    return KeyValue(KEYS.adapter(POOL, name), made.to_bytes(), 1, revision, 1)


def keys_of(order: Iterable[tuple[int, str]]) -> list[str]:
    """The name keys of some ranks."""
    return [key for _, key in order]


def without(members: Mapping[str, Member], *names: str) -> dict[str, Member]:
    """The others."""
    return {name: one for name, one in members.items() if name not in names}
