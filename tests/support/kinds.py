"""Every kind of engine, simulated and served, with its driver: what the suite for all of them plays on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from starlette.applications import Starlette

from registry.tools.devstack.processes import free_ports
from sidecar.engines.driver import Engine, EngineOptions, make_engine
from sidecar.engines.simulated.app import serving as serving_vllm
from sidecar.engines.simulated.engine import Card, SimulatedVllm
from sidecar.engines.simulated.options import Options
from tests.support.engines import BASE_MODEL, PATIENT
from tests.support.http_client import http_client
from tests.support.other_engines.axolotl import SimulatedAxolotl
from tests.support.other_engines.pegainfer import SimulatedPegainfer
from tests.support.other_engines.server import serving
from tests.support.other_engines.sglang import SimulatedSglang


class Simulated(Protocol):
    """A simulated engine of another kind."""

    core: SimulatedVllm

    def app(self) -> Starlette: ...


PROMPT = "The quick brown fox jumps over the lazy dog. " * 6
OTHER_KINDS: dict[str, Callable[[str], Simulated]] = {
    "sglang": SimulatedSglang,
    "pegainfer": SimulatedPegainfer,
    "axolotl": SimulatedAxolotl,
}
KINDS = ["vllm", *OTHER_KINDS]
SWAPS = {"vllm": "pipelined", "sglang": "pipelined", "axolotl": "unproven"}
LISTING_PATHS = {"vllm", "sglang"}


def drive(kind: str, url: str, state: Path | None = None) -> Engine:
    """The driver of an engine of that kind."""
    return make_engine(kind, EngineOptions(url, state=state, deadlines=PATIENT))


def _simulate(kind: str, port: int) -> tuple[Simulated | SimulatedVllm, AbstractAsyncContextManager[str]]:
    if kind == "vllm":
        vllm = SimulatedVllm(Options(served_model_name=BASE_MODEL))
        return vllm, serving_vllm(vllm, port=port)
    other = OTHER_KINDS[kind](BASE_MODEL)
    return other, serving(other.app(), port=port)


@dataclass
class Played:
    """A simulated engine, served from `start` to `stop`. Implements `loraplane.engines.contract.EngineUnderTest`."""

    kind: str
    adapters: tuple[str, str]
    unfit: Sequence[str]
    base_model: str = BASE_MODEL
    _port: int = field(default_factory=lambda: free_ports(1)[0])
    _serving: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def start(self) -> None:
        self.simulated, served = _simulate(self.kind, self._port)
        self.url = await self._serving.enter_async_context(served)

    async def stop(self) -> None:
        await self._serving.aclose()

    def drive(self, state: Path | None = None) -> Engine:
        return drive(self.kind, self.url, state)

    async def load_foreign(self, name: str, path: str) -> None:
        if isinstance(self.simulated, SimulatedAxolotl):
            self.simulated.active = Card(name, path, 1)
        else:
            core = self.simulated if isinstance(self.simulated, SimulatedVllm) else self.simulated.core
            await core.load(name, path)

    async def text(self, name: str) -> str:
        """The answer to a request for an adapter, named as this kind wants it."""
        async with http_client(base_url=self.url, timeout=30) as client:
            if self.kind == "axolotl":
                body = {"model": name, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 8}
                answer = (await client.post("/v1/chat/completions", json=body)).json()
                return str(answer["choices"][0]["message"]["content"])
            model = f"{BASE_MODEL}:{name}" if self.kind == "sglang" else name
            body = {"model": model, "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
            return str((await client.post("/v1/completions", json=body)).json()["choices"][0]["text"])

    def listed(self) -> Mapping[str, str]:
        """What it has in truth."""
        if isinstance(self.simulated, SimulatedAxolotl):
            active = self.simulated.active
            return {active.name.partition("#")[0]: active.path} if active else {}
        core = self.simulated if isinstance(self.simulated, SimulatedVllm) else self.simulated.core
        return {card.name: card.path for card in core.cards.values()}
