"""axolotl's server behind a real sidecar on real etcd: one adapter at a time, and only what is known is reported."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from registry.lora.base import BaseModules, compress
from registry.model.records import BaseShapes
from registry.tools.devstack.processes import free_ports
from tests.integration.sidecar.test_reconcile import settled
from tests.support.adapters import MODULES
from tests.support.fleet import BASE, Hand, Sidecar
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


@pytest.fixture
async def sidecar(etcd, server, tmp_path) -> AsyncIterator[Sidecar]:
    """Not started yet."""
    extra = ("--engine-kind", "axolotl", "--engine-max-rank", "8")
    sidecar = Sidecar(tmp_path, etcd.endpoints, etcd.prefix, server.url, extra=extra)
    yield sidecar
    sidecar.program.kill()


async def with_pool(hand: Hand, **changes: Any) -> None:
    await hand.pool(**{"engine": "axolotl", "base": SHAPES, **changes})


async def test_what_is_written_answers_also_after_restarts_of_both(hand, server, sidecar):
    """R3, R4, R6, R9, R12: a generation after another, the sidecar restarted, the engine restarted, deleted."""
    base = await server.answer()
    await with_pool(hand)
    revision = await hand.put(hand.record("policy", "v1"))
    sidecar.program.start()
    status = await settled(sidecar, revision)
    first = await server.answer()
    assert first != base
    assert (status["engine"]["kind"], status["engine"]["swap"], status["served"]["count"]) == ("axolotl", "unproven", 1)
    assert [one["reason"] for one in status["warnings"]] == ["base_unproven", "adapter_unproven"]
    sidecar.program.kill()
    sidecar.program.start()
    assert (await settled(sidecar, revision))["served"] == status["served"]
    await hand.put(hand.record("policy", "v2", generation=2))
    second = await server.other_than(base, first)
    await server.stop()
    await server.start()
    assert await server.other_than(base) == second
    revision = await hand.put(hand.record("policy", "v1", generation=3))
    assert (await settled(sidecar, revision))["served"]["count"] == 1
    assert await server.other_than(second) == first
    revision = await hand.delete("policy")
    assert await server.other_than(first) == base
    assert (await settled(sidecar, revision))["served"]["count"] == 0


async def test_it_is_told_of_nothing_that_would_end_it(hand, server, sidecar):
    """R8: what is not of this base, or of too high a rank, is refused with its reason; the old one goes on."""
    await with_pool(hand)
    revision = await hand.put(hand.record("policy", "v1"))
    hand.source("wide", hidden=32)
    hand.source("steep", rank=16)
    sidecar.program.start()
    await settled(sidecar, revision)
    told, first = list(server.simulated.told), await server.answer()
    for generation, (source, reason) in enumerate((("wide", "shape_mismatch"), ("steep", "rank_too_high")), start=2):
        await hand.put(hand.record("policy", source, generation=generation))

        async def is_refused(reason: str = reason) -> bool:
            assert await sidecar.failed() == {"policy": reason}
            return True

        await eventually(is_refused)
        assert await server.answer() == first
    assert set(server.simulated.told) == set(told)


async def test_a_second_adapter_past_the_registry_waits(hand, server, sidecar):
    """R9, R16: the most important one is served, and of the other it is said that there is no room."""
    await with_pool(hand)
    await hand.put(hand.record("a", "v1"), hand.record("b", "v2", priority=5))
    sidecar.program.start()

    async def is_said() -> bool:
        status = await sidecar.status()
        assert [(one["name"], one["reason"]) for one in status.get("pending", [])] == [("a", "over_capacity")]
        return bool(status["served"]["count"] == 1)

    await eventually(is_said)
    assert server.simulated.active is not None
    assert server.simulated.active.name.startswith("b#")


async def test_without_a_base_to_compare_with_nothing_is_told(hand, server, sidecar):
    await with_pool(hand, base=None)
    await hand.put(hand.record("policy", "v1"))
    sidecar.program.start()

    async def is_said() -> bool:
        code, body = await sidecar.get("/readyz")
        return code == 503 and "--base-model" in str(body)

    await eventually(is_said)
    assert server.simulated.told == []


async def test_what_somebody_else_set_is_overwritten(hand, server, sidecar):
    """R11 is not kept here, and said; the registry has the last word."""
    await with_pool(hand)
    revision = await hand.put(hand.record("policy", "v1"))
    sidecar.change("attentive")
    sidecar.program.start()
    await settled(sidecar, revision)
    ours = server.simulated.active
    server.simulated.active = None

    async def is_told_again() -> bool:
        return server.simulated.active == ours

    await eventually(is_told_again, timeout_seconds=60)
