"""A fleet behind the real Envoy and pickers: its processes, and a load that knows which answers are right."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from registry.tools.devstack.processes import free_ports
from tests.support.admin import AdminProgram, admin_program, answers_ready
from tests.support.envoy import configuration, envoy
from tests.support.fleet import POOL, EtcdPlace, Sidecar, SimulatedEngine
from tests.support.http_client import http_client
from tests.support.processes import Program
from tests.support.waiting import eventually

PROMPT = {"prompt": "one two three", "max_tokens": 4, "temperature": 0}
_REQUEST_SECONDS = 60.0


@dataclass
class PickerProgram:
    """``loraplane-picker`` as a process on ports that survive restarts."""

    program: Program
    port: int
    http: str

    async def is_ready(self) -> bool:
        return await answers_ready(self.http)


def picker_program(folder: Path, name: str, admin: str, *flags: str) -> PickerProgram:
    """A picker of the pool, not yet started."""
    port, http_port = free_ports(2)
    arguments = ["--admin", admin, "--pool", POOL, "--listen", f"127.0.0.1:{port}", "--http", f"127.0.0.1:{http_port}"]
    program = Program("registry.picker.main", [*arguments, *flags], folder / f"picker-{name}.log")
    return PickerProgram(program, port, f"http://127.0.0.1:{http_port}")


@dataclass
class RoutedFleet:
    """What stands behind one URL."""

    url: str
    admin: AdminProgram
    pickers: list[PickerProgram]
    engines: Mapping[str, str]

    async def restart(self, program: Program, is_ready: Any, *, kill: bool = False) -> None:
        """Ends a process, and waits until the next one is ready."""
        await asyncio.to_thread(program.kill if kill else program.stop)
        program.start()
        await eventually(is_ready)

    async def text(self, engine: str, model: str) -> str:
        """The answer of one engine, asked without the gateway."""
        async with http_client(base_url=engine, timeout=_REQUEST_SECONDS) as client:
            answer = await client.post("/v1/completions", json={"model": model, **PROMPT})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["text"])

    async def texts(self, model: str) -> frozenset[str]:
        """The answers of all engines."""
        return frozenset(await asyncio.gather(*(self.text(one, model) for one in self.engines.values())))


@asynccontextmanager
async def routed_fleet(
    folder: Path, etcd: EtcdPlace, engines: Mapping[str, tuple[str, tuple[str, ...]]], sources: Path, *flags: str
) -> AsyncIterator[RoutedFleet]:
    """Admin service, two pickers and Envoy before engines, each by its URL and its sidecar's flags."""
    port, admin_port = free_ports(2)
    admin = admin_program(folder, etcd.endpoints, etcd.prefix)
    pickers = [picker_program(folder, name, admin.address, *flags) for name in ("a", "b")]
    fleet = RoutedFleet(f"http://127.0.0.1:{port}", admin, pickers, {name: url for name, (url, _) in engines.items()})
    async with AsyncExitStack() as stack:
        for program in (admin.program, *(one.program for one in pickers)):
            stack.callback(program.kill)
        admin.program.start()
        await eventually(admin.is_ready)
        for name, (url, extra) in engines.items():
            place = (folder / name, etcd.endpoints, etcd.prefix, url)
            sidecar = Sidecar(*place, replica=name, sources=sources, extra=extra)
            stack.callback(sidecar.program.kill)
            sidecar.program.start()
        for one in pickers:
            one.program.start()
        stack.enter_context(envoy(folder, configuration(port, admin_port, [one.port for one in pickers])))
        yield fleet


@asynccontextmanager
async def simulated(folder: Path, count: int, *flags: str) -> AsyncIterator[dict[str, tuple[str, tuple[str, ...]]]]:
    """Simulated engines by the names of their replicas."""
    engines = {f"s{number}": SimulatedEngine(folder / f"s{number}", *flags) for number in range(count)}
    try:
        await asyncio.gather(*(one.start() for one in engines.values()))
        yield {name: (one.url, ()) for name, one in engines.items()}
    finally:
        for one in engines.values():
            one.program.kill()


@dataclass
class RoutedLoad:
    """Requests at a steady pace, and what came of each.

    Attributes:
        url: of the gateway.
        right: by name, the texts that it may be answered with; a name without any is to be refused with 404.
    """

    url: str
    right: Mapping[str, frozenset[str]]
    asked: int = 0
    wrong: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    async def run(self, requests_per_second: float, stop: asyncio.Event) -> None:
        """Asks until it is told to stop, and waits for what is on its way."""
        limits = httpx.Limits(max_connections=200)
        async with http_client(base_url=self.url, timeout=_REQUEST_SECONDS, limits=limits) as client:
            tasks: set[asyncio.Task[None]] = set()
            for name in itertools.cycle(self.right):
                if stop.is_set():
                    break
                tasks.add(task := asyncio.create_task(self._ask(client, name)))
                task.add_done_callback(tasks.discard)
                await asyncio.sleep(1 / requests_per_second)
            await asyncio.gather(*tasks)

    async def _ask(self, client: httpx.AsyncClient, name: str) -> None:
        self.asked += 1
        try:
            answer = await client.post("/v1/completions", json={"model": name, **PROMPT})
        except httpx.HTTPError as error:
            self.failed.append(f"{name}: {error!r}")
            return
        texts = self.right[name]
        if answer.status_code != (200 if texts else 404):
            self.failed.append(f"{name}: {answer.status_code} {answer.text[:200]}")
        elif texts and answer.json()["choices"][0]["text"] not in texts:
            self.wrong.append(f"{name}: {answer.text[:200]}")
