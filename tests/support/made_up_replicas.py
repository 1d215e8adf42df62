"""Replicas that exist only in etcd and say what a test tells them to."""

from __future__ import annotations

from typing import Any

from registry.etcd3.client import Client
from registry.etcd3.ops import Delete, Put, Txn, absent
from registry.model.keys import Keys
from registry.model.placement import Member
from registry.model.status import Failed, LeftReplica, Presence
from tests.support.residency_world import LEASE_SECONDS, Replicas, among

POOL = "p"


async def take_over(client: Client, key: bytes, twin: Presence) -> None:
    """Gives a second process the id: it makes the key, which was absent, under a lease of its own."""
    put = Put(key, twin.to_bytes(), await client.lease_grant(LEASE_SECONDS))
    while not (await client.txn(Txn((absent(key),), (put,)))).succeeded:
        await client.txn(Txn((), (Delete(key),)))


class SaidReplicas(Replicas):
    """Replicas of pool "p" that know of each other."""

    def __init__(self, client: Client, keys: Keys) -> None:
        super().__init__(client, keys, POOL)
        self.members: dict[str, Member] = {}

    async def live(self, *names: str, **labels: str) -> None:
        """These live from now on; of one that comes it is known that it is ready, and that it has seen nothing yet."""
        for name in names:
            is_new = name not in self.members
            self.members[name] = Member(name, labels)
            await self.alive(name, labels=labels)
            if is_new:
                await self.say(name, 0)

    async def gone(self, *names: str) -> None:
        """They do not live any more."""
        for name in names:
            del self.members[name]
        await super().gone(*names)

    async def left(self, name: str) -> None:
        """Its process ended in order."""
        told = LeftReplica(pool=POOL, replica=name, incarnation="i", at="t").to_bytes()
        await self._commit(Delete(self._keys.replica(POOL, name)), Put(self._keys.left(POOL, name), told))
        await self.gone(name)

    async def say(self, name: str, revision: int, **fields: Any) -> None:
        """What it reports, having seen `revision` and all who live now; without fields: that it serves everything."""
        told: dict[str, Any] = {"members": among([*self.members.values()])["members"]} | fields
        await self.says(name, revision, **told)

    async def all_serve(self, revision: int) -> None:
        """All who live serve everything as of `revision`."""
        for name in self.members:
            await self.say(name, revision)

    async def refuse(self, name: str, adapter: str, generation: int, revision: int) -> None:
        """It refuses a generation for good."""
        failed = Failed(
            name=adapter, generation=generation, reason="digest_mismatch", message="m", attempts=1, retry_at=None
        )
        await self.say(name, revision, failed=[failed])
