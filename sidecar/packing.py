"""Keeps the memory of many records small, when there is nothing more urgent to do."""

from __future__ import annotations

import asyncio
import ctypes

from sidecar.desired import Informer

PACK_AFTER_SECONDS = 1.0
# Well under a millisecond's work.
PACKED_AT_ONCE = 50


class Packing:
    """Packs an informer's records by and by: neither a boot nor a change waits for it."""

    def __init__(self, informer: Informer, *, after_seconds: float = PACK_AFTER_SECONDS) -> None:
        self._informer = informer
        self._after_seconds = after_seconds
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Says that records came."""
        self._wake.set()

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await asyncio.sleep(self._after_seconds)
            is_many = False
            while self._informer.pack(PACKED_AT_ONCE):
                is_many = True
                await asyncio.sleep(0)
            if is_many:
                give_back()


def give_back() -> None:
    """Returns the pages that the C library keeps free for later; does nothing where it has no such call.

    A list is large for a moment only, and what stays of it here is smaller: without this the difference would stay
    with the process until its end.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
