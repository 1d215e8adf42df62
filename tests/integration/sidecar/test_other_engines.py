"""Engines other than vLLM behind a real sidecar on real etcd: what is written is served, as far as they can."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from registry.tools.devstack.processes import free_ports
from tests.support.fleet import BASE, Sidecar, settled
from tests.support.http_client import http_client
from tests.support.processes import Program
from tests.support.waiting import eventually

ROUTES = {"sglang": "/load_lora_adapter", "pegainfer": "/v1/load_lora_adapter"}


class OtherEngine:
    """``python -m tests.support.other_engines`` on a port that survives restarts."""

    def __init__(self, kind: str, folder) -> None:
        (port,) = free_ports(1)
        self.kind, self.url = kind, f"http://127.0.0.1:{port}"
        flags = ["--kind", kind, "--port", str(port)]
        self.program = Program("tests.support.other_engines", flags, folder / "engine.log")

    async def start(self) -> None:
        self.program.start()
        await eventually(self.names)

    async def names(self) -> set[str] | None:
        """Every name that it lists, and its base model's; None while it does not answer."""
        try:
            cards = (await self.ask("GET", "/v1/models")).json()["data"]
        except httpx.TransportError:
            return None
        return {card["id"] for card in cards}

    async def load(self, name: str, path: str) -> None:
        """What somebody else might do."""
        reply = await self.ask("POST", ROUTES[self.kind], json={"lora_name": name, "lora_path": path})
        assert reply.status_code == 200

    async def ask(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        async with http_client(base_url=self.url, timeout=60) as client:
            return await client.request(method, path, **kwargs)

    async def text(self, name: str) -> str:
        """The answer to a request for an adapter."""
        model = f"{BASE}:{name}" if self.kind == "sglang" else name
        reply = await self.ask("POST", "/v1/completions", json={"model": model, "prompt": "x", "max_tokens": 8})
        assert reply.status_code == 200, reply.text  # while it is swapped
        return str(reply.json()["choices"][0]["text"])


@pytest.fixture(params=sorted(ROUTES))
async def engine(request, tmp_path) -> AsyncIterator[OtherEngine]:
    engine = OtherEngine(request.param, tmp_path)
    await engine.start()
    yield engine
    engine.program.kill()


@pytest.fixture
async def sidecar(etcd, engine, tmp_path) -> AsyncIterator[Sidecar]:
    """Not started yet."""
    extra = ("--engine-kind", engine.kind)
    sidecar = Sidecar(tmp_path, etcd.endpoints, etcd.prefix, engine.url, extra=extra)
    yield sidecar
    sidecar.program.kill()


async def lists(engine: OtherEngine, *names: str) -> None:
    """Waits until the engine lists exactly these names and its base model."""

    async def is_so() -> bool:
        assert await engine.names() == {BASE, *names}
        return True

    await eventually(is_so)


async def test_what_is_written_is_served_also_after_restarts_of_both(hand, engine, sidecar):
    """R3, R6, R9, R12: loaded, the sidecar restarted, the engine restarted, deleted.

    R11 foreign-safe: what somebody else loaded stays, and a record by its name is refused.
    R4 digest-true: a kind that does not say how its caches tell weights gets no others under a name, but under one of
    their own, without a gap.
    """
    await hand.pool(engine=engine.kind)
    await engine.load("foreign", str(hand.source("other")))
    await hand.put(hand.record("a", "v1"), hand.record("acme/b", "v2"), hand.record("foreign", "v1"))
    sidecar.program.start()
    await lists(engine, "a", "acme/b", "foreign")
    await has_refused(sidecar, foreign="name_conflict" if engine.kind == "sglang" else "name_is_base_model")
    status = await settled(sidecar, await hand.delete("foreign"))
    assert (status["engine"]["kind"], status["served"]["count"]) == (engine.kind, 2)
    sidecar.program.kill()
    sidecar.program.start()
    revision = await hand.put(hand.record("c", "v1"))
    await lists(engine, "a", "acme/b", "c", "foreign")
    assert (await settled(sidecar, revision))["served"]["count"] == 3
    engine.program.kill()
    await engine.start()
    await lists(engine, "a", "acme/b", "c")
    revision = await hand.delete("c")
    await lists(engine, "a", "acme/b")
    assert (await settled(sidecar, revision))["served"]["count"] == 2
    old = await engine.text("a")
    await hand.put(hand.record("a", "v2", generation=2))
    if engine.kind == "sglang":

        async def is_new() -> bool:
            return await engine.names() == {BASE, "a", "acme/b"} and await engine.text("a") != old

        await eventually(is_new)
    else:
        await has_refused(sidecar, a="name_remembered")
        assert await engine.text("a") == old
    await hand.delete("a")
    await lists(engine, "acme/b")
    await hand.pool(engine=engine.kind, engine_names="versioned")
    await lists(engine, "acme/b@1")
    old = await engine.text("acme/b@1")
    await hand.put(hand.record("acme/b", "v3", generation=2))
    await lists(engine, "acme/b@2")
    assert await engine.text("acme/b@2") != old
    await hand.pool()

    async def is_of_another_kind() -> bool:
        status = await sidecar.status()
        return "--engine-kind" in status.get("note", "") and not status["ready"]

    await eventually(is_of_another_kind)
    assert await engine.names() == {BASE, "acme/b@2"}


async def has_refused(sidecar: Sidecar, **reasons: str) -> None:
    """Waits until these are what a sidecar refuses, and why."""

    async def is_said() -> bool:
        return await sidecar.failed() == reasons

    await eventually(is_said)
