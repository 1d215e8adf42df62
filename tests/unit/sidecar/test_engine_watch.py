"""The engine's watch tells every change of its identity, and only those."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from sidecar.engine_watch import watch_engine
from sidecar.engines.driver import EngineUnreachable


class Probed:
    """Answers each probe with the next identity; an empty one: it does not answer."""

    url = "http://engine"

    def __init__(self, identities: list[str]) -> None:
        self._left: Iterator[str] = iter(identities)
        self.over = asyncio.Event()

    async def incarnation(self) -> str:
        identity = next(self._left, None)
        if identity is None:
            self.over.set()
            return await asyncio.Future()
        if not identity:
            raise EngineUnreachable("no answer")
        return identity


@pytest.mark.parametrize(
    ("identities", "changes"),
    [
        (["1", "1", "1"], 1),
        (["1", "2", "2"], 2),
        (["1", "", "", "2"], 3),
        (["1", "", "1"], 3),
        (["", "", "1"], 1),
    ],
)
async def test_a_restart_is_told_at_once_and_so_is_silence(monkeypatch, identities, changes):
    """R3 converge, R9: what an engine had is gone with its process, whether or not a probe met it while it was away."""
    for name in ("PROBE_SECONDS", "PROBE_AWAY_SECONDS"):
        monkeypatch.setattr(f"sidecar.engine_watch.{name}", 0.0)
    told: list[None] = []
    engine = Probed(identities)
    watching = asyncio.create_task(watch_engine(engine, lambda: told.append(None)))
    try:
        async with asyncio.timeout(30):
            await engine.over.wait()
    finally:
        watching.cancel()
    assert len(told) == changes
