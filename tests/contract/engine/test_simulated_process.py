"""The simulated engine as a process, with the flags and the variable of the real one."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator

import httpx
import pytest

from registry.tools.devstack.processes import free_ports
from tests.support.engines import Asker
from tests.support.processes import Program
from tests.support.waiting import eventually

RUNTIME_LORA = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}


@pytest.fixture
def program(tmp_path) -> Iterator[Program]:
    """Not yet started; its first flag is its port."""
    (port,) = free_ports(1)
    program = Program("sidecar.engines.simulated", ["--port", str(port)], tmp_path / "log")
    yield program
    program.kill()


async def started(program: Program) -> Asker:
    """Starts it and waits until it is healthy."""
    program.start()
    asker = Asker(f"http://127.0.0.1:{program.arguments[1]}")
    assert await eventually(lambda: is_healthy(asker))
    return asker


async def is_healthy(asker: Asker) -> bool:
    try:
        return (await asker.client.get("/health")).status_code == 200
    except httpx.TransportError:
        return False


async def test_without_the_variable_there_are_no_routes(program, tiny):
    asker = await started(program)
    reply = await asker.load("a", tiny.adapter("a"))
    assert (reply.status_code, reply.json()) == (404, {"detail": "Not Found"})
    await asker.client.aclose()


async def test_flags_are_those_of_vllm(program, tiny):
    flags = (
        "--served-model-name",
        "base",
        "--model",
        "/m",
        "--max-lora-rank",
        "4",
        "--max-loras",
        "2",
        "--api-key",
        "k",
    )
    program.arguments += flags
    program.environment = RUNTIME_LORA
    asker = await started(program)
    assert (await asker.client.get("/v1/models")).json() == {"error": "Unauthorized"}
    asker.client.headers["authorization"] = "Bearer k"
    (base,) = (await asker.client.get("/v1/models")).json()["data"]
    assert (base["id"], base["root"]) == ("base", "/m")
    assert (await asker.load("a", tiny.adapter("a"))).status_code == 500  # of rank 8
    assert (await asker.load("a", tiny.changed("small", rank=4))).status_code == 200
    await asker.text("a", "x")
    assert 'max_lora="2"' in (await asker.client.get("/metrics")).text
    await asker.client.aclose()
    program.signal(signal.SIGTERM)
    assert program.wait() == 0


async def test_a_dead_engine_ends_its_process(program, tiny, tmp_path):
    program.arguments += ("--max-cpu-loras", "1")
    program.environment = RUNTIME_LORA
    asker = await started(program)
    path = shutil.copytree(tiny.adapter("a"), tmp_path / "a")
    await asker.load("a", str(path))
    await asker.load("b", tiny.adapter("b"))
    shutil.rmtree(path)
    assert (await asker.complete("a", "x")).status_code == 500
    assert program.wait() == 1
    await asker.client.aclose()
