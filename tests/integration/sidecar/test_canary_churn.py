"""Canaries that die, come back, and get other versions amid a rollout: real sidecars, admin service and etcd."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from registry.v1 import registry_pb2 as pb
from tests.support.admin import Admin, admin_inside, change_set, make_pool, put, wait_ready
from tests.support.fleet import BASE, POOL, Hand, PlacedFleet
from tests.support.waiting import eventually

NAME = "acme/a"
REPLICAS = ("r1", "r2", "r3")
BY_HAND = pb.Strategy(canary_replicas="1", promote="manual")
# Several sidecars start at once, beside whatever else the machine does.
STARTED_SECONDS = 180


@pytest.fixture
async def admin(etcd) -> AsyncIterator[Admin]:
    async with admin_inside(etcd.endpoints, etcd.prefix) as admin:
        await wait_ready(admin)
        await make_pool(admin, POOL, BASE)
        yield admin


@pytest.fixture
async def fleet(admin, etcd, hand, tmp_path) -> AsyncIterator[PlacedFleet]:
    async with AsyncExitStack() as stack:
        fleet = PlacedFleet(tmp_path, etcd, hand, stack)
        await fleet.start(*REPLICAS)
        yield fleet


class Rolling:
    """Puts versions of one adapter, and says who serves which."""

    def __init__(self, admin: Admin, fleet: PlacedFleet, hand: Hand) -> None:
        self._admin = admin
        self._fleet = fleet
        self._hand = hand
        self._paths: dict[str, str] = {}

    async def put(self, version: str) -> None:
        change = put(NAME, self._hand.source(version).as_uri(), strategy=BY_HAND)
        await self._admin.stub.ApplyAdapters(change_set(change, pool=POOL))

    async def told(self) -> pb.Rollout:
        """How the rollout is now."""
        call = self._admin.stub.WatchRollout(pb.WatchRolloutRequest(pool=POOL, name=NAME))
        rollout = await call.read()
        call.cancel()
        return rollout

    async def served(self, *among: str, new: str, old: str) -> str:
        """Waits until one canary serves a version and all others another, and the admin service says so; returns it.

        `among`: the canary is one of these; nobody: it may be anyone.
        """

        async def is_so() -> str:
            rollout = await self.told()
            canaries = [one.replica for one in rollout.replicas if one.canary]
            assert len(canaries) == 1, canaries
            (canary,) = canaries
            assert not among or canary in among
            assert {one.state for one in rollout.replicas} == {pb.RolloutReplica.SERVING}, rollout
            assert {one.replica for one in rollout.replicas} == self._fleet.members.keys()
            for replica in self._fleet.members:
                self._is(replica, new if replica == canary else old)
            return canary

        return await eventually(is_so, timeout_seconds=STARTED_SECONDS)

    async def all_serve(self, version: str) -> None:
        async def is_so() -> bool:
            rollout = await self.told()
            assert rollout.done
            assert not rollout.failure
            for replica in self._fleet.members:
                self._is(replica, version)
            return True

        await eventually(is_so, timeout_seconds=STARTED_SECONDS)

    def _is(self, replica: str, version: str) -> None:
        """A version is known by the first path that somebody serves it from."""
        card = self._fleet.engines[replica].cards.get(NAME)
        assert card is not None, f"{replica} lists nothing"
        others = {path for known, path in self._paths.items() if known != version}
        assert card.path not in others, f"{replica} serves another version than {version}"
        assert self._paths.setdefault(version, card.path) == card.path


async def test_who_is_no_canary_any_more_has_the_stable_version_again(admin, fleet, hand):
    """R4, R9, W6: canaries follow from who lives; a new version comes to them alone, and a rollback ends it for all."""
    rolling = Rolling(admin, fleet, hand)
    await rolling.put("v1")
    await rolling.all_serve("v1")
    await rolling.put("v2")
    first = await rolling.served(new="v2", old="v1")
    died = fleet.members[first]
    fleet.kill(first)
    second = await rolling.served(*fleet.members, new="v2", old="v1")
    fleet.sidecars[first].program.start()
    fleet.members[first] = died
    assert await rolling.served(first, new="v2", old="v1") == first != second
    await rolling.put("v3")
    await rolling.served(first, new="v3", old="v1")
    await admin.stub.RollbackAdapter(pb.RollbackAdapterRequest(pool=POOL, name=NAME))
    await rolling.all_serve("v1")
