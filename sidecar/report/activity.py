"""Activity of a replica: requests, tokens, loads, swaps and last use."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import asdict

from registry.model.status import Presence
from registry.runtime.clock import Clock
from sidecar.engines.driver import Engine, EngineError
from sidecar.engines.observed import EngineActivity
from sidecar.metrics import done_calls
from sidecar.plan.handoff import Need
from sidecar.report.cache import StatusCache
from sidecar.report.events import EventKind, EventRing

# Whoever asks more often gets the same again, so that nobody makes the sidecar press its engine.
FRESH_SECONDS = 1.0
# Below what `loraplane top` waits for: of an engine that hangs it has to hear from us, or it takes us for lost.
ENGINE_SECONDS = 3.0
_COUNTED = {"loads": EventKind.LOADED, "swaps": EventKind.SWAPPED, "evictions": EventKind.EVICTED}


class ReplicaActivity:
    """Asks the engine, and adds what the sidecar itself has counted. Nothing of it is written anywhere."""

    def __init__(
        self,
        presence: Presence,
        engine: Engine,
        cache: StatusCache,
        ring: EventRing,
        need: Callable[[], Awaitable[Need | None]],
        clock: Clock,
    ) -> None:
        """`need`: what the replica is needed for while it drains; None: it does not."""
        self._presence = presence
        self._engine = engine
        self._cache = cache
        self._ring = ring
        self._need = need
        self._clock = clock
        self._lock = asyncio.Lock()
        self._told: dict[str, object] = {}
        self._told_at = 0.0

    async def read(self) -> dict[str, object]:
        """The newest answer. Of a drain it is of this moment.

        `drain` None: it does not drain. `engine` None: it is out of reach, or hangs. `calls`: those that succeeded
        since the sidecar began. `adapters`: what is loaded or was used, with what the ring still knows of each;
        `last_used_seconds` None: never, or not known; `requests`: ended since it was loaded, None: not known.
        """
        async with self._lock:
            if not self._told or self._clock.monotonic() - self._told_at >= FRESH_SECONDS:
                self._told = await self._ask()
                self._told_at = self._clock.monotonic()
            need = await self._need()
            drain = None if need is None else {"reason": need.name.lower(), "needed": need.value}
            return {**self._told, "drain": drain}

    async def _ask(self) -> dict[str, object]:
        try:
            async with asyncio.timeout(ENGINE_SECONDS):
                activity: EngineActivity | None = await self._engine.activity()
        except (EngineError, TimeoutError):
            activity = None
        numbers = asdict(activity) if activity else {}
        used, requests = numbers.pop("last_used", None) or {}, numbers.pop("adapter_requests", None)
        numbers.pop("adapter_in_flight", None)
        calls = {kind: {"count": count, "seconds": seconds} for kind, (count, seconds) in done_calls().items()}
        return {
            "schema": 1,
            "replica": self._presence.replica,
            "pool": self._presence.pool,
            "incarnation": self._presence.incarnation,
            "engine": numbers if activity else None,
            "calls": calls,
            "adapters": self._adapters(used, requests),
        }

    def _adapters(self, used: dict[str, float], requests: dict[str, int] | None) -> list[dict[str, object]]:
        observed, counts = self._cache.report.situation.observed, self._ring.counts()
        loaded = frozenset(observed.adapters) if observed else frozenset()
        return [
            {
                "name": name,
                "loaded": name in loaded,
                "last_used_seconds": used.get(name),
                "requests": requests.get(name, 0) if requests is not None and name in loaded else None,
                **{key: counts.get(name, Counter())[kind.value] for key, kind in _COUNTED.items()},
            }
            for name in sorted({*loaded, *used, *counts})
        ]
