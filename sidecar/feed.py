"""From etcd's watch to the mailbox: list and events → journal → informer → `Inputs`."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import assert_never

import structlog

from registry.errors import RegistryError
from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdError
from registry.etcd3.ops import Event, KeyValue, Range, SortTarget, prefix_end
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
from registry.model.records import AdapterRecord, PoolSpec, RetiredRecord
from sidecar.chance import Chance
from sidecar.desired import Informer
from sidecar.inputs import Inputs
from sidecar.journal import Journal, Restored
from sidecar.metrics import ETCD_RECONNECTS, RELISTS
from sidecar.snapshot import AdaptersChanged, Base, PoolChanged

_log = structlog.get_logger()
# How long a boot waits for etcd before it acts upon the snapshot, and for what changed since once connected.
BOOT_WAIT_SECONDS = 2.0
CATCH_UP_SECONDS = 0.2
# How often a whole list is compared with what the watch told: a net below the watch, never its substitute.
COMPARE_SECONDS = 600.0
# Looking up who deleted an adapter serves tracing only, so it must not hold up the deletion.
TRACE_TIMEOUT_SECONDS = 0.25


class Feed:
    """Keeps `Inputs` at etcd's newest state of one pool, and the snapshot with it."""

    def __init__(self, client: Client, keys: Keys, pool: str, inputs: Inputs, journal: Journal, chance: Chance) -> None:
        self._client = client
        self._keys = keys
        self._pool = pool
        self._inputs = inputs
        self._journal = journal
        self._chance = chance
        self._informer = Informer(pool)
        self._cluster_id = 0
        self._pool_record: bytes | None = None
        self._restored = False
        self._heard = asyncio.Event()

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
            tasks.create_task(self._follow_pool(), name="pool")
            tasks.create_task(self._act_upon_snapshot(), name="boot")

    def _fold_restored(self, restored: Restored) -> None:
        base = restored.base
        self._cluster_id = base.cluster_id
        self._informer.restore(base.revision, base.records)
        self._take_pool(base.pool_record)
        for entry in restored.entries:
            match entry:
                case AdaptersChanged(revision, events):
                    self._informer.apply(revision, events)
                case PoolChanged(value):
                    self._take_pool(value)

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
            await self._journal.rewrite(self._base())
        resume = Resume(self._informer.state.revision, self._cluster_id) if self._restored else None
        while True:
            await self._follow_until_overtaken(resume)
            resume = None

    async def _follow_until_overtaken(self, resume: Resume | None) -> None:
        """Ends when a store that was held has passed our mark and must be listed anew."""
        prefix = self._keys.adapters(self._pool)
        reflector = Reflector(
            self._client,
            prefix,
            prefix_end(prefix),
            resume=resume,
            rng=self._chance.rng,
            compare_every_seconds=COMPARE_SECONDS,
        )
        async with aclosing(reflector.stream()) as reflections:
            async for reflection in reflections:
                if self._inputs.held and isinstance(reflection, Changed | Progressed):
                    if reflection.revision > self._informer.state.revision:
                        return
                    continue
                await self._take(reflection)

    async def _take(self, reflection: Reflection) -> None:
        match reflection:
            case Listed():
                await self._take_list(reflection)
            case Changed(revision, events):
                await self._take_events(revision, events)
            case Progressed(revision):
                self._informer.advance(revision)
            case Connected(endpoint):
                _log.info("etcd_connected", endpoint=endpoint)
                self._set_connected(connected=True)
                self._heard.set()
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

    async def _take_list(self, listed: Listed) -> None:
        RELISTS.inc()
        self._set_connected(connected=True)
        mark = self._informer.state.revision
        if listed.cause is ListCause.WENT_BACK or listed.revision < mark:
            # Guarantee R1: what was acted upon is never taken back because a store lost its memory.
            self._inputs.held = f"etcd is at revision {listed.revision}, below {mark} which was already followed"
            _log.error("list_held", revision=listed.revision, mark=mark, cluster_id=listed.cluster_id)
            self._inputs.wake()
            return
        self._inputs.held = ""
        acted_before = self._restored or self._inputs.desired is not None
        self._cluster_id = listed.cluster_id
        changed = self._informer.replace(listed.revision, listed.kvs)
        _log.info("listed", revision=listed.revision, cause=listed.cause.name, changed=len(changed))
        if acted_before:  # a kill during the rewrite must not bring back what was followed before this list
            await self._journal.rewrite(self._base())
            self._post()
        else:
            self._post()
            await self._journal.rewrite(self._base())

    async def _take_events(self, revision: int, events: tuple[Event, ...]) -> None:
        self._journal.append(AdaptersChanged(revision, events))
        before = self._informer.raw
        deleted = [key for event in events if event.kv is None and (key := last_part(event.key)) in before]
        self._informer.apply(revision, events)
        await self._trace(events, deleted, revision)
        self._post()
        await self._journal.sync()
        if self._journal.wants_base:
            await self._journal.rewrite(self._base())

    async def _trace(self, events: tuple[Event, ...], deleted: list[str], revision: int) -> None:
        """Finds out whose request this was. Every change of one revision is of one request."""
        written = next((event.kv for event in events if event.kv is not None), None)
        if written is not None:
            request_id = _request_of(written)
        elif deleted:
            request_id = await self._deletion_request(deleted[0], revision)
        else:
            return
        self._inputs.last_request_id = request_id
        for key in deleted:
            self._inputs.note_deletion(key, request_id)

    async def _deletion_request(self, key: str, revision: int) -> str:
        prefix = self._keys.history_of(self._pool, key.replace("%2F", "/"))
        newest = Range(prefix, prefix_end(prefix), limit=1, descending_by=SortTarget.MOD)
        try:
            found = (await self._client.range(newest, timeout_seconds=TRACE_TIMEOUT_SECONDS)).kvs
            return next(
                (RetiredRecord.parse(kv.value).retired_by_request for kv in found if kv.mod_revision == revision), ""
            )
        except (EtcdError, RegistryError):
            return ""

    async def _follow_pool(self) -> None:
        key = self._keys.pool(self._pool)
        reflector = Reflector(self._client, key, key + b"\0", resume=None, rng=self._chance.rng)
        async with aclosing(reflector.stream()) as reflections:
            async for reflection in reflections:
                match reflection:
                    case Listed(kvs=kvs):
                        self._pool_changed(kvs[0] if kvs else None)
                    case Changed(events=events):
                        self._pool_changed(events[-1].kv)
                    case Progressed() | Connected() | Disconnected():
                        pass

    def _pool_changed(self, kv: KeyValue | None) -> None:
        value = kv.value if kv else None
        if value == self._pool_record:
            return
        self._journal.append(PoolChanged(value))
        self._take_pool(value)
        self._inputs.wake()

    def _take_pool(self, value: bytes | None) -> None:
        """An unreadable pool record leaves the last good one in force (guarantee R14)."""
        try:
            self._inputs.pool = None if value is None else PoolSpec.parse(value)
            self._pool_record = value
        except RegistryError as error:
            _log.error("pool_record_refused", reason=error.reason, error=error.message)

    def _post(self) -> None:
        self._inputs.desired = self._informer.state
        self._inputs.wake()

    def _base(self) -> Base:
        state = self._informer.state
        return Base(self._pool, self._cluster_id, state.revision, self._pool_record, dict(self._informer.raw))


def _request_of(kv: KeyValue) -> str:
    try:
        return AdapterRecord.parse(kv.value).request_id
    except RegistryError:
        return ""
