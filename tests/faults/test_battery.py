"""Bounds of a replica whose engine misbehaves in every way that its HTTP allows, however long, whenever it begins."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from registry.tools.devstack.processes import free_ports
from tests.faults.battery import MOMENTS, PAGE, SECONDS, broken, play, table
from tests.faults.behaviours import BEHAVIOURS, BY_NAME, Behaviour
from tests.faults.strange_engine import HEALTH, ORDER
from tests.support.fleet import Hand, Sidecar
from tests.support.http_client import http_client
from tests.support.waiting import eventually

# Else each behaviour is played until it has struck: which moment and length go with which differs from one to the next.
ALL = bool(os.environ.get("LORAPLANE_TEST_SEARCH"))
# Nobody asks for these at the start of a replica.
LATER = ("unloads: ", "health: ", "completions: ", "listing: ", "loads: out of memory for one")
REAL = ("everything: HTTP 502", "listing: no JSON", "everything: reset")


def courses(number: int, name: str) -> list[tuple[str, float]]:
    """Moments and lengths that may be played of a behaviour, in their order."""
    places = range(number, number + len(MOMENTS))
    pairs = [(moment, seconds) for moment in MOMENTS for seconds in SECONDS]
    some = [(MOMENTS[one % len(MOMENTS)], SECONDS[one // 3 % len(SECONDS)]) for one in places]
    return pairs if ALL else sorted(some, key=lambda pair: pair[0] == "boot" and name.startswith(LATER))


@pytest.mark.parametrize(("number", "behaviour"), [*enumerate(BEHAVIOURS)], ids=[one.name for one in BEHAVIOURS])
def test_a_replica_heals_and_says_what_is_so(number: int, behaviour: Behaviour):
    """R17 heals, R18 readiness-follows, R3, R9, R11: within the bounds of docs/faults.md, whatever the engine does."""
    has_struck = False
    for moment, seconds in courses(number, behaviour.name):
        if ALL or not has_struck:
            course = play(behaviour, moment, seconds)
            has_struck = has_struck or course.struck
            assert broken(behaviour, seconds, course) == [], f"{behaviour.name}, at {moment}, for {seconds:g} s"
    assert has_struck or behaviour.name.startswith(LATER), "it befell no request, and says nothing"


def test_a_pause_that_no_probe_saw_holds_nothing_up():
    """R17: probes come once a second, and a look that finds the engine asleep may be the only one that does."""
    assert broken(BY_NAME["sleeps"], 0.1, play(BY_NAME["sleeps"], "change", 0.1)) == []


def test_there_are_enough_and_the_page_has_their_bounds():
    assert len({one.name for one in BEHAVIOURS}) == len(BEHAVIOURS) >= 40
    assert table() in PAGE.read_text(), "make docs writes it"


class Strange:
    """The strange engine as a process."""

    def __init__(self, log: Path) -> None:
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        with log.open("wb") as errors:
            command = [sys.executable, "-m", "tests.faults.behaviours", str(port)]
            self._process = subprocess.Popen(command, stderr=errors)

    async def answers(self) -> bool:
        try:
            async with http_client(base_url=self.url, timeout=60) as client:
                return (await client.get(HEALTH)).status_code == 200
        except httpx.TransportError:
            return False

    async def behave(self, name: str = "") -> None:
        async with http_client(base_url=self.url, timeout=60) as client:
            (await client.post(ORDER, json={"name": name})).raise_for_status()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


async def test_real_processes_come_to_the_same(one, hand: Hand, tmp_path):
    """R17, R18: what virtual time shows of a replica is so over sockets, too."""
    engine = Strange(tmp_path / "engine.log")
    sidecar = Sidecar(tmp_path, one.endpoints, hand.keys.prefix, engine.url)

    async def serves(count: int) -> bool:
        said = await sidecar.status()
        return bool(said["ready"]) and said["served"]["count"] == count

    async def is_told() -> bool:
        return not await sidecar.is_ready()

    try:
        await eventually(engine.answers, timeout_seconds=120)
        await hand.pool()
        await hand.put(hand.record("a1", "v1"))
        sidecar.program.start()
        await eventually(lambda: serves(1), timeout_seconds=120)
        for count, name in enumerate(REAL, start=2):
            await engine.behave(name)
            await hand.put(hand.record(f"a{count}", f"v{count}"))
            await eventually(is_told, timeout_seconds=120)
            await engine.behave()
            await eventually(lambda count=count: serves(count), timeout_seconds=120)  # type: ignore[misc]
    finally:
        sidecar.program.kill()
        await asyncio.to_thread(engine.kill)
