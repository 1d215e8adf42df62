"""Very many sidecars' feeds in one process: real watch streams to a real etcd, real snapshots, no engines."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from registry.etcd3.client import Client
from registry.etcd3.options import ClientOptions
from registry.model.keys import Keys
from registry.runtime.clock import Clock
from sidecar.desired.journal import Journal
from sidecar.desired.mailbox import Mailbox
from sidecar.desired.pool_cache import PoolCache
from sidecar.desired.watcher import Watcher
from sidecar.metrics import RELISTS
from tests.support.metrics import read_metrics
from tests.support.waiting import eventually

# So many are on their way to their state at a time.
AT_ONCE = 100


@dataclass
class Member:
    """One feed with its client, snapshot and mailbox."""

    client: Client
    journal: Journal
    mailbox: Mailbox
    task: asyncio.Task[None]


@dataclass
class Herd:
    """Feeds of one pool that start and end together.

    Attributes:
        folder: has a folder for each feed's snapshot.
    """

    endpoint: str
    keys: Keys
    pool: str
    folder: Path
    members: list[Member] = field(default_factory=list)

    def copy_snapshot(self, count: int) -> None:
        """Gives so many feeds the snapshot of the first, as if each had followed until then."""
        for number in range(1, count):
            shutil.copytree(self._place(0), self._place(number), ignore=shutil.ignore_patterns("tmp-*"))

    async def start(self, count: int, revision: int, *, timeout_seconds: float) -> None:
        """Starts them all, as fast as this one process can, and waits until each has come to that revision."""
        async with asyncio.timeout(timeout_seconds):
            for number in range(count):
                self.members.append(self._start(number))
                await eventually(lambda: self._has_room(revision), timeout_seconds=timeout_seconds)
            await self.follow(revision, timeout_seconds=timeout_seconds)

    async def stop(self) -> None:
        """Ends them all, as a kill would: nothing is tidied up in etcd."""
        for member in self.members:
            member.task.cancel()
        await asyncio.gather(*(member.task for member in self.members), return_exceptions=True)
        for member in self.members:
            await member.client.aclose()
            member.journal.close()
        self.members = []

    async def follow(self, revision: int, *, timeout_seconds: float) -> None:
        """Waits until each has come to that revision or further, has the same state, and a snapshot on disk."""

        def is_so() -> bool:
            behind = [one for one in self.members if not _has_come(one, revision)]
            assert not behind, f"{len(behind)} of {len(self.members)} are behind"
            places = [self._place(number) for number in range(len(self.members))]
            assert all(any(place.glob("snapshot-*")) for place in places), "a snapshot is not written yet"
            states = {desired.state_hash for one in self.members if (desired := one.mailbox.snapshot.desired)}
            assert len(states) == 1, f"{len(states)} different states"
            return True

        await eventually(is_so, timeout_seconds=timeout_seconds)

    def _has_room(self, revision: int) -> bool:
        return sum(not _has_come(one, revision) for one in self.members[-AT_ONCE:]) < AT_ONCE

    def _place(self, number: int) -> Path:
        return self.folder / f"state-{number}"

    def _start(self, number: int) -> Member:
        rng = random.Random(number)
        client = Client(ClientOptions((self.endpoint,), call_timeout_seconds=60.0), rng=rng)
        journal, mailbox = Journal(self._place(number)), Mailbox()
        cache = PoolCache(self.keys, self.pool, mailbox, journal)
        feed = Watcher(client, self.keys, f"r{number}", cache, Clock(rng))
        cache.restore()
        return Member(client, journal, mailbox, asyncio.create_task(feed.run()))


def _has_come(member: Member, revision: int) -> bool:
    desired = member.mailbox.snapshot.desired
    return desired is not None and desired.revision >= revision


@contextmanager
def patient() -> Iterator[None]:
    """A thousand clients that share one processor are slow through no fault of etcd: none gives up for that."""
    with (
        mock.patch("registry.etcd3.watch.SILENCE_SECONDS", (60.0, 60.0)),
        mock.patch("registry.etcd3.watch._CALL_SECONDS", 60.0),
        mock.patch("registry.etcd3.watch._WRITE_SECONDS", 60.0),
    ):
        yield


def lists_read() -> int:
    """Whole lists that feeds of this process have read so far."""
    (metric,) = RELISTS.collect()
    return int(next(one.value for one in metric.samples if one.name.endswith("_total")))


async def bytes_sent(endpoint: str) -> int:
    """What etcd has sent to clients so far."""
    return int((await read_metrics(f"http://{endpoint}"))["etcd_network_client_grpc_sent_bytes_total"])
