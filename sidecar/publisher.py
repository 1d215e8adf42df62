"""Writes presence and status under the replica's lease, coalesced, and only while the replica id is ours."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import structlog

from registry.errors import RegistryError
from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdError, LeaseExpired
from registry.etcd3.ops import Compare, Put, Range, RangeResult, Relation, Target, Txn, TxnResult, absent, mod_is
from registry.etcd3.session import hold_lease
from registry.keys import Keys
from registry.model.status import Presence, ReplicaStatus
from sidecar.chance import Chance
from sidecar.ownership import ReplicaTaken
from sidecar.status import says_the_same
from sidecar.steps import OnStep, Step, ignore

_log = structlog.get_logger()
LEASE_TTL_SECONDS = 10
# Changes within this time make one write, which usually says what came of a change and not only that it came; an
# unchanged status is confirmed after the other.
COALESCE_SECONDS = 0.15
CONFIRM_SECONDS = 30.0
RETRY_SECONDS = 1.0
LOSSES_UNTIL_STOP = 2


class Publisher:
    """The only writer of ``replicas/<pool>/<replica>`` and ``status/<pool>/<replica>``."""

    def __init__(
        self,
        client: Client,
        keys: Keys,
        presence: Presence,
        chance: Chance,
        on_change: Callable[[], None],
        on_step: OnStep = ignore,
    ) -> None:
        """Writes nothing yet; `on_change` is called when the id is lost or won, `on_step` at each step, for tests."""
        self._client = client
        self._on_step = on_step
        self._presence = self._claimed = presence
        self._presence_key = keys.replica(presence.pool, presence.replica)
        self._status_key = keys.status(presence.pool, presence.replica)
        self._chance = chance
        self._on_change = on_change
        self._newest: Callable[[], ReplicaStatus] | None = None
        self._news = asyncio.Event()
        self._losses = 0
        self._has_looked = False
        self.refusal = ""

    def offer(self, newest: Callable[[], ReplicaStatus]) -> None:
        """Says that there may be news. `newest` derives the status when it is written, of all that came until then."""
        self._newest = newest
        self._news.set()

    def hold(self, capacity: int | None) -> None:
        """Says how many adapters the engine can hold; None: nothing says how many."""
        self._has_looked = True
        if capacity != self._presence.capacity:
            self._presence = self._presence.model_copy(update={"capacity": capacity})
            self._news.set()

    async def run(self) -> None:
        """Runs until it is cancelled.

        Raises:
            ReplicaTaken: another sidecar has the replica id, twice in a row.
        """
        await hold_lease(self._client, ttl_seconds=LEASE_TTL_SECONDS, body=self._publish, rng=self._chance.rng)

    async def _publish(self, lease: int) -> None:
        self._on_step(Step.LEASE_HELD)
        while True:
            try:
                if await self._claim(lease):
                    self._on_step(Step.PRESENCE_WRITTEN)
                    await self._write_statuses(lease)
            except LeaseExpired:
                raise  # the session gets a new lease, and everything is written again
            except EtcdError as error:
                _log.warning("status_not_written", error=str(error))
            await asyncio.sleep(RETRY_SECONDS)

    async def _claim(self, lease: int) -> bool:
        """Writes presence under our lease unless a living twin has the id."""
        read = Range(self._presence_key)
        result = await self._client.txn(Txn((absent(self._presence_key),), (self._put(lease),), (read,)))
        while not result.succeeded:
            holder = _only(result)
            if holder is None:
                return False
            revision, value = holder
            if not self._is_ours(value):
                self._lose(value)
                return False
            self._take_after(value)
            unchanged = mod_is(self._presence_key, revision)
            result = await self._client.txn(Txn((unchanged,), (self._put(lease),), (read,)))
        self._refuse("")
        return True

    def _put(self, lease: int) -> Put:
        self._claimed = self._presence
        return Put(self._presence_key, self._claimed.to_bytes(), lease)

    def _take_after(self, value: bytes) -> None:
        """Until the engine was looked at, it can hold what it could before: others share adapters out by that."""
        if self._has_looked:
            return
        with suppress(RegistryError):
            capacity = Presence.parse(value).capacity
            self._presence = self._presence.model_copy(update={"capacity": capacity})

    def _is_ours(self, value: bytes) -> bool:
        """True for our own presence, and for that of a dead process whose lock on this host we now hold."""
        try:
            return Presence.parse(value).owner == self._presence.owner
        except RegistryError:
            return True

    def _lose(self, value: bytes) -> None:
        holder = Presence.parse(value).incarnation
        if not self.refusal:
            self._losses += 1
            _log.error("replica_id_taken", replica=self._presence.replica, holder=holder)
        name = repr(self._presence.replica)
        if self._losses >= LOSSES_UNTIL_STOP:
            raise ReplicaTaken(f"replica id {name} was lost to another sidecar twice; give each its own")
        self._refuse(f"replica id {name} is held by another sidecar ({holder}); give each its own")

    def _refuse(self, refusal: str) -> None:
        if self.refusal != refusal:
            self.refusal = refusal
            self._on_change()

    async def _write_statuses(self, lease: int) -> None:
        """Writes each new status until the id is lost; the lease in the compare makes a late write harmless."""
        guard = Compare(self._presence_key, Target.LEASE, Relation.EQUAL, lease)
        written: ReplicaStatus | None = None
        while True:
            written = await self._next(written)
            presence = self._presence
            puts = [Put(self._status_key, written.to_bytes(), lease)]
            if presence is not self._claimed:
                puts.append(Put(self._presence_key, presence.to_bytes(), lease))
            result = await self._client.txn(Txn((guard,), tuple(puts)))
            if not result.succeeded:
                return
            _log.info("status_written", revision=result.revision, updated_at=written.updated_at)
            self._claimed = presence
            self._on_step(Step.STATUS_WRITTEN)

    async def _next(self, written: ReplicaStatus | None) -> ReplicaStatus:
        """The newest status once it says something new, or to confirm what was written before."""
        try:
            async with asyncio.timeout(None if written is None else CONFIRM_SECONDS):
                return await self._news_since(written)
        except TimeoutError:
            _log.debug("status_confirmed")
        return await self._news_since(None)

    async def _news_since(self, written: ReplicaStatus | None) -> ReplicaStatus:
        while True:
            if written is not None or self._newest is None:
                await self._news.wait()
                await asyncio.sleep(COALESCE_SECONDS)
            self._news.clear()
            if self._newest is not None and (_is_news(status := self._newest(), written) or self._is_presence_old):
                return status

    @property
    def _is_presence_old(self) -> bool:
        """True if presence no longer says how many adapters the engine can hold."""
        return self._presence is not self._claimed


def _is_news(status: ReplicaStatus, written: ReplicaStatus | None) -> bool:
    return written is None or not says_the_same(status, written)


def _only(result: TxnResult) -> tuple[int, bytes] | None:
    """Revision and value of the one key that the else-branch read, if it is there."""
    (response,) = result.responses
    if not isinstance(response, RangeResult) or not response.kvs:
        return None
    return response.kvs[0].mod_revision, response.kvs[0].value
