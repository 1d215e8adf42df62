"""Follows the pools whose residency somebody looks at, each once for all who look, and a little longer than that."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdError
from registry.etcd3.ops import KeyValue, Range, SortTarget, prefix_end
from registry.keys import Keys
from registry.store.pool_view import Held, PoolView, is_held_back, renewed
from registry.store.range_mirror import RangeMirror
from registry.store.residency_board import Board
from registry.store.residency_changes import changed

# What changes within so long is told at once: one change of an adapter is followed by a status of each replica.
_COALESCE_SECONDS = 0.1
LINGER_SECONDS = 60.0


@dataclass(slots=True)
class _Open:
    """A pool that is followed."""

    board: Board
    task: asyncio.Task[None]
    lookers: int = 0
    end: asyncio.TimerHandle | None = None


class Boards:
    """Hands out boards.

    Args:
        linger_seconds: how long a pool is followed after the last look, so that polls find it ready.
    """

    def __init__(
        self, client: Client, keys: Keys, *, rng: random.Random, linger_seconds: float = LINGER_SECONDS
    ) -> None:
        self._client = client
        self._keys = keys
        self._rng = rng
        self._linger_seconds = linger_seconds
        self._open: dict[str, _Open] = {}

    @asynccontextmanager
    async def look(self, pool: str) -> AsyncIterator[Board]:
        """A pool's board."""
        known = self._open.get(pool)
        if known is None or known.task.done():
            known = self._start(pool)
        known.lookers += 1
        if known.end is not None:
            known.end.cancel()
        try:
            yield known.board
        finally:
            known.lookers -= 1
            if not known.lookers:
                known.end = asyncio.get_running_loop().call_later(self._linger_seconds, self._end, pool, known)

    async def aclose(self) -> None:
        """Ends all boards; who looks at one is told."""
        ending = list(self._open.items())
        for pool, known in ending:
            self._end(pool, known)
        await asyncio.gather(*(known.task for _, known in ending), return_exceptions=True)

    def _start(self, pool: str) -> _Open:
        board = Board(pool, secrets.token_hex(8))
        task = asyncio.create_task(self._run(pool, board), name=f"residency {pool}")
        task.add_done_callback(lambda _: board.end())  # also of one that is cancelled before it has begun
        self._open[pool] = _Open(board, task)
        return self._open[pool]

    def _end(self, pool: str, known: _Open) -> None:
        if self._open.get(pool) is known:
            del self._open[pool]
        if known.end is not None:
            known.end.cancel()
        known.task.cancel()

    async def _run(self, pool: str, board: Board) -> None:
        wake = asyncio.Event()
        prefixes = self._keys.adapters(pool), self._keys.replicas(pool), self._keys.statuses(pool)
        mirrors = [RangeMirror(prefix) for prefix in prefixes]
        async with asyncio.TaskGroup() as tasks:
            for mirror in mirrors:
                tasks.create_task(mirror.follow(self._client, wake, rng=self._rng), name=f"mirror {mirror.prefix!r}")
            tasks.create_task(_Following(self._client, mirrors, board).run(wake), name=f"board {pool}")


class _Replicas:
    """A mirrored range that was read at one revision first: what the mirror had before that is not looked at."""

    def __init__(self, mirror: RangeMirror) -> None:
        self._mirror = mirror
        self._first: tuple[int, dict[bytes, KeyValue]] | None = None

    async def begin(self, client: Client, revision: int) -> None:
        """Reads the range as it was at a revision.

        Raises:
            EtcdError: etcd cannot be asked.
        """
        prefix = self._mirror.prefix
        read = await client.range(Range(prefix, prefix_end(prefix), revision=revision))
        self._first = revision, {kv.key: kv for kv in read.kvs}

    def kvs(self) -> dict[bytes, KeyValue]:
        """The newest values."""
        mirror = self._mirror
        if self._first is not None and (mirror.kvs is None or mirror.revision < self._first[0]):
            return self._first[1]
        self._first = None
        return dict(mirror.kvs or {})


class _Following:
    """Keeps one board as etcd is: everything at one revision first, then as the mirrors have it."""

    def __init__(self, client: Client, mirrors: list[RangeMirror], board: Board) -> None:
        self._client = client
        self._records, presences, statuses = mirrors
        self._presences, self._statuses = _Replicas(presences), _Replicas(statuses)
        self._board = board
        self._seen = self._proven = self._taken = 0
        self._kvs: dict[bytes, KeyValue] = {}

    async def run(self, wake: asyncio.Event) -> None:
        """Follows until it is cancelled."""
        await _until(self._begin)
        while True:
            await wake.wait()
            await asyncio.sleep(_COALESCE_SECONDS)
            wake.clear()
            await _until(self._step)

    async def _begin(self) -> bool:
        """The first view, of one revision; False: the mirrors are not there yet."""
        try:
            revision = await self._prove()
            if not revision:
                return False
            for replicas in (self._presences, self._statuses):
                await replicas.begin(self._client, revision)
        except EtcdError:
            return False
        await self._post(self._held())
        return True

    async def _step(self) -> bool:
        """Takes over what the mirrors have; False: that is not enough to understand every status."""
        held = self._held()
        await self._post(held)
        if not is_held_back(self._board.view, held):
            return True
        try:
            await self._prove()
        except EtcdError:
            return False
        held = self._held()
        await self._post(held)
        return not is_held_back(self._board.view, held)

    async def _post(self, held: Held) -> None:
        # In a thread, since a view of very many adapters takes long and other calls are to be answered meanwhile.
        self._board.post(*await asyncio.to_thread(_advanced, self._board.view, held))

    async def _prove(self) -> int:
        """A revision at which the records are as mirrored; 0: they are not yet.

        A mirror alone does not know how far it is while nothing changes. An equal number of keys and an equal newest
        change prove it: what is created or changed is newer, and what is deleted is missing.

        Raises:
            EtcdError: etcd cannot be asked.
        """
        prefix = self._records.prefix
        newest = Range(prefix, prefix_end(prefix), limit=1, keys_only=True, descending_by=SortTarget.MOD)
        found = await self._client.range(newest)
        mirrored = self._records.kvs
        if mirrored is None or len(mirrored) != found.count:
            return 0
        last = max((kv.mod_revision for kv in mirrored.values()), default=0)
        if any(kv.mod_revision != last for kv in found.kvs):
            return 0
        self._proven = found.revision
        return found.revision

    def _held(self) -> Held:
        records = self._records
        if records.revision < self._seen:  # the store was set back
            self._proven = 0
        self._seen = records.revision
        revision = max(records.revision, self._proven)
        if self._taken != records.version:  # there may be very many
            self._taken, self._kvs = records.version, dict(records.kvs or {})
        return Held(revision, self._kvs, self._presences.kvs(), self._statuses.kvs())


async def _until(succeeds: Callable[[], Awaitable[bool]]) -> None:
    while True:
        if await succeeds():
            return
        await asyncio.sleep(_COALESCE_SECONDS)


def _advanced(view: PoolView, held: Held) -> tuple[PoolView, frozenset[str]]:
    """The view of what etcd holds, and whose residency is another by it."""
    new = renewed(view, held)
    return new, changed(view, new)
