"""Announcement: presence and status of a replica as they are to be written next.

The parts of a sidecar change it at any time; `sidecar.report.writer` waits for it, and writes what it says then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from registry.model.placement import capacity_within
from registry.model.status import MAX_CAPACITY, Presence, ReplicaStatus, ReportedDeclines
from sidecar.report.status import says_the_same, tells_what_is_served

# Changes within this time make one write, which usually says what came of a change and not only that it came.
COALESCE_SECONDS = 0.15


class Announcement:
    """Statement of a replica about itself; it may have none yet.

    Attributes:
        presence: without what only a status tells.
    """

    def __init__(self, presence: Presence) -> None:
        self.presence = presence
        self._newest: Callable[[], ReplicaStatus] | None = None
        self._news = asyncio.Event()
        self._has_looked = False

    def offer(self, newest: Callable[[], ReplicaStatus]) -> None:
        """Says that there may be news. `newest` derives the status when it is written, of all that came until then."""
        self._newest = newest
        self._news.set()

    def hold(self, capacity: int | None) -> None:
        """Says how many adapters the engine can hold; None: nothing says how many."""
        self._has_looked = True
        self._change(capacity=None if capacity is None else min(capacity, MAX_CAPACITY))

    def hold_as(self, before: Presence) -> None:
        """Until the engine was looked at, it can hold what it could before: others share adapters out by that."""
        if not self._has_looked:
            self._change(capacity=before.capacity)

    def leave(self, *, leaving: bool) -> None:
        """Says whether the replica drains; presence is written anew at once."""
        self._change(leaving=leaving)

    def decline(self, declines: dict[str, ReportedDeclines]) -> None:
        """Says what the replica refuses for good by limits of its own."""
        self._change(declines=declines)

    def look_again(self) -> None:
        """Has it compared with what was written, though nobody said that there are news."""
        self._news.set()

    def _change(self, **fields: object) -> None:
        changed = self.presence.model_copy(update=fields)
        if changed != self.presence:
            self.presence = changed
            self._news.set()

    async def newest(self) -> tuple[ReplicaStatus, Presence]:
        """The newest status, as soon as there is one, and presence beside it: who reads both finds one capacity."""
        self._news.clear()
        while (newest := self._newest) is None:
            await self._wait()
        status = newest()
        capacity = capacity_within(self.presence.capacity, status.engine.limits.max_cpu_loras)
        return status, self.presence.model_copy(update={"capacity": capacity, "by_reports": True})

    async def news_since(
        self, written: tuple[ReplicaStatus, Presence | None], tries_at: float
    ) -> tuple[ReplicaStatus, Presence]:
        """The same once it says something new; from `tries_at` on (loop time), new tries are news too."""
        while True:
            await self._news.wait()
            await asyncio.sleep(COALESCE_SECONDS)
            status, presence = await self.newest()
            is_late = asyncio.get_running_loop().time() >= tries_at
            if presence != written[1] or not says_the_same(status, written[0], with_tries=is_late):
                return status, presence

    async def until_served_is_known(self, before: Presence) -> None:
        """Returns when it is known what the engine serves, or something else is announced than `before`."""
        while self._looks_like(before) and not self._knows_what_is_served:
            await self._wait()

    def _looks_like(self, before: Presence) -> bool:
        """True if nothing is placed or asked for elsewhere by our presence than by the one before."""
        one, other = (
            (found.labels, found.capacity, found.leaving, found.declines, found.engine_url)
            for found in (before, self.presence)
        )
        return one == other

    @property
    def _knows_what_is_served(self) -> bool:
        return self._newest is not None and tells_what_is_served(self._newest())

    async def _wait(self) -> None:
        self._news.clear()
        await self._news.wait()
