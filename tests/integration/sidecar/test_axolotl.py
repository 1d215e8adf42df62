"""axolotl's server behind a real sidecar on real etcd: one adapter at a time, and only what is known is reported."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest

from registry.lora.base import BaseModules, compress
from registry.model.records import BaseShapes
from registry.tools.devstack.processes import free_ports
from tests.support.adapters import MODULES
from tests.support.fleet import BASE, Sidecar, settled
from tests.support.http_client import http_client
from tests.support.other_engines.axolotl import SimulatedAxolotl
from tests.support.other_engines.server import serving
from tests.support.waiting import eventually

BASE_MODULES = BaseModules({f"model.layers.0.self_attn.{module}": (16, 16) for module in MODULES})
SHAPES = BaseShapes(
    modules=compress(BASE_MODULES.modules), fingerprint=BASE_MODULES.fingerprint, architecture="LlamaForCausalLM"
)


class Server:
    """A simulated server within the test, on a port that survives restarts; `simulated` is its present process."""

    def __init__(self) -> None:
        (self._port,) = free_ports(1)
        self.url, self.simulated = "", SimulatedAxolotl(BASE)
        self._stack = contextlib.AsyncExitStack()

    async def start(self) -> None:
        self.simulated = SimulatedAxolotl(BASE)
        self.url = await self._stack.enter_async_context(serving(self.simulated.app(), port=self._port))

    async def stop(self) -> None:
        await self._stack.aclose()

    async def answer(self) -> list[int]:
        """What any request is answered with."""
        async with http_client(base_url=self.url, timeout=30) as client:
            reply = await client.post("/generate/", json={"prompts": ["x"], "max_tokens": 8})
        return list(reply.json()["completion_ids"][0])

    async def other_than(self, *answers: list[int]) -> list[int]:
        """Waits for an answer that is none of these."""

        async def is_other() -> list[int]:
            answer = await self.answer()
            assert answer not in answers
            return answer

        return await eventually(is_other)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    await server.start()
    yield server
    await server.stop()


async def test_what_is_written_answers_also_after_restarts_of_both(etcd, hand, server, tmp_path):
    """R3, R4, R6, R8, R9, R12, R16: what does not fit, or has no room, is refused by name, and the old one goes on."""
    extra = ("--engine-kind", "axolotl", "--engine-max-rank", "8")
    sidecar = Sidecar(tmp_path, etcd.endpoints, etcd.prefix, server.url, extra=extra)
    base = await server.answer()
    hand.source("wide", hidden=32)
    await hand.pool(engine="axolotl", base=SHAPES)
    revision = await hand.put(hand.record("policy", "v1"))
    sidecar.program.start()
    try:
        status = await settled(sidecar, revision)
        first = await server.other_than(base)
        said = status["engine"]
        assert (said["kind"], said["swap"], status["served"]["count"]) == ("axolotl", "unproven", 1)
        assert [one["reason"] for one in status["warnings"]] == ["base_unproven", "adapter_unproven"]
        sidecar.program.kill()
        sidecar.program.start()
        assert (await settled(sidecar, revision))["served"] == status["served"]
        told = set(server.simulated.told)
        await hand.put(hand.record("policy", "wide", generation=2), hand.record("z", "v3", priority=-5))

        async def are_refused() -> bool:
            said = await sidecar.status()
            pending = [(one["name"], one["reason"]) for one in said["pending"]]
            assert (await sidecar.failed(), pending) == ({"policy": "shape_mismatch"}, [("z", "over_capacity")])
            return True

        await eventually(are_refused)
        assert (await server.answer(), set(server.simulated.told)) == (first, told)
        await hand.delete("z")
        await hand.put(hand.record("policy", "v2", generation=3))
        second = await server.other_than(base, first)
        await server.stop()
        await server.start()
        assert await server.other_than(base) == second
        revision = await hand.delete("policy")
        assert await server.other_than(second) == base
        assert (await settled(sidecar, revision))["served"]["count"] == 0
    finally:
        sidecar.program.kill()
