"""Announcement: presence and status of a replica as they are to be written next.

The parts of a sidecar change it at any time; `sidecar.report.writer` waits for it, and writes what it says then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from registry.model.errors import RegistryError
from registry.model.placement import Declined, capacity_within, declined_of
from registry.model.status import MAX_CAPACITY, Presence, RememberedDeclines, ReplicaStatus, ReportedDeclines
from registry.runtime.local_files import make_way, read_file
from sidecar.plan.backoff import Declines
from sidecar.plan.limits import announced
from sidecar.plan.types import RoundReport
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
        while self._looks_like(before) and (self._newest is None or not tells_what_is_served(self._newest())):
            await self._wait()

    def _looks_like(self, before: Presence) -> bool:
        """True if nothing is placed or asked for elsewhere by our presence than by the one before."""
        one, other = (
            (found.labels, found.capacity, found.leaving, found.declines, found.engine_url)
            for found in (before, self.presence)
        )
        return one == other

    async def _wait(self) -> None:
        self._news.clear()
        await self._news.wait()


_log = structlog.get_logger()
FILE = "declines.json"
GATHER_SECONDS = 0.5
PACE_SECONDS = 5.0


class DeclineTeller:
    """Tells in the presence what a replica declines, and keeps it for its next process.

    Every sidecar of the pool gets a presence and then finds its share anew, and tells so in its status. So what is new
    is gathered for a moment, and told only now and then. A file that cannot be read or written only has adapters come
    back after a restart for a moment.
    """

    def __init__(self, announcement: Announcement, state: Path) -> None:
        """Reads nothing yet: another sidecar of this replica may still be there. `state`: the replica's directory."""
        self._announcement = announcement
        self._file = state / FILE
        self._newest: Declines = {}
        self._told_at = -PACE_SECONDS
        self._is_due = False
        self.told: Mapping[str, Declined] = {}

    def restore(self) -> None:
        """Tells what the process before declined, until this one knows better."""
        try:
            self.told = declined_of(RememberedDeclines.parse(read_file(self._file)).declines)
        except FileNotFoundError:
            return
        except (OSError, RegistryError) as error:
            _log.warning("declines_unreadable", error=str(error))
            return
        self._announcement.decline(_reported(self.told))

    def take(self, report: RoundReport) -> None:
        """Takes in what a round came to."""
        plan = report.situation.plan
        if plan is None or plan.declined is self._newest:
            return
        self._newest = plan.declined
        if not self._is_due:
            self._is_due, loop = True, asyncio.get_running_loop()
            loop.call_at(max(loop.time() + GATHER_SECONDS, self._told_at + PACE_SECONDS), self._tell)

    def _tell(self) -> None:
        self._is_due, news = False, announced(self._newest)
        if news == self.told:
            return
        self.told, self._told_at = news, asyncio.get_running_loop().time()
        _log.info("declines_told", adapters=len(self._newest), reasons=sorted(news))
        reported = _reported(news)
        self._remember(RememberedDeclines(declines=reported))
        self._announcement.decline(reported)

    def _remember(self, declines: RememberedDeclines) -> None:
        temporary = self._file.with_suffix(".tmp")
        try:
            make_way(temporary)
            temporary.write_bytes(declines.to_bytes())
            make_way(self._file)
            temporary.rename(self._file)
        except OSError as error:
            _log.warning("declines_not_kept", error=str(error))


def _reported(declines: Mapping[str, Declined]) -> dict[str, ReportedDeclines]:
    return {reason: ReportedDeclines(by=one.by, adapters=sorted(one.adapters)) for reason, one in declines.items()}
