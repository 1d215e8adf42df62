"""A lock for each name, for as long as somebody holds it or waits for it."""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary


class Locks(WeakValueDictionary[str, asyncio.Lock]):
    """In place of vLLM's own dictionary of locks, which keeps every name that anybody ever asked for.

    Whoever holds a lock or waits for it refers to it, so that all who ask for its name meanwhile get that very lock.
    When the last of them is done it is gone, and the name with it: nothing has to be cleared away, at no wrong moment.
    """

    def __getitem__(self, name: str) -> asyncio.Lock:
        """The lock of `name`, the one in use if there is one."""
        lock = self.get(name)
        if lock is None:
            lock = self[name] = asyncio.Lock()
        return lock
