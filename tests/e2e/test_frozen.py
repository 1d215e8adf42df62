"""Real vLLM that is stopped, refuses or is killed, and goes on: what its sidecar says and does."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from registry.etcd3.client import Client
from registry.etcd3.ops import Put, Txn
from registry.model.keys import Keys
from registry.model.records import AdapterRecord, AdapterSpec, PoolSpec, SourceSpec
from tests.support.engines import BASE_MODEL, Asker, RealVllm, VllmFlags
from tests.support.fleet import POOL, Sidecar
from tests.support.tiny import Tiny, make_tiny
from tests.support.waiting import eventually

# What is promised is 10 and 30 s; a machine that others use too may be late.
SLACK_SECONDS = 30.0
# Requests that run while all of it is stopped.
RUNNING = 4
# Around vLLM's own routes: no memory is left for an adapter while there is a file of that name beside it.
WITHOUT_MEMORY = """
from pathlib import Path

FLAG = Path(__file__).with_name("refuse")


class WithoutMemory:
    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        if scope["type"] == "http" and scope["path"] == "/v1/load_lora_adapter" and FLAG.exists():
            body = b'{"error": {"message": "out of memory", "type": "InternalServerError", "param": null, "code": 500}}'
            headers = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 500, "headers": headers})
            await send({"type": "http.response.body", "body": body})
        else:
            await self.app(scope, receive, send)
"""


async def write(client: Client, keys: Keys, tiny: Tiny, name: str) -> None:
    record = AdapterRecord(
        name=name,
        pool=POOL,
        tenant="default",
        generation=1,
        spec=AdapterSpec(source=SourceSpec(uri=Path(tiny.adapter(name)).as_uri())),
        updated_at="2026-01-01T00:00:00.000Z",
        updated_by="test",
    )
    pool = PoolSpec(name=POOL, base_models=[BASE_MODEL])
    puts = (Put(keys.pool(POOL), pool.to_bytes()), Put(keys.adapter(POOL, name), record.to_bytes()))
    await client.txn(Txn((), puts))


@asynccontextmanager
async def replica(
    folder: Path, etcd: tuple[str, ...], keys: Keys, vllm: RealVllm, tiny: Tiny
) -> AsyncIterator[Sidecar]:
    """A sidecar that is ready beside the engine."""
    sidecar = Sidecar(folder, etcd, keys.prefix, vllm.url, sources=tiny.folder / "adapters")
    sidecar.program.start()
    try:
        await eventually(sidecar.is_ready, timeout_seconds=120)
        yield sidecar
    finally:
        sidecar.program.kill()


async def serves(sidecar: Sidecar, count: int) -> bool:
    said = await sidecar.status()
    return bool(said["ready"]) and said["served"]["count"] == count


async def is_not_ready(sidecar: Sidecar) -> bool:
    return (await sidecar.get("/readyz"))[0] == 503


async def seconds_until_told(sidecar: Sidecar, at_most: float) -> float:
    """How long it takes until /readyz tells that the engine is not ready."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    await eventually(lambda: is_not_ready(sidecar), timeout_seconds=at_most + SLACK_SECONDS)
    return loop.time() - start


async def refuses_and_is_well(sidecar: Sidecar, put: Callable[[str], Awaitable[None]], flag: Path) -> None:
    """R17 heals: it has no memory for one more, and later it has."""
    await asyncio.to_thread(flag.touch)
    await put("c")

    async def is_refused() -> bool:
        return (await sidecar.failed()).get("c") == "engine_refused"

    await eventually(is_refused, timeout_seconds=60)
    await eventually(sidecar.is_ready)
    await asyncio.to_thread(flag.unlink)
    await eventually(lambda: serves(sidecar, 3), timeout_seconds=180)


async def dies_amid_a_load(sidecar: Sidecar, put: Callable[[str], Awaitable[None]], vllm: RealVllm) -> None:
    """R12, R3: kill -9 as soon as a load is planned; the next process gets all of them."""
    await put("d")
    await eventually(lambda: any("Load d" in line.get("calls", ()) for line in sidecar.program.logged()))
    vllm.signal(signal.SIGKILL)
    await seconds_until_told(sidecar, 10.0)
    await vllm.again()
    await eventually(lambda: serves(sidecar, 4), timeout_seconds=240)


@pytest.mark.engine
@pytest.mark.timeout(900)
async def test_a_stopped_engine_is_told_of_and_served_again_when_it_goes_on(etcd, etcd_client, tmp_path):
    """R18 readiness-follows, R3: all of it under a pending change, then its core alone, beside which HTTP goes on.

    With the plugin and without it at the same time: most of it is waiting.
    """
    async with asyncio.TaskGroup() as both:
        for plugin in (False, True):
            keys = Keys(f"{etcd.prefix}/{plugin}")
            both.create_task(is_told_and_served(etcd, etcd_client, keys, tmp_path / f"{plugin}", plugin=plugin))


async def is_told_and_served(etcd, etcd_client, keys: Keys, folder: Path, *, plugin: bool) -> None:
    tiny = make_tiny(folder)
    async with AsyncExitStack() as stack:
        vllm = RealVllm(tiny.model, folder / "vllm")
        stack.callback(vllm.stop)
        (folder / "around").mkdir()
        (folder / "around" / "around_vllm.py").write_text(WITHOUT_MEMORY)
        more = ("--middleware", "around_vllm.WithoutMemory")
        await vllm.ensure(VllmFlags(plugin=plugin, more=more, import_path=str(folder / "around")))
        asker = Asker(vllm.url)
        stack.push_async_callback(asker.client.aclose)
        await asker.text(BASE_MODEL, "x", tokens=1)
        await write(etcd_client, keys, tiny, "a")
        sidecar = await stack.enter_async_context(replica(folder, etcd.endpoints, keys, vllm, tiny))
        await eventually(lambda: serves(sidecar, 1), timeout_seconds=180)
        running = [asyncio.create_task(asker.complete("a", "x", tokens=64)) for _ in range(RUNNING)]
        await asyncio.wait(running, timeout=0.2)
        vllm.signal(signal.SIGSTOP)
        await write(etcd_client, keys, tiny, "b")
        frozen = await seconds_until_told(sidecar, 10.0)
        vllm.signal(signal.SIGCONT)
        await eventually(lambda: serves(sidecar, 2), timeout_seconds=180)
        assert [reply.status_code for reply in await asyncio.gather(*running)] == [200] * RUNNING
        vllm.signal(signal.SIGSTOP, is_core=True)
        assert (await asker.client.get("/health")).status_code == 200
        stalled = await seconds_until_told(sidecar, 30.0)
        vllm.signal(signal.SIGCONT, is_core=True)
        await eventually(lambda: serves(sidecar, 2), timeout_seconds=180)
        if not plugin:
            put = partial(write, etcd_client, keys, tiny)
            await refuses_and_is_well(sidecar, put, folder / "around" / "refuse")
            await dies_amid_a_load(sidecar, put, vllm)
    print(f"plugin={plugin}: frozen was told after {frozen:.1f} s, a core that stands still after {stalled:.1f} s")
