"""Finder of last good generations for a replica that has served none.

Its neighbours may go on with one. It reads when an adapter fails of which nothing is known here, and again with growing
pauses: its history, and the statuses of some replicas until one proves the newest generation that counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

import structlog

from registry.etcd3.backoff import Backoff
from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdError
from registry.etcd3.ops import KeyValue
from registry.model.errors import RegistryError
from registry.model.keys import Keys
from registry.model.records import RetiredRecord
from registry.model.replica_state import Expectation, StatusReading, evaluate
from registry.runtime.clock import Clock
from sidecar.desired.informer import DesiredAdapter
from sidecar.desired.last_good import GoodRecord
from sidecar.desired.mailbox import heard_within
from sidecar.desired.pool_cache import PoolCache
from sidecar.plan.types import Plan, RoundReport
from sidecar.report.status_reader import StatusReader

_log = structlog.get_logger()
PAUSE = Backoff(base_seconds=10.0, cap_seconds=600.0)
# So many are asked about at once, and so many replicas are asked, of whichever size the pool is.
MAX_ADAPTERS = 64
MAX_REPLICAS = 16


class GoodFinder:
    """One replica's."""

    def __init__(self, client: Client, keys: Keys, replica: str, cache: PoolCache, clock: Clock) -> None:
        self._client = client
        self._keys = keys
        self._replica = replica
        self._cache = cache
        self._clock = clock
        self._reader = StatusReader(client, keys, cache.pool)
        self._lacking: dict[str, DesiredAdapter] = {}
        self._news = asyncio.Event()

    def take(self, report: RoundReport) -> None:
        """Takes in what one round came to."""
        plan = report.situation.plan
        if plan is None:
            return
        before, self._lacking = self._lacking, {one.key: one for one in lacking(plan)}
        if any(key not in before or before[key].revision != one.revision for key, one in self._lacking.items()):
            self._news.set()

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            tries = 0
            while self._lacking:
                tries = 1 if self._news.is_set() else tries + 1
                self._news.clear()
                await self._ask()
                await heard_within(PAUSE.delay(tries, self._clock.rng.uniform), self._news)
            self._news.clear()
            await self._news.wait()

    async def _ask(self) -> None:
        """Reads once; nothing while the desired state may be old."""
        snapshot = self._cache.mailbox.snapshot
        if not snapshot.connected or snapshot.held:
            return
        try:
            found = [await self._earlier(one) for one in islice(self._lacking.values(), MAX_ADAPTERS)]
            await self._prove([one for one in found if one.newest])
        except EtcdError as error:
            _log.warning("last_good_not_found", error=str(error))

    async def _earlier(self, adapter: DesiredAdapter) -> Earlier:
        history = await self._client.list_prefix(self._keys.history_of(self._cache.pool, adapter.name))
        return earlier_of(adapter, history.kvs)

    async def _prove(self, asked: list[Earlier]) -> None:
        """Adopts of each the newest generation that a replica proves; that of the newest possible ends the reading."""
        proven: dict[str, int] = {}
        for replica in await self._others() if asked else ():
            reading = await self._reader.status(replica)
            proven |= {one.adapter.key: max(proven.get(one.adapter.key, 0), one.proven_by(reading)) for one in asked}
            if all(proven[one.adapter.key] == one.newest for one in asked):
                break
        for one in asked:
            if generation := proven.get(one.adapter.key, 0):
                self._adopt(one, generation)

    async def _others(self) -> Iterable[str]:
        """Some of the other replicas, others each time."""
        names = sorted((await self._reader.labels()).keys() - {self._replica})
        self._clock.rng.shuffle(names)
        return names[:MAX_REPLICAS]

    def _adopt(self, found: Earlier, generation: int) -> None:
        """Unless the record has changed since: it may be of another life of the name."""
        desired, key = self._cache.mailbox.snapshot.desired, found.adapter.key
        adapter = desired.adapters.get(key) if desired is not None else None
        if adapter is not None and adapter.revision == found.adapter.revision:
            _log.info("last_good_found", name=adapter.name, generation=generation, newest=adapter.generation)
            self._cache.adopt(key, found.records[generation])


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
