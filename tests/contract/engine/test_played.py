"""The simulation's engines ask for what is not loaded as the simulated engine does over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from registry.model.names import PROOF_PREFIX
from sidecar.engines.simulated.app import serving
from sidecar.engines.simulated.engine import Rejection, SimulatedVllm
from sidecar.engines.simulated.options import Options
from sidecar.engines.vllm.driver import VllmEngine
from sidecar.resolver.server import ResolverServer, SocketFile
from sidecar.vllm_plugin.draining import Drain
from sidecar.vllm_plugin.protocol import Answer, Resolved
from tests.simulation.artifacts import REFUSED, source_of
from tests.simulation.engines import BASE, EngineHost
from tests.simulation.played import STORE, driver_of, started
from tests.simulation.plugin import Socket, playing
from tests.support.adapters import write_adapter
from tests.support.engines import PATIENT

GOOD, WRONG, NOWHERE = ("good1", "good2"), f"{REFUSED}1", "nowhere"
sources = st.sampled_from([*GOOD, WRONG, NOWHERE])


async def _listing(engine: VllmEngine) -> dict[str, str]:
    """Sources by name; names that stand for a proof depend on paths, and are told by their number alone."""
    adapters = (await engine.observe()).adapters
    return {
        name if not name.startswith(PROOF_PREFIX) else f"proof of {source_of(path)}": source_of(path)
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


@asynccontextmanager
async def _playing(host: EngineHost) -> AsyncIterator[None]:
    """What drains stays, on both sides: when it goes is a matter of seconds."""
    with playing(lambda: [host]), mock.patch.object(Drain, "sweep", _never):
        yield


async def _never(_: Drain) -> None:
    """Removes nothing."""


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(sources, min_size=1, max_size=4))
def test_a_request_for_what_is_not_loaded_comes_to_the_same(folder, told):
    """R5 no-silent-base: also where the sidecar tells of files that are wrong, or not there."""

    async def play() -> None:
        socket = Socket()
        host = started((*GOOD, WRONG), folder / "leases", socket)
        socket.listen(Told(STORE))
        with TemporaryDirectory(prefix="lp-") as short:
            options = Options(served_model_name=BASE, plugin=True, resolver=f"{short}/r")
            engine = SimulatedVllm(options)
            listener = SocketFile(Path(short, "r"))
            async with _playing(host), serving(engine) as url, asyncio.TaskGroup() as tasks:
                answering = tasks.create_task(ResolverServer(listener.listener, Told(str(folder))).run())
                over_http, played = VllmEngine(url, deadlines=PATIENT), driver_of(host)
                for number, source in enumerate(told):
                    name = f"{source}-{number}"
                    assert host.engine is not None
                    assert await _bound(host.engine, name) == await _bound(engine, name), name
                    assert await _listing(played) == await _listing(over_http), name
                answering.cancel()
                await over_http.aclose()
            listener.close()

    asyncio.run(play())


class Told:
    """A sidecar that tells of a name that begins as the source does."""

    def __init__(self, root: str) -> None:
        self._root = root

    async def ask(self, name: str) -> Answer:
        return Resolved(f"{self._root}/{name.rpartition('-')[0]}")


async def _bound(engine: SimulatedVllm, name: str) -> str:
    """The source that a request for a name is bound to, or how it is refused."""
    try:
        card = await engine.card_of(name)
    except Rejection as rejection:
        return f"{rejection.status}"
    return "" if card is None else source_of(card.path)
