"""The simulated engine: what those who test with it rely on."""

from __future__ import annotations

import asyncio

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from registry.runtime.http import listen
from sidecar.engines.simulated.app import served
from sidecar.engines.simulated.engine import SimulatedCall, SimulatedVllm
from sidecar.engines.simulated.options import Faults


def test_a_fresh_one_has_done_nothing_and_tells_of_each_call():
    heard: list[SimulatedCall] = []
    engine = SimulatedVllm(on_call=heard.append)
    assert (engine.tokens, engine.prompt_tokens, engine.ended) == (0, 0, 0)
    call = SimulatedCall("load", "a", "/a", "", 0.0)
    engine.note(call)
    SimulatedVllm().note(call)
    assert (heard, list(engine.calls)) == ([call], [call])


def test_a_route_without_an_ordered_fault_is_not_struck():
    assert Faults().take("load") is None


async def test_one_that_ends_breaks_its_connections_as_a_killed_process_does():
    app = Starlette(routes=[Route("/", lambda _: PlainTextResponse("there"))])
    listener = listen("127.0.0.1", 0)
    async with served(app, listener):
        half, other = [await asyncio.open_connection(*listener.getsockname()) for _ in range(2)]
        half[1].write(b"GET / HTTP/1.1\r\n")
        other[1].write(b"GET / HTTP/1.1\r\nHost: e\r\n\r\n")
        await other[0].readuntil(b"there")
    async with asyncio.timeout(30):
        assert await half[0].read() == b""
    for _, writer in (half, other):
        writer.close()
