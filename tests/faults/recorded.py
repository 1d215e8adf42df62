"""The history of etcd by a watch of the checker's own, which no compaction cuts, and what a sidecar has told it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdError
from registry.etcd3.ops import Range, prefix_end
from registry.etcd3.options import ClientOptions
from registry.etcd3.reflector import Reflector
from registry.etcd3.stream import Resume
from registry.model.keys import Keys
from registry.model.status import ReplicaStatus
from registry.tools.verify.export import step_of
from registry.tools.verify.history import HistoryBase, Revision
from tests.support.etcd import Cluster, compact
from tests.support.fleet import POOL, Sidecar
from tests.support.waiting import eventually


class History:
    """Every revision below a prefix from the first one on, as it comes. Nothing may be compacted beyond `revision`."""

    def __init__(self) -> None:
        self.steps: list[Revision] = []

    @property
    def revision(self) -> int:
        """The newest that was seen."""
        return self.steps[-1].revision if self.steps else 0

    async def follow(self, client: Client, prefix: str) -> None:
        """Adds what comes, until it is cancelled."""
        key, clock = f"{prefix}/".encode(), random.Random(0)
        reflector = Reflector(client, key, prefix_end(key), resume=Resume(0, 0), rng=clock)
        async with aclosing(reflector.stream()) as reflections:
            async for reflection in reflections:
                step = step_of(reflection)
                assert not isinstance(step, HistoryBase), "the history has a gap"
                if step is not None:
                    self.steps.append(step)


@asynccontextmanager
async def watched(options: ClientOptions, prefix: str) -> AsyncIterator[History]:
    """The history from the first revision on, for as long as the context lasts."""
    history, client = History(), Client(options)
    task = asyncio.create_task(history.follow(client, prefix))
    try:
        yield history
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.aclose()


async def compact_seen(cluster: Cluster, prefix: str, history: History) -> None:
    """Forgets the past up to a little ago, but for what the checker has not seen yet."""
    client = Client(cluster.options())
    try:
        now = (await client.range(Range(Keys(prefix).meta()))).revision
        await compact(client, max(1, min(now - 50, history.revision)))
    except EtcdError:
        return  # compacted already, or a member that is still coming up was asked
    finally:
        await client.aclose()


async def told_all(client: Client, keys: Keys, sidecar: Sidecar, replica: str, revision: int) -> int:
    """Waits until the replica's status in etcd is of that revision, with nothing pending, and its log says so.

    Returns the revision at which that status was written.
    """

    async def is_told() -> int | None:
        kvs = (await client.range(Range(keys.status(POOL, replica)))).kvs
        assert kvs, "its status is not there"
        status = ReplicaStatus.parse(kvs[0].value)
        assert status.observed_revision >= revision, (status.observed_revision, revision)
        assert not status.pending, status.pending
        written = [line["revision"] for line in sidecar.program.logged() if line.get("event") == "status_written"]
        return kvs[0].mod_revision if kvs[0].mod_revision in written[-1:] else None

    return await eventually(is_told, timeout_seconds=60)
