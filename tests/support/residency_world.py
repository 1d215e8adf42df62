"""Replicas that say what a test has them say: presences and statuses, in etcd or in a view of a pool in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from registry.etcd3.client import Client
from registry.etcd3.ops import Delete, KeyValue, Put, Txn
from registry.model.keys import Keys
from registry.model.names import name_key
from registry.model.placement import (
    Assignment,
    Member,
    Selector,
    assign,
    looks_at_room,
    members_digest,
    rate,
    rate_evenly,
    weights_digest,
)
from registry.model.records import AdapterSpec, CanaryRollout, PoolLimits, PoolSpec, ReplicaGroup
from registry.model.replica_state import ReplicaState
from registry.model.status import EngineStatus, Presence, RememberedReplica, RememberedReplicas, ReplicaStatus, Served
from registry.residency.derive import DerivedResidency, changed, counted, residency
from registry.residency.view import PoolView, renew_view
from registry.rollout.pool import PoolSnapshot, PoolValues, renew
from registry.runtime.program import release_version
from tests.support.records import KEYS, POOL, kv, record

PENDING, SERVING, FAILED, UNKNOWN = (
    ReplicaState.PENDING,
    ReplicaState.SERVING,
    ReplicaState.FAILED,
    ReplicaState.UNKNOWN,
)


# Under which a replica's presence stands, and its status.
LEASE = 7
LEASE_SECONDS = 3600


def _told(view: PoolView, key: str) -> object:
    """All that watchers hear of an adapter; of one that stands nowhere they hear if its record is another."""
    found, entry = residency(view, key), view.records.get(key)
    return found, list(counted(view, [key])), entry and found is None and entry.kv


class World:
    """What stands in etcd, and a view that follows it."""

    def __init__(self) -> None:
        self.records: dict[bytes, KeyValue] = {}
        self.presences: dict[bytes, KeyValue] = {}
        self.statuses: dict[bytes, KeyValue] = {}
        self.spec: KeyValue | None = None
        self.members: KeyValue | None = None
        self.revision = 10
        self.view = PoolView(PoolSnapshot(POOL))

    def put(self, name: str, generation: int = 1, rollout: CanaryRollout | None = None, **spec: Any) -> int:
        self.revision += 1
        made = record(name, generation, **spec).model_copy(update={"rollout": rollout})
        written = kv(name, self.revision, made.to_bytes())
        self.records[written.key] = written
        return self.revision

    def update(self, name: str, generation: int, **spec: Any) -> int:
        """The same of a record that is there, with etcd's count of its versions."""
        before = self.records[KEYS.adapter(POOL, name)]
        revision = self.put(name, generation, **spec)
        self.records[before.key] = replace(
            self.records[before.key], create_revision=before.create_revision, version=before.version + 1
        )
        return revision

    def drop(self, name: str) -> None:
        self.revision += 1
        del self.records[KEYS.adapter(POOL, name)]

    def allow(self, *hosts: str) -> None:
        """Says what the URLs of engines may name."""
        made = PoolSpec(name=POOL, base_models=["base"], limits=PoolLimits(engine_hosts=list(hosts)))
        self.spec = KeyValue(KEYS.pool(POOL), made.to_bytes(), 1, 1, 1, 0)

    def expect(self, *groups: tuple[dict[str, str], int]) -> None:
        """Says how many replicas the pool is to have of which labels."""
        limits = PoolLimits(expected_groups=[ReplicaGroup(labels=labels, replicas=count) for labels, count in groups])
        self.spec = KeyValue(
            KEYS.pool(POOL), PoolSpec(name=POOL, base_models=["base"], limits=limits).to_bytes(), 1, 1, 1, 0
        )

    def ask_for(self, *roles: str) -> None:
        """Says of which roles a replica is to serve each adapter."""
        made = PoolSpec.model_validate({"name": POOL, "base_models": ["base"], "limits": {"roles": list(roles)}})
        self.spec = KeyValue(KEYS.pool(POOL), made.to_bytes(), 1, 1, 1, 0)

    def remember(self, *names: str, **fields: Any) -> None:
        """Says who lived within the last day."""
        made = RememberedReplicas(members={name: RememberedReplica(**fields) for name in names})
        self.members = KeyValue(KEYS.members(POOL), made.to_bytes(), 1, 1, 1, 0)

    def alive(self, *names: str, **fields: Any) -> None:
        for name in names:
            key = KEYS.replica(POOL, name)
            self.presences[key] = KeyValue(key, presence(name, **fields).to_bytes(), 1, 1, 1, LEASE)

    def dead(self, name: str) -> None:
        del self.presences[KEYS.replica(POOL, name)]

    def says(self, name: str, revision: int | None = None, **fields: Any) -> None:
        seen = self.revision if revision is None else revision
        self.raw(name, replica_status(name, seen, **fields).to_bytes())

    def raw(self, name: str, value: bytes) -> None:
        key = KEYS.status(POOL, name)
        self.statuses[key] = KeyValue(key, value, 1, 1, 1, LEASE)

    @property
    def values(self) -> PoolValues:
        kvs = dict(self.presences), dict(self.statuses), dict(self.records)
        return PoolValues(*kvs, revision=self.revision, holds_back=True, spec=self.spec, members=self.members)

    def look(self, revision: int | None = None) -> frozenset[str]:
        """Follows etcd; what `changed` says is checked against deriving everything."""
        old, values = self.view, self.values
        if revision is not None:
            values = replace(values, revision=revision)
        self.view = renew_view(old, values)
        found = changed(old, self.view)
        keys = {*old.records, *self.view.records}
        assert found == {key for key in keys if _told(old, key) != _told(self.view, key)}
        return found

    def where(self, name: str) -> DerivedResidency:
        self.look()
        found = residency(self.view, name_key(name))
        assert found is not None
        return found

    def states(self, name: str) -> dict[str, tuple[ReplicaState, str]]:
        return {one.replica: (one.state, one.reason) for one in self.where(name).replicas}


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
    started_at, version = "2026-01-01T00:00:00.000Z", release_version()
    said: dict[str, Any] = {"incarnation": "i", "owner": "o", "started_at": started_at, "version": version} | fields
    return Presence(pool=pool, replica=replica, **said)


