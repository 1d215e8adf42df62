"""Fixtures of the contract suite of `registry.etcd3`."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest

from registry.etcd3 import channel, session, watch
from registry.etcd3.client import Client
from tests.contract.etcd3.mirror import FirstEndpoint
from tests.support.etcd import PATIENCE_SECONDS
from tests.support.proxy import Proxy


@pytest.fixture(autouse=True)
def patience(monkeypatch) -> None:
    """Members that stand are soon found; what hangs is found by the silence of its watch, which stays as it is."""
    pings = {"grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms"}
    options = [(name, 60_000 if name in pings else value) for name, value in channel._OPTIONS]
    monkeypatch.setattr(channel, "_OPTIONS", options)
    monkeypatch.setattr(watch, "_CALL_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(session, "_REVOKE_SECONDS", PATIENCE_SECONDS)


@pytest.fixture
def rng() -> random.Random:
    return random.Random(7)


@pytest.fixture
async def proxy(etcd) -> AsyncIterator[Proxy]:
    """A proxy before the session's etcd."""
    async with Proxy(etcd.cluster.members[0].client_port) as proxy:
        yield proxy


@pytest.fixture
async def proxied_client(etcd, proxy) -> AsyncIterator[Client]:
    """A client that sees etcd through the proxy only."""
    client = Client(etcd.options(endpoints=(proxy.endpoint,), call_timeout_seconds=PATIENCE_SECONDS))
    yield client
    await client.aclose()


@pytest.fixture
async def own_client(own_etcd) -> AsyncIterator[Client]:
    client = own_etcd.patient()
    yield client
    await client.aclose()


@pytest.fixture
async def cluster_client(etcd_cluster) -> AsyncIterator[Client]:
    """A client of three members that starts at the first."""
    client = Client(etcd_cluster.options(call_timeout_seconds=PATIENCE_SECONDS), rng=FirstEndpoint())
    yield client
    await client.aclose()
