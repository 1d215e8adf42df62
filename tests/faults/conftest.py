"""Real processes that are hurt."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from registry.model.keys import Keys
from tests.support.etcd import Cluster, make_cluster, running_etcd
from tests.support.fleet import Hand, SimulatedEngine


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Three members of this test's own. A heartbeat that a busy machine keeps."""
    flags = {"heartbeat-interval": "100", "election-timeout": "1000"}
    async with running_etcd(make_cluster(tmp_path / "etcd", 3, flags=flags, syncs=True)) as cluster:
        yield cluster


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[Cluster]:
    """One member of this test's own."""
    async with running_etcd(make_cluster(tmp_path / "etcd")) as cluster:
        yield cluster


@pytest.fixture
async def hand(one: Cluster, tmp_path: Path) -> AsyncIterator[Hand]:
    (tmp_path / "sources").mkdir()
    client = one.patient()
    yield Hand(client, Keys("/x"), tmp_path / "sources")
    await client.aclose()


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[SimulatedEngine]:
    engine = SimulatedEngine(tmp_path)
    await engine.start()
    yield engine
    engine.program.kill()
