"""Which of the desired adapters the engine is to hold: as many as it has room for, the most important first. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from registry.model.records import PoolSpec
from sidecar.desired import DesiredAdapter, DesiredState
from sidecar.engine_names import names_of
from sidecar.observed import Observed


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the engine is to hold, and what there is no room for, both with the most important first.

    `over` are ranks as in `DesiredState.order`: there may be very many.
    """

    adapters: tuple[DesiredAdapter, ...]
    over: tuple[tuple[int, str], ...]


def choose(desired: DesiredState, pool: PoolSpec | None, observed: Observed) -> Chosen:
    """Chooses for the engine that was observed.

    A generation with a name of its own is loaded before the one that it replaces is unloaded: room is kept for it.
    """
    most = capacity(pool, observed)
    if most is not None and names_of(pool) == "versioned":
        most -= 1
    adapters = tuple(desired.adapters[key] for _, key in desired.order[:most])
    return Chosen(adapters, () if most is None else desired.order[most:])


def capacity(pool: PoolSpec | None, observed: Observed) -> int | None:
    """How many adapters the engine is asked to hold at once, at least 1; None: no limit."""
    bounds = [observed.facts.limits.max_cpu_loras, pool.limits.max_adapters if pool else None]
    return min((bound for bound in bounds if bound is not None), default=None)
