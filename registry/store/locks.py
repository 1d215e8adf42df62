"""Locks by name within one process: they keep racers from wasting transactions. What is right, etcd decides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
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
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(timeout_seconds):
                for name in sorted(set(names)):
                    await stack.enter_async_context(self._one(name))
            yield

    @asynccontextmanager
    async def _one(self, name: str) -> AsyncIterator[None]:
        entry = self._locks.setdefault(name, _Lock())
        entry.users += 1
        try:
            async with entry.lock:
                yield
        finally:
            entry.users -= 1
            if not entry.users:
                del self._locks[name]
