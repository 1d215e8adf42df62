"""Writes presence and status under the replica's lease.

Writes are coalesced, and happen only while the replica id is ours. Presence is never written without a status, nor with
more capacity than that says that the engine holds: nobody places anything on a replica by its presence alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable
from datetime import timedelta

import structlog

from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdError, LeaseExpired
from registry.etcd3.ops import (
    Compare,
    Delete,
    KeyValue,
    Put,
    Range,
    RangeResult,
    Relation,
    Target,
    Txn,
    TxnResult,
    absent,
    mod_is,
)
from registry.etcd3.session import hold_lease
from registry.model.keys import Keys
from registry.model.placement import capacity_within
from registry.model.status import (
    MAX_CAPACITY,
    LeftReplica,
    Presence,
    ReplicaStatus,
    ReportedDeclines,
    presence_of,
)
from registry.runtime.clock import Clock, rfc3339
from registry.runtime.failpoints import Point, hit
from sidecar.ownership import ReplicaTaken
from sidecar.plan.types import RoundReport
from sidecar.report.status import says_the_same, tells_what_is_served

_log = structlog.get_logger()
LEASE_TTL_SECONDS = 10
# Changes within this time make one write, which usually says what came of a change and not only that it came.
COALESCE_SECONDS = 0.15
# How often it is looked whether presence and status still stand under our lease: neither counts without the other. And
# whether the status is still what would be said now: a status stands for as long as its lease, so what makes it old, as
# rounds that do not end any more, has to be written though nobody offers it.
LOOK_SECONDS = 5.0
# Of what was settled before only the tries move on: that is told so late.
TRIES_SECONDS = 300.0
RETRY_SECONDS = 1.0
# So long a process lets stand what the one before it said, until it knows itself what its engine serves.
TAKE_OVER_SECONDS = 2.0
LOSSES_UNTIL_STOP = 2
# So long after its death a sidecar's lease is over, with what etcd takes to notice.
DEAD_SECONDS = LEASE_TTL_SECONDS + 2.0
# So long it stands that a replica ended in order: an admin service that was away reads it when it is back.
LEFT_TTL_SECONDS = 3600
_LEFT_SECONDS = 1.0


class StatusWriter:
    """The only writer of ``replicas/<pool>/<replica>`` and ``status/<pool>/<replica>``."""

    def __init__(
        self,
        client: Client,
        keys: Keys,
        presence: Presence,
        clock: Clock,
        on_change: Callable[[], None],
    ) -> None:
        """Writes nothing yet; `on_change` is called when the id is lost or won."""
        self._client = client
        self._presence = self._claimed = presence
        self._presence_key = keys.replica(presence.pool, presence.replica)
        self._status_key = keys.status(presence.pool, presence.replica)
        self._left_key = keys.left(presence.pool, presence.replica)
        self._under = 0  # the lease of what stands of this replica, by us or the process before; 0: it may be another's
        self._clock = clock
        self._on_change = on_change
        self._written: Presence | None = None
        self._newest: Callable[[], ReplicaStatus] | None = None
        self._news = asyncio.Event()
        self._losses = 0
        self._known_at, self._end = math.inf, ""
        self._has_looked = False
        self._created = self._stands_at = 0
        self.refusal = ""

    def offer(self, newest: Callable[[], ReplicaStatus]) -> None:
        """Says that there may be news. `newest` derives the status when it is written, of all that came until then."""
        self._newest = newest
        self._news.set()

    def hold(self, capacity: int | None) -> None:
        """Says how many adapters the engine can hold; None: nothing says how many."""
        self._has_looked = True
        capacity = None if capacity is None else min(capacity, MAX_CAPACITY)
        if capacity != self._presence.capacity:
            self._presence = self._presence.model_copy(update={"capacity": capacity})
            self._news.set()

    def leave(self, *, leaving: bool) -> None:
        """Says whether the replica drains; presence is written anew at once."""
        if leaving != self._presence.leaving:
            self._presence = self._presence.model_copy(update={"leaving": leaving})
            self._news.set()

    def decline(self, declines: dict[str, ReportedDeclines]) -> None:
        """Says what the replica refuses for good by limits of its own."""
        if declines != self._presence.declines:
            self._presence = self._presence.model_copy(update={"declines": declines})
            self._news.set()

    @property
    def is_leave_known(self) -> bool:
        """True while the presence that stands in etcd says that the replica drains."""
        return self._written is not None and self._written.leaving

    async def say_left(self) -> None:
        """Takes the presence away, and says that nobody is to wait for this replica: its process is about to end.

        To be called just before `run` is cancelled. If etcd does not take it, the replica counts as lost.
        """
        if not self._under:
            return
        told = LeftReplica(
            pool=self._presence.pool,
            replica=self._presence.replica,
            incarnation=self._presence.incarnation,
            at=rfc3339(self._clock.wall()),
        )
        try:
            lease = await self._client.lease_grant(LEFT_TTL_SECONDS, timeout_seconds=_LEFT_SECONDS)
            changes = Delete(self._presence_key), Put(self._left_key, told.to_bytes(), lease)
            await self._client.txn(Txn((self._held_by(self._under),), changes), timeout_seconds=_LEFT_SECONDS)
        except EtcdError as error:
            _log.warning("leave_not_told", replica=self._presence.replica, error=str(error))

    async def run(self) -> None:
        """Runs until it is cancelled.

        Raises:
            ReplicaTaken: a second process has the replica id, twice in a row.
        """
        await hold_lease(self._client, ttl_seconds=LEASE_TTL_SECONDS, body=self._publish, rng=self._clock.rng)

    async def _publish(self, lease: int) -> None:
        hit(Point.LEASE_HELD)
        # What we made under the lease before went with it. In a store that was set back, another key may have been made
        # at the same revision since.
        self._created = 0
        while True:
            self._written, self._under = None, 0
            try:
                first = await self._claim(lease)
                if first is not None:
                    self._written, self._under = self._claimed, lease
                    hit(Point.PRESENCE_WRITTEN)
                    self._note_written(first, self._stands_at)
                    await self._write_statuses(first, lease)
            except LeaseExpired:
                raise  # the session gets a new lease, and everything is written again
            except EtcdError as error:
                _log.warning("status_not_written", error=str(error))
            await asyncio.sleep(RETRY_SECONDS)

    async def _claim(self, lease: int) -> ReplicaStatus | None:
        """Writes presence under our lease unless a living twin has the id, and with it the status that is returned."""
        read, until = Range(self._presence_key), asyncio.get_running_loop().time() + TAKE_OVER_SECONDS
        first, puts = await self._puts(lease)
        result = await self._client.txn(Txn((absent(self._presence_key),), puts, (read,)))
        created = result.revision
        while not result.succeeded:
            holder = _only(result)
            if holder is None:
                return None
            before = presence_of(holder.value)  # None: no sidecar of any release stands behind it
            if before is not None and not (self._is_no_claim(holder) or self._is_ours(before)):
                self._lose(before, holder.lease)
                return None
            self._take_after(before, holder)
            self._under = holder.lease
            await self._look_first(before, until)
            created = holder.create_revision
            unchanged = mod_is(self._presence_key, holder.mod_revision)
            first, puts = await self._puts(lease)
            result = await self._client.txn(Txn((unchanged,), puts, (read,)))
        self._created, self._stands_at = created, result.revision
        self._refuse("")
        return first

    def _is_no_claim(self, holder: KeyValue) -> bool:
        """True if no second process has the id by this, whoever wrote it: we keep the id.

        A sidecar makes a key that is absent, and makes it under its lease. What stands in the key that we made, or
        under no lease, was written past that.
        """
        return not holder.lease or holder.create_revision == self._created

    async def _look_first(self, before: Presence | None, until: float) -> None:
        """Waits until it is known what the engine serves, as long as others see the same replica as before.

        With the new presence the status of the process before counts no more: routers would lose an engine that serves
        on (guarantee R24). Its presence keeps the id meanwhile, for as long as its lease lasts.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                while before is not None and self._looks_like(before) and not self._knows_what_is_served:
                    self._news.clear()
                    await self._news.wait()

    def _looks_like(self, before: Presence) -> bool:
        """True if nothing is placed or asked for elsewhere by our presence than by the one before."""
        one, other = (
            (found.labels, found.capacity, found.leaving, found.declines, found.engine_url)
            for found in (before, self._presence)
        )
        return one == other

    @property
    def _knows_what_is_served(self) -> bool:
        return self._newest is not None and tells_what_is_served(self._newest())

    async def _puts(self, lease: int) -> tuple[ReplicaStatus, tuple[Put, ...]]:
        """The newest status, and the writes of it and of presence: no reader finds the one without the other."""
        self._news.clear()
        status = await self._say()
        self._claimed = self._beside(status)
        presence = Put(self._presence_key, self._claimed.to_bytes(), lease)
        return status, (presence, Put(self._status_key, status.to_bytes(), lease))

    async def _say(self) -> ReplicaStatus:
        """The newest status, as soon as there is one."""
        while (newest := self._newest) is None:
            self._news.clear()
            await self._news.wait()
        return newest()

    def _beside(self, status: ReplicaStatus) -> Presence:
        """Presence as it may stand beside a status: who reads both finds the capacity that it tells."""
        capacity = capacity_within(self._presence.capacity, status.engine.limits.max_cpu_loras)
        return self._presence.model_copy(update={"capacity": capacity, "by_reports": True})

    def _take_after(self, before: Presence | None, holder: KeyValue) -> None:
        """Until the engine was looked at, it can hold what it could before: others share adapters out by that."""
        if self._is_no_claim(holder) and (before is None or before.incarnation != self._presence.incarnation):
            who = before.incarnation if before else "unreadable"
            name, lease = self._presence.replica, f"{holder.lease:x}"
            _log.error("presence_overwritten", replica=name, lease=lease, holder=who, revision=holder.mod_revision)
        if before is not None and not self._has_looked:
            self._presence = self._presence.model_copy(update={"capacity": before.capacity})

    def _is_ours(self, presence: Presence) -> bool:
        """True for our own presence, and for that of a dead process whose lock or seat on this host we now hold."""
        has_seat = presence.seat != "" and presence.seat == self._presence.seat
        return has_seat or presence.owner == self._presence.owner

    def _lose(self, twin: Presence, lease: int) -> None:
        """The other may be dead, as where a sidecar comes back without its store: its lease tells that soon."""
        holder, now = f"{twin.incarnation}, lease {lease:x}", self._clock.monotonic()
        if not self.refusal:
            self._losses += 1
            self._known_at = now + DEAD_SECONDS
            until = rfc3339(self._clock.wall() + timedelta(seconds=DEAD_SECONDS))
            self._end = f"until {until} at the latest if that one has ended; if it lives, give each its own"
            _log.info("replica_id_taken", replica=self._presence.replica, holder=holder, until=until)
        elif now >= self._known_at:
            self._known_at, self._end = math.inf, "which lives; give each its own"
            _log.error("replica_id_taken", replica=self._presence.replica, holder=holder)
        name = repr(self._presence.replica)
        if self._losses >= LOSSES_UNTIL_STOP:
            raise ReplicaTaken(f"replica id {name} was lost to another sidecar twice; give each its own")
        self._refuse(f"replica id {name} is held by another sidecar ({holder}) {self._end}")

    def _refuse(self, refusal: str) -> None:
        if self.refusal != refusal:
            self.refusal = refusal
            self._on_change()

    async def _write_statuses(self, written: ReplicaStatus, lease: int) -> None:
        """Writes each new status until the id is lost; the lease in the compare makes a late write harmless."""
        while (status := await self._next(written, lease)) is not None:
            written, presence = status, self._beside(status)
            puts = [Put(self._status_key, written.to_bytes(), lease)]
            if presence != self._claimed:
                puts.append(Put(self._presence_key, presence.to_bytes(), lease))
            result = await self._client.txn(Txn((self._held_by(lease), self._as_written()), tuple(puts)))
            if not result.succeeded:
                return
            if len(puts) > 1:
                self._stands_at = result.revision
            self._claimed = self._written = presence
            self._note_written(written, result.revision)

    def _note_written(self, status: ReplicaStatus, revision: int) -> None:
        _log.info("status_written", revision=revision, updated_at=status.updated_at)
        hit(Point.STATUS_WRITTEN)

    async def _next(self, written: ReplicaStatus, lease: int) -> ReplicaStatus | None:
        """The newest status once it says something new; None: the id is not ours, or what we wrote is gone."""
        tries_at = asyncio.get_running_loop().time() + TRIES_SECONDS
        while True:
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    return await self._news_since(written, tries_at)
            except TimeoutError:
                if not await self._is_held(lease):
                    return None
            self._news.set()

    def _held_by(self, lease: int) -> Compare:
        return Compare(self._presence_key, Target.LEASE, Relation.EQUAL, lease)

    def _as_written(self) -> Compare:
        """Presence is what we wrote last. In a store that was set back an older one of ours stands under our lease."""
        return mod_is(self._presence_key, self._stands_at)

    async def _is_held(self, lease: int) -> bool:
        """True while presence stands under our lease as we wrote it, and a status beside it."""
        presence, status = [
            (await self._client.range(Range(key, keys_only=True))).kvs for key in (self._presence_key, self._status_key)
        ]
        stands = [(kv.lease, kv.mod_revision) for kv in presence] == [(lease, self._stands_at)]
        return stands and [kv.lease for kv in status] == [lease]

    async def _news_since(self, written: ReplicaStatus, tries_at: float) -> ReplicaStatus:
        while True:
            await self._news.wait()
            await asyncio.sleep(COALESCE_SECONDS)
            self._news.clear()
            status, is_late = await self._say(), asyncio.get_running_loop().time() >= tries_at
            if self._beside(status) != self._claimed or not says_the_same(status, written, with_tries=is_late):
                return status


