"""Memory of who was ready in each pool.

An admin service writes ``members/<pool>``, a key of its own, when a replica is ready for the first time, goes, or was
gone for a day: never for a heartbeat. When one goes that was never ready, it writes the same once more: then the key is
newer than that. Several admin services write the same, each on the condition that nobody else did meanwhile. Statuses
change all the time, and are followed only in pools in which somebody lives who is not remembered.
What a replica told last is read of the past when it is gone: of the revision before its presence went, or, if nobody
looked then, of the one at which it was last known to live.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import chain

import structlog

from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdError
from registry.etcd3.informer import EventTap, SharedInformer, SharedInformerFactory
from registry.etcd3.ops import Delete, KeyValue, Put, Range, Txn, absent, mod_is, prefix_end
from registry.model.errors import Conflict, FailedPrecondition, NotFound, Reason, RegistryError
from registry.model.keys import Keys, last_part
from registry.model.status import LastKnown, LeftReplica
from registry.rollout.expected import (
    expectation_of,
    labels_of,
    last_known,
    newly_gone,
    remember,
    remembered,
    remembered_here,
    with_last_known,
)
from registry.runtime.clock import Deadline
from registry.store.failures import refusal

# Changes within this time, give or take a half, make one write: a fleet that starts comes replica by replica.
_PAUSE_SECONDS = 1.0
# How often it is looked who was gone for a day.
_LOOK_SECONDS = 300.0
# Pause after a write that failed: expiry goes by what is written of who went (`registry.rollout.expiry`).
_AGAIN_SECONDS = 3.0
# Of so many that go at once it is read what they told last, in this time at most.
_MAX_READ, _READ_SECONDS = 100, 5.0
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Informers:
    presences: SharedInformer
    pools: SharedInformer
    members: SharedInformer
    left: SharedInformer

    @property
    def is_true(self) -> bool:
        informers = self.presences, self.pools, self.members, self.left
        return all(map(_is_true, informers))


def _is_true(informer: SharedInformer) -> bool:
    return informer.is_listed and informer.connected


class _Newcomers:
    """Statuses of the pools in which somebody lives who is not remembered."""

    def __init__(self, keys: Keys, informers: SharedInformerFactory, wake: asyncio.Event) -> None:
        self._keys = keys
        self._informers = informers
        self._wake = wake
        self._followed: dict[str, tuple[SharedInformer, AsyncExitStack]] = {}

    @property
    def is_true(self) -> bool:
        return all(_is_true(informer) for informer, _ in self._followed.values())

    def statuses(self, pool: str) -> Collection[KeyValue]:
        """Those of a pool that is followed; of another one none."""
        found = self._followed.get(pool)
        return found[0].kvs.values() if found else ()

    async def follow(self, pools: AbstractSet[str]) -> None:
        """Follows these pools, and no others."""
        for pool in self._followed.keys() - pools:
            await self._followed.pop(pool)[1].aclose()
        for pool in pools - self._followed.keys():
            stack, prefix = AsyncExitStack(), self._keys.statuses(pool)
            look = self._informers.look(prefix, prefix_end(prefix), self._wake)
            self._followed[pool] = await stack.enter_async_context(look), stack


def _has_newcomers(presences: Iterable[KeyValue], members: KeyValue | None) -> bool:
    known = remembered(members).members
    return any(last_part(kv.key) not in known for kv in presences)


@dataclass(frozen=True, slots=True)
class _Heard:
    """Knowledge of a pool's replicas; `left` as `registry.rollout.expected.remember` takes it."""

    presences: Sequence[KeyValue]
    statuses: Collection[KeyValue]
    left: Mapping[str, str]


