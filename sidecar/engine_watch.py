"""Notices that the engine died, came back or is another process, by its identity and not by its listing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from sidecar.engines.driver import Engine, EngineError
from sidecar.metrics import ENGINE_RESTARTS

_log = structlog.get_logger()
PROBE_SECONDS = 1.0
# While the engine is away it is asked more often, so that its adapters are back soon after it is.
PROBE_AWAY_SECONDS = 0.25


async def watch_engine(engine: Engine, on_change: Callable[[], None]) -> None:
    """Calls `on_change` whenever the engine's incarnation changes or it stops or starts to answer. Never returns."""
    known, last = "", ""
    while True:
        try:
            current = await engine.incarnation()
        except EngineError:
            current = ""
        if current != last:
            on_change()
        if current and known and current != known:
            ENGINE_RESTARTS.inc()
            _log.warning("engine_restarted", url=engine.url, incarnation=current)
        last, known = current, current or known
        await asyncio.sleep(PROBE_SECONDS if current else PROBE_AWAY_SECONDS)
