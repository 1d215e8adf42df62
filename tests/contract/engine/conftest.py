"""One suite, two engines: whatever holds for the simulated one holds for real vLLM."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from sidecar.engines import transport
from sidecar.engines.simulated.app import serving
from sidecar.engines.simulated.engine import SimulatedVllm
from sidecar.engines.simulated.options import Options
from sidecar.engines.vllm.driver import VllmEngine
from sidecar.vllm_plugin.guard import ANYONE_BESIDE, Guard
from tests.support.engine_steps import write_sources
from tests.support.engines import BASE_MODEL, PATIENT, Asker, RealVllm, VllmFlags, token_of
from tests.support.rig import Rig


@pytest.fixture(autouse=True)
def patience(monkeypatch) -> None:
    """A connection on the loopback stands at once, unless the machine stands still."""
    monkeypatch.setattr(transport, "CONNECT_SECONDS", 60.0)


@pytest.fixture(scope="session")
def sources(tiny) -> Path:
    """The folder of all that is loaded where several engines are compared."""
    return write_sources(tiny)


@pytest.fixture
def flags() -> VllmFlags:
    """What the engine of a file's tests is started with: nothing of ours, unless the file says otherwise."""
    return VllmFlags()


@pytest.fixture
def simulated_options(tiny, flags) -> Options:
    """The same of the simulated engine."""
    guard = Guard(flags.store, Path(flags.control_token_file)) if flags.control_token_file else ANYONE_BESIDE
    return Options(
        served_model_name=BASE_MODEL,
        model=str(tiny.model),
        development=True,
        plugin=flags.plugin,
        resolver=flags.resolver,
        proves=flags.proves,
        token_seconds=0.001 if flags.plugin else 0.0,
        guard=guard,
    )


@pytest.fixture
def simulated(simulated_options) -> SimulatedVllm:
    """A simulated engine, not yet served."""
    return SimulatedVllm(simulated_options)


@pytest.fixture
async def real(real_vllm, flags) -> RealVllm:
    """Real vLLM without adapters."""
    await real_vllm.ensure(flags)
    await real_vllm.clear()
    return real_vllm


@pytest.fixture(params=["simulated", pytest.param("vllm", marks=pytest.mark.engine)])
async def url(request, simulated, real_vllm, flags) -> AsyncIterator[str]:
    """The URL of an engine without adapters, each kind in turn."""
    if request.param == "simulated":
        async with serving(simulated) as url:
            yield url
        return
    await real_vllm.ensure(flags)
    await real_vllm.clear()
    yield real_vllm.url


@pytest.fixture
async def asker(url, flags) -> AsyncIterator[Asker]:
    """Raw requests to the engine."""
    asker = Asker(url, token_of(flags))
    yield asker
    await asker.client.aclose()


@pytest.fixture
async def engine(url, flags) -> AsyncIterator[VllmEngine]:
    """The driver of the engine, which has looked at it where it has the plugin."""
    file = flags.control_token_file
    engine = VllmEngine(url, deadlines=PATIENT, control_token_file=file and Path(file))
    if flags.plugin:
        assert (await engine.observe()).facts.swap == "plugin"
    yield engine
    await engine.aclose()


@pytest.fixture
async def rig(url, flags, tmp_path, monkeypatch) -> Rig:
    """A sidecar of the engine, whose own is only to play the tune."""
    file = flags.control_token_file
    monkeypatch.setattr("tests.support.rig.VllmEngine", partial(VllmEngine, control_token_file=file and Path(file)))
    return Rig(tmp_path, SimulatedVllm(), url)