class MembersKeeper:
    """Remembers who was ready in each pool. Each admin service has one.

    Args:
        tell: is called with how many replicas are missing in each pool, whenever that was looked at.
        wall: the time, in UTC.
    """

    def __init__(
        self,
        client: Client,
        keys: Keys,
        informers: SharedInformerFactory,
        tell: Callable[[Mapping[str, int]], None],
        *,
        rng: random.Random,
        wall: Callable[[], datetime],
    ) -> None:
        self._client = client
        self._keys = keys
        self._informers = informers
        self._tell = tell
        self._rng = rng
        self._wall = wall
        self._tap = EventTap()
        # By key of a presence: the revision at which it went, until that is written.
        self._ended: dict[bytes, int] = {}
        self._is_failing = False

    async def run(self) -> None:
        """Keeps it until it is cancelled."""
        wake, keys = asyncio.Event(), self._keys
        prefixes = keys.all_replicas(), keys.pools(), keys.all_members(), keys.all_left()
        async with AsyncExitStack() as stack:
            looks = [self._informers.look(prefix, prefix_end(prefix), wake) for prefix in prefixes]
            informers = _Informers(*[await stack.enter_async_context(look) for look in looks])
            informers.presences.taps.add(self._tap)
            stack.callback(informers.presences.taps.discard, self._tap)
            newcomers = _Newcomers(keys, self._informers, wake)
            stack.push_async_callback(newcomers.follow, frozenset())
            while True:
                await self._next(wake)
                if informers.is_true:
                    await self._look(informers, newcomers)

    async def _next(self, wake: asyncio.Event) -> None:
        try:
            async with asyncio.timeout(_AGAIN_SECONDS if self._is_failing else _LOOK_SECONDS):
                await wake.wait()
        except TimeoutError:
            return
        await asyncio.sleep(self._rng.uniform(0.5, 1.5) * _PAUSE_SECONDS)
        wake.clear()

    async def _look(self, informers: _Informers, newcomers: _Newcomers) -> None:
        """Writes what changed, and tells who is missing."""
        self._ended |= {event.key: event.mod_revision for event in self._tap.take() if event.kv is None}
        presences = {last_part(key): list[KeyValue]() for key in informers.pools.kvs}
        for kv in informers.presences.kvs.values():
            presences.setdefault(_pool_of(kv.key), []).append(kv)
        members = {last_part(kv.key): kv for kv in informers.members.kvs.values()}
        left, missing = _left(informers.left.kvs.values()), dict[str, int]()
        pools = {last_part(key): kv for key, kv in informers.pools.kvs.items()}
        await newcomers.follow({one for one in pools if _has_newcomers(presences[one], members.get(one))})
        if not newcomers.is_true:
            return  # it is looked again once they are known
        done = True
        for pool, pool_kv in pools.items():
            here, statuses = presences[pool], newcomers.statuses(pool)
            done &= await self._renew(pool, members.pop(pool, None), _Heard(here, statuses, left.get(pool, {})))
            known = expectation_of(informers.members.kvs.get(self._keys.members(pool)), pool_kv)
            missing[pool] = known.lacking(labels_of(here, statuses, known.remembered.keys())).count
        for pool, kv in members.items():
            gone = Txn((mod_is(kv.key, kv.mod_revision), absent(self._keys.pool(pool))), (Delete(kv.key),))
            done &= await self._send(pool, gone)
        self._is_failing = not done
        self._tell(missing)
        if self._ended:
            waiting = {key for kv in informers.members.kvs.values() for key in self._unwritten(kv)}
            self._ended = {key: revision for key, revision in self._ended.items() if key in waiting}

    def _unwritten(self, members: KeyValue) -> Iterable[bytes]:
        """Keys of the presences of those who live, as far as is written, and of strangers that went since."""
        pool, known = last_part(members.key), remembered(members).members
        living = (self._keys.replica(pool, name) for name, one in known.items() if not one.last_seen)
        return chain(living, self._strangers(pool, members))

    def _strangers(self, pool: str, members: KeyValue) -> Sequence[bytes]:
        """Keys of the presences of those who went after that was written, and whom nobody remembers."""
        known, newer = remembered(members).members, members.mod_revision
        ended = (key for key, revision in self._ended.items() if revision > newer and _pool_of(key) == pool)
        return [key for key in ended if last_part(key) not in known]

    async def _renew(self, pool: str, kv: KeyValue | None, heard: _Heard) -> bool:
        """Writes what changed of a pool; False: it could not be."""
        try:
            before = remembered_here(kv)
        except RegistryError:
            return True  # what a later release wrote stays
        wanted = remember(before, heard.presences, heard.statuses, heard.left, self._wall())
        if wanted.members == before.members and not (kv and self._strangers(pool, kv)):
            return True
        key = self._keys.members(pool)
        unchanged = absent(key) if kv is None else mod_is(key, kv.mod_revision)
        if kv is not None and (gone := newly_gone(before, wanted)):
            wanted = with_last_known(wanted, await self._told_last(pool, gone, kv.mod_revision))
        return await self._send(pool, Txn((unchanged,), (Put(key, wanted.to_bytes()),)))

    async def _told_last(self, pool: str, names: Sequence[str], lived_at: int) -> dict[str, LastKnown]:
        """Facts that those who are gone told last, as far as etcd still has them; `lived_at`: a revision of then."""
        found: dict[str, LastKnown] = {}
        with suppress(TimeoutError):
            async with asyncio.timeout(_READ_SECONDS):
                for name in names[:_MAX_READ]:
                    revision = self._ended.get(self._keys.replica(pool, name), lived_at + 1) - 1
                    with suppress(EtcdError):  # etcd may have compacted it; the rest is written all the same
                        if (told := await self._told_at(pool, name, revision)) is not None:
                            found[name] = told
        return found

    async def _told_at(self, pool: str, name: str, revision: int) -> LastKnown | None:
        """None: it did not live then."""
        presence = await self._client.range(Range(self._keys.replica(pool, name), revision=revision))
        status = await self._client.range(Range(self._keys.status(pool, name), revision=revision))
        kv = next(iter(presence.kvs), None)
        return last_known(kv, next(iter(status.kvs), None)) if kv is not None else None

    async def _send(self, pool: str, txn: Txn) -> bool:
        """False: it could not be sent. Somebody who was faster wrote the same, or woke this up again."""
        try:
            await self._client.txn(txn)
        except EtcdError as error:
            if not self._is_failing:
                _log.warning("members_not_written", pool=pool, error=str(error))
            return False
        return True


