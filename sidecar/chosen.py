"""Which of the desired adapters the engine is to hold: as many as it has room for, the most important first. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from registry.model.records import PoolSpec
from sidecar.desired import DesiredAdapter, DesiredState
from sidecar.engine_names import SEPARATOR, key_of, names_of
from sidecar.lazy.residents import DEFAULT_ROOM
from sidecar.leaving import Leaving
from sidecar.observed import Observed
from sidecar.ordering import Order
from sidecar.placings import NOBODY
from sidecar.share import Share, everything


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the engine is to hold, and what there is no room for, both with the most important first.

    `over` and `undecided` are ranks as in `DesiredState.order`: there may be very many. `undecided`: it is not known
    yet whether this replica is to serve them. `leaving`: what the engine lists and others serve. `room`: for how many
    lazy adapters there is room beside them.
    """

    adapters: tuple[DesiredAdapter, ...]
    over: Order
    room: int
    undecided: Order = ()
    leaving: tuple[Leaving, ...] = ()


def choose(desired: DesiredState, share: Share | None, pool: PoolSpec | None, observed: Observed) -> Chosen:
    """Chooses for the engine that was observed; `share` None: this replica serves whatever is desired.

    A generation with a name of its own is loaded before the one that it replaces is unloaded: room is kept for it. Lazy
    adapters have no such names, so there is no room for them.
    """
    share = share or everything(desired)
    limit, is_versioned = capacity(pool, observed), names_of(pool) == "versioned"
    if limit is not None and is_versioned:
        limit -= 1
    adapters = tuple(share.version(desired.adapters[key]) for _, key in share.order[:limit])
    over = () if limit is None else share.order[limit:]
    room = DEFAULT_ROOM if limit is None else limit - len(adapters)
    return Chosen(
        adapters, over, 0 if is_versioned else room, share.undecided, tuple(_leaving(desired, share, observed))
    )


def capacity(pool: PoolSpec | None, observed: Observed) -> int | None:
    """How many adapters the engine is asked to hold at once, at least 1; None: no limit."""
    bounds = [observed.facts.limits.max_cpu_loras, pool.limits.max_adapters if pool else None]
    return min((bound for bound in bounds if bound is not None), default=None)


def _leaving(desired: DesiredState, share: Share, observed: Observed) -> Iterator[Leaving]:
    for name in observed.adapters if desired.tally.with_terms else ():
        adapter = desired.adapters.get(key_of(name))
        if adapter is None or adapter.terms is None or not share.is_elsewhere(adapter):
            continue
        if adapter.name != name.partition(SEPARATOR)[0]:
            continue
        terms, owners, among = adapter.terms, None, NOBODY
        if terms.needs_members:
            owners, among = tuple(replica for _, replica in share.placed[adapter.key]), share.among
        yield Leaving(adapter.key, name, adapter.revision, terms.selector, owners, among)
