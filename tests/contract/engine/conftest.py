"""One suite, two engines: whatever holds for the simulated one holds for real vLLM."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sidecar.engines import transport
from sidecar.engines.simulated.app import serving
from sidecar.engines.simulated.engine import SimulatedVllm
from sidecar.engines.simulated.options import Options
from sidecar.engines.vllm.driver import VllmEngine
from tests.support.engine_steps import write_sources
from tests.support.engines import BASE_MODEL, PATIENT, Asker, VllmFlags
from tests.support.ordered import ordered


@pytest.fixture(autouse=True)
def patience(monkeypatch) -> None:
    """A connection on the loopback stands at once, unless the machine stands still."""
    monkeypatch.setattr(transport, "CONNECT_SECONDS", 60.0)


@pytest.fixture(scope="session")
def socket() -> Iterator[str]:
    """A path short enough for a socket, on which engines ask; whether anybody answers there is up to each test."""
    folder = tempfile.mkdtemp(prefix="lp-")
    yield f"{folder}/resolver.sock"
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def asking_flags(socket) -> VllmFlags:
    """With the plugin, which asks on `socket`, and may ask short prompts, also on a CPU: of one process for all."""
    return VllmFlags(plugin=True, resolver=socket, proves=True)


@pytest.fixture(scope="session")
def sources(tiny) -> Path:
    """The folder of all that is loaded where several engines are compared."""
    return write_sources(tiny)


@pytest.fixture
def simulated_options(tiny) -> Options:
    """Of the engine that the tests of a file simulate."""
    return Options(served_model_name=BASE_MODEL, model=str(tiny.model), development=True)


@pytest.fixture
def simulated(simulated_options) -> SimulatedVllm:
    """A simulated engine, not yet served."""
    engine = SimulatedVllm(simulated_options)
    ordered("a fault of the simulated engine", lambda: not engine.faults.left)
    return engine


@pytest.fixture(params=["simulated", pytest.param("vllm", marks=pytest.mark.engine)])
async def url(request, simulated) -> AsyncIterator[str]:
    """The URL of an engine without adapters, each kind in turn."""
    if request.param == "simulated":
        async with serving(simulated) as url:
            yield url
        return
    real = request.getfixturevalue("real_vllm")
    await real.ensure()
    await _clear(real.url)
    yield real.url


async def _clear(url: str) -> None:
    asker = Asker(url)
    await asker.clear()
    await asker.client.aclose()


@pytest.fixture
async def asker(url) -> AsyncIterator[Asker]:
    """Raw requests to the engine."""
    asker = Asker(url)
    yield asker
    await asker.client.aclose()


@pytest.fixture
async def engine(url) -> AsyncIterator[VllmEngine]:
    """The driver of the engine."""
    engine = VllmEngine(url, deadlines=PATIENT)
    yield engine
    await engine.aclose()
