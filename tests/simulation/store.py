"""What an etcd cluster agrees upon: keys with their history, leases, compaction; checked against a real etcd."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from registry.etcd3.ops import Delete, Event, KeyValue, Put, Range, RangeResult, Txn, TxnResult
from tests.support.memory_etcd import MemoryEtcd

Revision = tuple[int, tuple[Event, ...]]


class Refusal(Exception):
    """A call that etcd refuses: the gRPC code and the sentence that it sends."""

    def __init__(self, code: str, details: str) -> None:
        super().__init__(details)
        self.code, self.details = code, details


def _no_space() -> Refusal:
    """A new one each time: what is raised holds the frames that it went through, and so the world."""
    return Refusal("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded")


@dataclass
class Lease:
    """A lease; `expires_at` is in the loop's seconds."""

    ttl_seconds: int
    expires_at: float


@dataclass
class EtcdStore(MemoryEtcd):
    """The whole store. `history` is never cut, since checks need it; `compacted` says what clients may still see."""

    compacted: int = 0
    is_full: bool = False
    leases: dict[int, Lease] = field(default_factory=dict)
    on_commit: list[Callable[[int, tuple[Event, ...]], None]] = field(default_factory=list)
    _next_lease: int = 1000
    _ttls: dict[int, int] = field(default_factory=dict)

    def txn(self, txn: Txn) -> TxnResult:
        """As `MemoryEtcd.txn`.

        Raises:
            Refusal: a lease in it is not known, or there is no space.
        """
        if self.is_full and any(not isinstance(op, Range) for op in (*txn.success, *txn.failure)):
            raise _no_space()
        for op in (*txn.success, *txn.failure):
            if isinstance(op, Put) and op.lease and op.lease not in self.leases:
                self._refuse_lost_lease(txn, op)
        before = self.revision
        result = super().txn(txn)
        self._tell(before)
        return result

    def delete(self, key: bytes) -> int:
        """As `MemoryEtcd.delete`: a deletion by itself is taken without space too."""
        before = self.revision
        super().txn(Txn((), (Delete(key),)))
        self._tell(before)
        return self.revision

    def restore(self, revision: int, now: float, *, bump: int = 0) -> None:
        """As from a backup of that revision, 0: emptied. `bump` as etcdutl's ``--bump-revision --mark-compacted``."""
        self.kvs = self.at(revision)
        self.history = [(number, events) for number, events in self.history if number <= revision]
        self.revision = max(1, revision) + bump
        self.compacted = self.revision if bump else 0
        kept = {kv.lease for kv in self.kvs.values() if kv.lease}
        # A backup has them too, also those that have ended since; each gets a whole TTL again.
        self.leases = {number: Lease(self._ttls[number], now + self._ttls[number]) for number in sorted(kept)}

    def _refuse_lost_lease(self, txn: Txn, op: Put) -> None:
        branch = txn.success if self.holds(txn) else txn.failure
        if op in branch:
            raise Refusal("NOT_FOUND", "etcdserver: requested lease not found")

    def holds(self, txn: Txn) -> bool:
        """Whether all compares hold."""
        return all(self._holds(compare) for compare in txn.compare)

    def _tell(self, before: int) -> None:
        if self.revision == before:
            return
        revision, events = self.history[-1]
        for listener in self.on_commit:
            listener(revision, events)

    def read(self, op: Range) -> RangeResult:
        """A Range by itself, which may be pinned to a revision.

        Raises:
            Refusal: that revision is compacted, or in the future.
        """
        if op.revision > self.revision:
            raise Refusal("OUT_OF_RANGE", "etcdserver: mvcc: required revision is a future revision")
        if 0 < op.revision < self.compacted:
            raise Refusal("OUT_OF_RANGE", "etcdserver: mvcc: required revision has been compacted")
        if not op.revision or op.revision == self.revision:
            result = self._range(op)
        else:
            result = MemoryEtcd(self.at(op.revision))._range(op)
        return replace(result, revision=self.revision)

    def at(self, revision: int) -> dict[bytes, KeyValue]:
        """All keys as they were at a revision."""
        kvs: dict[bytes, KeyValue] = {}
        for number, events in self.history:
            if number > revision:
                break
            for event in events:
                if event.kv is None:
                    kvs.pop(event.key, None)
                else:
                    kvs[event.key] = event.kv
        return kvs

    def since(self, revision: int, compacted: int) -> Iterator[Revision]:
        """History from a revision on as it is kept after a compaction: of that very revision deletions are gone."""
        for number, events in self.history[bisect_left(self.history, revision, key=_number) :]:
            if number > compacted:
                yield number, events
            elif number == compacted:
                yield number, tuple(event for event in events if event.kv is not None)

    def compact(self, revision: int) -> None:
        """Forgets what keys were before a revision.

        Raises:
            Refusal: it is done already, or not yet possible.
        """
        if revision <= self.compacted:
            raise Refusal("OUT_OF_RANGE", "etcdserver: mvcc: required revision has been compacted")
        if revision > self.revision:
            raise Refusal("OUT_OF_RANGE", "etcdserver: mvcc: required revision is a future revision")
        self.compacted = revision

    def grant(self, ttl_seconds: int, now: float) -> int:
        """A new lease's id.

        Raises:
            Refusal: there is no space.
        """
        if self.is_full:
            raise _no_space()
        self._next_lease += 1
        self._ttls[self._next_lease] = ttl_seconds
        self.leases[self._next_lease] = Lease(ttl_seconds, now + ttl_seconds)
        return self._next_lease

    def keep_alive(self, lease: int, now: float) -> int:
        """Renews a lease; returns its TTL, 0 if it is not known."""
        held = self.leases.get(lease)
        if held is None:
            return 0
        held.expires_at = now + held.ttl_seconds
        return held.ttl_seconds

    def revoke(self, lease: int) -> None:
        """Ends a lease, and deletes its keys in one revision.

        Raises:
            Refusal: it is not known.
        """
        if self.leases.pop(lease, None) is None:
            raise Refusal("NOT_FOUND", "etcdserver: requested lease not found")
        keys = sorted(key for key, kv in self.kvs.items() if kv.lease == lease)
        if not keys:
            return
        for key in keys:
            del self.kvs[key]
        before, self.revision = self.revision, self.revision + 1
        self.history.append((self.revision, tuple(Event(key, self.revision, None) for key in keys)))
        self._tell(before)

    def expire(self, now: float) -> None:
        """Ends every lease whose time is up."""
        for lease in [number for number, held in self.leases.items() if held.expires_at <= now]:
            self.revoke(lease)


def _number(revision: Revision) -> int:
    return revision[0]
