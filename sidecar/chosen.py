"""Which of the desired adapters the engine is to hold: as many as it has room for, the most important first. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from registry.model.records import PoolSpec
from sidecar.desired import DesiredAdapter, DesiredState
from sidecar.lazy.residents import DEFAULT_ROOM
from sidecar.observed import Observed


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the engine is to hold, and what there is no room for, both with the most important first.

    `over` are ranks as in `DesiredState.order`: there may be very many. `room` is for how many lazy adapters there is
    room beside them.
    """

    adapters: tuple[DesiredAdapter, ...]
    over: tuple[tuple[int, str], ...]
    room: int


def choose(desired: DesiredState, pool: PoolSpec | None, observed: Observed) -> Chosen:
    """Chooses for the engine that was observed."""
    capacity = _capacity(pool, observed)
    adapters = tuple(desired.adapters[key] for _, key in desired.order[:capacity])
    if capacity is None:
        return Chosen(adapters, (), DEFAULT_ROOM)
    return Chosen(adapters, desired.order[capacity:], capacity - len(adapters))


def _capacity(pool: PoolSpec | None, observed: Observed) -> int | None:
    """How many adapters the engine is asked to hold at once; None: no limit."""
    bounds = [observed.facts.limits.max_cpu_loras, pool.limits.max_adapters if pool else None]
    return min((bound for bound in bounds if bound is not None), default=None)
