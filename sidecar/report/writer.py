"""Writes presence and status under the replica's lease.

Writes are coalesced, and happen only while the replica id is ours. Presence is never written without a status, nor with
more capacity than that says that the engine holds: nobody places anything on a replica by its presence alone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

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
from registry.model.status import LeftReplica, Presence, ReplicaStatus, presence_of
from registry.runtime.clock import Clock, rfc3339
from registry.runtime.failpoints import Point, hit
from sidecar.ownership import LEASE_TTL_SECONDS, IdClaim, Ownership
from sidecar.plan.types import RoundReport
from sidecar.report.announcement import Announcement

_log = structlog.get_logger()
# How often it is looked whether presence and status still stand under our lease: neither counts without the other. And
# whether the status is still what would be said now: a status stands for as long as its lease, so what makes it old, as
# rounds that do not end any more, has to be written though nobody offers it.
LOOK_SECONDS = 5.0
# Of what was settled before only the tries move on: that is told so late.
TRIES_SECONDS = 300.0
RETRY_SECONDS = 1.0
# So long a process lets stand what the one before it said, until it knows itself what its engine serves.
TAKE_OVER_SECONDS = 2.0
# So long it stands that a replica ended in order: an admin service that was away reads it when it is back.
LEFT_TTL_SECONDS = 3600
_LEFT_SECONDS = 1.0


@dataclass(slots=True)
class Standing:
    """All that a writer remembers of what stands in etcd of its replica.

    Attributes:
        presence: as we wrote it, so that it is written again once it is to say something else; None: none is known to
            stand.
        lease: of what stands, by us or the process before, so that no other's presence is taken away; 0: it may be.
        created: revision at which we made presence, so that who else writes into that key does not have the id by it.
        revision: at which presence was written last, so that an older one of a store that was set back is written anew.
    """

    presence: Presence | None = None
    lease: int = 0
    created: int = 0
    revision: int = 0


def _tell_unwritten(error: EtcdError) -> None:
    _log.warning("status_not_written", error=str(error))


class StatusWriter:
    """The only writer of ``replicas/<pool>/<replica>`` and ``status/<pool>/<replica>``.

    Attributes:
        announcement: what is written.
        claim: whether it may be.
    """

    def __init__(
        self, client: Client, keys: Keys, presence: Presence, clock: Clock, on_change: Callable[[], None]
    ) -> None:
        """Writes nothing yet; `on_change` is called when the id is lost or won."""
        self._client = client
        self._presence_key = keys.replica(presence.pool, presence.replica)
        self._status_key = keys.status(presence.pool, presence.replica)
        self._left_key = keys.left(presence.pool, presence.replica)
        self._clock = clock
        self._standing = Standing()
        self.announcement = Announcement(presence)
        self.claim = IdClaim(presence.replica, clock, on_change)

    @property
    def is_leave_known(self) -> bool:
        """True while the presence that stands in etcd says that the replica drains."""
        return self._standing.presence is not None and self._standing.presence.leaving

    async def say_left(self) -> None:
        """Takes the presence away, and says that nobody is to wait for this replica: its process is about to end.

        To be called just before `run` is cancelled. If etcd does not take it, the replica counts as lost.
        """
        if not self._standing.lease:
            return
        ours, at = self.announcement.presence, rfc3339(self._clock.wall())
        told = LeftReplica(pool=ours.pool, replica=ours.replica, incarnation=ours.incarnation, at=at)
        try:
            lease = await self._client.lease_grant(LEFT_TTL_SECONDS, timeout_seconds=_LEFT_SECONDS)
            changes = Delete(self._presence_key), Put(self._left_key, told.to_bytes(), lease)
            held = self._held_by(self._standing.lease)
            await self._client.txn(Txn((held,), changes), timeout_seconds=_LEFT_SECONDS)
        except EtcdError as error:
            _log.warning("leave_not_told", replica=ours.replica, error=str(error))

    async def run(self) -> None:
        """Runs until it is cancelled.

        Raises:
            ReplicaTaken: a second process has the replica id, twice in a row.
        """
        rng, body = self._clock.rng, self._publish
        await hold_lease(self._client, ttl_seconds=LEASE_TTL_SECONDS, body=body, rng=rng, on_error=_tell_unwritten)

    async def _publish(self, lease: int) -> None:
        hit(Point.LEASE_HELD)
        # What we made under the lease before went with it. In a store that was set back, another key may have been made
        # at the same revision since.
        self._standing = Standing()
        while True:
            self._standing.presence, self._standing.lease = None, 0
            try:
                first = await self._claim_id(lease)
                if first is not None:
                    hit(Point.PRESENCE_WRITTEN)
                    self._note_written(first, self._standing.revision)
                    await self._write_statuses(first, lease)
            except LeaseExpired:
                raise  # the session gets a new lease, and everything is written again
            except EtcdError as error:
                _tell_unwritten(error)
            await asyncio.sleep(RETRY_SECONDS)

    async def _claim_id(self, lease: int) -> ReplicaStatus | None:
        """Writes presence under our lease unless a living twin has the id, and with it the status that is returned."""
        key, until = self._presence_key, asyncio.get_running_loop().time() + TAKE_OVER_SECONDS
        status, presence = await self.announcement.newest()
        result = await self._client.txn(Txn((absent(key),), self._puts(status, presence, lease), (Range(key),)))
        created = result.revision
        while not result.succeeded:
            holder = _only(result)
            if holder is None:
                return None
            before = presence_of(holder.value)  # None: no sidecar of any release stands behind it
            if before is not None and not (self._is_no_claim(holder) or self._is_ours(before)):
                self.claim.lose(f"{before.incarnation}, lease {holder.lease:x}")
                return None
            self._standing.lease = holder.lease
            await self._take_after(before, holder, until)
            created, unchanged = holder.create_revision, mod_is(key, holder.mod_revision)
            status, presence = await self.announcement.newest()
            result = await self._client.txn(Txn((unchanged,), self._puts(status, presence, lease), (Range(key),)))
        self._standing = Standing(presence, lease, created, result.revision)
        self.claim.win()
        return status

    def _puts(self, status: ReplicaStatus, presence: Presence, lease: int) -> tuple[Put, Put]:
        """The writes of both: no reader finds the one without the other."""
        return Put(self._presence_key, presence.to_bytes(), lease), Put(self._status_key, status.to_bytes(), lease)

    def _is_no_claim(self, holder: KeyValue) -> bool:
        """True if no second process has the id by this, whoever wrote it: we keep the id.

        A sidecar makes a key that is absent, and makes it under its lease. What stands in the key that we made, or
        under no lease, was written past that.
        """
        return not holder.lease or holder.create_revision == self._standing.created

    def _is_ours(self, presence: Presence) -> bool:
        """True for our own presence, and for that of a dead process whose lock or seat on this host we now hold."""
        ours = self.announcement.presence
        return presence.owner == ours.owner or presence.seat == ours.seat != ""

    async def _take_after(self, before: Presence | None, holder: KeyValue, until: float) -> None:
        """Waits until it is known what the engine serves, as long as others see the same replica as before.

        With the new presence the status of the process before counts no more: routers would lose an engine that serves
        on (guarantee R24). Its presence keeps the id meanwhile, for as long as its lease lasts.
        """
        ours = self.announcement.presence
        if self._is_no_claim(holder) and (before is None or before.incarnation != ours.incarnation):
            who, lease = before.incarnation if before else "unreadable", f"{holder.lease:x}"
            revision = holder.mod_revision
            _log.error("presence_overwritten", replica=ours.replica, lease=lease, holder=who, revision=revision)
        if before is not None:
            self.announcement.hold_as(before)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self.announcement.until_served_is_known(before)

    async def _write_statuses(self, written: ReplicaStatus, lease: int) -> None:
        """Writes each new status until the id is lost; the lease in the compare makes a late write harmless."""
        while (news := await self._next(written, lease)) is not None:
            written, presence = news
            puts = self._puts(written, presence, lease)
            is_same = presence == self._standing.presence
            as_written = self._held_by(lease), self._as_written()
            result = await self._client.txn(Txn(as_written, puts[1:] if is_same else puts))
            if not result.succeeded:
                return
            if not is_same:
                self._standing.presence, self._standing.revision = presence, result.revision
            self._note_written(written, result.revision)

    def _note_written(self, status: ReplicaStatus, revision: int) -> None:
        _log.info("status_written", revision=revision, updated_at=status.updated_at)
        hit(Point.STATUS_WRITTEN)

    async def _next(self, written: ReplicaStatus, lease: int) -> tuple[ReplicaStatus, Presence] | None:
        """The newest status once it says something new; None: the id is not ours, or what we wrote is gone."""
        tries_at = asyncio.get_running_loop().time() + TRIES_SECONDS
        while True:
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    return await self.announcement.news_since((written, self._standing.presence), tries_at)
            except TimeoutError:
                if not await self._is_held(lease):
                    return None
            self.announcement.look_again()

    def _held_by(self, lease: int) -> Compare:
        return Compare(self._presence_key, Target.LEASE, Relation.EQUAL, lease)

    def _as_written(self) -> Compare:
        """Presence is what we wrote last. In a store that was set back an older one of ours stands under our lease."""
        return mod_is(self._presence_key, self._standing.revision)

    async def _is_held(self, lease: int) -> bool:
        """True while presence stands under our lease as we wrote it, and a status beside it."""
        presence, status = [
            (await self._client.range(Range(key, keys_only=True))).kvs for key in (self._presence_key, self._status_key)
        ]
        stands = [(kv.lease, kv.mod_revision) for kv in presence] == [(lease, self._standing.revision)]
        return stands and [kv.lease for kv in status] == [lease]


class ShareGuard:
    """Says in the presence how much room the engine has, and none once it has been away, or unfit, for so long.

    So others take over what is placed by number. It gets its part back as soon as it is there; they serve until then.
    """

    def __init__(self, announcement: Announcement, ownership: Ownership, clock: Clock, give_up_seconds: float) -> None:
        """`give_up_seconds` may be infinite: then it keeps its part."""
        self._announcement = announcement
        self._ownership = ownership
        self._clock = clock
        self._give_up_seconds = give_up_seconds
        self._away_since: float | None = None
        self._has_given_up = False

    def take(self, report: RoundReport) -> None:
        """Takes in what a round came to; before the first plan, what the pool allows is not known either."""
        plan = report.situation.plan
        if plan is not None and not plan.blocked:
            self._away_since, self._has_given_up = None, False
            self._announcement.hold(report.capacity)
        elif (plan is not None or report.situation.observed is None) and not self._ownership.refusal:
            self._look(self._clock.monotonic())

    def _look(self, now: float) -> None:
        self._away_since = now if self._away_since is None else self._away_since
        if self._has_given_up or now - self._away_since < self._give_up_seconds:
            return
        self._has_given_up = True
        _log.warning("share_given_up", away_seconds=now - self._away_since)
        self._announcement.hold(0)


def _only(result: TxnResult) -> KeyValue | None:
    """The one key that the else-branch read, if it is there."""
    (response,) = result.responses
    return response.kvs[0] if isinstance(response, RangeResult) and response.kvs else None
