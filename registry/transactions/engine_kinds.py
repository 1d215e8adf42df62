"""What a pool's kind of engine, and its way to name adapters, cannot do: refused when it is asked for. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from registry.errors import InvalidArgument, Reason
from registry.model.records import AdapterSpec, EngineKind, PoolSpec


@dataclass(frozen=True, slots=True)
class Unable:
    """A field of the spec, the pools whose engines cannot do what it asks for, and what to write instead."""

    field: str
    pools: Callable[[PoolSpec], bool]
    asked: Callable[[AdapterSpec], bool]
    remedy: str


# They answer every request with the one adapter that they have.
ONE_ADAPTER: frozenset[EngineKind] = frozenset({"axolotl"})
UNABLE = (
    Unable(
        "load",
        lambda pool: pool.engine in {"sglang", "pegainfer", "dynamo", "axolotl"},
        lambda spec: spec.load == "lazy",
        "are {pool.engine}, and have nothing that asks for an adapter when a request names it; use eager",
    ),
    Unable(
        "load",
        lambda pool: pool.engine_names == "versioned",
        lambda spec: spec.load == "lazy",
        "have versioned names, by which a lazy adapter is not found; use eager, or a pool with plain names",
    ),
    Unable(
        "placement",
        lambda pool: pool.engine in ONE_ADAPTER,
        lambda spec: spec.placement.replicas != "all" or bool(spec.placement.selector),
        "are {pool.engine}, which answers for an adapter that it does not have from the base model; place it on all",
    ),
)


def check_engine_can(pool: PoolSpec, spec: AdapterSpec, *, field: str) -> None:
    """Raises InvalidArgument if the spec asks for what the pool's engines cannot do."""
    for entry in UNABLE:
        if entry.pools(pool) and entry.asked(spec):
            message = f"the engines of pool {pool.name!r} {entry.remedy.format(pool=pool)}"
            raise InvalidArgument(Reason.UNSUPPORTED, message, field=f"{field}.{entry.field}")


def check_engine_names(pool: PoolSpec) -> None:
    """Raises InvalidArgument if versioned names cannot work: a new generation is loaded beside the old one."""
    if pool.engine_names == "versioned" and pool.engine in ONE_ADAPTER:
        message = f"{pool.engine} has one adapter at a time, so no generation can be loaded beside another; use plain"
        raise InvalidArgument(Reason.UNSUPPORTED, message, field="pool.engine_names")
    if pool.engine_names == "versioned" and pool.limits.max_adapters == 1:
        message = "versioned names need room for one adapter more than is served: raise max_adapters, or use plain"
        raise InvalidArgument(Reason.INVALID_FIELD, message, field="pool.engine_names")
