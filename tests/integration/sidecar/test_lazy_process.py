"""A sidecar and an engine as processes on a real etcd: lazy adapters through kills, outages and deletions."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.fleet import Hand, Sidecar, SimulatedEngine
from tests.support.http_client import http_client
from tests.support.waiting import eventually


@pytest.fixture
def socket() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="lp-"))
    yield folder / "s"
    shutil.rmtree(folder)


@pytest.fixture
async def engine(tmp_path: Path, socket: Path) -> AsyncIterator[SimulatedEngine]:
    """With the plugin, which asks at `socket`."""
    engine = SimulatedEngine(tmp_path, "--max-cpu-loras", "4")
    engine.program.environment = {
        **engine.program.environment,
        "VLLM_PLUGINS": "loraplane",
        "LORAPLANE_PLUGIN": "1",
        "LORAPLANE_RESOLVER": str(socket),
    }
    await engine.start()
    yield engine
    engine.program.kill()


@pytest.fixture
async def sidecar(etcd, engine, tmp_path: Path, socket: Path) -> AsyncIterator[Sidecar]:
    extra = ("--resolver-socket", str(socket))
    sidecar = Sidecar(tmp_path, etcd.endpoints, etcd.prefix, engine.url, extra=extra)
    yield sidecar
    sidecar.program.kill()


async def request(engine: SimulatedEngine, name: str) -> int:
    async with http_client(base_url=engine.url, timeout=60) as client:
        body = {"model": name, "prompt": "x", "max_tokens": 1}
        return (await client.post("/v1/completions", json=body)).status_code


async def answers(engine: SimulatedEngine, name: str) -> bool:
    """Whether it is served; an engine or a sidecar that stood still for seconds refuses the first request."""
    return await request(engine, name) == 200


async def resident(sidecar: Sidecar) -> dict[str, int]:
    return {one["name"]: one["generation"] for one in (await sidecar.status())["lazy"]["resident"]}


async def test_a_killed_sidecar_finds_again_what_is_loaded_and_answers_from_its_snapshot(hand: Hand, engine, sidecar):
    """R12 crash-only, R13 static-stable: also what was never loaded before, from the store that it has."""
    await hand.pool("base")
    await hand.put(*(hand.record(name, name, load="lazy") for name in ("a", "b")))
    sidecar.program.start()
    await eventually(sidecar.is_ready)
    for name in ("a", "b"):
        await eventually(lambda name=name: answers(engine, name))
    await eventually(lambda: is_resident(sidecar, a=1, b=1))
    await sidecar.kept()
    before = await engine.listing()
    sidecar.program.kill()
    assert await request(engine, "a") == 200
    assert await request(engine, "c") == 404, "nobody answers"
    sidecar.program.start()
    await eventually(lambda: is_resident(sidecar, a=1, b=1))
    assert await engine.listing() == before
    await hand.put(hand.record("b", "other", 2, load="lazy"))
    await eventually(lambda: is_resident(sidecar, a=1, b=2))
    await hand.delete("a")
    await eventually(lambda: is_resident(sidecar, b=2))
    await eventually(lambda: is_listed(engine, "b"))

    async def is_refused() -> bool:
        """It answers on for a while after it left the engine's list."""
        return await request(engine, "a") == 404

    await eventually(is_refused)

    async def is_told() -> bool:
        """A sidecar that stood still for seconds lost the question."""
        assert await request(engine, "a") == 404
        metrics = await sidecar.metrics()
        assert metrics.get('loraplane_lazy_questions_total{answer="unknown_adapter"}', 0) >= 1
        return metrics["loraplane_lazy_resident"] == 1

    await eventually(is_told)


async def is_resident(sidecar: Sidecar, **generations: int) -> bool:
    return await resident(sidecar) == generations


async def is_listed(engine: SimulatedEngine, *names: str) -> bool:
    return set(await engine.listing()) == set(names)
