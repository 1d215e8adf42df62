"""A whole watcher on an etcd of the simulation, on virtual time: all of its parts, over faults and restarts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from unittest import mock

import pytest

from registry.etcd3.errors import EtcdPermissionDenied, EtcdUnavailable
from registry.etcd3.ops import Delete, KeyValue, Put, Range, RangeResult, Txn, prefix_end
from registry.model.records import Meta, Placement, PoolLimits
from registry.runtime.clock import Clock
from sidecar.desired import packing
from sidecar.desired import watcher as module
from sidecar.desired.journal import Journal
from sidecar.desired.members import BELIEVE_SECONDS
from sidecar.desired.packing import PackedRecord
from sidecar.desired.pool_cache import PoolCache
from sidecar.desired.watcher import Watcher, epoch_of
from sidecar.metrics import OBSERVED_REVISION, RELISTS
from tests.simulation.links import Way
from tests.support.played_etcd import PlayedEtcd, now, played
from tests.support.records import KEYS, POOL, record
from tests.support.residency_world import presence, replica_status
from tests.support.worlds import fleet, pool
from tests.unit.desired.test_watcher import Kept


def epoch(name: str) -> bytes:
    return Meta(epoch=name, created_at="").to_bytes()


class Sidecar:
    """What a sidecar has of an etcd."""

    def __init__(self, etcd: PlayedEtcd, folder: Path) -> None:
        self.mailbox, self.journal, self.parts = Kept(), Journal(folder), list[str]()
        client, clock = etcd.client(), Clock(random.Random(0))
        cache = PoolCache(KEYS, POOL, self.mailbox, self.journal)
        self.watcher = Watcher(client, KEYS, "r1", cache, clock, self._keep)
        cache.restore()
        self._task = asyncio.create_task(self.watcher.run())

    async def _keep(self, part: str, work: Callable[[], Awaitable[None]]) -> None:
        self.parts.append(part)
        await work()

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        self.journal.close()

    @property
    def names(self) -> set[str] | None:
        """What is in force."""
        state = self.mailbox.snapshot.actionable
        return None if state is None else {*state.adapters}


def write(etcd: PlayedEtcd, names: Iterable[str], **spec: object) -> None:
    for name in names:
        etcd.store.put(KEYS.adapter(POOL, name), record(name, **spec).to_bytes())


def make_registry(etcd: PlayedEtcd, *names: str, **spec: object) -> None:
    etcd.store.put(KEYS.meta(), epoch("first"))
    etcd.store.put(KEYS.pool(POOL), pool().to_bytes())
    write(etcd, names, **spec)


ON_ONE = Placement(replicas=1)


@played
async def test_all_that_etcd_has_of_a_pool_comes_in_force_and_outlives_etcd_and_a_restart(etcd: PlayedEtcd, tmp_path):
    """R1, R3, R13: adapters, the pool's record and the live replicas, as far as somebody has to know them."""
    make_registry(etcd, "a", placement=ON_ONE)
    lease = etcd.store.grant(3600, now())
    for replica in ("r1", "r2"):
        said = presence(replica, by_reports=True).to_bytes(), replica_status(replica, 1).to_bytes()
        keys = KEYS.replica(POOL, replica), KEYS.status(POOL, replica)
        puts = (Put(key, value, lease) for key, value in zip(keys, said, strict=True))
        etcd.store.txn(Txn((), tuple(puts)))
    etcd.store.put(KEYS.replica(POOL, "ghost"), presence("ghost", by_reports=True).to_bytes())
    first = Sidecar(etcd, tmp_path)
    await asyncio.sleep(1)
    snapshot = first.mailbox.snapshot
    assert (first.names, snapshot.connected, snapshot.pool) == ({"a"}, True, pool())
    assert snapshot.members is None, "others may be on their way"
    await asyncio.sleep(BELIEVE_SECONDS)
    assert first.mailbox.snapshot.members == fleet("r1", "r2")
    etcd.store.delete(KEYS.replica(POOL, "r2"))
    write(etcd, ["b", "c"])
    etcd.store.delete(KEYS.adapter(POOL, "b"))
    await asyncio.sleep(1)
    assert (first.names, first.mailbox.snapshot.members) == ({"a", "c"}, fleet("r1"))
    assert first.mailbox.snapshot.last_request_id == ""
    assert OBSERVED_REVISION._value.get() == etcd.store.revision
    await first.end()
    assert sorted(first.parts) == ["adapters", "boot", "members", "pack", "pool", "sync"]
    for link in etcd.links.values():
        link.set_way(Way.REFUSED)
    again = Sidecar(etcd, tmp_path)
    await asyncio.sleep(1)
    assert (again.names, again.mailbox.snapshot.connected) == (None, False), "etcd may have something newer"
    await asyncio.sleep(3)
    assert (again.names, again.mailbox.snapshot.members) == ({"a", "c"}, fleet("r1"))
    for link in etcd.links.values():
        link.set_way(Way.OPEN)
    write(etcd, ["d"])
    await asyncio.sleep(15)
    assert (again.names, again.mailbox.snapshot.connected) == ({"a", "c", "d"}, True)
    await again.end()


