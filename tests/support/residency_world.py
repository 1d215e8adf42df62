"""A pool whose records, presences and statuses a test lays down, and a view that follows them."""

from __future__ import annotations

from typing import Any

from registry.etcd3.ops import KeyValue
from registry.model.names import name_key
from registry.model.records import CanaryRollout
from registry.store.judgement import ReplicaState
from registry.store.pool_view import Held, PoolView, renewed
from registry.store.residency import AdapterResidency, residency
from registry.store.residency_changes import changed
from tests.support.records import KEYS, POOL, kv, record
from tests.support.replicas import presence, replica_status

PENDING, SERVING, FAILED, UNKNOWN = (
    ReplicaState.PENDING,
    ReplicaState.SERVING,
    ReplicaState.FAILED,
    ReplicaState.UNKNOWN,
)


class World:
    """What stands in etcd, and a view that follows it."""

    def __init__(self) -> None:
        self.records: dict[bytes, KeyValue] = {}
        self.presences: dict[bytes, KeyValue] = {}
        self.statuses: dict[bytes, KeyValue] = {}
        self.revision = 10
        self.view = PoolView(POOL)

    def put(self, name: str, generation: int = 1, rollout: CanaryRollout | None = None, **spec: Any) -> int:
        self.revision += 1
        made = record(name, generation, **spec).model_copy(update={"rollout": rollout})
        written = kv(name, self.revision, made.to_bytes())
        self.records[written.key] = written
        return self.revision

    def drop(self, name: str) -> None:
        self.revision += 1
        del self.records[KEYS.adapter(POOL, name)]

    def alive(self, *names: str, **fields: Any) -> None:
        for name in names:
            key = KEYS.replica(POOL, name)
            self.presences[key] = KeyValue(key, presence(name, **fields).to_bytes(), 1, 1, 1)

    def dead(self, name: str) -> None:
        del self.presences[KEYS.replica(POOL, name)]

    def says(self, name: str, revision: int | None = None, **fields: Any) -> None:
        seen = self.revision if revision is None else revision
        self.raw(name, replica_status(name, seen, **fields).to_bytes())

    def raw(self, name: str, value: bytes) -> None:
        key = KEYS.status(POOL, name)
        self.statuses[key] = KeyValue(key, value, 1, 1, 1)

    @property
    def held(self) -> Held:
        return Held(self.revision, dict(self.records), dict(self.presences), dict(self.statuses))

    def look(self, revision: int | None = None) -> frozenset[str]:
        """Follows etcd; what `changed` says is checked against deriving everything."""
        old, held = self.view, self.held
        if revision is not None:
            held = Held(revision, held.records, held.presences, held.statuses)
        self.view = renewed(old, held)
        found = changed(old, self.view)
        keys = {*old.records, *self.view.records}
        assert found == {key for key in keys if residency(old, key) != residency(self.view, key)}
        return found

    def where(self, name: str) -> AdapterResidency:
        self.look()
        found = residency(self.view, name_key(name))
        assert found is not None
        return found

    def states(self, name: str) -> dict[str, tuple[ReplicaState, str]]:
        return {one.replica: (one.state, one.reason) for one in self.where(name).replicas}
