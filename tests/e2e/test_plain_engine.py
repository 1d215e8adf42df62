"""Real vLLM without the plugin: its versions swapped under load, then stopped, out of memory and killed.

With the plugin: test_fleet_swaps.py.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from registry.model.keys import Keys
from tests.support.engines import RealVllm, VllmFlags
from tests.support.fleet import Hand, Sidecar
from tests.support.stopped_engine import is_told_and_served, seconds_until_told, serves, serving_one
from tests.support.swap_load import SwapLoad, by_driver, versions_of
from tests.support.waiting import eventually

SWAPS = 18
REQUESTS_PER_SECOND = 5.0
SWAPS_PER_SECOND = 1.5
SLOTS = 8  # more than there are versions
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


@pytest.fixture(scope="module")
def around(tmp_path_factory) -> Path:
    """A folder on the engine's import path, where a file `refuse` leaves it without memory."""
    folder: Path = tmp_path_factory.mktemp("around")
    (folder / "around_vllm.py").write_text(WITHOUT_MEMORY)
    return folder


@pytest.fixture(scope="module")
def flags(around) -> VllmFlags:
    """Of one engine for all of this file."""
    return VllmFlags(max_loras=SLOTS, more=("--middleware", "around_vllm.WithoutMemory"), import_path=str(around))


@pytest.fixture(scope="module")
def vllm(tiny, tmp_path_factory) -> Iterator[RealVllm]:
    """Real vLLM, not yet started."""
    vllm = RealVllm(tiny.model, tmp_path_factory.mktemp("plain-vllm"))
    yield vllm
    vllm.stop()


@pytest.mark.engine
async def test_without_the_plugin_failures_are_counted_and_nothing_is_mixed(vllm, flags, tiny):
    """Fault 23: a request may find no such name, and the engine may end; no answer is of two versions.

    Three names of two versions each are swapped in turn. bench/swap.py has what an unload and a load by hand come to.
    """
    await vllm.ensure(flags)
    load = SwapLoad([vllm.url], versions_of(tiny))
    try:
        async with by_driver(vllm.url) as swapper:
            verdict = await load.run(
                swapper, swaps=SWAPS, requests_per_second=REQUESTS_PER_SECOND, swaps_per_second=SWAPS_PER_SECOND
            )
    finally:
        if load.ended_by is not None:
            vllm.stop()
    ended = "the engine ended" if load.ended_by is not None else "the engine lives"
    print(f"{verdict.line()}, {len(load.swap_seconds)} of {SWAPS} swaps, {ended}")
    assert (verdict.mixed, verdict.stale) == (0, 0)
    assert load.ended_by is None or "KeyError" in vllm.log()


@pytest.mark.engine
@pytest.mark.timeout(900)
async def test_a_stopped_engine_is_told_of_and_served_again_when_it_goes_on(
    vllm, flags, around, tiny, etcd, etcd_client, tmp_path
):
    """R18 readiness-follows, R17 heals, R12, R3: stopped, out of memory for a while, killed amid a load."""
    await vllm.ensure(flags)
    async with serving_one(tmp_path, etcd_client, Keys(etcd.prefix), tiny, vllm) as (hand, sidecar):
        await is_told_and_served(hand, vllm, sidecar)
        await refuses_and_is_well(hand, sidecar, around / "refuse")
        await dies_amid_a_load(hand, sidecar, vllm)


async def refuses_and_is_well(hand: Hand, sidecar: Sidecar, flag: Path) -> None:
    """R17 heals: it has no memory for one more, and later it has."""
    await asyncio.to_thread(flag.touch)
    await hand.put(hand.record("c", "c"))

    async def is_refused() -> bool:
        return (await sidecar.failed()).get("c") == "engine_refused"

    await eventually(is_refused, timeout_seconds=60)
    await eventually(sidecar.is_ready)
    await asyncio.to_thread(flag.unlink)
    await eventually(lambda: serves(sidecar, 3), timeout_seconds=180)


async def dies_amid_a_load(hand: Hand, sidecar: Sidecar, vllm: RealVllm) -> None:
    """R12, R3: kill -9 as soon as a load is planned; the next process gets all of them."""
    await hand.put(hand.record("d", "d"))
    await eventually(lambda: any("Load d" in line.get("calls", ()) for line in sidecar.program.logged()))
    vllm.signal(signal.SIGKILL)
    await seconds_until_told(sidecar, 10.0)
    await vllm.again()
    await eventually(lambda: serves(sidecar, 4), timeout_seconds=240)
