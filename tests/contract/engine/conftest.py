"""One suite, two engines: whatever holds for the simulated one holds for real vLLM."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sidecar.engines import exchange
from sidecar.engines.simulated.engine import SimulatedVllm
from sidecar.engines.simulated.options import Options
from sidecar.engines.simulated.server import serving
from sidecar.engines.vllm import VllmEngine
from tests.support.engine_steps import write_sources
from tests.support.engines import BASE_MODEL, PATIENT, Asker, RealVllm
from tests.support.tiny import Tiny, make_tiny


@pytest.fixture(autouse=True)
def patience(monkeypatch) -> None:
    """A connection on the loopback stands at once, unless the machine stands still."""
    monkeypatch.setattr(exchange, "CONNECT_SECONDS", 60.0)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> Tiny:
    """The model and its adapters, shared: nothing changes them."""
    return make_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def real_vllm(tmp_path_factory, tiny) -> Iterator[RealVllm]:
    """Real vLLM, started when first needed and ended with the session."""
    vllm = RealVllm(tiny.model, tmp_path_factory.mktemp("vllm"))
    yield vllm
    vllm.stop()


@pytest.fixture(scope="session")
def sources(tiny) -> Path:
    """The folder of all that is loaded where several engines are compared."""
    return write_sources(tiny)


@pytest.fixture
def simulated(tiny) -> SimulatedVllm:
    """A simulated engine, not yet served."""
    return SimulatedVllm(Options(served_model_name=BASE_MODEL, model=str(tiny.model)))


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
