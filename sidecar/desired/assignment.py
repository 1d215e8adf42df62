"""Assignment of desired adapters and their versions to this replica. Pure.

Every replica that knows the same records and the same live replicas finds the same owners. What is remembered from one
look to the next only saves work: a change of one record costs nothing for the others, and a replica that comes or goes
costs one comparison for each adapter whose owners depend on it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeGuard

from immutables import Map

from registry.model.names import matches
from registry.model.placement import canaries
from sidecar.desired.informer import DesiredAdapter, DesiredState
from sidecar.desired.placement import (
    NOBODY,
    Members,
    MembershipDigest,
    Order,
    PlacementCache,
    PlacementSpec,
    Ranks,
    is_in,
    reorder,
)

# So many scores take some tens of milliseconds.
PLACES_AT_ONCE = 20_000


@dataclass(frozen=True, slots=True)
class Share:
    """Share of a pool that one replica is to serve.

    Attributes:
        order: ranks of what it serves, as in `DesiredState.order`.
        instead: name key to the version that it serves instead of the newest, since it is no canary.
        undecided: ranks of what it may have to serve or not: the live replicas are not known yet.
        placed: name key to who serves it, the best first, where that depends on who is alive.
        among: whom it was found among.
        is_out: this replica is not one of them, since it leaves.
        replica, members: this replica, and the same by name; None: they make no difference, or are not known.
    """

    order: Order
    instead: Map[str, DesiredAdapter] = field(default_factory=Map)
    undecided: Order = ()
    placed: Map[str, Ranks] = field(default_factory=Map)
    among: MembershipDigest = NOBODY
    is_out: bool = False
    replica: str = ""
    members: Members | None = field(default=None, compare=False)

    def version(self, adapter: DesiredAdapter) -> DesiredAdapter:
        """Version of an adapter that this replica serves, if it serves it."""
        return self.instead.get(adapter.key, adapter)

    def is_elsewhere(self, adapter: DesiredAdapter) -> bool:
        """True if others are to serve the adapter, and this replica is not."""
        return not is_in(self.order, adapter.rank) and not is_in(self.undecided, adapter.rank)


def everything(desired: DesiredState) -> Share:
    """The share of a replica that serves whatever is desired."""
    return Share(desired.order)


class Assigner:
    """Finds one replica's share, again and again."""

    def __init__(self, pool: str, replica: str, labels: Mapping[str, str]) -> None:
        """Knows of nothing yet. `labels` are the replica's own."""
        self.replica = replica
        self._labels = labels
        self._desired = DesiredState()
        self._members: Members | None = None
        self._placings = PlacementCache(pool)
        self._share = everything(self._desired)

    def is_long(self, desired: DesiredState, members: Members | None) -> bool:
        """True if `find` may take so long that a thread had better do it: very many have to be placed anew."""
        last, places = self._desired, desired.tally.by_members * len(members or ())
        is_anew = members is not self._members or desired.tally.everywhere is not last.tally.everywhere
        return places > PLACES_AT_ONCE and (is_anew or desired.changed_since(last.changes) is None)

    def find(self, desired: DesiredState, members: Members | None) -> Share:
        """This replica's share of what is desired.

        Args:
            desired: the pool's adapters; the one object, or its successor, from call to call.
            members: the live replicas by name, this one among them unless it leaves; None: not known.
        """
        if desired is self._desired and members is self._members:
            return self._share
        if not desired.tally.with_terms:
            share = everything(desired)
        elif members is None and desired.tally.by_members:
            share = self._undecided(desired)
        else:
            share = self._find(desired, members or {})
        self._desired, self._members, self._share = desired, members, share
        return share

    def _undecided(self, desired: DesiredState) -> Share:
        """What needs no other replica is served all the same."""
        fitting = [one for one in desired.adapters.values() if _fits(one.terms, self._labels)]
        order = sorted(one.rank for one in fitting if not _needs_members(one.terms))
        undecided = sorted(one.rank for one in fitting if _needs_members(one.terms))
        return Share(tuple(order), undecided=tuple(undecided))

    def _find(self, desired: DesiredState, members: Members) -> Share:
        before, formerly = self._share, self._desired.adapters
        is_news = bool(desired.tally.by_members) and self._placings.meet(members, desired.tally.everywhere)
        was_undecided = self._members is None and self._desired.tally.by_members
        changed = None if was_undecided else desired.changed_since(self._desired.changes)
        if changed is None:
            before, formerly, keys = Share(()), Map(), {*desired.adapters}
        else:
            keys = {*changed}
            keys |= self._moved(desired, before, keys) if is_news else set()
        among = self._placings.among if desired.tally.by_members else NOBODY
        is_out = bool(desired.tally.by_members) and self.replica not in members
        found = replace(before, among=among, is_out=is_out, replica=self.replica, members=members)
        return self._amended(desired, found, formerly, keys)

    def _moved(self, desired: DesiredState, share: Share, but: Collection[str]) -> set[str]:
        """The keys of what is placed on others than before, without those that changed themselves."""
        same = ((ranks, desired.adapters[key]) for key, ranks in share.placed.items() if key not in but)
        return {
            adapter.key
            for ranks, adapter in same
            if _needs_members(adapter.terms)
            and self._placings.place_again(adapter.key, adapter.terms, adapter.generation, ranks) is not ranks
        }

    def _amended(
        self, desired: DesiredState, before: Share, formerly: Map[str, DesiredAdapter], keys: Iterable[str]
    ) -> Share:
        """The share after a look at some keys; `before` is right about all others."""
        placed, instead = before.placed.mutate(), before.instead.mutate()
        gone, come = [], []
        for key in keys:
            former, adapter = formerly.get(key), desired.adapters.get(key)
            placed.pop(key, None)
            instead.pop(key, None)
            if former is not None and is_in(before.order, former.rank):
                gone.append(former.rank)
            if adapter is not None and _needs_members(adapter.terms):
                placed[key] = self._placings.place(key, adapter.terms, adapter.generation)
            version = None if adapter is None else self._version(adapter, placed.get(key, ()))
            if version is not None:
                come.append(version.rank)
                if version is not adapter:
                    instead[key] = version
        order = reorder(before.order, gone, come)
        return replace(before, order=order, placed=placed.finish(), instead=instead.finish())

    def _version(self, adapter: DesiredAdapter, ranks: Ranks) -> DesiredAdapter | None:
        """Version that this replica serves of an adapter; None: none."""
        terms = adapter.terms
        if terms is None or not terms.needs_members:
            return adapter if _fits(terms, self._labels) else None
        serving = tuple(replica for _, replica in ranks)
        if self.replica not in serving:
            return None
        is_canary = terms.canary is not None and self.replica in canaries(terms.canary, serving)
        if terms.stable is None or is_canary:
            return adapter
        return replace(adapter, generation=terms.stable.generation, ref=terms.stable.ref)


def _fits(terms: PlacementSpec | None, labels: Mapping[str, str]) -> bool:
    return terms is None or matches(terms.placement.selector, labels)


def _needs_members(terms: PlacementSpec | None) -> TypeGuard[PlacementSpec]:
    return terms is not None and terms.needs_members
