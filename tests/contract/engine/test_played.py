"""The simulation's engines answer the driver as the simulated engine over HTTP, which answers as real vLLM."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar.artifacts.types import ArtifactRef
from sidecar.engines.driver import CHECK_NAME_PREFIX
from sidecar.engines.simulated.engine import SimulatedVllm
from sidecar.engines.simulated.options import Options
from sidecar.engines.simulated.server import serving
from sidecar.engines.vllm import VllmEngine
from sidecar.observed import Outcome
from tests.support.adapters import write_adapter
from tests.support.sim.artifacts import REFUSED, ROOT, SimStore, source_of
from tests.support.sim.engine_http import http_for
from tests.support.sim.engines import BASE, EngineHost

REPLICA = "r"
PLAYED = "http://played"
GOOD, WRONG, NOWHERE = ("good1", "good2"), f"{REFUSED}1", "nowhere"
names, sources = st.sampled_from(["a", "b", BASE]), st.sampled_from([*GOOD, WRONG, NOWHERE])


@dataclass(frozen=True)
class Load:
    name: str
    source: str


@dataclass(frozen=True)
class Unload:
    name: str


@dataclass(frozen=True)
class Swap:
    name: str
    old: str
    new: str


Step = Load | Unload | Swap
steps = st.one_of(
    st.builds(Load, names, sources),
    st.builds(Unload, names),
    st.builds(Swap, names, st.sampled_from(GOOD), sources),
)


async def _do(engine: VllmEngine, root: str, step: Step) -> Outcome:
    match step:
        case Load(name, source):
            return await engine.load(name, f"{root}/{source}", request_id="")
        case Unload(name):
            return await engine.unload(name, request_id="")
        case Swap(name, old, new):
            return await engine.swap(name, f"{root}/{old}", f"{root}/{new}", request_id="")


async def _listing(engine: VllmEngine) -> dict[str, str]:
    """Sources by name; names that stand for a proof depend on paths, and are told by their number alone."""
    adapters = (await engine.observe()).adapters
    return {
        name if not name.startswith(CHECK_NAME_PREFIX) else f"proof of {source_of(path)}": source_of(path)
        for name, path in adapters.items()
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Adapters on a disk; one of them is refused by every engine."""
    folder = tmp_path_factory.mktemp("adapters")
    for number, source in enumerate(GOOD):
        write_adapter(folder / source, seed=number)
    write_adapter(folder / WRONG, seed=9)
    (folder / WRONG / "adapter_model.safetensors").write_bytes(b"wrong")
    return folder


def _played(folder: Path) -> tuple[EngineHost, str]:
    store = SimStore(REPLICA, random.Random(0), folder / "leases")
    host = EngineHost(REPLICA, PLAYED, store, random.Random(0), lambda *_: None)
    return host, f"/store/{REPLICA}"


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(steps, min_size=1, max_size=8))
def test_same_outcomes_and_listings(folder, sequence):
    """R11 and R9 rest on it: each call comes to the same, and the engine lists the same after it."""

    async def play() -> None:
        host, root = _played(folder)
        for source in (*GOOD, WRONG):
            await host.store.ensure(ArtifactRef(f"{ROOT}{source}", None))
        host.start()
        with mock.patch("sidecar.engines.vllm.VllmHttp", http_for({PLAYED: host}, lambda *_: None)):
            played = VllmEngine(PLAYED)
        async with serving(SimulatedVllm(Options(served_model_name=BASE))) as url:
            over_http = VllmEngine(url)
            for step in sequence:
                expected = await _do(over_http, str(folder), step)
                assert type(await _do(played, root, step)) is type(expected), step
                assert await _listing(played) == await _listing(over_http), step
            await over_http.aclose()

    asyncio.run(play())
