"""Watcher of the pool's record, which waits while its store is in doubt.

Its own list comes before the adapters' is judged, or their watch stands. So one that may be of another store than they
were followed in waits for theirs: they are listed then, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing

from registry.etcd3.client import Client
from registry.etcd3.errors import Compacted, EtcdError, FutureRevision
from registry.etcd3.ops import KeyValue, Range
from registry.etcd3.reflector import Reflector
from registry.etcd3.stream import Changed, Connected, Disconnected, Listed, Progressed
from registry.model.errors import RegistryError
from registry.model.keys import Keys
from registry.model.records import PoolSpec
from registry.runtime.clock import Clock
from sidecar.desired.mailbox import Snapshot
from sidecar.desired.pool_cache import PoolCache
from sidecar.desired.snapshot import PoolChanged

# Until it is asked again what etcd did not answer.
_AGAIN_SECONDS = 1.0


class PoolWatcher:
    """Keeps `Snapshot.pool` at the newest record that may be followed.

    Attributes:
        confirmed_revision: up to which the newest record, in force or not, vouches for lists (guarantee R15).
    """

    def __init__(self, client: Client, keys: Keys, cache: PoolCache, clock: Clock) -> None:
        self._client = client
        self._key = keys.pool(cache.pool)
        self._cache = cache
        self._clock = clock
        self._waiting: KeyValue | None = None
        self._is_waiting = False
        self.confirmed_revision = 0

    async def run(self, on_change: Callable[[], Awaitable[None]]) -> None:
        """Runs until it is cancelled; `on_change` is awaited after each change."""
        reflector = Reflector(self._client, self._key, self._key + b"\0", resume=None, rng=self._clock.rng)
        async with aclosing(reflector.stream()) as reflections:
            # Adapters may move on while a list is under way: it is behind if it is older than what was known before.
            known = self._cache.informer.state.revision
            async for reflection in reflections:
                known, before = self._cache.informer.state.revision, known
                match reflection:
                    case Listed(kvs=kvs):
                        is_known = await self._keeps_what_is_followed()
                        is_doubtful = not is_known or self._is_doubtful(reflection, before)
                        self._note(kvs[0] if kvs else None, is_doubtful=is_doubtful)
                    case Changed(events=events):
                        self._note(events[-1].kv, is_doubtful=False)
                    case Progressed() | Connected() | Disconnected():
                        continue
                await on_change()

    def _is_doubtful(self, listed: Listed, known: int) -> bool:
        """True if a list may be of another store. `known`: revision of the adapters as it began."""
        # A pool that a list lacks now may have been lost with its store; only an event deletes it.
        is_missing = not listed.kvs and self._cache.pool_record is not None
        is_elsewhere = self._cache.store.cluster_id not in (0, listed.cluster_id)
        return listed.revision < known or is_missing or is_elsewhere or self._cache.is_doubted

    async def _keeps_what_is_followed(self) -> bool:
        """False if etcd does not keep the revision up to which the adapters are followed, as after a restoration."""
        while True:
            revision = self._cache.informer.state.revision
            try:
                await self._client.range(Range(self._key, revision=revision, keys_only=True))
            except (Compacted, FutureRevision):
                if revision == self._cache.informer.state.revision:
                    return False
            except EtcdError:
                await asyncio.sleep(_AGAIN_SECONDS)
            else:
                return True

    def settled(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot in which the adapters' list is followed, with the record that waited for it."""
        return self._changed(snapshot, self._waiting, is_doubtful=False) if self._is_waiting else snapshot

    def _note(self, kv: KeyValue | None, *, is_doubtful: bool) -> None:
        before = self._cache.mailbox.snapshot
        after = self._changed(before, kv, is_doubtful=is_doubtful)
        if after is not before:
            self._cache.mailbox.post(after)

    def _changed(self, snapshot: Snapshot, kv: KeyValue | None, *, is_doubtful: bool) -> Snapshot:
        """The snapshot with this record; the same one if the record is in force, or has to wait."""
        value = kv.value if kv else None
        self.confirmed_revision = _confirmed_revision(value)
        self._waiting, self._is_waiting = kv, is_doubtful or bool(snapshot.held)
        is_in_force = value == self._cache.pool_record and snapshot.pool_read and not snapshot.pool_refusal
        if self._is_waiting or is_in_force:
            return snapshot
        self._cache.journal.append(PoolChanged(value))
        return self._cache.with_pool(snapshot, value)


def _confirmed_revision(value: bytes | None) -> int:
    try:
        return PoolSpec.parse(value).removals_confirmed_revision if value else 0
    except RegistryError:
        return 0
