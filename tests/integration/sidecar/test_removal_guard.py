"""A store that lost its memory, on real etcd: what runs is untouched until the registry mends or somebody confirms."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from registry.etcd3.client import Client
from registry.etcd3.ops import Put
from registry.model.keys import Keys
from registry.model.records import Meta, PoolSpec
from tests.support.etcd import Cluster, compact
from tests.support.etcd_backup import restore, save
from tests.support.fleet import BASE, POOL, Hand, Sidecar, SimulatedEngine, settled
from tests.support.waiting import eventually

MANY = [f"n{i}" for i in range(20)]


@dataclass
class Place:
    """A store of its own, one replica, and what may be asked of them."""

    cluster: Cluster
    client: Client
    hand: Hand
    engine: SimulatedEngine
    sidecar: Sidecar

    async def fill(self) -> int:
        """A pool with twenty lazy adapters and one that is served."""
        await self.hand.pool()
        await self.hand.put(self.hand.record("a", "v1"), *self.lazy(*MANY))
        return await self.hand.commit(Put(self.hand.keys.meta(), Meta(epoch="one", created_at="t").to_bytes()))

    def lazy(self, *names: str) -> list[Any]:
        return [self.hand.record(name, "v1", load="lazy") for name in names]

    async def serves(self, *names: str, lazy: int) -> None:
        async def is_so() -> bool:
            status = await self.sidecar.status()
            assert status.get("ready")
            assert not status["held"]
            assert set(await self.engine.listing()) == set(names)
            return status["lazy"]["count"] == lazy

        await eventually(is_so)
        await self.sidecar.kept()

    async def held(self, *words: str) -> dict[str, Any]:
        """Waits until the list is held, and checks that everybody can see it and nothing was touched."""

        async def says_so() -> dict[str, Any] | None:
            status = await self.sidecar.status()
            assert all(word in status.get("held", "") for word in words), status
            return status if status["ready"] else None

        status = await eventually(says_so)
        assert status["stale"]
        assert set(await self.engine.listing()) == {"a"}
        assert (await self.sidecar.metrics())["loraplane_list_held"] == 1
        assert any(line["event"] == "list_held" and line["level"] == "error" for line in self.sidecar.program.logged())
        return status

    async def confirm(self, revision: int) -> None:
        spec = PoolSpec(name=POOL, base_models=[BASE], removals_confirmed_revision=revision)
        await self.hand.commit(Put(self.hand.keys.pool(POOL), spec.to_bytes()))

    def revision_to_confirm(self, status: dict[str, Any]) -> int:
        return int(status["held"].rpartition("--revision ")[2])


@pytest.fixture
async def place(own_etcd, engine, tmp_path) -> AsyncIterator[Place]:
    (tmp_path / "sources").mkdir()
    client = own_etcd.patient()
    hand = Hand(client, Keys("/x"), tmp_path / "sources")
    sidecar = Sidecar(tmp_path, own_etcd.endpoints, "/x", engine.url)
    yield Place(own_etcd, client, hand, engine, sidecar)
    sidecar.program.kill()
    await client.aclose()


async def test_a_list_that_lacks_very_much_is_held_through_a_restart_until_it_is_confirmed(place):
    """R15 brake, R13, R2: held whole, additions too, since no revision has the old records and the new one.

    R6 unload-eventual, fault 7: one that lacks little is followed; deletions are found by difference.
    """
    await place.fill()
    place.sidecar.program.start()
    await place.serves("a", lazy=20)
    place.sidecar.program.kill()
    await compact(place.client, await place.hand.delete(*MANY[:5]))
    place.sidecar.program.start()
    await place.serves("a", lazy=15)
    place.sidecar.program.kill()
    await compact(place.client, await place.hand.delete("a", *MANY))
    await place.hand.put(place.hand.record("new", "v2"))
    for _ in range(2):
        place.sidecar.program.start()
        status = await place.held("lacks 16 of 16", "loraplane pool confirm-removals p")
        assert status["lazy"]["count"] == 15
        place.sidecar.program.kill()
    place.sidecar.program.start()
    await place.held("lacks 16 of 16")
    await place.confirm(place.revision_to_confirm(status))
    await place.serves("new", lazy=0)
    assert (await place.sidecar.metrics())["loraplane_list_held"] == 0


async def test_a_restored_store_is_followed_back_in_time_only_when_confirmed(place):
    """R1 monotonic, R15 brake, fault 12: an older backup; an operator decides that it is the truth."""
    revision = await place.fill()
    backup = await save(place.cluster)
    place.sidecar.program.start()
    await place.serves("a", lazy=20)
    former = await place.engine.listing()
    later = await place.hand.put(place.hand.record("a", "v2", 2))
    assert later > revision
    await settled(place.sidecar, later)
    newer = await place.engine.listing()
    assert newer != former
    await restore(place.cluster, backup)
    status = await place.held(f"below {later}")
    assert status["observed_revision"] == later
    assert await place.engine.listing() == newer
    listed = place.revision_to_confirm(status)  # the sidecar may have written itself before it listed
    assert revision <= listed < later
    await place.confirm(listed)

    async def is_back() -> bool:
        status = await place.sidecar.status()
        return not status["held"] and status["observed_revision"] == listed

    await eventually(is_back)
    (line,) = [line for line in place.sidecar.program.logged() if line["event"] == "removals_confirmed"]
    assert (line["revision"], line["former_revision"]) == (listed, later)

    async def is_as_it_was() -> bool:
        return await place.engine.listing() == former

    await eventually(is_as_it_was)