def _left(kvs: Iterable[KeyValue]) -> dict[str, dict[str, str]]:
    """By pool and name, the incarnations that ended in order; what cannot be read says nothing."""
    found: dict[str, dict[str, str]] = {}
    for kv in kvs:
        try:
            incarnation = LeftReplica.parse(kv.value).incarnation
        except RegistryError:
            continue
        found.setdefault(_pool_of(kv.key), {})[last_part(kv.key)] = incarnation
    return found


def _pool_of(key: bytes) -> str:
    return last_part(key.rsplit(b"/", 1)[0])


async def forget(client: Client, keys: Keys, pool: str, name: str, deadline: Deadline, *, dry_run: bool) -> None:
    """Expects a replica no more.

    Raises:
        NotFound: nobody remembers one of that name.
        FailedPrecondition: it lives; or a later release remembers.
        Conflict: somebody else changed who is remembered at the same time.
        Unavailable: etcd does not answer.
    """
    try:
        alive = await client.range(Range(keys.replica(pool, name), keys_only=True), timeout_seconds=deadline.spend())
        found = await client.range(Range(keys.members(pool)), timeout_seconds=deadline.spend())
        if alive.kvs:
            message = f"replica {name!r} lives; end its sidecar first"
            raise FailedPrecondition(Reason.REPLICA_LIVES, message, field="name")
        kv = next(iter(found.kvs), None)
        before = remembered_here(kv)
        if kv is None or name not in before.members:
            message = f"no replica {name!r} is expected in pool {pool!r}; see loraplane get replicas"
            raise NotFound(Reason.REPLICA_NOT_FOUND, message, field="name")
        others = {one: member for one, member in before.members.items() if one != name}
        wanted = before.model_copy(update={"members": others})
        if dry_run:
            return
        put = Put(kv.key, wanted.to_bytes())
        result = await client.txn(Txn((mod_is(kv.key, kv.mod_revision),), (put,)), timeout_seconds=deadline.spend())
    except EtcdError as error:
        raise refusal(error) from error
    if not result.succeeded:
        raise Conflict(Reason.LOST_RACE, "others of the pool came or went at the same time; try again", field="name")