class ShareGuard:
    """Says in the presence how much room the engine has, and none once it has been away, or unfit, for so long.

    So others take over what is placed by number. It gets its part back as soon as it is there; they serve until then.
    """

    def __init__(self, writer: StatusWriter, clock: Clock, give_up_seconds: float) -> None:
        """`give_up_seconds` may be infinite: then it keeps its part."""
        self._writer = writer
        self._clock = clock
        self._give_up_seconds = give_up_seconds
        self._away_since: float | None = None
        self._has_given_up = False

    def take(self, report: RoundReport) -> None:
        """Takes in what a round came to; before the first plan, what the pool allows is not known either."""
        plan = report.situation.plan
        if plan is not None and not plan.blocked:
            self._away_since, self._has_given_up = None, False
            self._writer.hold(report.capacity)
        elif (plan is not None or report.situation.observed is None) and not self._writer.refusal:
            self._look(self._clock.monotonic())

    def _look(self, now: float) -> None:
        self._away_since = now if self._away_since is None else self._away_since
        if self._has_given_up or now - self._away_since < self._give_up_seconds:
            return
        self._has_given_up = True
        _log.warning("share_given_up", away_seconds=now - self._away_since)
        self._writer.hold(0)


def _only(result: TxnResult) -> KeyValue | None:
    """The one key that the else-branch read, if it is there."""
    (response,) = result.responses
    return response.kvs[0] if isinstance(response, RangeResult) and response.kvs else None
