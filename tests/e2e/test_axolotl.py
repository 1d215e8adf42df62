"""axolotl's own `vllm_serve_lora` on vLLM's CPU build, behind our sidecar: `make axolotl` plays it.

The same is played on a simulated server in tests/integration/sidecar/test_axolotl.py; here is what that rests on.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable

import pytest

from registry.model.keys import Keys
from tests.support.axolotl_server import MAX_RANK, AxolotlServer, is_possible
from tests.support.fleet import Hand, Sidecar, settled, shapes_of
from tests.support.http_client import http_client
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not os.environ.get("AXOLOTL"), reason="make axolotl plays it"),
    pytest.mark.timeout(1800),
]
SETTLE_SECONDS = 120


@pytest.fixture
async def server(tiny, tmp_path) -> AsyncIterator[AxolotlServer]:
    assert is_possible(), "it kills each process that is named as vLLM's core is: root can keep it from others"
    server = AxolotlServer(tiny.model, tmp_path / "axolotl")
    await server.start()
    yield server
    server.kill()


def other_than(server: AxolotlServer, *answers: list[int]) -> Callable[[], object]:
    async def is_other() -> list[int]:
        answer = await server.answer()
        assert answer not in answers
        return answer

    return is_other


async def test_versions_restarts_and_a_bad_adapter(server, tiny, etcd, etcd_client, tmp_path):
    """R3, R4, R6, R12: each version answers everything, after restarts of sidecar and server too."""
    sources = tiny.folder / "adapters"
    hand = Hand(etcd_client, Keys(etcd.prefix), sources)
    for name in ("v1", "v2", "v3"):
        tiny.adapter(name)
    extra = ("--engine-kind", "axolotl", "--engine-max-rank", str(MAX_RANK))
    sidecar = Sidecar(tmp_path, etcd.endpoints, etcd.prefix, server.url, sources=sources, extra=extra)
    base = await server.answer()
    await hand.pool(str(tiny.model), engine="axolotl", base=shapes_of(tiny.model))
    revision = await hand.put(hand.record("policy", "v1"))
    sidecar.program.start()
    try:
        await settled(sidecar, revision)
        first = await eventually(other_than(server, base), timeout_seconds=SETTLE_SECONDS)
        answers = [base, first]
        for generation, source in ((2, "v2"), (3, "v3")):
            await hand.put(hand.record("policy", source, generation=generation))
            answers.append(await eventually(other_than(server, *answers), timeout_seconds=SETTLE_SECONDS))
        await hand.put(hand.record("policy", "v1", generation=4))
        assert await eventually(other_than(server, *answers[2:]), timeout_seconds=SETTLE_SECONDS) == first
        sidecar.program.kill()
        assert await server.answer() == first
        sidecar.program.start()
        await settled(sidecar, revision)
        assert await server.answer() == first
        server.kill()
        await server.start()
        again = await eventually(other_than(server, base), timeout_seconds=SETTLE_SECONDS)
        assert again == first
        wide = tiny.changed("wide", rank=2 * MAX_RANK)
        (sources / "wide").symlink_to(wide) if not (sources / "wide").exists() else None
        await hand.put(hand.record("policy", "wide", generation=5))
        await eventually(lambda: _refused(sidecar), timeout_seconds=SETTLE_SECONDS)
        assert (await server.answer(), await server.health()) == (first, 200)
        await hand.delete("policy")
        assert await eventually(other_than(server, first), timeout_seconds=SETTLE_SECONDS) == base
    finally:
        sidecar.program.kill()


async def _refused(sidecar: Sidecar) -> bool:
    assert "policy" in await sidecar.failed()
    return True


async def test_what_it_says_of_files_that_it_cannot_read(server, tiny):
    """What our driver keeps from it: it takes any path, and tells of nothing before the next request."""
    told = {"lora_name": "x#1", "lora_int_id": 7, "lora_path": "/nonexistent", "load_inplace": False}
    async with http_client(base_url=server.url, timeout=60) as client:
        taken = await client.post("/set_lora_adapter/", json=told)
        assert (taken.status_code, taken.json()) == (200, {"status": "ok"})
        models = (await client.get("/v1/models")).json()
        assert [(card["id"], card["owned_by"]) for card in models["data"]] == [(str(tiny.model), "axolotl")]
        wrong = await client.post("/set_lora_adapter/", json=told | {"lora_int_id": "seven"})
        assert wrong.status_code == 422
        reply = await server.generate("Hello")
        assert reply.status_code == 500
        cleared = await client.post("/clear_lora_adapter/", json={})
        assert cleared.status_code == 200
    assert "EngineCore encountered an issue" in server.log()