@played
async def test_what_came_is_packed_within_seconds_and_memory_given_back_once_there_was_much_of_it(
    etcd: PlayedEtcd, tmp_path, monkeypatch
):
    """R16 bounded: also what comes later, and what a restart reads. Giving back takes the loop for milliseconds."""
    given: list[None] = []
    monkeypatch.setattr(packing, "give_back", lambda: given.append(None))

    def packed(sidecar: Sidecar) -> list[bool]:
        return [isinstance(one, PackedRecord) for one in sidecar.watcher._informer.raw.values()]

    make_registry(etcd, *(f"n{number}" for number in range(200)))
    first = Sidecar(etcd, tmp_path)
    await asyncio.sleep(0.5)
    assert (len(packed(first)), any(packed(first))) == (200, False)
    await asyncio.sleep(5)
    assert (all(packed(first)), len(given)) == (True, 1)
    write(etcd, ["late"])
    await asyncio.sleep(4)
    assert (len(packed(first)), all(packed(first)), len(given)) == (201, True, 1)
    await first.end()
    again = Sidecar(etcd, tmp_path)
    await asyncio.sleep(6)
    assert (len(packed(again)), all(packed(again))) == (201, True)
    await again.end()


@pytest.mark.parametrize("is_other_cluster", [True, False], ids=["another cluster", "restored in place"])
@pytest.mark.parametrize("restarts", [True, False], ids=["over a restart", "as it runs"])
@played
async def test_the_pool_of_another_store_waits_for_its_adapters(etcd: PlayedEtcd, tmp_path, restarts, is_other_cluster):
    """R15 brake, R1: of a store that lacks very much the pool's record, and its limits, come in force with the list."""
    make_registry(etcd, *(f"n{number}" for number in range(40)))
    sidecar = Sidecar(etcd, tmp_path)
    await asyncio.sleep(1)
    names = sidecar.names
    if restarts:
        await sidecar.end()
    other = pool().model_copy(update={"limits": PoolLimits(max_adapters=1)})
    etcd.store.txn(Txn((), (Delete(KEYS.adapters(POOL), prefix_end(KEYS.adapters(POOL))),)))
    etcd.store.put(KEYS.pool(POOL), other.to_bytes())
    etcd.store.compact(etcd.store.revision)
    etcd.cluster.restart(cluster_id=etcd.cluster.cluster_id + is_other_cluster)
    for link in etcd.links.values():
        link.cut()
    for _ in range(2):  # the second process begins while the list is held
        if restarts:
            await sidecar.end()
            sidecar = Sidecar(etcd, tmp_path)
        await asyncio.sleep(30)
        assert sidecar.mailbox.snapshot.held
        assert all(one.pool == pool() for one in sidecar.mailbox.posted if one.pool_read)
        assert sidecar.names == names
    confirmed = other.model_copy(update={"removals_confirmed_revision": etcd.store.revision})
    etcd.store.put(KEYS.pool(POOL), confirmed.to_bytes())
    await asyncio.sleep(1)
    assert (sidecar.names, sidecar.mailbox.snapshot.pool) == (set(), confirmed)
    await sidecar.end()


