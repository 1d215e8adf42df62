"""The registry for programs without an event loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from registry.client.asynchronous import CALL_SECONDS, WAIT_SECONDS, AsyncRegistry
from registry.client.connection import Tls
from registry.client.published import Canaries, Published
from registry.client.residency import PoolResidency

T = TypeVar("T")


class Registry:
    """A connection to the admin service, for use in ``with``; `AsyncRegistry` on an event loop of its own.

    Every method takes and raises what that of `AsyncRegistry` does. May be used by several threads.
    """

    def __init__(self, address: str, *, tls: Tls | None = None, timeout_seconds: float = CALL_SECONDS) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="loraplane-client", daemon=True)
        self._thread.start()
        try:
            self._registry = self._run(_opened(address, tls, timeout_seconds))
        except BaseException:  # an interrupt too: nobody else could end the thread
            self._stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection."""
        self._run(self._registry.__aexit__(None, None, None))
        self._stop()

    def publish(
        self,
        source: str | os.PathLike[str],
        name: str,
        pool: str,
        *,
        digest: str = "",
        labels: Mapping[str, str] | None = None,
        priority: int = 0,
        canaries: Canaries | None = None,
        wait: float | bool = True,
        request_id: str = "",
    ) -> Published:
        """See `AsyncRegistry.publish`."""
        publishing = self._registry.publish(
            source,
            name,
            pool,
            digest=digest,
            labels=labels,
            priority=priority,
            canaries=canaries,
            wait=wait,
            request_id=request_id,
        )
        return self._run(publishing)

    def wait_served(self, published: Published, wait_seconds: float = WAIT_SECONDS) -> None:
        """See `AsyncRegistry.wait_served`."""
        self._run(self._registry.wait_served(published, wait_seconds))

    def withdraw(self, name: str, pool: str, *, request_id: str = "") -> None:
        """See `AsyncRegistry.withdraw`."""
        self._run(self._registry.withdraw(name, pool, request_id=request_id))

    def residency(self, pool: str) -> Generator[PoolResidency, None, None]:
        """See `AsyncRegistry.residency`; to be closed (`contextlib.closing`)."""
        states = self._registry.residency(pool)
        try:
            while (state := self._run(_following(states))) is not None:
                yield state
        finally:
            self._run(states.aclose())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return running.result()
        except BaseException:
            running.cancel()  # an interrupt of the caller ends what it waited for
            raise

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _following(states: AsyncGenerator[PoolResidency, None]) -> PoolResidency | None:
    return await anext(states, None)


async def _opened(address: str, tls: Tls | None, timeout_seconds: float) -> AsyncRegistry:
    return AsyncRegistry(address, tls=tls, timeout_seconds=timeout_seconds)
