"""The feed on real etcd, in this process: what it hands on, and what is on disk by then."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from registry.runtime.clock import Clock
from sidecar.desired.informer import DesiredState, Informer
from sidecar.desired.journal import Journal
from sidecar.desired.mailbox import Mailbox, Snapshot
from sidecar.desired.pool_cache import PoolCache
from sidecar.desired.snapshot import AdaptersChanged
from sidecar.desired.watcher import Watcher
from tests.support.fleet import POOL, Hand
from tests.support.waiting import eventually


@asynccontextmanager
async def feeding(hand: Hand, state: Path, mailbox: Watched) -> AsyncIterator[Watched]:
    """Runs the watcher of replica r1, which fills `mailbox`, until its first snapshot is there at least."""
    cache = PoolCache(hand.keys, POOL, mailbox, Journal(state))
    feed = Watcher(hand.client, hand.keys, "r1", cache, Clock())
    cache.restore()
    running = asyncio.create_task(feed.run())
    try:
        yield mailbox
        await eventually(lambda: any(state.glob("snapshot-*")))
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        cache.journal.close()


def on_disk(state: Path, copy: Path) -> DesiredState | None:
    """What a process would come back to that starts now without etcd."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(state, copy, ignore=shutil.ignore_patterns("tmp-*"))  # which a thread may rename meanwhile
    journal = Journal(copy)
    restored = journal.restore(POOL)
    journal.close()
    if restored is None:
        return None
    informer = Informer(POOL)
    informer.restore(restored.base.revision, restored.base.records)
    for entry in restored.entries:
        if isinstance(entry, AdaptersChanged):
            informer.apply(entry.revision, entry.events)
    return informer.state


class Watched(Mailbox):
    """Notes at each snapshot what may be acted upon from then on, and what is on disk."""

    def __init__(self, state: Path) -> None:
        super().__init__()
        self._state = state
        self.seen: list[tuple[DesiredState, DesiredState | None]] = []

    def post(self, snapshot: Snapshot) -> None:
        super().post(snapshot)
        if snapshot.desired is not None:
            self.seen.append((snapshot.desired, on_disk(self._state, self._state.with_name("copy"))))


async def follows(mailbox: Mailbox, revision: int) -> None:
    await eventually(lambda: (desired := mailbox.snapshot.desired) is not None and desired.revision >= revision)


async def test_what_may_be_acted_upon_is_on_disk(hand, tmp_path):
    """R1 monotonic, R12: a kill right after a change was handed on brings back nothing older, with or without etcd."""
    state = tmp_path / "state"
    state.mkdir()
    async with feeding(hand, state, Watched(state)) as first:
        await hand.pool()
        await follows(first, await hand.put(hand.record("a", "v1"), hand.record("b", "v1")))
        # Nothing was acted upon before the first list, so that its snapshot may follow it.
        await eventually(lambda: any(state.glob("snapshot-*")))
        first.seen.clear()
        for generation in range(2, 5):
            await follows(first, await hand.put(hand.record("a", "v1", generation)))
        await follows(first, await hand.delete("b"))
    await hand.put(hand.record("c", "v1"))
    async with feeding(hand, state, Watched(state)) as second:
        await follows(second, await hand.delete("a"))
    assert len(first.seen) >= 4
    assert second.seen
    for desired, kept in (*first.seen, *second.seen):
        assert kept is not None
        assert kept.revision >= desired.revision or kept.state_hash == desired.state_hash
