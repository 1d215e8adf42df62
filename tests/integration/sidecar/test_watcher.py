"""The feed on real etcd, in this process: what it hands on, and what is on disk by then."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from registry.etcd3.stream import Progressed
from registry.model.keys import Keys
from registry.runtime.clock import Clock
from sidecar.desired.informer import DesiredState, Informer
from sidecar.desired.journal import Journal
from sidecar.desired.mailbox import Mailbox, Snapshot
from sidecar.desired.snapshot import AdaptersChanged
from sidecar.desired.watcher import Watcher
from tests.integration.sidecar.feeding import feeding
from tests.support.fleet import POOL, Hand
from tests.support.waiting import eventually


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


@pytest.fixture
def hand(etcd, etcd_client, tmp_path: Path) -> Hand:
    (tmp_path / "sources").mkdir()
    return Hand(etcd_client, Keys(etcd.prefix), tmp_path / "sources")


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


async def test_what_is_followed_goes_on_where_only_others_write(hand, tmp_path):
    """Alerts compare replicas by it: one that listed later than another must not look ahead of it for ever."""
    (tmp_path / "state").mkdir()
    journal = Journal(tmp_path / "state")
    feed = Watcher(hand.client, hand.keys, POOL, "r1", Mailbox(), journal, Clock())
    await feed._take(Progressed(1 << 40))
    journal.close()
    assert REGISTRY.get_sample_value("loraplane_observed_revision") == 1 << 40
