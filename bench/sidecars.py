"""Real sidecars as processes, one beside each engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from bench.engines import Engines
from bench.etcd import Store
from bench.forks import ForkedSidecar
from registry.model.keys import DEFAULT_PREFIX
from tests.support.fleet import Sidecar
from tests.support.waiting import eventually

READY_SECONDS = 120
AS_PROGRAMS = 2  # more than so many are forked instead of started as a user would


@asynccontextmanager
async def sidecars(
    store: Store, engines: Engines, prefix: str = DEFAULT_PREFIX, *, name: str = "r"
) -> AsyncIterator[list[Sidecar]]:
    """Starts them and waits until all are ready. Each has a store of its own, as on a host of its own."""
    etcd = (store.endpoint,)
    fleet = [
        Sidecar(store.folder, etcd, prefix, url, replica=f"{name}{n}", store=store.folder / f"store-{name}{n}")
        for n, url in enumerate(engines.urls)
    ]
    try:
        for sidecar in fleet:
            if len(fleet) > AS_PROGRAMS:
                sidecar.program = ForkedSidecar.like(sidecar.program)
            sidecar.program.start()
        await asyncio.gather(*(eventually(one.is_ready, timeout_seconds=READY_SECONDS) for one in fleet))
        yield fleet
    finally:
        stop(fleet)


def stop(fleet: Sequence[Sidecar]) -> None:
    """Ends them all: first the signals, then the waiting."""
    for sidecar in fleet:
        sidecar.program.kill()


def sources(store: Store) -> Path:
    """The folder from which sidecars may take adapters."""
    return store.folder / "sources"
