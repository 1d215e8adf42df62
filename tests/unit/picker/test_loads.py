"""Loads of engines: what is on its way, and what engines say of their queues."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from registry.picker import loads as module
from registry.picker.loads import Loads, QueueWatch
from tests.support.waiting import eventually

PAGE = """# HELP vllm:num_requests_waiting x
vllm:num_requests_waiting{model_name="a"} 3.0
vllm:num_requests_waiting{model_name="b"} 2
vllm:num_requests_waiting_total 50
"""


def test_a_load_is_what_is_on_its_way_and_the_queue():
    loads = Loads()
    loads.enter("a")
    loads.enter("a")
    loads.queues = {"a": 3.0, "b": 1.0}
    assert ({one: loads[one] for one in loads}, len(loads)) == ({"a": 5.0, "b": 1.0}, 2)
    loads.leave("a")
    loads.leave("a")
    assert (loads.get("a"), loads.get("nobody"), loads.in_flight) == (3.0, 0.0, 0)
    loads.queues = {}
    assert [*loads] == [], "R16 bounded: engines come and go"


async def test_queues_are_read_and_what_cannot_be_read_has_none(monkeypatch):
    monkeypatch.setattr(module, "_MAX_PAGE_BYTES", 500)

    def answer(request: httpx.Request) -> httpx.Response:
        match request.url.host:
            case "well":
                return httpx.Response(200, text=PAGE)
            case "large":
                return httpx.Response(200, text=PAGE * 10)
            case "odd":
                return httpx.Response(200, text="vllm:num_requests_waiting many\n")
            case "none":
                return httpx.Response(200, text="vllm:num_requests_waiting NaN\n")
        raise httpx.ConnectError("away")

    client = httpx.AsyncClient
    monkeypatch.setattr(module.httpx, "AsyncClient", lambda **_: client(transport=httpx.MockTransport(answer)))
    loads = Loads()
    addresses = frozenset({"well:1", "large:1", "odd:1", "none:1", "away:1"})
    watch = QueueWatch("vllm:num_requests_waiting", 0.01, lambda: addresses, loads)
    task = asyncio.create_task(watch.run())
    await eventually(lambda: loads.queues == {"well:1": 5.0})
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
