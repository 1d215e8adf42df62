"""Locks by name within one process: they keep racers from wasting transactions. What is right, etcd decides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Lock:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class Locks:
    """One lock for each name that somebody holds or waits for, none for others."""

    def __init__(self) -> None:
        self._locks: dict[str, _Lock] = {}

    @asynccontextmanager
    async def hold(self, names: Iterable[str], *, timeout_seconds: float) -> AsyncIterator[None]:
        """Holds all of them, taken in sorted order.

        Raises:
            TimeoutError: they could not be had in time.
        """
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        held: list[str] = []
        try:
            for name in sorted(set(names)):
                await self._take(name, deadline)
                held.append(name)
            yield
        finally:
            for name in held:
                self._locks[name].lock.release()
                self._leave(name)

    async def _take(self, name: str, deadline: float) -> None:
        entry = self._locks.setdefault(name, _Lock())
        entry.users += 1
        try:
            async with asyncio.timeout_at(deadline):
                await entry.lock.acquire()
        except (TimeoutError, asyncio.CancelledError):
            self._leave(name)
            raise

    def _leave(self, name: str) -> None:
        self._locks[name].users -= 1
        if not self._locks[name].users:
            del self._locks[name]
