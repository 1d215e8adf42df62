"""One replica with a simulated engine on a real etcd."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from registry.model.keys import Keys
from tests.support.fleet import Hand, Sidecar, SimulatedEngine


@pytest.fixture
def hand(etcd, etcd_client, tmp_path: Path) -> Hand:
    (tmp_path / "sources").mkdir()
    return Hand(etcd_client, Keys(etcd.prefix), tmp_path / "sources")


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[SimulatedEngine]:
    engine = SimulatedEngine(tmp_path)
    await engine.start()
    yield engine
    engine.program.kill()


@pytest.fixture
async def sidecar(etcd, engine, tmp_path: Path) -> AsyncIterator[Sidecar]:
    """Not started yet."""
    sidecar = Sidecar(tmp_path, etcd.endpoints, etcd.prefix, engine.url)
    yield sidecar
    sidecar.program.kill()
