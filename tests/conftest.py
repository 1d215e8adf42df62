"""Fixtures shared by all suites."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest
from hypothesis import settings

from registry.dev import ports
from registry.etcd3.client import Client
from registry.etcd3.options import ClientOptions
from tests.support.etcd import PATIENT_SECONDS, Cluster, make_cluster

# The same examples at every run, so that what passes once passes again; LORAPLANE_TEST_SEARCH=1 looks for new ones.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None, print_blob=True)
settings.load_profile("search" if os.environ.get("LORAPLANE_TEST_SEARCH") else "same")

# For a test that may have to end one engine and to start two.
ENGINE_SECONDS = 900


def _ports_of(worker: str | None) -> tuple[int, int]:
    """Of all ports that servers are given, those of one worker of pytest-xdist.

    What is free when somebody chooses it is another's by the time of listening if both choose among the same.
    """
    if worker is None:
        return ports.FIRST, ports.LAST
    share = (ports.LAST - ports.FIRST) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    first = ports.FIRST + int(worker.removeprefix("gw")) * share
    return first, first + share - 1


ports.FIRST, ports.LAST = _ports_of(os.environ.get("PYTEST_XDIST_WORKER"))

# A run in the background of a shell may start with interrupts ignored, and programs under test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that start engines come first, those of nothing else before all: so no worker ends with one, alone."""
    for item in items:
        if item.get_closest_marker("engine") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(ENGINE_SECONDS))
    engine_tests = Counter(item.path for item in items if item.get_closest_marker("engine"))
    tests = Counter(item.path for item in items)
    items.sort(key=lambda item: -engine_tests[item.path] / tests[item.path])


@dataclass(frozen=True)
class EtcdForTest:
    """A running etcd that is shared by the session, and a prefix that is this test's own (no slash at its end)."""

    cluster: Cluster
    prefix: str

    @property
    def endpoints(self) -> tuple[str, ...]:
        return self.cluster.endpoints

    def options(self, **changes: object) -> ClientOptions:
        return self.cluster.options(**changes)

    def key(self, *parts: str) -> bytes:
        return "/".join((self.prefix, *parts)).encode()


@pytest.fixture(scope="session")
def etcd_member(tmp_path_factory) -> Iterator[Cluster]:
    """One member for the whole session. Tests that stop or replace etcd make a cluster of their own."""
    cluster = make_cluster(tmp_path_factory.mktemp("etcd"), flags={"unsafe-no-fsync": "true"})
    cluster.start()
    try:
        asyncio.run(cluster.ready())
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def etcd(etcd_member) -> EtcdForTest:
    """The session's etcd with a fresh prefix."""
    return EtcdForTest(etcd_member, f"/test/{uuid.uuid4().hex}")


@pytest.fixture
async def etcd_client(etcd) -> AsyncIterator[Client]:
    """A patient client of the session's etcd."""
    client = Client(etcd.options(call_timeout_seconds=PATIENT_SECONDS))
    yield client
    await client.aclose()


@pytest.fixture
async def etcd_cluster(tmp_path) -> AsyncIterator[Cluster]:
    """Three members of this test's own, to be killed and frozen at will."""
    cluster = make_cluster(tmp_path / "etcd", 3, flags={"unsafe-no-fsync": "true"})
    cluster.start()
    try:
        await cluster.ready()
        yield cluster
    finally:
        cluster.stop()
