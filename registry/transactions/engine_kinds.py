"""What a pool's kind of engine, and its way to name adapters, cannot do: refused when it is asked for. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from registry.errors import InvalidArgument, Reason
from registry.model.records import AdapterSpec, PoolSpec


@dataclass(frozen=True, slots=True)
class Unable:
    """A field of the spec, the kinds of engine that cannot do what it asks for, and what to write instead."""

    field: str
    kinds: frozenset[str]
    asked: Callable[[AdapterSpec], bool]
    remedy: str


UNABLE = (
    Unable(
        "load",
        frozenset({"sglang", "pegainfer"}),
        lambda spec: spec.load == "lazy",
        "have nothing that asks for an adapter when a request names it; use eager",
    ),
)


def check_engine_can(pool: PoolSpec, spec: AdapterSpec, *, field: str) -> None:
    """Raises InvalidArgument if the spec asks for what the pool's engines cannot do."""
    for entry in UNABLE:
        if pool.engine in entry.kinds and entry.asked(spec):
            message = f"the engines of pool {pool.name!r} are {pool.engine}, and {entry.remedy}"
            raise InvalidArgument(Reason.UNSUPPORTED, message, field=f"{field}.{entry.field}")


def check_engine_names(pool: PoolSpec) -> None:
    """Raises InvalidArgument if versioned names cannot work: a new generation is loaded beside the old one."""
    if pool.engine_names == "versioned" and pool.limits.max_adapters == 1:
        message = "versioned names need room for one adapter more than is served: raise max_adapters, or use plain"
        raise InvalidArgument(Reason.INVALID_FIELD, message, field="pool.engine_names")
