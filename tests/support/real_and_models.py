"""Real vLLM, and beside it what stands for it: the simulated engine over HTTP, and the simulation's engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest import mock

from hypothesis import given, settings

from registry.tools.devstack.engine_environment import MAX_LORAS
from sidecar.engines.simulated.app import serving
from sidecar.engines.simulated.engine import SimulatedVllm
from sidecar.engines.simulated.options import Options
from sidecar.engines.vllm.driver import VllmEngine
from tests.simulation.played import STORE, driver_of, started
from tests.simulation.plugin import Socket, playing
from tests.support.engine_steps import IN_STORE, Step, sequences
from tests.support.engines import BASE_MODEL, PATIENT, RealVllm, VllmFlags
from tests.support.engines_alike import Subject, inside, over_http, play_alike


@dataclass
class RealAndModels:
    """All three, each started as the others are.

    Attributes:
        real: which is started unless it runs, and left without adapters.
        model: directory of the base model.
        sources: the folder of what is loaded; the simulation has the same names in memory.
        lease_file: the simulation's store writes it.
        flags: of the real one; whether it has our plugin is so of all.
    """

    real: RealVllm
    model: Path
    sources: Path
    lease_file: Path
    flags: VllmFlags
    _known: dict[str, dict[str, str]] = field(default_factory=dict)

    def play_many(self) -> None:
        """Plays what hypothesis draws. Raises AssertionError: they are not alike; the shortest such steps are shown."""

        @settings(max_examples=20, deadline=None)
        @given(sequences)
        def play(steps: list[Step]) -> None:
            asyncio.run(self.play(steps))

        play()

    async def play(self, steps: Sequence[Step]) -> None:
        """Plays the steps on all of them, the models being new. Raises AssertionError: they are not alike."""
        async with AsyncExitStack() as stack:
            real = await stack.enter_async_context(self._real())
            over_http = await stack.enter_async_context(self._over_http())
            simulation = await stack.enter_async_context(self._simulation())
            await play_alike({"real vLLM": real, "simulated engine": over_http, "simulation": simulation}, steps)

    @property
    def _options(self) -> Options:
        return Options(
            BASE_MODEL, str(self.model), max_loras=MAX_LORAS, plugin=self.flags.plugin, proves=self.flags.proves
        )

    @asynccontextmanager
    async def _real(self) -> AsyncIterator[Subject]:
        await self.real.ensure(self.flags)
        await self.real.clear()
        yield Subject(self.real.driver(), str(self.sources), over_http(self.real.url), self._known)
        await self.real.clear()

    @asynccontextmanager
    async def _over_http(self) -> AsyncIterator[Subject]:
        async with serving(SimulatedVllm(self._options)) as url:
            yield Subject(VllmEngine(url, deadlines=PATIENT), str(self.sources), over_http(url), {})

    @asynccontextmanager
    async def _simulation(self) -> AsyncIterator[Subject]:
        with mock.patch("tests.simulation.plugin.HIDE_SECONDS", float(self.flags.hide_seconds)):
            host = started(IN_STORE, self.lease_file, Socket() if self.flags.plugin else None)
        assert host.engine is not None
        host.engine.options = replace(self._options, plugin=False)  # the host has seen to that
        with playing(lambda: [host]):
            yield Subject(driver_of(host), STORE, inside(host), {})
