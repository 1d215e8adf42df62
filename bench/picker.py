"""Latency that a picker adds behind the real Envoy, and its processor time for each request.

One HTTP/1.1 server of this process stands for the engines. The floor of the latency is the same Envoy without the
filter. Rounds of both take turns, so that a busy machine is busy for both.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from bench.figures import Figure, NotMeasured, check
from registry.tools.devstack.processes import free_ports
from registry.v1 import registry_pb2 as pb
from tests.support.envoy import ENVOY, configuration, envoy
from tests.support.fake_admin import FakeAdmin, Hold, served
from tests.support.routed_fleet import picker_program
from tests.support.waiting import eventually

ROUNDS, REQUESTS, AT_ONCE, LOADED = 20, 50, 16, 200
ADDED_SECONDS, CORE_SECONDS = 0.0015, 1 / 1500
_TRY_SECONDS = 5.0
_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


async def picker(folder: Path) -> list[Figure]:
    """Requests one by one with and without the filter, then several at once, by the processor time of the picker."""
    if not ENVOY.exists():
        raise NotMeasured("picker: there is no Envoy: make .venv-envoy/.installed")
    async with _engine() as engine, AsyncExitStack() as stack:
        address = stack.enter_context(served(_registry(engine)))
        ours = picker_program(folder, "a", address)
        stack.callback(ours.program.kill)
        ours.program.start()
        await eventually(ours.is_ready)
        ports = free_ports(4)
        with_picker = configuration(ports[0], ports[1], [ours.port])
        without = _without_filter(configuration(ports[2], ports[3], [ours.port]), engine)
        for number, config in enumerate((with_picker, without)):
            (folder / str(number)).mkdir()
            stack.enter_context(envoy(folder / str(number), config))
        await eventually(lambda: _is_answered(ports[0]))
        await eventually(lambda: _is_answered(ports[2]))
        samples: dict[int, list[float]] = {ports[2]: [], ports[0]: []}
        for _ in range(ROUNDS):
            for port in samples:
                samples[port] += await _asked(port, REQUESTS)
        floor, taken = (statistics.median(found) for found in samples.values())
        before = _processor_seconds(ours.program.pid)
        await asyncio.gather(*(_asked(ports[0], LOADED) for _ in range(AT_ONCE)))
        core = (_processor_seconds(ours.program.pid) - before) / (AT_ONCE * LOADED)
    added = taken - floor
    told = f"{added * 1e3:.2f} ms more than {floor * 1e3:.2f} ms of Envoy alone, medians of {ROUNDS * REQUESTS}"
    return [
        Figure("picker_added", added / ADDED_SECONDS, "<= 1", told),
        Figure(
            "picker_core", core / CORE_SECONDS, "<= 1", f"{core * 1e3:.2f} ms of a core a request, {1 / core:.0f}/s"
        ),
    ]


def _registry(engine: int) -> FakeAdmin:
    """A registry of 1,000 adapters that one replica serves."""
    url = f"http://127.0.0.1:{engine}"
    place = pb.Residence(replica="r1", engine_url=url, generation=1, state=pb.RolloutReplica.SERVING)
    adapters = []
    for number in range(1000):
        name = f"a{number}"
        one = pb.Residence(replica=place.replica, engine_url=url, model=name, generation=1, state=place.state)
        adapters.append(pb.AdapterResidency(name=name, generation=1, replicas=[one]))
    admin = FakeAdmin()
    admin.answers["WatchResidency"] = [
        [pb.WatchResidencyResponse(revision=5, adapters=adapters, snapshot=True), Hold()]
    ]
    return admin


def _without_filter(config: dict[str, Any], engine: int) -> dict[str, Any]:
    """The same Envoy, which sends everything to the engine."""
    listener, (cluster, *_) = config["static_resources"]["listeners"][0], config["static_resources"]["clusters"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    manager["http_filters"] = manager["http_filters"][1:]
    endpoint = {"address": {"socket_address": {"address": "127.0.0.1", "port_value": engine}}}
    assignment = {"cluster_name": "engines", "endpoints": [{"lb_endpoints": [{"endpoint": endpoint}]}]}
    static = {"name": cluster["name"], "type": "STATIC", "connect_timeout": "5s", "load_assignment": assignment}
    config["static_resources"]["clusters"] = [static]
    return config


@asynccontextmanager
async def _engine() -> AsyncIterator[int]:
    """A server that answers at once; gives its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(_length(head))
                writer.write(_ANSWER)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def _length(head: bytes) -> int:
    lines = (line.partition(b":") for line in head.lower().split(b"\r\n"))
    return next((int(value) for name, _, value in lines if name == b"content-length"), 0)


async def _asked(port: int, count: int) -> list[float]:
    """Seconds of requests of one connection, one after the other."""
    body = json.dumps({"model": "a7", "prompt": "word " * 200, "max_tokens": 1}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: bench\r\ncontent-length: {len(body)}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    found = []
    for _ in range(count):
        begun = time.perf_counter()
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(_length(answer))
        found.append(time.perf_counter() - begun)
        check(b" 200 " in answer[:20], f"picker: {answer[:60]!r}")
    writer.close()
    return found


async def _is_answered(port: int) -> bool:
    try:
        async with asyncio.timeout(_TRY_SECONDS):
            return bool(await _asked(port, 1))
    except (OSError, TimeoutError, NotMeasured, asyncio.IncompleteReadError):
        return False


def _processor_seconds(pid: int) -> float:
    """Processor time of a process, ours and the system's for it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
