"""Controller of expiry: deletes adapters whose time to live is over.

Each admin service has one, and any of them may act: the request has the same id everywhere, and the etag of the record
that was looked at, so that it is done once, and not at all if somebody wrote the record meanwhile (guarantee R25). How
old a record is at least, `registry.rollout.ages` knows; for how long an adapter was not used, `registry.rollout.uses`.
For that a pool is read as a whole, as often as its replicas tell uses and the clock was moved on since.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import inf

import structlog

from registry.etcd3.errors import EtcdError
from registry.etcd3.informer import SharedInformer
from registry.etcd3.ops import Event, KeyValue, Put, Range, Txn, absent, mod_is
from registry.model.errors import Reason, RegistryError
from registry.rollout.ages import (
    ClockReading,
    EndingAdapters,
    EndingRecord,
    advanced,
    age_seconds,
    read_clock,
    tick_seconds,
)
from registry.rollout.controller import ACT_SECONDS, RETRY, Shared, now, woken
from registry.rollout.policy import expiry_request_id
from registry.rollout.pool import PoolSnapshot
from registry.rollout.pool_reader import read_pool
from registry.rollout.uses import is_over, needed_seconds
from registry.runtime.clock import Deadline
from registry.transactions.changes import ExpireAdapter

# Between two looks, however fast adapters end, give or take a half.
_PAUSE_SECONDS = 0.5
# Within this time it is written who went that nobody remembers (`registry.rollout.members`).
_WRITTEN_SECONDS = 9.0
# Milliseconds are cut off at each reading.
_NEARLY = 0.95
_log = structlog.get_logger()

_Version = tuple[bytes, int]  # key and revision of a record


@dataclass(frozen=True, slots=True)
class _Judged:
    """Adapters of a pool that were found unused for their ttl, each since which time without a break.

    All times are milliseconds by the clock of expiry; `at_ms`: of the reading that it was judged by last.
    """

    at_ms: int
    unused: Mapping[_Version, int] = field(default_factory=dict)

    def is_sure(self, one: EndingRecord) -> bool:
        """True if one was found so for as long as it may take until it is written who went just before."""
        since_ms = self.unused.get((one.kv.key, one.kv.mod_revision), self.at_ms)
        return self.at_ms - since_ms >= _WRITTEN_SECONDS * 1000


class ExpiryController:
    """Ends what is to end in all pools. Whoever follows the adapters tells it of them.

    Args:
        count: is called for each adapter that was deleted by this service, or found deleted so.
    """

    def __init__(self, shared: Shared, count: Callable[[], None]) -> None:
        self._shared = shared
        self._count = count
        self._wake = asyncio.Event()
        self._ending = EndingAdapters(shared.keys.all_adapters())
        self._reading: ClockReading | None = None
        self._judged: dict[str, _Judged] = {}
        self._attempts: dict[bytes, int] = {}
        self._failures = 0

    def listed(self, kvs: Iterable[KeyValue]) -> None:
        """Takes a whole list of adapters."""
        self._ending.listed(kvs, now())
        self._wake.set()

    def changed(self, events: Iterable[Event]) -> None:
        """Takes all changes of one revision."""
        if self._ending.changed(events, now()):
            self._wake.set()

    async def run(self) -> None:
        """Ends adapters until it is cancelled."""
        self._wake.set()  # after a run that failed
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._ending.pools:
                await self._follow()

    async def _follow(self) -> None:
        """Ends adapters for as long as there are any that end."""
        key = self._shared.keys.expiry_clock()
        async with self._shared.informers.look(key, b"", self._wake) as informer:
            while self._ending.pools:
                again_at = await self._look(informer)
                await asyncio.sleep(self._shared.rng.uniform(0.5, 1.5) * _PAUSE_SECONDS)
                await woken(self._wake, again_at)
                self._wake.clear()

    async def _look(self, informer: SharedInformer) -> float | None:
        """Ends what has to end, and moves the clock on; returns when to look again, None: once something changes."""
        if not informer.is_listed:
            return None
        ending = self._ending.all
        records = list(ending.values())
        self._attempts = {key: count for key, count in self._attempts.items() if key in ending}
        reading = self._reading = read_clock(self._reading, next(iter(informer.kvs.values()), None), now())
        await self._judge(records, reading)
        left = {one.kv.key: self._left(one, reading) for one in records}
        due = [(one.name, partial(self._delete, one)) for one in records if left[one.kv.key] <= 0]
        done = await self._shared.do_each(due, failed="adapter_not_expired")
        done = await self._tick(reading, records) and done
        ending = self._ending.all
        again_at = [now() + seconds for key, seconds in left.items() if seconds > 0 and key in ending]
        self._failures = 0 if done else self._failures + 1
        if not done:
            again_at.append(now() + RETRY.delay(self._failures, self._shared.rng.uniform))
        return min([*again_at, reading.seen_at + min(map(tick_seconds, records))])

    def _left(self, one: EndingRecord, reading: ClockReading) -> float:
        """Seconds until an adapter is over; infinite: it depends on uses, of which the next reading tells more."""
        left = one.ttl_seconds - age_seconds(one, reading, now())
        if not one.from_use or left > 0:
            return left
        judged = self._judged.get(one.pool)
        return left if judged is not None and judged.is_sure(one) else inf

    async def _judge(self, records: Iterable[EndingRecord], reading: ClockReading) -> None:
        """Finds which adapters were not used for their whole ttl, in each pool as often as its replicas tell."""
        if reading.kv is None or reading.clock is None:
            return
        at_ms, pools = reading.clock.now_ms, dict[str, list[EndingRecord]]()
        for one in records:
            if one.from_use and age_seconds(one, reading, now()) >= one.ttl_seconds:
                pools.setdefault(one.pool, []).append(one)
        self._judged = {pool: judged for pool, judged in self._judged.items() if pool in pools}
        for pool, due in pools.items():
            before = self._judged.get(pool)
            if before is None or at_ms < before.at_ms:  # of another life of the clock
                before = _Judged(at_ms)
            elif at_ms - before.at_ms < _NEARLY * 1000 * min(map(tick_seconds, due)):
                continue
            try:
                found = await self._unused_of(pool, due, reading)
            except (RegistryError, EtcdError) as error:
                _log.warning("uses_not_read", pool=pool, error=str(error))
                found = frozenset()
            self._judged[pool] = _Judged(at_ms, {one: before.unused.get(one, at_ms) for one in found})

    async def _unused_of(self, pool: str, due: list[EndingRecord], reading: ClockReading) -> frozenset[_Version]:
        """Those of a pool that were not used for their ttl. Raises RegistryError, EtcdError: it cannot be read."""
        client, keys, deadline = self._shared.client, self._shared.keys, Deadline.of(ACT_SECONDS)
        _, snapshot = await read_pool(client, keys, due[0].name, PoolSnapshot(pool), deadline)
        # After the replicas: whoever went meanwhile makes it newer, so that nothing ends.
        read = await client.range(Range(keys.members(pool)), timeout_seconds=deadline.spend())
        members = next(iter(read.kvs), None)
        over = (one for one in due if is_over(one, snapshot, members, reading))
        return frozenset((one.kv.key, one.kv.mod_revision) for one in over)

    async def _delete(self, one: EndingRecord) -> bool:
        """Deletes one; False: it was refused. Raises Unavailable: outcome unknown."""
        etag, attempt = one.kv.mod_revision, self._attempts.get(one.kv.key, 0)
        request_id = expiry_request_id(one.pool, one.name, etag, attempt)
        about = {"pool": one.pool, "name": one.name, "generation": one.generation, "request_id": request_id}
        change = ExpireAdapter(one.pool, one.name, etag)
        settled = await self._shared.change(change, request_id, about, refused="expiry_refused")
        if isinstance(settled, Reason):
            self._attempts[one.kv.key] = attempt + (settled is Reason.REQUEST_ID_REUSED)
            return False
        self._ending.forget(one.kv.key)
        self._count()
        _log.info("adapter_expired", **about, ttl_seconds=one.ttl_seconds, revision=settled.revision)
        return True

    async def _tick(self, reading: ClockReading, records: list[EndingRecord]) -> bool:
        """Moves the clock on if it is time; False: it could not be. Where another was faster, its reading comes."""
        if reading.clock is None or (reading.kv and now() < reading.seen_at + min(map(tick_seconds, records))):
            return True
        key = self._shared.keys.expiry_clock()
        stands = absent(key) if reading.kv is None else mod_is(key, reading.kv.mod_revision)
        # Twice, since a stretch without uses ends before the newest reading, by as much as a replica is late.
        longest = max(2 * needed_seconds(one.ttl_seconds) if one.from_use else one.ttl_seconds for one in records)
        put = Put(key, advanced(reading, longest, now()).to_bytes())
        try:
            await self._shared.client.txn(Txn((stands,), (put,)))
        except EtcdError as error:
            _log.warning("expiry_clock_not_written", error=str(error))
            return False
        return True
