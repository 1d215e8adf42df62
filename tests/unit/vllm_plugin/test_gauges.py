"""Gauges of the adapters in the engine's memory: what is known is told, and nothing else."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import GaugeMetricFamily

from sidecar.vllm_plugin.gauges import CALL_SECONDS, LOADED, MAX_AGE_SECONDS, NAMES, ON_GPU, ResidencyGauges, memory
from sidecar.vllm_plugin.listing import PublicListing
from tests.simulation.loop import virtual
from tests.unit.vllm_plugin.played import Clock, PlayedServer


def told(gpu: list[int], cpu: list[int], pinned: list[int]) -> dict[str, list[int]]:
    return {"gpu": gpu, "cpu": cpu, "pinned": pinned}


def workers(*told: dict[str, list[int]]) -> AsyncMock:
    """Workers that are asked for their memory, and what each says."""
    return AsyncMock(return_value=list(told))


class Scraped:
    """The gauges of one server in a registry of its own."""

    def __init__(
        self, server: PlayedServer, workers: Callable[[], Awaitable[Any]], theirs: frozenset[str] = frozenset()
    ) -> None:
        self.listing, self.clock = PublicListing(server), Clock()
        self.registry = CollectorRegistry()
        self.gauges = ResidencyGauges(
            server, self.listing, workers, GaugeMetricFamily, theirs=theirs, model="base", now=self.clock
        )
        self.registry.register(self.gauges)

    def lines(self) -> list[str]:
        """The samples of a scrape."""
        return [line for line in generate_latest(self.registry).decode().splitlines() if not line.startswith("#")]

    def names(self) -> set[str]:
        """The names that are told as loaded."""
        return {line.split('"')[1] for line in self.lines() if line.startswith(LOADED)}


@pytest.fixture
def server() -> PlayedServer:
    server = PlayedServer(limits={"max_loras": 2})
    for name in ("a", "b", "c", "gone"):
        server.load(name, f"/{name}")  # numbers 1 to 4
    return server


async def test_each_name_is_told_with_the_place_of_its_weights(server):
    """One whose weights are in no memory, or not in that of all workers, is not told; weights without a name count."""
    scraped = Scraped(server, workers(told([1, 9], [1, 2, 3, 9], [2])))
    await scraped.gauges.look()
    assert scraped.lines() == [
        'vllm:lora_adapter_loaded{adapter_name="a",level="gpu",model_name="base",pinned="false"} 1.0',
        'vllm:lora_adapter_loaded{adapter_name="b",level="cpu",model_name="base",pinned="true"} 1.0',
        'vllm:lora_adapter_loaded{adapter_name="c",level="cpu",model_name="base",pinned="false"} 1.0',
        'vllm:num_gpu_loaded_lora_adapters{model_name="base"} 2.0',
        'vllm:max_gpu_lora_adapters{model_name="base"} 2.0',
    ]
    scraped = Scraped(server, workers(told([1, 2], [1, 2, 3], [1, 2]), told([2], [2, 3], [])))
    await scraped.gauges.look()
    assert scraped.lines()[:3] == [
        'vllm:lora_adapter_loaded{adapter_name="b",level="gpu",model_name="base",pinned="false"} 1.0',
        'vllm:lora_adapter_loaded{adapter_name="c",level="cpu",model_name="base",pinned="false"} 1.0',
        'vllm:num_gpu_loaded_lora_adapters{model_name="base"} 1.0',
    ]


async def test_a_name_goes_with_its_weights_before_the_next_look(server):
    """One that is on its way out, one that is unloaded, and one that got other weights."""
    scraped = Scraped(server, workers(told([1, 2], [1, 2, 3, 4], [])))
    await scraped.gauges.look()
    assert scraped.names() == {"a", "b", "c", "gone"}
    scraped.listing.leave(server.registered.get("a"))
    del server.registered["gone"]
    server.load("b", "/new/b")
    assert scraped.names() == {"c"}


async def test_a_scrape_is_no_use_of_an_adapter(server):
    """R7 files-pinned: what refers to an adapter keeps its files; and what is looked at was not asked for."""
    scraped = Scraped(server, workers(told([1], [1], [])))
    before = sys.getrefcount(server.registered.get("a"))
    await scraped.gauges.look()
    scraped.lines()
    after = sys.getrefcount(server.registered.get("a"))
    assert after == before
    assert server.registered.ages() == {}


async def test_what_was_said_too_long_ago_is_not_told(server, caplog):
    """Also nothing before the first answer. It is logged once for each silence."""
    ask = workers(told([1], [1], []))
    scraped = Scraped(server, AsyncMock(side_effect=RuntimeError("never one")))
    await scraped.gauges.look()
    assert (scraped.lines(), caplog.text.count("never one")) == ([], 1)
    scraped = Scraped(server, ask)
    assert scraped.lines() == []
    await scraped.gauges.look()
    ask.side_effect = RuntimeError("no such method")
    scraped.clock.at += MAX_AGE_SECONDS
    for _ in range(2):
        await scraped.gauges.look()
    assert scraped.names() == {"a"}
    assert caplog.text.count("no such method") == 1
    scraped.clock.at += 0.01
    assert scraped.lines() == []
    ask.side_effect = None
    await scraped.gauges.look()
    assert scraped.names() == {"a"}


@virtual
async def test_an_engine_that_does_not_answer_is_asked_again(server):
    asked = []

    async def ask() -> Any:
        asked.append(asyncio.get_running_loop().time())
        if len(asked) == 1:
            await asyncio.Event().wait()
        return [told([1], [1], [])]

    scraped = Scraped(server, ask)
    looking = asyncio.create_task(scraped.gauges.run())
    await asyncio.sleep(CALL_SECONDS + 2.5)
    looking.cancel()
    assert [round(at - asked[0], 1) for at in asked] == [0.0, CALL_SECONDS + 1, CALL_SECONDS + 2]
    assert scraped.names() == {"a"}


async def test_without_workers_or_slots_nothing_is_made_up(server):
    server.limits = {"max_loras": None}
    scraped = Scraped(server, workers())
    await scraped.gauges.look()
    assert scraped.lines() == []
    scraped = Scraped(server, workers(told([], [1], [])))
    await scraped.gauges.look()
    assert [line.split("{")[0] for line in scraped.lines()] == [LOADED, ON_GPU]


@pytest.mark.parametrize("theirs", sorted(NAMES))
async def test_a_metric_that_the_engine_has_is_left_to_it(server, theirs):
    """And one that the engine registers later is not refused for ours."""
    scraped = Scraped(server, workers(told([1], [1], [])), frozenset({theirs}))
    Gauge(theirs, "vLLM's own", registry=scraped.registry).set(7)
    await scraped.gauges.look()
    lines = scraped.lines()
    assert {line.split("{")[0].split(" ")[0] for line in lines} == NAMES
    assert [line for line in lines if line.startswith(theirs)] == [f"{theirs} 7.0"]


def test_a_worker_says_what_it_has():
    caches = {
        "_registered_adapters": SimpleNamespace(cache={1: "one", 2: "two"}, pinned_items={2}),
        "_active_adapters": SimpleNamespace(cache={2: None}),
    }
    manager = SimpleNamespace(_adapter_manager=SimpleNamespace(**caches))
    worker = SimpleNamespace(model_runner=SimpleNamespace(lora_manager=manager))
    assert memory(worker) == told([2], [1, 2], [2])
