"""Pools as the picker knows them, laid down by a test."""

from __future__ import annotations

from typing import Any

from registry.client.residency import AdapterResidency, PoolResidency, Residence, State
from registry.picker.served import PickPool, ReadyReplica


def place(number: int, **changes: Any) -> Residence:
    """Replica ``r1`` at 10.0.0.1:8000, and so on, which serves generation 1 of sql."""
    values = {
        "replica": f"r{number}",
        "engine_url": f"http://10.0.0.{number}:8000",
        "labels": {},
        "model": "sql",
        "generation": 1,
        "state": State.SERVING,
        "reason": "",
        "loaded": True,
        "last_used": "",
    }
    return Residence(**{**values, **changes})


def adapter(*places: Residence, name: str = "sql", generation: int = 1, load: str = "eager") -> AdapterResidency:
    return AdapterResidency(name, generation, load, places, "")


def pool(*adapters: AdapterResidency, revision: int = 10, **changes: Any) -> PickPool:
    """A pool of the base model ``acme/tiny:8b``, with two ready replicas unless it is said otherwise."""
    ready = tuple(ReadyReplica(f"r{number}", f"http://10.0.0.{number}:8000") for number in (1, 2))
    values: dict[str, Any] = {"name": "p", "bases": frozenset({"acme/tiny:8b"}), "ready": ready, **changes}
    return PickPool(residency=PoolResidency(revision, {one.name.lower(): one for one in adapters}), **values)
