"""A sidecar that is killed at points of journal, report and engine, and what its next process makes of what it left."""

from __future__ import annotations

import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from registry.etcd3.ops import Range, prefix_end
from registry.model.keys import last_part
from registry.model.status import ReplicaStatus
from registry.runtime.failpoints import Point
from sidecar.artifacts.store import LocalStore
from sidecar.desired.informer import DesiredAdapter, Informer, parse_adapter
from sidecar.desired.journal import Journal
from sidecar.desired.packing import RawRecord
from sidecar.desired.snapshot import AdaptersChanged, SnapshotBase
from sidecar.plan.types import ServedAdapter
from sidecar.report.status import served_hash
from tests.support.adapters import digest_of
from tests.support.fleet import POOL, Hand, Sidecar, SimulatedEngine
from tests.support.processes import Program
from tests.support.waiting import eventually

# tests/integration/artifacts/ dies amid stagings and removals.
POINTS = [point for point in Point if not point.startswith(("staging.", "removal."))]


@dataclass(frozen=True)
class Place:
    """A replica that has a past, and changes that are waiting for its sidecar.

    Attributes:
        theirs: path of what somebody else loaded.
        revision: of the newest change.
        before: of the snapshot.
    """

    hand: Hand
    engine: SimulatedEngine
    sidecar: Sidecar
    theirs: str
    before: int
    revision: int

    @property
    def state(self) -> Path:
        return self.sidecar.store / "state" / self.sidecar.replica

    async def listing(self) -> dict[str, str]:
        """What the engine has from our store, by the digest of the files; what it has from elsewhere is untouched."""
        listing = await self.engine.listing()
        assert listing.pop("theirs") == self.theirs
        assert all(path.startswith(str(self.sidecar.store / "adapters")) for path in listing.values())
        return {name: digest_of(Path(path)) for name, path in listing.items()}

    def digest(self, source: str) -> str:
        return digest_of(self.hand.source(source))


async def staged(store: LocalStore, adapter: object) -> str:
    """Stages what a record asks for; returns its path."""
    assert isinstance(adapter, DesiredAdapter)
    return (await store.ensure(adapter.ref)).path


@pytest.fixture
async def place(hand: Hand, engine: SimulatedEngine, sidecar: Sidecar) -> Place:
    """An engine that serves two adapters of ours and one of somebody else's, and a snapshot whose journal is torn, so
    that a boot writes it anew. Since then one adapter was changed, one deleted, and one added.
    """
    store = LocalStore(sidecar.store, sidecar.replica, [f"file://{hand.sources}/"])
    before = [hand.record("a", "v1"), hand.record("gone", "v2")]
    await hand.pool()
    revision = await hand.put(*before)
    records = {record.name: RawRecord(record.to_bytes(), revision) for record in before}
    for name, raw in records.items():
        assert await engine.load(name, await staged(store, parse_adapter(POOL, name, raw.value, revision))) == 200
    store.close()
    theirs = str(hand.source("theirs"))
    assert await engine.load("theirs", theirs) == 200
    pool = (await hand.client.list_range(hand.keys.pool(POOL), b"")).kvs[0].value
    cluster = (await hand.client.list_range(hand.keys.pool(POOL), b"")).cluster_id
    state = sidecar.store / "state" / sidecar.replica
    journal = Journal(state)
    await journal.rewrite(SnapshotBase(POOL, cluster, revision, pool, records))
    journal.close()
    with (state / "journal-1").open("ab") as file:
        file.write(b"torn")
    await hand.put(hand.record("a", "v3", 2), hand.record("new", "v4"))
    return Place(hand, engine, sidecar, theirs, revision, await hand.delete("gone"))


@pytest.mark.parametrize("point", POINTS)
async def test_killed_at_any_point_the_next_process_comes_to_the_same_end(place: Place, point: Point):
    """R12 crash-only, R1 monotonic, R4 digest-true, R11 foreign-safe, fault 17."""
    sidecar = place.sidecar.program
    dying = Program("tests.support.changed_sidecar", [point, *sidecar.arguments], sidecar.log)
    dying.start()
    try:
        assert dying.wait() == -signal.SIGKILL
    finally:
        dying.kill()
    # Nothing but what was served, or is to be served, is in the engine: names are checked once all is settled.
    assert set((await place.listing()).values()) <= {place.digest(source) for source in ("v1", "v2", "v3", "v4")}
    sidecar.start()
    await has_converged(place)
    assert set(await place.listing()) == {"a", "new"}


async def has_converged(place: Place) -> None:
    """Waits for the end state, then kills the sidecar and looks at what it leaves on disk."""

    async def is_served() -> bool:
        assert await place.listing() == {"a": place.digest("v3"), "new": place.digest("v4")}
        return True

    async def is_published() -> bool:
        found = (await place.hand.client.range(Range(place.hand.keys.status(POOL, place.sidecar.replica)))).kvs
        assert found
        status = ReplicaStatus.parse(found[0].value)
        assert status.observed_revision >= place.revision, status
        assert status.ready, status
        assert (status.stale, status.pending, status.failed) == (False, [], []), status
        served = [ServedAdapter("a", 2, place.digest("v3")), ServedAdapter("new", 1, place.digest("v4"))]
        assert status.served.hash == served_hash(served)
        return True

    await eventually(is_served)
    await eventually(is_published)
    place.sidecar.program.kill()
    await check_snapshot(place)
    plans = [line["revision"] for line in place.sidecar.program.logged() if line["event"] == "plan_made"]
    assert plans == sorted(plans)
    assert plans[0] >= place.before


async def check_snapshot(place: Place) -> None:
    """What is on disk is what etcd has, and what was left half is gone with the next snapshot (R16 bounded)."""
    copy = place.state.with_name("copy")
    shutil.copytree(place.state, copy)
    journal = Journal(copy)
    restored = journal.restore(POOL)
    assert restored is not None
    informer = Informer(POOL)
    informer.restore(restored.base.revision, restored.base.records)
    for entry in restored.entries:
        if isinstance(entry, AdaptersChanged):
            informer.apply(entry.revision, entry.events)
    listed = await place.hand.client.list_range(prefix := place.hand.keys.adapters(POOL), prefix_end(prefix))
    assert {key: raw.value for key, raw in informer.raw.items()} == {last_part(kv.key): kv.value for kv in listed.kvs}
    await journal.rewrite(restored.base)
    journal.close()
    left = sorted(path.name.partition("-")[0] for path in copy.iterdir())
    assert left == ["journal", "lock", "snapshot"]
