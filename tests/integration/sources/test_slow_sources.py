"""Sources that are slow on purpose, on real connections, beside one that is not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from sidecar.artifacts.staging import LONG_SLOTS, QUICK_SLOTS, Staging
from sidecar.artifacts.types import ArtifactRef, Stage
from tests.integration.sources.conftest import CONFIG, WEIGHTS
from tests.support.waiting import eventually
from tests.support.web import Exchange, Site, serving

SLOW = 3 * (QUICK_SLOTS + LONG_SLOTS)


def drip(exchange: Exchange) -> None:
    """A byte now and then, of very many."""
    exchange.start(200, Content_Length=1 << 20)
    while not exchange.site.closing.wait(0.2):
        exchange.wfile.write(b" ")


@pytest.fixture
def slow_sites() -> Iterator[list[Site]]:
    """Servers of as many origins, of which half say nothing and half send slowly."""
    with ExitStack() as stack:
        sites = [stack.enter_context(serving(Site())) for _ in range(SLOW)]
        for number, site in enumerate(sites):
            site.put("/a/", CONFIG, WEIGHTS)
            site.answers["/a/adapter_config.json"] = drip if number % 2 else site.hang
        yield sites


async def test_slow_sources_hold_up_no_other(slow_sites, web, open_store):
    """R8, R16, R19: four of them stopped all staging for half an hour."""
    store = open_store(*(site.url for site in slow_sites), f"{web.url}/team")
    failed: list[str] = []
    with suppress(asyncio.CancelledError):
        async with asyncio.TaskGroup() as tasks:
            staging = Staging(store, tasks, on_failure=lambda one, _: failed.append(one.name), on_end=lambda: None)
            staging.start(Stage(f"evil/a{n}", _ref(f"{site.url}/a/"), "") for n, site in enumerate(slow_sites))
            await eventually(lambda: sum(bool(site.seen) for site in slow_sites) > QUICK_SLOTS + LONG_SLOTS)
            good = _ref(f"{web.url}/team/a/")
            staging.start([Stage("good/a", good, "")])
            await eventually(lambda: good not in staging.in_progress)
            assert store.lookup(good) is not None
            assert len(staging.in_progress) == SLOW - len(failed)
            # No thread is left behind by those that gave way: each was stopped where it waited.
            assert sum(one.name.startswith("staging") for one in threading.enumerate()) <= 2 * (
                QUICK_SLOTS + LONG_SLOTS
            )
            asyncio.current_task().cancel()  # type: ignore[union-attr]


def _ref(uri: str) -> ArtifactRef:
    return ArtifactRef(uri, None, pin_key=f"p/{uri}@1")
