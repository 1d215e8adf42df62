"""Loads of engines: what is on its way, and what engines say of their queues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

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


class _Drip(httpx.AsyncByteStream):
    """A page that never ends."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            yield b"#"
            await asyncio.sleep(0.005)


def _answer(request: httpx.Request) -> httpx.Response:
    match request.url.host:
        case "well":
            return httpx.Response(200, text=PAGE)
        case "large":
            return httpx.Response(200, text=PAGE * 10)
        case "odd":
            return httpx.Response(200, text="vllm:num_requests_waiting many\n")
        case "none":
            return httpx.Response(200, text="vllm:num_requests_waiting NaN\n")
        case "busy":
            return httpx.Response(503, text="")
        case "slow":
            return httpx.Response(200, stream=_Drip())
    raise httpx.ConnectError("away")


async def test_queues_are_read_and_what_cannot_be_read_has_what_it_had(monkeypatch):
    """R19 not-held-up: an engine that is slow holds no look at another up; it is the one that is busy."""
    monkeypatch.setattr(module, "_MAX_PAGE_BYTES", 500)
    monkeypatch.setattr(module, "_TIMEOUT_SECONDS", 0.2)
    client = httpx.AsyncClient
    monkeypatch.setattr(module.httpx, "AsyncClient", lambda **_: client(transport=httpx.MockTransport(_answer)))
    loads, before = Loads(), {"away:1": 7.0, "busy:1": 7.0, "slow:1": 7.0, "none:1": 7.0, "gone:1": 7.0}
    loads.queues = before
    addresses = frozenset({"well:1", "large:1", "odd:1", "none:1", "away:1", "busy:1", "slow:1"})
    watch = QueueWatch("vllm:num_requests_waiting", 0.01, lambda: addresses, loads)
    task = asyncio.create_task(watch.run())
    await eventually(lambda: loads.queues is not before)
    assert loads.queues == {"well:1": 5.0, "away:1": 7.0, "busy:1": 7.0, "slow:1": 7.0, "none:1": 7.0}
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
