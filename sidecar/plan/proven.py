"""Generations that other replicas prove, for one that has served none. Pure.

A generation counts if history has its record, nothing was deleted since, it was not restored from elsewhere, the record
says by its digest which files are meant, and another replica's status proves that its engine answers with it. Nobody's
word is taken for the files: they are fetched, hashed and checked here as any others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from registry.etcd3.ops import KeyValue
from registry.model.errors import RegistryError
from registry.model.records import RetiredRecord
from registry.model.replica_state import Expectation, StatusReading, evaluate
from sidecar.desired.informer import DesiredAdapter
from sidecar.desired.last_good import GoodRecord
from sidecar.plan.types import Plan


def lacking(plan: Plan) -> tuple[DesiredAdapter, ...]:
    """The eager adapters that fail, and of which the engine answers with nothing and nothing else is known."""
    failing = {one.name for one in plan.failed}.difference(one.name for one in plan.kept)
    chosen = plan.chosen.adapters if failing else ()
    return tuple(one for one in chosen if one.name in failing and one.key not in plan.chosen.good)


@dataclass(frozen=True, slots=True)
class Earlier:
    """The earlier generations of an adapter that may be served, by number."""

    adapter: DesiredAdapter
    records: Mapping[int, GoodRecord]

    @property
    def newest(self) -> int:
        """The newest of them; 0: there is none."""
        return max(self.records, default=0)

    def proven_by(self, reading: StatusReading) -> int:
        """The one that a replica proves to answer with; 0: none."""
        adapter, pinned = self.adapter, self.adapter.ref.digest is not None
        expected = Expectation(adapter.key, adapter.generation, adapter.revision, lazy=False, pinned=pinned)
        kept = evaluate(reading, expected).kept
        return kept if kept is not None and kept in self.records else 0


def earlier_of(adapter: DesiredAdapter, history: Iterable[KeyValue]) -> Earlier:
    """Generations in history that may replace it: of this life of its name, pinned."""
    found = [(record, kv) for kv in history if (record := _read(kv.value)) and record.generation < adapter.generation]
    deleted = max((record.generation for record, _ in found if record.deleted), default=0)
    return Earlier(
        adapter,
        {
            record.generation: GoodRecord(kv.value, kv.mod_revision, record.generation)
            for record, kv in found
            if record.generation > deleted and record.restored_by is None and record.spec.source.digest is not None
        },
    )


def _read(value: bytes) -> RetiredRecord | None:
    try:
        return RetiredRecord.parse(value)
    except RegistryError:
        return None
