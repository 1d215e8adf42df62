"""From etcd's watch to the mailbox: list and events → brake → journal → informer → `Inputs`."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import assert_never

import structlog

from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdError
from registry.etcd3.ops import Event, prefix_end
from registry.etcd3.reflector import (
    Changed,
    Connected,
    Disconnected,
    ListCause,
    Listed,
    Progressed,
    Reflection,
    Reflector,
    Resume,
)
from registry.keys import Keys, last_part
from sidecar.brake import Candidate, Follow, Followed, Hold, StoreId, judge
from sidecar.chance import Chance
from sidecar.desired import Informer
from sidecar.epoch import epoch_of
from sidecar.inputs import Inputs
from sidecar.journal import Journal, Restored
from sidecar.members_feed import MembersFeed
from sidecar.metrics import ETCD_RECONNECTS, OBSERVED_REVISION, RELISTS
from sidecar.packing import Packing
from sidecar.pool_feed import PoolFeed
from sidecar.snapshot import AdaptersChanged, Base, MembersChanged, PoolChanged
from sidecar.tracing import Tracer

_log = structlog.get_logger()
# How long a boot waits for etcd before it acts upon the snapshot, and for what changed since once connected.
BOOT_WAIT_SECONDS = 2.0
CATCH_UP_SECONDS = 0.2
# How often a whole list is compared with what the watch told: a net below the watch, never its substitute.
COMPARE_SECONDS = 600.0
# Until the watch is made anew where etcd could not say which store it is.
UNKNOWN_STORE_SECONDS = 1.0


class Feed:
    """Keeps `Inputs` at etcd's newest state of one pool that may be followed, and the snapshot with it."""

    def __init__(
        self, client: Client, keys: Keys, pool: str, replica: str, inputs: Inputs, journal: Journal, chance: Chance
    ) -> None:
        self._client = client
        self._keys = keys
        self._pool = pool
        self._inputs = inputs
        self._journal = journal
        self._chance = chance
        self._informer = Informer(pool)
        inputs.record = self._informer.record
        self._pool_feed = PoolFeed(client, keys, pool, inputs, journal, chance)
        self._members_feed = MembersFeed(client, keys, pool, replica, inputs, journal, chance)
        self._tracer = Tracer(client, keys, pool, inputs, monotonic=chance.monotonic)
        self._store = StoreId()
        self._candidate: Candidate | None = None
        self._is_doubted = False
        self._must_list = False
        self._restored = False
        self._heard = asyncio.Event()
        self._packing = Packing(self._informer)
        self._taking = asyncio.Lock()

    def restore(self) -> None:
        """Takes up the snapshot, without acting upon it yet."""
        restored = self._journal.restore(self._pool)
        if restored is None:
            _log.info("snapshot_absent", pool=self._pool)
            return
        self._fold_restored(restored)
        self._restored = True
        state = self._informer.state
        _log.info("snapshot_restored", revision=state.revision, adapters=state.count)

    async def run(self) -> None:
        """Runs until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_adapters(), name="adapters")
            tasks.create_task(self._pool_feed.run(self._is_behind, self._judge_again), name="pool")
            tasks.create_task(self._members_feed.run(), name="members")
            tasks.create_task(self._act_upon_snapshot(), name="boot")
            tasks.create_task(self._packing.run(), name="pack")
            tasks.create_task(self._journal.keep_synced(), name="sync")

    def _fold_restored(self, restored: Restored) -> None:
        base = restored.base
        self._store = StoreId(base.cluster_id, base.epoch)
        self._is_doubted = base.is_doubted
        self._informer.restore(base.revision, base.records)
        if base.pool_record is not None:
            self._pool_feed.take(base.pool_record)
        self._members_feed.restore(base.members)
        for entry in restored.entries:
            match entry:
                case AdaptersChanged(revision, events):
                    self._informer.apply(revision, events)
                case PoolChanged(value):
                    self._pool_feed.take(value)
                case MembersChanged():
                    self._members_feed.fold(entry)

    async def _act_upon_snapshot(self) -> None:
        """After a restart the snapshot is good enough once etcd had its chance to say what is newer."""
        if not self._restored:
            return
        try:
            async with asyncio.timeout(BOOT_WAIT_SECONDS):
                await self._heard.wait()
            await asyncio.sleep(CATCH_UP_SECONDS)
        except TimeoutError:
            _log.warning("acting_upon_snapshot", revision=self._informer.state.revision)
        self._post()

    async def _follow_adapters(self) -> None:
        if self._journal.wants_base and self._restored:
            await self._rewrite()
        while True:
            try:
                await self._follow_one_store()
            except EtcdError as error:
                _log.warning("store_not_identified", error=str(error))
                self._set_connected(connected=False)
                await asyncio.sleep(UNKNOWN_STORE_SECONDS)

    async def _follow_one_store(self) -> None:
        """Ends when the store turns out to be another one: then it has to be listed.

        Raises:
            EtcdError: which store it is could not be read.
        """
        prefix = self._keys.adapters(self._pool)
        reflector = Reflector(
            self._client,
            prefix,
            prefix_end(prefix),
            resume=self._resume(),
            rng=self._chance.rng,
            compare_every_seconds=COMPARE_SECONDS,
        )
        async with aclosing(reflector.stream()) as reflections:
            async for reflection in reflections:
                async with self._taking:
                    await self._take(reflection)
                if self._must_list:
                    return

    def _resume(self) -> Resume | None:
        """Nothing to resume from while the store is in doubt, or nothing was followed yet: then comes a list."""
        self._candidate, self._must_list = None, False
        if self._is_doubted or not (self._restored or self._inputs.desired is not None):
            return None
        return Resume(self._informer.state.revision, self._store.cluster_id)

    async def _take(self, reflection: Reflection) -> None:
        match reflection:
            case Listed():
                await self._take_list(reflection)
            case Changed(revision, events):
                await self._take_events(revision, events)
            case Progressed(revision):
                await self._take_progress(revision)
            case Connected(endpoint):
                await self._connected(endpoint)
            case Disconnected(message):
                ETCD_RECONNECTS.inc()
                _log.warning("etcd_disconnected", error=message)
                self._set_connected(connected=False)
            case _:
                assert_never(reflection)

    def _set_connected(self, *, connected: bool) -> None:
        if self._inputs.connected != connected:
            self._inputs.connected = connected
            self._inputs.wake()
            self._members_feed.look_again()

    async def _connected(self, endpoint: str) -> None:
        """A watch stands. Before anything of it is followed, the store must be the one that the mark is of."""
        epoch = await epoch_of(self._client, self._keys, known=self._store.epoch)
        _log.info("etcd_connected", endpoint=endpoint)
        self._heard.set()
        store = StoreId(self._store.cluster_id, epoch)
        if self._candidate is None and self._store.is_other(store):
            _log.error("store_replaced", epoch=epoch, known_epoch=self._store.epoch)
            self._is_doubted = self._must_list = True
            return
        if self._candidate is None:
            self._store = store
        self._set_connected(connected=True)

    async def _take_list(self, listed: Listed) -> None:
        RELISTS.inc()
        store = StoreId(listed.cluster_id, await epoch_of(self._client, self._keys, known=self._store.epoch))
        self._set_connected(connected=True)
        candidate = Candidate(listed.revision, store, listed.kvs, self._informer.raw)
        await self._judge(candidate, listed.cause)

    async def _judge_again(self) -> None:
        """The pool's record may have come to vouch for the list that is held."""
        async with self._taking:
            if self._candidate is not None:
                await self._judge(self._candidate, None)

    async def _judge(self, candidate: Candidate, cause: ListCause | None) -> None:
        """Follows the candidate or holds it; `cause` None: it was held before."""
        followed = Followed(self._informer.state.revision, self._store, len(self._informer.raw))
        confirmed = self._pool_feed.confirmed_revision
        match judge(followed, candidate, confirmed_revision=confirmed, pool=self._pool):
            case Follow(confirmed=is_confirmed):
                await self._follow(candidate, cause, is_confirmed=is_confirmed)
            case Hold() as hold:
                await self._hold(candidate, hold)

    async def _hold(self, candidate: Candidate, hold: Hold) -> None:
        """What runs stays as it is (guarantees R1 and R15), also through a restart of this process."""
        self._candidate = candidate
        if not self._inputs.held:
            revision, store = candidate.listed_revision, candidate.store
            _log.error(
                "list_held", reason=hold.reason, message=hold.message, revision=revision, cluster=store.cluster_id
            )
        if self._inputs.held != hold.message:
            self._inputs.held = hold.message
            self._inputs.wake()
        if not self._is_doubted:
            self._is_doubted = True
            await self._rewrite()

    async def _follow(self, candidate: Candidate, cause: ListCause | None, *, is_confirmed: bool) -> None:
        acted_before = self._restored or self._inputs.desired is not None
        before = self._informer.state.revision
        changed = self._informer.replace(candidate.revision, candidate.kvs.values())
        self._store, self._candidate, self._is_doubted = candidate.store, None, False
        if acted_before:  # a kill during the rewrite must not bring back what was followed before this list
            await self._rewrite()
        named = cause.name if cause else "HELD"
        _log.info("listed", revision=candidate.revision, cause=named, changed=len(changed), former_revision=before)
        if is_confirmed:
            _log.warning("removals_confirmed", revision=candidate.revision, former_revision=before)
        self._put_in_force()
        if not acted_before:
            await self._rewrite()

    def _put_in_force(self) -> None:
        """What was followed, with the pool's record and the replicas of the same store, and all of it at once."""
        self._inputs.held = ""
        self._pool_feed.settle()
        self._members_feed.look_again()
        self._post()

    async def _take_events(self, revision: int, events: tuple[Event, ...]) -> None:
        if self._candidate is not None:
            self._candidate.apply(revision, events)
            await self._judge(self._candidate, None)
            return
        self._journal.append(AdaptersChanged(revision, events))
        before = self._informer.raw
        deleted = [key for event in events if event.kv is None and (key := last_part(event.key)) in before]
        self._informer.apply(revision, events)
        await self._tracer.note(revision, events, deleted)
        self._post()
        if self._journal.wants_base:
            await self._rewrite()

    async def _take_progress(self, revision: int) -> None:
        if self._candidate is None:
            self._informer.advance(revision)
            OBSERVED_REVISION.set(self._informer.state.revision)
            return
        self._candidate.advance(revision)
        await self._judge(self._candidate, None)

    def _is_behind(self, revision: int) -> bool:
        return revision < self._informer.state.revision

    def _post(self) -> None:
        self._inputs.desired = self._informer.state
        OBSERVED_REVISION.set(self._informer.state.revision)
        self._members_feed.want(wanted=self._informer.state.tally.by_members > 0)
        self._inputs.wake()
        self._packing.wake()

    async def _rewrite(self) -> None:
        state, store = self._informer.state, self._store
        records = dict(self._informer.raw)
        pool_record = self._pool_feed.record
        known = (records, store.epoch, self._is_doubted, self._members_feed.members)
        base = Base(self._pool, store.cluster_id, state.revision, pool_record, *known)
        await self._journal.rewrite(base)
