"""Controller of expiry: deletes adapters whose time to live is over.

Each admin service has one, and any of them may act: the request has the same id everywhere, and the etag of the record
that was looked at, so that it is done once, and not at all if somebody wrote the record meanwhile (guarantee R25). How
old a record is at least, `registry.rollout.ages` knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import structlog

from registry.etcd3.errors import EtcdError
from registry.etcd3.informer import SharedInformer
from registry.etcd3.ops import Event, KeyValue, Put, Txn, absent, mod_is
from registry.model.errors import Reason, Unavailable
from registry.rollout.ages import (
    ClockReading,
    EndingAdapters,
    EndingRecord,
    advanced,
    age_seconds,
    read_clock,
    tick_seconds,
)
from registry.rollout.controller import RETRY, Shared, woken
from registry.rollout.policy import expiry_request_id
from registry.transactions.changes import ExpireAdapter

# Between two looks, however fast adapters end, give or take a half.
_PAUSE_SECONDS = 0.5
_log = structlog.get_logger()


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
        self._attempts: dict[bytes, int] = {}
        self._failures = 0

    def listed(self, kvs: Iterable[KeyValue]) -> None:
        """Takes a whole list of adapters."""
        self._ending.listed(kvs, _now())
        self._wake.set()

    def changed(self, events: Iterable[Event]) -> None:
        """Takes all changes of one revision."""
        if self._ending.changed(events, _now()):
            self._wake.set()

    async def run(self) -> None:
        """Ends adapters until it is cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._ending.records:
                await self._follow()

    async def _follow(self) -> None:
        """Ends adapters for as long as there are any that end."""
        key = self._shared.keys.expiry_clock()
        async with self._shared.informers.look(key, b"", self._wake) as informer:
            while self._ending.records:
                again_at = await self._look(informer)
                await asyncio.sleep(self._shared.rng.uniform(0.5, 1.5) * _PAUSE_SECONDS)
                await woken(self._wake, again_at)
                self._wake.clear()

    async def _look(self, informer: SharedInformer) -> float | None:
        """Ends what has to end, and moves the clock on; returns when to look again, None: once something changes."""
        if not informer.is_listed:
            return None
        records = list(self._ending.records.values())
        self._attempts = {key: count for key, count in self._attempts.items() if key in self._ending.records}
        reading = self._reading = read_clock(self._reading, next(iter(informer.kvs.values()), None), _now())
        left = {one.kv.key: one.ttl_seconds - age_seconds(one, reading, _now()) for one in records}
        done = await self._end([one for one in records if left[one.kv.key] <= 0])
        done = await self._tick(reading, [one.ttl_seconds for one in records]) and done
        again_at = [_now() + seconds for key, seconds in left.items() if seconds > 0 and key in self._ending.records]
        self._failures = 0 if done else self._failures + 1
        if not done:
            again_at.append(_now() + RETRY.delay(self._failures, self._shared.rng.uniform))
        return min([*again_at, reading.seen_at + tick_seconds(min(one.ttl_seconds for one in records))])

    async def _end(self, due: list[EndingRecord]) -> bool:
        """Deletes what has ended; False: not all of it could be."""
        done = True
        for one in due:
            try:
                done = await self._delete(one) and done
            except Unavailable as error:
                # Of no other is anything known either, before it is known what became of this one.
                _log.warning("adapter_not_expired", name=one.name, reason=error.reason, message=error.message)
                return False
        return done

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
        self._ending.ended(one.kv.key)
        self._count()
        _log.info("adapter_expired", **about, ttl_seconds=one.ttl_seconds, revision=settled.revision)
        return True

    async def _tick(self, reading: ClockReading, lives: list[int]) -> bool:
        """Moves the clock on if it is time; False: it could not be. Where another was faster, its reading comes."""
        if reading.clock is None or (reading.kv and _now() < reading.seen_at + tick_seconds(min(lives))):
            return True
        key = self._shared.keys.expiry_clock()
        stands = absent(key) if reading.kv is None else mod_is(key, reading.kv.mod_revision)
        put = Put(key, advanced(reading, max(lives), _now()).to_bytes())
        try:
            await self._shared.client.txn(Txn((stands,), (put,)))
        except EtcdError as error:
            _log.warning("expiry_clock_not_written", error=str(error))
            return False
        return True


def _now() -> float:
    return asyncio.get_running_loop().time()
