"""Watcher: the way from etcd's records of one pool to what may be acted upon.

A reflector lists and watches. What it brings goes through the removal guard, the journal, the informer and, at last,
the mailbox. `PoolCache` holds what came of it. One reflection is taken at a time.

- What is acted upon is in the journal before, as far as the disk takes it (R1, R12): after a kill, and a start without
  etcd, an engine would else be brought back to what was so before. Only the first list of all is acted upon at once.
- A deletion that comes as an event is somebody's will, and is followed. A record that a list lacks may be lost. So a
  list that lacks very much, or is of a store that went back, is held until it mends itself or somebody vouches for it
  (R15).
- A list is held or followed whole: a part of it would be a state that the registry never had (R2). While one is held,
  events go into it and not into what is in force. The pool's own record and the members wait with it, since they are of
  the same store.
- The revision that is followed goes back only with a list that somebody vouched for (R1).
- A watch goes on from where the last one ended only in the same store: revisions of another one mean something else.
  The reflector compares the cluster, and this module the epoch, before anything is followed; else a list comes first.
- What events came to is compared with a list every ten minutes (R2): a net below the watch, never its substitute.
- A start acts upon the snapshot after two seconds without etcd (R13). If etcd is there it waits a moment for what is
  newer, so that old weights are not loaded first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import assert_never

import structlog

from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdError, EtcdPermissionDenied
from registry.etcd3.ops import Event, Range, prefix_end
from registry.etcd3.reflector import Reflector
from registry.etcd3.stream import Changed, Connected, Disconnected, ListCause, Listed, Progressed, Reflection, Resume
from registry.model.errors import RegistryError
from registry.model.keys import Keys, is_adapter_key
from registry.model.records import AdapterRecord, Meta
from registry.runtime import tracing
from registry.runtime.clock import Clock
from registry.runtime.process import Keep, keep_once
from sidecar.desired.mailbox import Snapshot, heard_within
from sidecar.desired.members import MembersWatcher
from sidecar.desired.pool import PoolWatcher
from sidecar.desired.pool_cache import Booting, Following, Holding, PoolCache, Relisting
from sidecar.desired.removal_guard import Follow, FollowedState, Held, ListCandidate, StoreId, check
from sidecar.desired.snapshot import AdaptersChanged
from sidecar.metrics import ETCD_RECONNECTS, OBSERVED_REVISION, RELISTS

_log = structlog.get_logger()
# How long a boot waits for etcd before it acts upon the snapshot, and for what changed since once connected.
BOOT_WAIT_SECONDS = 2.0
CATCH_UP_SECONDS = 0.2
# How often a whole list is compared with what the watch told: a net below the watch, never its substitute.
COMPARE_SECONDS = 600.0
# Until the watch is made anew where etcd could not say which store it is.
UNKNOWN_STORE_SECONDS = 1.0


class Watcher:
    """Keeps `Mailbox` at etcd's newest state of one pool that may be followed, and the snapshot with it."""

    def __init__(
        self, client: Client, keys: Keys, replica: str, cache: PoolCache, clock: Clock, keep: Keep = keep_once
    ) -> None:
        self._client = client
        self._keys = keys
        self._cache = cache
        self._mailbox, self._journal, self._informer = cache.mailbox, cache.journal, cache.informer
        self._clock = clock
        self._keep = keep
        self._pool_watcher = PoolWatcher(client, keys, cache, clock)
        self._members_watcher = MembersWatcher(client, keys, replica, cache, clock)
        self._heard = asyncio.Event()
        self._taking = asyncio.Lock()

    async def run(self) -> None:
        """Runs until it is cancelled."""
        parts: dict[str, Callable[[], Awaitable[None]]] = {
            "adapters": self._follow_adapters,
            "pool": partial(self._pool_watcher.run, self._judge_again),
            "members": self._members_watcher.run,
            "boot": self._act_upon_snapshot,
            "pack": self._cache.packing.run,
            "sync": self._journal.keep_synced,
        }
        async with asyncio.TaskGroup() as tasks:
            for part, work in parts.items():
                tasks.create_task(self._keep(part, work), name=part)

    async def _act_upon_snapshot(self) -> None:
        """After a restart the snapshot is good enough once etcd had its chance to say what is newer."""
        if isinstance(self._cache.state, Booting):
            return
        if await heard_within(BOOT_WAIT_SECONDS, self._heard):
            await asyncio.sleep(CATCH_UP_SECONDS)
        else:
            _log.warning("acting_upon_snapshot", revision=self._informer.state.revision)
        if self._cache.is_written:  # a list comes in force by itself
            self._journal.append(AdaptersChanged(self._informer.state.revision, ()))  # etcd may have told of progress
            self._post(self._mailbox.snapshot)

    async def _follow_adapters(self) -> None:
        if self._journal.wants_base and not isinstance(self._cache.state, Booting):
            await self._cache.rewrite()
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
        prefix, resume, rng = self._keys.adapters(self._cache.pool), self._begin(), self._clock.rng
        span = prefix, prefix_end(prefix)
        reflector = Reflector(self._client, *span, resume=resume, rng=rng, compare_every_seconds=COMPARE_SECONDS)
        async with aclosing(reflector.stream()) as reflections:
            async for reflection in reflections:
                async with self._taking:
                    await self._take(reflection)
                if self._cache.state == Relisting(is_begun=False):
                    return

    def _begin(self) -> Resume | None:
        """Mark at which a new watch goes on; None: it begins with a list."""
        match self._cache.state:
            case Booting():
                return None
            case Following() if self._cache.is_written:
                return Resume(self._informer.state.revision, self._cache.store.cluster_id)
            case Following() | Holding() | Relisting():
                self._cache.state = Relisting(is_begun=True)
                return None
        assert_never(self._cache.state)

    async def _take(self, reflection: Reflection) -> None:
        match reflection:
            case Listed():
                await self._take_list(reflection)
            case Changed(revision, events):
                ours = tuple(event for event in events if is_adapter_key(event.key, self._cache.pool))
                await (self._take_events(revision, ours) if ours else self._take_progress(revision))
            case Progressed(revision):
                self._set_proxied("")
                await self._take_progress(revision)
            case Connected(endpoint):
                await self._connected(endpoint)
            case Disconnected(message, refuses_progress=refuses_progress):
                ETCD_RECONNECTS.inc()
                _log.warning("etcd_disconnected", error=message)
                self._set_connected(connected=False)
                if refuses_progress:
                    self._set_proxied(message)
            case _:
                assert_never(reflection)

    def _set_connected(self, *, connected: bool) -> None:
        snapshot = self._mailbox.snapshot
        if snapshot.connected != connected:
            self._mailbox.post(replace(snapshot, connected=connected))
            self._members_watcher.look_again()

    def _set_proxied(self, proxied: str) -> None:
        if self._mailbox.snapshot.proxied != proxied:
            self._mailbox.post(replace(self._mailbox.snapshot, proxied=proxied))

    async def _connected(self, endpoint: str) -> None:
        """A watch stands. Before anything of it is followed, the store must be the one that the mark is of."""
        epoch = await epoch_of(self._client, self._keys, known=self._cache.store.epoch)
        _log.info("etcd_connected", endpoint=endpoint)
        self._heard.set()
        if not isinstance(self._cache.state, Holding):
            store = StoreId(self._cache.store.cluster_id, epoch)
            if self._cache.store.is_other(store):
                _log.error("store_replaced", epoch=epoch, known_epoch=self._cache.store.epoch)
                self._cache.state = Relisting(is_begun=False)
                return
            self._cache.store = store
        self._set_connected(connected=True)

    async def _take_list(self, listed: Listed) -> None:
        RELISTS.inc()
        store = StoreId(listed.cluster_id, await epoch_of(self._client, self._keys, known=self._cache.store.epoch))
        self._set_connected(connected=True)
        kvs = (kv for kv in listed.kvs if is_adapter_key(kv.key, self._cache.pool))
        candidate = ListCandidate(listed.revision, store, kvs, self._informer.raw)
        await self._judge(candidate, listed.cause)

    async def _judge_again(self) -> None:
        """The pool's record may have come to vouch for the list that is held."""
        async with self._taking:
            if isinstance(self._cache.state, Holding):
                await self._judge(self._cache.state.candidate, None)

    async def _judge(self, candidate: ListCandidate, cause: ListCause | None) -> None:
        """Follows the candidate or holds it; `cause` None: it was held before."""
        followed = FollowedState(self._informer.state.revision, self._cache.store, len(self._informer.raw))
        confirmed = self._pool_watcher.confirmed_revision
        match check(followed, candidate, confirmed_revision=confirmed, pool=self._cache.pool):
            case Follow(confirmed=is_confirmed):
                await self._follow(candidate, cause, is_confirmed=is_confirmed)
            case Held() as hold:
                await self._hold(candidate, hold)

    async def _hold(self, candidate: ListCandidate, hold: Held) -> None:
        """What runs stays as it is (guarantees R1 and R15), also through a restart of this process."""
        was_doubted, self._cache.state = self._cache.is_doubted, Holding(candidate)
        snapshot = self._mailbox.snapshot
        if not snapshot.held:
            revision, store = candidate.listed_revision, candidate.store
            _log.error(
                "list_held", reason=hold.reason, message=hold.message, revision=revision, cluster=store.cluster_id
            )
        if snapshot.held != hold.message:
            self._mailbox.post(replace(snapshot, held=hold.message))
        if not was_doubted:
            await self._cache.rewrite()

    async def _follow(self, candidate: ListCandidate, cause: ListCause | None, *, is_confirmed: bool) -> None:
        await self._journal.settle()  # what is noted from here on is of the list, and in no journal before it
        acted_before, before = not isinstance(self._cache.state, Booting), self._informer.state.revision
        changed = self._informer.replace(candidate.revision, candidate.kvs.values())
        self._cache.store, self._cache.state = candidate.store, Following()
        if acted_before:  # a kill during the rewrite must not bring back what was followed before this list
            self._cache.is_written = False  # should it fail, the next watch begins with a list
            await self._cache.write_base(is_list=True)
            self._cache.is_written = True
        named = cause.name if cause else "HELD"
        _log.info("listed", revision=candidate.revision, cause=named, changed=len(changed), former_revision=before)
        if is_confirmed:
            _log.warning("removals_confirmed", revision=candidate.revision, former_revision=before)
        # The pool's record and the replicas are of the same store: with the adapters they come in force at once.
        self._members_watcher.look_again()
        self._post(self._pool_watcher.settled(replace(self._mailbox.snapshot, held="")))
        if not acted_before:
            await self._cache.write_base()

    async def _take_events(self, revision: int, events: tuple[Event, ...]) -> None:
        match self._cache.state:
            case Holding(candidate):
                candidate.apply(revision, events)
                await self._judge(candidate, None)
            case Booting() | Following() | Relisting():
                self._journal.append(AdaptersChanged(revision, events))
                changed = self._informer.apply(revision, events)
                self._post(replace(self._mailbox.snapshot, last_request_id=request_of(events)))
                self._trace(changed)
                if self._journal.wants_base:
                    await self._cache.rewrite()
            case _:
                assert_never(self._cache.state)

    def _trace(self, changed: Iterable[str]) -> None:
        """Tells that these adapters were seen to change, whether this replica is to serve them or not."""
        if tracing.is_on():
            adapters = self._informer.state.adapters
            for adapter in (adapters[key] for key in changed if key in adapters):
                about: tracing.Attributes = {"adapter": adapter.name, "generation": adapter.generation}
                tracing.record_since("seen", adapter.request_id, adapter.updated_at, about)

    async def _take_progress(self, revision: int) -> None:
        match self._cache.state:
            case Holding(candidate):
                candidate.advance(revision)
                await self._judge(candidate, None)
            case Booting() | Following() | Relisting():
                self._informer.advance(revision)
                OBSERVED_REVISION.set(self._informer.state.revision)
            case _:
                assert_never(self._cache.state)

    def _post(self, snapshot: Snapshot) -> None:
        """Puts the informer's state in force, together with what else the snapshot says."""
        self._cache.post(snapshot)
        self._members_watcher.want(wanted=self._informer.state.tally.by_members > 0)


def request_of(events: Iterable[Event]) -> str:
    """The request that made a revision: any record that it wrote names it; empty: it wrote none that can be read."""
    for event in events:
        if event.kv is not None:
            try:
                return AdapterRecord.parse(event.kv.value).request_id
            except RegistryError:
                return ""
    return ""


async def epoch_of(client: Client, keys: Keys, *, known: str) -> str:
    """The registry's epoch; empty: the store has none; `known`, which it had before: it cannot be read.

    Raises:
        EtcdError: etcd does not answer.
    """
    try:
        found = (await client.range(Range(keys.meta()))).kvs
    except EtcdPermissionDenied:
        return known
    try:
        return Meta.parse(found[0].value).epoch if found else ""
    except RegistryError:
        return known
