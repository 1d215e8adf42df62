"""Place of one reader in a pool: changes since it last heard, as events.

Nothing is queued for a reader. It hears the state as it is when it comes back, so that one that reads slowly hears less
often, and never of something that is not so any more.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass

from registry.admin.page.rows import absent_rows, adapter_rows, replica_row
from registry.admin.rpc.encode_residency import Document
from registry.model.names import name_of_key
from registry.residency.health import pool_state
from registry.residency.hub import ResidencyUpdate, Subscription
from registry.residency.view import PoolView
from registry.rollout.pool import LiveReplica

# So many rows are derived before others get the processor, and sent in one event.
ROWS_AT_ONCE = 100


def event(kind: str, told: Document) -> str:
    """One server-sent event."""
    return f"event: {kind}\ndata: {json.dumps(told, separators=(',', ':'))}\n\n"


@dataclass(frozen=True, slots=True)
class PoolSight:
    """Parts of a pool that a reader may see.

    Attributes:
        is_seen: tells, by its name, whether an adapter is.
        shows_replicas: replicas are.
        is_whole: all adapters are, and so sentences that may name any.
    """

    is_seen: Callable[[str], bool]
    shows_replicas: bool
    is_whole: bool


class PoolCursor:
    """One reader's knowledge of a pool."""

    def __init__(self, pool: str, subscription: Subscription, sight: PoolSight) -> None:
        self.pool, self.subscription = pool, subscription
        self._sight = sight
        self._version = 0
        self._replicas: Mapping[str, LiveReplica] | None = None
        self._withheld: frozenset[str] = frozenset()
        self._states: dict[str, tuple[str, bool]] = {}
        self._told: Document = {}

    async def news(self) -> AsyncIterator[str]:
        """The events since the last time; none where nothing is known yet, or nothing changed.

        Raises:
            Unavailable: the subscription has ended.
        """
        if self.subscription.version == self._version and not self.subscription.has_ended:
            view = self.subscription.view
        else:
            update = await self.subscription.look(self._version)
            view, self._version = update.view, update.version
            async for one in self._adapters(update):
                yield one
        if not self._version:
            return
        for told in (self._of_replicas(view), self._of_pool(view)):
            if told:
                yield told

    async def _adapters(self, update: ResidencyUpdate) -> AsyncIterator[str]:
        keys = [key for key in update.keys if self._sight.is_seen(name_of_key(key))]
        if update.snapshot:
            self._states.clear()
        for start in range(0, max(len(keys), update.snapshot), ROWS_AT_ONCE):
            part, end = keys[start : start + ROWS_AT_ONCE], start + ROWS_AT_ONCE
            yield await asyncio.to_thread(self._part, update, part, is_first=not start, is_last=end >= len(keys))

    def _part(self, update: ResidencyUpdate, keys: Sequence[str], *, is_first: bool, is_last: bool) -> str:
        found = adapter_rows(update.view, keys)
        for name in found.gone:
            self._states.pop(name.lower(), None)
        self._states |= {row["name"].lower(): (row["state"], row["serving"] > 0) for row in found.rows}
        told = {
            "pool": self.pool,
            "snapshot": update.snapshot and is_first,
            "last": is_last,
            "rows": found.rows,
            "sets": found.sets,
            "gone": found.gone,
        }
        return event("adapters", told)

    def _of_replicas(self, view: PoolView) -> str:
        """Changes of the replicas, all of them at first; empty: nothing, or the reader may not see them."""
        before, now = self._replicas, view.everybody
        if not self._sight.shows_replicas or (before is now and self._withheld == view.withheld):
            return ""
        known, differs = before or {}, self._withheld ^ view.withheld
        changed = [name for name, one in now.items() if known.get(name) is not one or name in differs]
        gone = [name for name in known if name not in now]
        self._replicas, self._withheld = now, view.withheld
        if before is not None and not changed and not gone:
            return ""
        rows = [replica_row(view, name, is_whole=self._sight.is_whole) for name in changed]
        return event("replicas", {"pool": self.pool, "snapshot": before is None, "rows": rows, "gone": gone})

    def _of_pool(self, view: PoolView) -> str:
        """The pool as a whole; empty: as it was told."""
        states = Counter(state for state, _ in self._states.values())
        readings = [one.reading for one in view.replicas.values()]
        statuses = [getattr(one, "status", None) for one in readings]
        ready = sum(one is not None and one.ready and not one.stale for one in statuses)
        lacking = view.snapshot.lacking.count
        told = {
            "name": self.pool,
            "state": pool_state(states, ready, len(view.replicas), lacking),
            "ready": ready,
            "replicas": len(view.replicas) + lacking,
            "served": sum(is_served for _, is_served in self._states.values()),
            "adapters": states.total() - states["Disabled"],
            "absent": absent_rows(view) if self._sight.shows_replicas else [],
            "shows_replicas": self._sight.shows_replicas,
        }
        if told == self._told:
            return ""
        self._told = told
        return event("pool", told)
