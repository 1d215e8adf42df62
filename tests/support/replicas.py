"""Replicas that say what a test has them say: presences and statuses in etcd, written by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from registry.etcd3.client import Client
from registry.etcd3.ops import Delete, Put, Txn
from registry.keys import Keys
from registry.model.assignment import Selector, rate
from registry.model.placement import Member, members_digest, weights_digest
from registry.model.status import EngineStatus, Presence, ReplicaStatus, Served


def engine_status(**fields: Any) -> EngineStatus:
    """A simulated engine that runs."""
    said: dict[str, Any] = {
        "kind": "sim",
        "version": "1",
        "url": "http://e",
        "base_models": ["base"],
        "incarnation": "e",
    } | fields
    return EngineStatus(**said)


def replica_status(replica: str, revision: int, pool: str = "p", **fields: Any) -> ReplicaStatus:
    """A status that complains of nothing unless `fields` do."""
    said: dict[str, Any] = {
        "pending": [],
        "failed": [],
        "stale": False,
        "ready": True,
        "engine": engine_status(url=f"http://{replica}"),
        "served": Served(count=0, hash=""),
        "updated_at": "2026-01-01T00:00:00.000Z",
    } | fields
    return ReplicaStatus(replica=replica, pool=pool, observed_revision=revision, **said)


def presence(replica: str, pool: str = "p", **fields: Any) -> Presence:
    """That a sidecar lives."""
    said: dict[str, Any] = {"incarnation": "i", "owner": "o", "started_at": "2026-01-01T00:00:00.000Z"} | fields
    return Presence(pool=pool, replica=replica, **said)


def members(*names: str, labels: Mapping[str, str] | None = None, capacity: int | None = None) -> Sequence[Member]:
    """Live replicas that are alike."""
    return [Member(name, dict(labels or {}), capacity) for name in names]


def among(found: Sequence[Member], everywhere: Mapping[Selector, int] | None = None) -> dict[str, str]:
    """What of a status says that a replica found its share among these, whose room is taken by `everywhere`."""
    return {"members": members_digest(found), "weights": weights_digest(rate(found, everywhere or {}))}


class Replicas:
    """Replicas of one pool, in etcd."""

    def __init__(self, client: Client, keys: Keys, pool: str = "p") -> None:
        self._client = client
        self._keys = keys
        self._pool = pool

    async def alive(self, *names: str, **fields: Any) -> None:
        await self._commit(*(self._alive(name, fields) for name in names))

    async def gone(self, *names: str) -> None:
        keys = [key(self._pool, name) for key in (self._keys.replica, self._keys.status) for name in names]
        await self._commit(*map(Delete, keys))

    async def says(self, name: str, revision: int, **fields: Any) -> None:
        status = replica_status(name, revision, self._pool, **fields)
        await self._commit(Put(self._keys.status(self._pool, name), status.to_bytes()))

    def _alive(self, name: str, fields: Mapping[str, Any]) -> Put:
        return Put(self._keys.replica(self._pool, name), presence(name, self._pool, **fields).to_bytes())

    async def _commit(self, *ops: Put | Delete) -> None:
        await self._client.txn(Txn((), ops))
