"""Loads of engines: requests on their way, and lengths of queues."""

from __future__ import annotations

import asyncio
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import httpx

_TIMEOUT_SECONDS = 2.0
_MAX_PAGE_BYTES = 8 << 20
_AT_ONCE = 16


class Loads(Mapping[str, float]):
    """Number of requests at each address, with the length of its queue where that is known."""

    def __init__(self) -> None:
        self._in_flight: Counter[str] = Counter()
        self.queues: dict[str, float] = {}

    def __getitem__(self, address: str) -> float:
        return self._in_flight[address] + self.queues.get(address, 0.0)

    def get(self, address: str, default: float = 0.0) -> float:  # type: ignore[override] # always a number
        """The load of an address; an unknown one has none."""
        return self._in_flight[address] + self.queues.get(address, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._in_flight.keys() | self.queues.keys())

    def __len__(self) -> int:
        return len(self._in_flight.keys() | self.queues.keys())

    @property
    def in_flight(self) -> int:
        """Requests on their way by this picker."""
        return self._in_flight.total()

    def enter(self, address: str) -> None:
        """Counts a request that goes there."""
        self._in_flight[address] += 1

    def leave(self, address: str) -> None:
        """Counts it no more."""
        self._in_flight[address] -= 1
        if self._in_flight[address] <= 0:
            del self._in_flight[address]


class QueueWatch:
    """Reads the length of engines' queues from their metrics, again and again.

    Args:
        metric: name of the gauge, e.g. ``vllm:num_requests_waiting``.
        seconds: between two looks.
        addresses: gives those to ask.
        loads: are told.
    """

    def __init__(self, metric: str, seconds: float, addresses: Callable[[], frozenset[str]], loads: Loads) -> None:
        self._line = re.compile(rf"^{re.escape(metric)}(?:\{{[^\n]*\}})? +(\S+)", re.MULTILINE)
        self._seconds = seconds
        self._addresses = addresses
        self._loads = loads
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def run(self) -> None:
        """Looks until it is cancelled."""
        async with httpx.AsyncClient(timeout=_TIMEOUT_SECONDS, trust_env=False) as client:
            while True:
                addresses = self._addresses()
                found = await asyncio.gather(*(self._look(client, one) for one in addresses))
                self._loads.queues = {one: value for one, value in zip(addresses, found, strict=True) if value}
                await asyncio.sleep(self._seconds)

    async def _look(self, client: httpx.AsyncClient, address: str) -> float:
        """The length of one queue; where it cannot be read, what it was: the busiest engine is the last to answer."""
        known = self._loads.queues.get(address, 0.0)
        try:
            async with self._places, asyncio.timeout(_TIMEOUT_SECONDS):
                page = await self._page(client, address)
            length = sum(float(one) for one in self._line.findall(page.decode(errors="replace")))
        except (httpx.HTTPError, TimeoutError, ValueError):
            return known
        return length if math.isfinite(length) else known  # of what is no number none is the least

    async def _page(self, client: httpx.AsyncClient, address: str) -> bytes:
        """Metrics of an engine. Raises ValueError: there are too many; httpx.HTTPError: it has none."""
        page = b""
        async with client.stream("GET", f"http://{address}/metrics") as response:
            async for part in response.raise_for_status().aiter_bytes():
                page += part
                if len(page) > _MAX_PAGE_BYTES:
                    raise ValueError(address)
        return page
