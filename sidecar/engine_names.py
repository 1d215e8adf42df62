"""What engines call an adapter: its name, or a name of its own for each generation. Pure."""

from __future__ import annotations

from registry.model.names import name_key
from registry.model.records import EngineNames, PoolSpec
from sidecar.desired import DesiredAdapter

# No adapter's name has it.
SEPARATOR = "@"


def names_of(pool: PoolSpec | None) -> EngineNames:
    """How the engines of a pool name adapters; without a record as vLLM's own users do."""
    return pool.engine_names if pool is not None else "plain"


def engine_name(adapter: DesiredAdapter, names: EngineNames) -> str:
    """What an engine calls an adapter at its generation."""
    return f"{adapter.name}{SEPARATOR}{adapter.generation}" if names == "versioned" else adapter.name


def key_of(engine_name: str) -> str:
    """The name key of the adapter that an engine calls so, in whichever of the two ways."""
    return name_key(engine_name.partition(SEPARATOR)[0])