@played
async def test_what_is_missing_in_silence_is_found_by_a_list_now_and_then(etcd: PlayedEtcd, tmp_path):
    """R2: a net below the watch, every ten minutes or so, and never its substitute."""
    make_registry(etcd, "a")
    before = RELISTS._value.get()
    sidecar = Sidecar(etcd, tmp_path)
    await asyncio.sleep(2000)
    assert 3 <= RELISTS._value.get() - before <= 6
    await sidecar.end()


@played
async def test_a_store_that_cannot_say_which_it_is_is_not_followed_until_it_can(
    etcd: PlayedEtcd, tmp_path, monkeypatch
):
    """R15: it may be another one. It is asked again within seconds, and not more than it can bear."""
    asked: list[float] = []
    is_away = False

    async def ask(*arguments: object, known: str) -> str:
        asked.append(now())
        if is_away:
            raise EtcdUnavailable("no answer", maybe_applied=False)
        return await epoch_of(*arguments, known=known)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "epoch_of", ask)
    make_registry(etcd, "a")
    sidecar = Sidecar(etcd, tmp_path)
    await asyncio.sleep(1)
    assert (sidecar.names, sidecar.mailbox.snapshot.connected) == ({"a"}, True)
    is_away = True
    etcd.cluster.restart()
    write(etcd, ["b"])
    await asyncio.sleep(10)
    assert (sidecar.names, sidecar.mailbox.snapshot.connected) == ({"a"}, False)
    asked.clear()
    await asyncio.sleep(20)
    assert 5 <= len(asked) <= 40
    is_away = False
    await asyncio.sleep(5)
    assert (sidecar.names, sidecar.mailbox.snapshot.connected) == ({"a", "b"}, True)
    await sidecar.end()


@played
async def test_a_fault_of_our_own_is_not_taken_for_one_of_etcds(etcd: PlayedEtcd, tmp_path, monkeypatch):
    """Fail stop: whoever keeps the part has to know of it."""

    async def broken(*_: object, known: str) -> str:
        raise RuntimeError(known)

    monkeypatch.setattr(module, "epoch_of", broken)
    make_registry(etcd, "a")
    sidecar = Sidecar(etcd, tmp_path)
    with pytest.raises(ExceptionGroup):
        await sidecar._task
    sidecar.journal.close()


@pytest.mark.parametrize(
    ("says", "epoch_now"),
    [
        (epoch("first"), "first"),
        (None, ""),
        (b"?", "known before"),
        (EtcdPermissionDenied("it is not for us"), "known before"),
        (EtcdUnavailable("away", maybe_applied=False), None),
        (RuntimeError("ours"), None),
    ],
    ids=["it has one", "it has none", "it cannot be read", "it may not be read", "no answer", "a fault of ours"],
)
async def test_which_store_it_is_stays_known_where_it_cannot_be_told(says, epoch_now):
    """R15 brake: what cannot be told is no difference. Without an answer nothing is known of a store."""
    found = () if says is None else (KeyValue(KEYS.meta(), says, 1, 1, 1),)
    answer = says if isinstance(says, Exception) else [RangeResult(1, found, more=False, count=len(found))]
    client = mock.Mock(range=mock.AsyncMock(side_effect=answer))
    if epoch_now is None:
        with pytest.raises(type(says)):
            await epoch_of(client, KEYS, known="known before")
    else:
        assert await epoch_of(client, KEYS, known="known before") == epoch_now
    client.range.assert_called_once_with(Range(KEYS.meta()))