def members(*names: str, labels: Mapping[str, str] | None = None, capacity: int | None = None) -> Sequence[Member]:
    """Live replicas that are alike."""
    return [Member(name, dict(labels or {}), capacity) for name in names]


def assigned(
    pool: str, key: str, spec: AdapterSpec, members: Iterable[Member], everywhere: Mapping[Selector, int]
) -> Assignment:
    """The replicas that are to serve an adapter, where so many adapters take room by each selector."""
    return assign(pool, key, spec, rate(members, everywhere) if looks_at_room(spec) else rate_evenly(members))


def pool_snapshot(
    presences: Iterable[KeyValue], statuses: Iterable[KeyValue], records: Iterable[KeyValue] | None = None
) -> PoolSnapshot:
    """A pool in which these values stand."""
    adapters = None if records is None else _by_key(records)
    revision = max((kv.mod_revision for kv in (adapters or {}).values()), default=0)
    values = PoolValues(_by_key(presences), _by_key(statuses), adapters, revision=revision)
    return renew(PoolSnapshot(POOL), values)


def _by_key(kvs: Iterable[KeyValue]) -> dict[bytes, KeyValue]:
    return {kv.key: kv for kv in kvs}


def among(found: Sequence[Member], everywhere: Mapping[Selector, int] | None = None) -> dict[str, str]:
    """What of a status says that a replica found its share among these, whose room is taken by `everywhere`."""
    return {"members": members_digest(found), "weights": weights_digest(rate(found, everywhere or {}))}


class Replicas:
    """Replicas of one pool, in etcd."""

    def __init__(self, client: Client, keys: Keys, pool: str = "p") -> None:
        self._client = client
        self._keys = keys
        self._pool = pool
        self._held = 0

    async def alive(self, *names: str, **fields: Any) -> None:
        lease = await self._lease()
        await self._commit(*(self._alive(name, fields, lease) for name in names))

    async def gone(self, *names: str) -> None:
        keys = [key(self._pool, name) for key in (self._keys.replica, self._keys.status) for name in names]
        await self._commit(*map(Delete, keys))

    async def says(self, name: str, revision: int, **fields: Any) -> None:
        status = replica_status(name, revision, self._pool, **fields)
        await self._commit(Put(self._keys.status(self._pool, name), status.to_bytes(), await self._lease()))

    async def restarts(self, name: str, revision: int, **fields: Any) -> None:
        """Its next process has a lease of its own, and says all at once."""
        self._held = await self._client.lease_grant(LEASE_SECONDS)
        status = replica_status(name, revision, self._pool, **fields)
        put = Put(self._keys.status(self._pool, name), status.to_bytes(), self._held)
        await self._commit(self._alive(name, {}, self._held), put)

    def _alive(self, name: str, fields: Mapping[str, Any], lease: int) -> Put:
        return Put(self._keys.replica(self._pool, name), presence(name, self._pool, **fields).to_bytes(), lease)

    async def _lease(self) -> int:
        """One for all of them: what counts is that a status stands under that of its presence."""
        self._held = self._held or await self._client.lease_grant(LEASE_SECONDS)
        return self._held

    async def _commit(self, *ops: Put | Delete) -> None:
        await self._client.txn(Txn((), ops))
