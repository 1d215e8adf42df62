"""The pool's own record: followed like the adapters, and held as they are while their store is in doubt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing

import structlog

from registry.errors import RegistryError
from registry.etcd3.client import Client
from registry.etcd3.ops import KeyValue
from registry.etcd3.reflector import Changed, Connected, Disconnected, Listed, Progressed, Reflector
from registry.keys import Keys
from registry.model.records import PoolSpec
from sidecar.chance import Chance
from sidecar.inputs import Inputs
from sidecar.journal import Journal
from sidecar.snapshot import PoolChanged

_log = structlog.get_logger()


class PoolFeed:
    """Keeps `Inputs.pool` at the newest record that may be followed.

    Attributes:
        record: the record in force, as it stands in etcd; None: there is none.
        confirmed_revision: up to which the newest record, in force or not, vouches for lists (guarantee R15).
    """

    def __init__(self, client: Client, keys: Keys, pool: str, inputs: Inputs, journal: Journal, chance: Chance) -> None:
        self._client = client
        self._key = keys.pool(pool)
        self._inputs = inputs
        self._journal = journal
        self._chance = chance
        self._waiting: KeyValue | None = None
        self._is_waiting = False
        self.record: bytes | None = None
        self.confirmed_revision = 0

    async def run(self, is_behind: Callable[[int], bool], on_change: Callable[[], Awaitable[None]]) -> None:
        """Runs until it is cancelled.

        `is_behind` tells whether a revision is below what was followed; `on_change` is awaited after each change.
        """
        reflector = Reflector(self._client, self._key, self._key + b"\0", resume=None, rng=self._chance.rng)
        async with aclosing(reflector.stream()) as reflections:
            async for reflection in reflections:
                match reflection:
                    case Listed(revision=revision, kvs=kvs):
                        # A pool that a list lacks now may have been lost with its store; only an event deletes it.
                        is_missing = not kvs and self.record is not None
                        self._changed(kvs[0] if kvs else None, is_doubtful=is_behind(revision) or is_missing)
                    case Changed(events=events):
                        self._changed(events[-1].kv, is_doubtful=False)
                    case Progressed() | Connected() | Disconnected():
                        continue
                await on_change()

    def take(self, value: bytes | None) -> None:
        """Puts a record in force. One that cannot be read leaves the last good one there (guarantee R14)."""
        try:
            self._inputs.pool = None if value is None else PoolSpec.parse(value)
            self.record = value
            self._inputs.pool_read, self._inputs.pool_refusal = True, ""
            if value is None:
                _log.warning("pool_absent", key=self._key.decode(), remedy="loraplane pool create, or another --pool")
        except RegistryError as error:
            self._inputs.pool_refusal = f"the pool's record cannot be followed: {error.message}"
            _log.error("pool_record_refused", reason=error.reason, error=error.message)

    def settle(self) -> None:
        """Puts in force what waited until the adapters' list was followed."""
        if self._is_waiting:
            self._changed(self._waiting, is_doubtful=False)

    def _changed(self, kv: KeyValue | None, *, is_doubtful: bool) -> None:
        value = kv.value if kv else None
        self.confirmed_revision = _confirmed_revision(value)
        self._waiting, self._is_waiting = kv, is_doubtful or bool(self._inputs.held)
        if self._is_waiting or (value == self.record and self._inputs.pool_read):
            return
        self._journal.append(PoolChanged(value))
        self.take(value)
        self._inputs.wake()


def _confirmed_revision(value: bytes | None) -> int:
    try:
        return PoolSpec.parse(value).removals_confirmed_revision if value else 0
    except RegistryError:
        return 0
