"""Locks by name within one process: they keep racers from wasting transactions. What is right, etcd decides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, nullcontext
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
        held: list[str] = []
        try:
            wanted = sorted(set(names))
            # What nobody holds is had at once, and a deadline costs more than that.
            async with nullcontext() if self._locks.keys().isdisjoint(wanted) else asyncio.timeout(timeout_seconds):
                await self._take_all(wanted, held)
            yield
        finally:
            for name in held:
                self._locks[name].lock.release()
                self._leave(name)

    async def _take_all(self, names: Iterable[str], held: list[str]) -> None:
        for name in names:
            entry = self._locks.setdefault(name, _Lock())
            entry.users += 1
            try:
                await entry.lock.acquire()
            except asyncio.CancelledError:
                self._leave(name)
                raise
            held.append(name)

    def _leave(self, name: str) -> None:
        self._locks[name].users -= 1
        if not self._locks[name].users:
            del self._locks[name]
