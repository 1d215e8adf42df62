"""Pods of a day: simulated engines with their sidecars, killed, wiped and replaced as a scheduler does it."""

from __future__ import annotations

import asyncio
import random
import re
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.support.checkers.replicas import EngineListing
from tests.support.fleet import Sidecar, SimulatedEngine
from tests.support.http_client import http_client
from tests.support.waiting import eventually

# As a Deployment names its pods: letters and digits that make no words.
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
LOOK_SECONDS = 5.0
# One process of the engine and one of the sidecar.
Spell = tuple[int, int]


@dataclass
class Pod:
    """An engine with its sidecar, under a name that does not come back once it is replaced."""

    name: str
    folder: Path
    engine: SimulatedEngine
    sidecar: Sidecar
    socket: Path

    @property
    def spell(self) -> Spell:
        """Which processes these are; another one has listed and told nothing yet."""
        return self.engine.program.pid, self.sidecar.program.pid

    async def start(self) -> None:
        await self.engine.start()
        self.sidecar.program.start()

    async def restart_engine(self) -> None:
        """Kill -9; it comes back with nothing loaded."""
        self.engine.program.kill()
        await self.engine.start()

    def end(self) -> None:
        """Ends all of it at once, as with its node."""
        self.sidecar.program.kill()
        self.engine.program.kill()
        shutil.rmtree(self.socket.parent, ignore_errors=True)

    def wipe(self) -> None:
        """Removes its store, below the feet of its engine."""
        shutil.rmtree(self.sidecar.store, ignore_errors=True)

    async def listing(self, client: httpx.AsyncClient) -> dict[str, str]:
        """What its engine lists, by name; empty while it does not answer."""
        try:
            cards = (await client.get(f"{self.engine.url}/v1/models")).json()["data"]
        except (httpx.TransportError, ValueError, KeyError):
            return {}
        return {card["id"]: card["root"] for card in cards if card.get("parent")}

    async def ask(self, client: httpx.AsyncClient, model: str) -> None:
        """A request for an adapter, lazy ones too; whatever comes of it."""
        try:
            await client.post(
                f"{self.engine.url}/v1/completions", json={"model": model, "prompt": "a", "max_tokens": 1}
            )
        except httpx.TransportError:
            return

    async def look(self, client: httpx.AsyncClient) -> EngineListing | None:
        """One look as docs/operations.md has it; None: the status changed meanwhile, or nobody answered."""
        at, before = time.time(), await self._status(client)
        adapters, began = await self.listing(client), await self._began(client)
        after = await self._status(client)
        same = ("observed_revision", "engine")
        if not before or not after or any(before[key] != after[key] for key in same):
            return None
        if before["engine"]["incarnation"] != began:
            return None  # its sidecar has not seen yet that it is another process
        is_settled = before["ready"] and not before["stale"] and not before["pending"] and not before["omitted"]
        return EngineListing(
            replica=self.name,
            at=at,
            revision=before["observed_revision"],
            incarnation=before["engine"]["incarnation"],
            adapters=adapters,
            unservable=[one["name"] for one in before["failed"]],
            removing=before.get("removing", 0),
            settled=before == after and is_settled,
        )

    async def _began(self, client: httpx.AsyncClient) -> str:
        """When its engine's process began, as the engine writes it; empty while it does not answer."""
        try:
            text = (await client.get(f"{self.engine.url}/metrics")).text
        except httpx.TransportError:
            return ""
        found = re.search(r"^process_start_time_seconds (\S+)$", text, re.MULTILINE)
        return found[1] if found else ""

    async def _status(self, client: httpx.AsyncClient) -> dict[str, Any]:
        try:
            reply = await client.get(f"{self.sidecar.http}/status")
        except httpx.TransportError:
            return {}
        return reply.json() if reply.status_code == 200 else {}


# What every engine lists at one moment: by pod the processes that it is of, and its names with their paths.
Listings = dict[str, tuple[Spell, dict[str, str]]]


@dataclass
class Pods:
    """All pods that there are, and those that there were.

    `logs`: of the sidecars, by file: what is gone has left its own. `flags`: of every sidecar.
    """

    folder: Path
    etcd: tuple[str, ...]
    prefix: str
    sources: Path
    clock: random.Random
    living: list[Pod] = field(default_factory=list)
    logs: list[Path] = field(default_factory=list)
    flags: tuple[str, ...] = ()

    async def begin(self, count: int) -> None:
        """Starts so many, in two zones."""
        for number in range(count):
            self.living.append(self._made("ab"[number % 2]))
        await asyncio.gather(*(pod.start() for pod in self.living))
        await eventually(self.are_ready, timeout_seconds=120)

    async def are_ready(self) -> bool:
        return all(await asyncio.gather(*(pod.sidecar.is_ready() for pod in self.living)))

    async def replace(self, pod: Pod) -> None:
        """Its node goes, and another pod comes, with another name and an empty disk."""
        pod.end()
        self.living.remove(pod)
        zone = pod.sidecar.program.arguments[-1].removeprefix("zone=")
        other = self._made(zone)
        await other.start()
        self.living.append(other)

    def end(self) -> None:
        for pod in self.living:
            pod.end()

    async def listings(self, client: httpx.AsyncClient) -> Listings:
        """What is listed now, by those whose processes were the same before and after."""
        pods = list(self.living)
        spells = {pod.name: pod.spell for pod in pods}
        told = await asyncio.gather(*(pod.listing(client) for pod in pods))
        pairs = zip(pods, told, strict=True)
        return {pod.name: (pod.spell, names) for pod, names in pairs if pod.spell == spells[pod.name]}

    def _made(self, zone: str) -> Pod:
        parts = ("".join(self.clock.choices(_LETTERS, k=count)) for count in (10, 5))
        name = "vllm-" + "-".join(parts)
        folder = self.folder / name
        folder.mkdir()
        # The kernel wants the path of a socket short.
        socket = Path(tempfile.mkdtemp(prefix="lp-")) / "s"
        engine = SimulatedEngine(folder, "--max-cpu-loras", "32", resolver=socket)
        extra = [*self.flags, "--resolver-socket", str(socket), "--labels", f"zone={zone}"]
        sidecar = Sidecar(folder, self.etcd, self.prefix, engine.url, replica=name, sources=self.sources, extra=extra)
        self.logs.append(sidecar.program.log)
        return Pod(name, folder, engine, sidecar, socket)


async def looks(pods: Pods, taken: list[EngineListing], stop: asyncio.Event) -> None:
    """Looks at each engine now and then, until it is stopped."""
    async with http_client(timeout=LOOK_SECONDS) as client:
        while not stop.is_set():
            for pod in list(pods.living):
                listing = await pod.look(client)
                if listing is not None:
                    taken.append(listing)
                await asyncio.sleep(0.2)
