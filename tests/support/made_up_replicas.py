"""Replicas that exist only in etcd and say what a test tells them to."""

from __future__ import annotations

from typing import Any

from registry.etcd3.client import Client
from registry.etcd3.ops import Delete, Put, Txn, absent
from registry.model.keys import Keys
from registry.model.placement import Member, members_digest
from registry.model.status import EngineStatus, Failed, LeftReplica, Presence, ReplicaStatus, Served
from tests.support.residency_world import LEASE_SECONDS

POOL = "p"


async def take_over(client: Client, key: bytes, twin: Presence) -> None:
    """Gives a second process the id: it makes the key, which was absent, under a lease of its own."""
    put = Put(key, twin.to_bytes(), await client.lease_grant(LEASE_SECONDS))
    while not (await client.txn(Txn((absent(key),), (put,)))).succeeded:
        await client.txn(Txn((), (Delete(key),)))


class SaidReplicas:
    """Writes presences and statuses of pool "p" past every sidecar."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self.members: dict[str, Member] = {}
        self._lease = 0

    async def alive(self, *names: str, incarnation: str = "i", **labels: str) -> None:
        """These live from now on; of one that comes it is known that it is ready, and that it has seen nothing yet."""
        for name in names:
            is_new = name not in self.members
            self.members[name] = Member(name, labels)
            presence = Presence(
                pool=POOL, replica=name, incarnation=incarnation, owner="o", started_at="t", labels=labels
            )
            await self._put(self._keys.replica(POOL, name), presence.to_bytes())
            if is_new:
                await self.say(name, 0)

    async def gone(self, name: str) -> None:
        """It does not live any more."""
        del self.members[name]
        keys = self._keys.replica(POOL, name), self._keys.status(POOL, name)
        await self._client.txn(Txn((), tuple(map(Delete, keys))))

    async def left(self, name: str) -> None:
        """Its process ended in order."""
        told = LeftReplica(pool=POOL, replica=name, incarnation="i", at="t").to_bytes()
        changes = Delete(self._keys.replica(POOL, name)), Put(self._keys.left(POOL, name), told)
        await self._client.txn(Txn((), changes))
        await self.gone(name)

    async def say(self, name: str, revision: int, **fields: Any) -> None:
        """What it reports, having seen `revision` and all who live now; without fields: that it serves everything."""
        engine = EngineStatus(kind="sim", version="1", url="u", base_models=["base"], incarnation="e")
        told: dict[str, Any] = {"pending": [], "failed": [], "stale": False, "ready": True, "engine": engine} | fields
        status = ReplicaStatus(
            replica=name,
            pool=POOL,
            observed_revision=revision,
            served=Served(count=0, hash=""),
            members=members_digest(self.members.values()),
            updated_at="t",
            **told,
        )
        await self._put(self._keys.status(POOL, name), status.to_bytes())

    async def all_serve(self, revision: int, **fields: Any) -> None:
        """All who live serve everything as of `revision`."""
        for name in self.members:
            await self.say(name, revision, **fields)

    async def refuse(self, name: str, adapter: str, generation: int, revision: int) -> None:
        """It refuses a generation for good."""
        failed = Failed(
            name=adapter, generation=generation, reason="digest_mismatch", message="m", attempts=1, retry_at=None
        )
        await self.say(name, revision, failed=[failed])

    async def _put(self, key: bytes, value: bytes) -> None:
        self._lease = self._lease or await self._client.lease_grant(LEASE_SECONDS)
        await self._client.txn(Txn((), (Put(key, value, self._lease),)))
