"""A router that polls engines for their names, as llm-d's served-model-filter does, before engines with our plugin.

It asks each endpoint for ``GET /v1/models`` every five seconds, takes the cards with a `parent` for adapters, and sends
a name's requests where it was listed at the last poll; to none where it was listed nowhere.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from sidecar.engines.observed import Done
from sidecar.engines.simulated.engine import Rejection, SimulatedVllm
from sidecar.engines.simulated.options import DEFAULTS
from sidecar.engines.transport import Reply
from sidecar.engines.vllm.driver import VllmEngine
from tests.simulation.loop import virtual
from tests.support.adapters import write_adapter
from tests.support.engine_in_memory import InMemory, answer_of, driver_of

POLL_SECONDS = 5.0
NAMES = ("a", "b")


@dataclass
class Endpoint:
    """An engine, and its driver as a sidecar has it. `is_there`: it can be reached, by requests too."""

    engine: SimulatedVllm
    driver: VllmEngine
    way: InMemory
    is_there: bool = True
    listed: frozenset[str] = frozenset()

    async def poll(self) -> None:
        """A poll that fails shows nothing of the endpoint any more."""
        reply = await answer_of(self.way.app, "GET", "/v1/models", {}, b"") if self.is_there else None
        cards = json.loads(reply.body)["data"] if isinstance(reply, Reply) else []
        self.listed = frozenset(card["id"] for card in cards if card["parent"])

    async def order(self, call: str, *arguments: str) -> None:
        assert await getattr(self.driver, call)(*arguments, request_id="r") == Done()


@dataclass
class PollingRouter:
    """Sends requests by what it saw last.

    `lacking`: requests that came where their name was not. `unrouted`: names of those that came nowhere.
    """

    endpoints: list[Endpoint]
    sent: int = 0
    unrouted: list[str] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)

    async def poll(self) -> None:
        while True:
            for endpoint in self.endpoints:
                await endpoint.poll()
            await asyncio.sleep(POLL_SECONDS)

    async def send(self) -> None:
        dice = random.Random(0)
        while True:
            await asyncio.sleep(0.05)
            name = dice.choice(NAMES)
            found = [one for one in self.endpoints if name in one.listed]
            self.sent += bool(found)
            if found:
                await self._ask(dice.choice(found), name)
            else:
                self.unrouted.append(name)

    async def _ask(self, endpoint: Endpoint, name: str) -> None:
        now = asyncio.get_running_loop().time()
        if not endpoint.is_there:
            self.lacking.append(f"{now:.2f} {name}: nobody is there")
            return
        try:
            await endpoint.engine.card_of(name)
        except Rejection as rejection:
            self.lacking.append(f"{now:.2f} {name}: {rejection.message}")


async def started(hide_seconds: float) -> Endpoint:
    engine = SimulatedVllm(replace(DEFAULTS, plugin=True, hide_seconds=hide_seconds))
    endpoint = Endpoint(engine, *driver_of(engine))
    await endpoint.driver.observe()
    return endpoint


@asynccontextmanager
async def routing(hide_seconds: float) -> AsyncIterator[PollingRouter]:
    """A router before two engines, from its first poll on."""
    router = PollingRouter([await started(hide_seconds), await started(hide_seconds)])
    work = [asyncio.create_task(router.poll()), asyncio.create_task(router.send())]
    try:
        yield router
    finally:
        for task in work:
            task.cancel()


@pytest.fixture
def files(tmp_path) -> list[str]:
    return [str(write_adapter(tmp_path / f"{number}", seed=number).directory) for number in range(4)]


async def a_day(router: PollingRouter, files: list[str], rest: float) -> None:
    """Adds, swaps, hand-overs, what comes back within a moment, deletes, a drain and a restart."""
    first, second = router.endpoints
    for endpoint in (first, second):
        await endpoint.order("load", "a", files[0])
    await first.order("load", "b", files[1])
    await asyncio.sleep(rest)
    for endpoint in (first, second):
        await endpoint.order("swap", "a", files[0], files[2])
    await second.order("load", "b", files[1])  # handed over
    await asyncio.sleep(rest)
    await first.order("unload", "b")
    await asyncio.sleep(3)
    await first.order("load", "b", files[3])  # wanted again, in another version
    await asyncio.sleep(rest)
    await second.order("unload", "b")
    await asyncio.sleep(rest)
    assert await first.driver.hide(30.0) == Done()  # it drains, as its sidecar says every five seconds
    await asyncio.sleep(POLL_SECONDS + 0.1)
    first.is_there = False
    await asyncio.sleep(20)  # as long as an engine takes to start, and longer than a poll
    router.endpoints[0] = again = await started(second.engine.options.hide_seconds)
    await asyncio.sleep(rest)
    await again.order("load", "a", files[2])
    await asyncio.sleep(rest)
    for endpoint in router.endpoints:
        await endpoint.order("unload", "a")
    await asyncio.sleep(rest)


@pytest.mark.parametrize("rest", [0.3, 4.9, 5.1, 13.0])
@virtual
async def test_no_request_comes_to_an_engine_that_lacks_its_name(files, rest):
    """R20 drain, and R5: through adds, swaps, unloads, drains and restarts, at whatever moment of the poll."""
    async with routing(POLL_SECONDS) as router:
        await a_day(router, files, rest)
        await asyncio.sleep(2 * POLL_SECONDS)
    assert router.lacking == []
    assert router.sent > 200
    assert router.unrouted, "names that nobody lists go nowhere"


@virtual
async def test_a_name_that_stops_as_it_leaves_the_list_fails_requests(files):
    """Else the other test would hold of any engine."""
    async with routing(0.0) as router:
        await a_day(router, files, 13.0)
    assert router.lacking
