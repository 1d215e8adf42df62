"""A router as docs/routers.md has one, and its callers: each request goes to a replica that residency names."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

import httpx

from loraplane import AsyncRegistry, PoolResidency
from tests.support.http_client import http_client
from tests.support.waiting import eventually

# How long a replica that was reached has for an answer: a connection to a node that vanished learns nothing of it.
_REQUEST_SECONDS = 10.0
_TURN_SECONDS = 0.1


@dataclass
class Router:
    """The newest residency, and what came of each request.

    A replica that does not answer (its node is gone, its engine was killed) is passed over for the next one.

    Attributes:
        answered: requests by adapter.
        failed: requests that no replica answered, with what the last one said.
        passed_over: how often a replica did not answer, by what it was.
        slowest_seconds: how long a request took that was answered.
        patience_seconds: how long a request waits for somebody to serve its adapter.
        waited: requests that did.
        stood_still_seconds: how long the machine let this process wait at most: whoever judges a failure has to know.
    """

    pool: str
    chance: random.Random = field(default_factory=lambda: random.Random(5))
    state: PoolResidency | None = None
    answered: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    passed_over: Counter[str] = field(default_factory=Counter)
    slowest_seconds: float = 0.0
    patience_seconds: float = 0.0
    waited: int = 0
    stood_still_seconds: float = 0.0

    async def follow(self, registry: AsyncRegistry) -> None:
        """Takes in residency, until it is cancelled."""
        async with aclosing(registry.residency(self.pool)) as states:
            async for self.state in states:
                pass

    def places(self, adapter: str) -> list[tuple[str, str]]:
        """Engines that serve it, and what each calls it, in an order of chance."""
        found = self.state.adapters.get(adapter) if self.state else None
        urls = [(one.engine_url, one.model) for one in found.serving] if found else []
        return self.chance.sample(urls, len(urls))

    async def ask(self, client: httpx.AsyncClient, adapter: str) -> None:
        """One request."""
        began, told = time.monotonic(), "nobody serves it"
        if self.patience_seconds and not self.places(adapter):
            self.waited += 1
            with contextlib.suppress(AssertionError):
                await eventually(lambda: self.places(adapter), timeout_seconds=self.patience_seconds)
        for url, model in self.places(adapter):
            body = {"model": model, "prompt": f"{self.chance.random()}", "max_tokens": self.chance.choice((1, 4, 16))}
            try:
                reply = await client.post(f"{url}/v1/completions", json=body)
            except httpx.TransportError as error:
                told = type(error).__name__
            else:
                if reply.status_code == 200:
                    self.answered[adapter] += 1
                    self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - began)
                    return
                told = f"{reply.status_code} {reply.text[:200]}"
            self.passed_over[told] += 1
        self.failed.append(f"{adapter} after {time.monotonic() - began:.2f} s: {told}")

    @asynccontextmanager
    async def load(
        self, registry: AsyncRegistry, *adapters: str, per_second: float, seconds: float = _REQUEST_SECONDS
    ) -> AsyncIterator[None]:
        """Requests for each adapter in turn while the context lasts; all are awaited at its end."""
        beside = [asyncio.create_task(self.follow(registry)), asyncio.create_task(self._watch_itself())]
        timeout = httpx.Timeout(seconds, connect=2.0)
        await eventually(lambda: all(self.places(one) for one in adapters))
        async with http_client(trust_env=False, timeout=timeout) as client:
            asking = asyncio.create_task(self._ask_on(client, adapters, per_second))
            try:
                yield
            finally:
                asking.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await asking
                for task in beside:
                    task.cancel()

    async def _watch_itself(self) -> None:
        """Notices when its own turn comes late."""
        while True:
            began = time.monotonic()
            await asyncio.sleep(_TURN_SECONDS)
            self.stood_still_seconds = max(self.stood_still_seconds, time.monotonic() - began - _TURN_SECONDS)

    async def _ask_on(self, client: httpx.AsyncClient, adapters: tuple[str, ...], per_second: float) -> None:
        requests: set[asyncio.Task[None]] = set()
        try:
            while True:
                for adapter in adapters:
                    task = asyncio.create_task(self.ask(client, adapter))
                    requests.add(task)
                    task.add_done_callback(requests.discard)
                    await asyncio.sleep(1 / per_second)
        finally:
            await asyncio.gather(*requests)
