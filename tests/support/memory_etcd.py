"""Transactions on a dict, by etcd's rules; checked against a real etcd by a contract test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import assert_never

from registry.etcd3.ops import (
    Compare,
    Delete,
    DeleteResult,
    Event,
    KeyValue,
    Op,
    OpResult,
    Put,
    PutResult,
    Range,
    RangeResult,
    Relation,
    SortTarget,
    Target,
    Txn,
    TxnResult,
)


@dataclass
class MemoryEtcd:
    """A store with its history: for each revision the events in it. A new store has revision 1."""

    kvs: dict[bytes, KeyValue] = field(default_factory=dict)
    revision: int = 1
    history: list[tuple[int, tuple[Event, ...]]] = field(default_factory=list)

    def put(self, key: bytes, value: bytes) -> int:
        """Writes a key past the admin service; returns the revision."""
        return self.txn(Txn((), (Put(key, value),))).revision

    def delete(self, key: bytes) -> int:
        """Deletes a key past the admin service; returns the revision."""
        return self.txn(Txn((), (Delete(key),))).revision

    def txn(self, txn: Txn) -> TxnResult:
        """Carries a transaction out: all compares first, then one branch, all of it in one revision."""
        succeeded = all(self._holds(compare) for compare in txn.compare)
        events: list[Event] = []
        ops = txn.success if succeeded else txn.failure
        responses = tuple(self._carry_out(op, events) for op in ops)
        if events:
            self.revision += 1
            self.history.append((self.revision, tuple(events)))
        return TxnResult(succeeded, self.revision, tuple(self._dated(response) for response in responses))

    def _dated(self, response: OpResult) -> OpResult:
        if isinstance(response, RangeResult):
            return RangeResult(self.revision, response.kvs, response.more, response.count)
        return response

    def _between(self, key: bytes, range_end: bytes) -> list[KeyValue]:
        if not range_end:
            return [self.kvs[key]] if key in self.kvs else []
        return [self.kvs[one] for one in sorted(self.kvs) if key <= one < range_end]

    def _holds(self, compare: Compare) -> bool:
        found = self._between(compare.key, compare.range_end)
        nothing = KeyValue(compare.key, b"", 0, 0, 0)
        if not found and compare.target is Target.VALUE:
            return False
        return all(_related(_looked_at(kv, compare.target), compare) for kv in found or [nothing])

    def _carry_out(self, op: Op, events: list[Event]) -> OpResult:
        match op:
            case Range():
                return self._range(op)
            case Put():
                return self._put(op, events)
            case Delete():
                return self._delete(op, events)
            case _:
                assert_never(op)

    def _range(self, op: Range) -> RangeResult:
        found = self._between(op.key, op.range_end)
        count = len(found)
        if op.descending_by is SortTarget.MOD:
            found.sort(key=lambda kv: kv.mod_revision, reverse=True)
        if op.descending_by is SortTarget.KEY:
            found.reverse()
        shown = found[: op.limit] if op.limit else found
        if op.keys_only:
            shown = [KeyValue(kv.key, b"", kv.create_revision, kv.mod_revision, kv.version, kv.lease) for kv in shown]
        if op.count_only:
            return RangeResult(self.revision, (), more=False, count=count)
        return RangeResult(self.revision, tuple(shown), count > len(shown), count)

    def _put(self, op: Put, events: list[Event]) -> PutResult:
        now = self.revision + 1
        old = self.kvs.get(op.key)
        version = old.version + 1 if old else 1
        kv = KeyValue(op.key, op.value, old.create_revision if old else now, now, version, op.lease)
        self.kvs[op.key] = kv
        events.append(Event(op.key, now, kv))
        return PutResult()

    def _delete(self, op: Delete, events: list[Event]) -> DeleteResult:
        found = self._between(op.key, op.range_end)
        for kv in found:
            del self.kvs[kv.key]
            events.append(Event(kv.key, self.revision + 1, None))
        return DeleteResult(len(found))


def _looked_at(kv: KeyValue, target: Target) -> int | bytes:
    match target:
        case Target.VERSION:
            return kv.version
        case Target.CREATE:
            return kv.create_revision
        case Target.MOD:
            return kv.mod_revision
        case Target.VALUE:
            return kv.value
        case Target.LEASE:
            return kv.lease
        case _:
            assert_never(target)


def _related(value: int | bytes, compare: Compare) -> bool:
    wanted = compare.value
    match compare.relation:
        case Relation.EQUAL:
            return value == wanted
        case Relation.NOT_EQUAL:
            return value != wanted
        case Relation.GREATER:
            return value > wanted  # type: ignore[operator] # both are of the kind that the target has
        case Relation.LESS:
            return value < wanted  # type: ignore[operator] # as above
        case _:
            assert_never(compare.relation)
