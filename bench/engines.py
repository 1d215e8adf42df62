"""Simulated engines in a process of their own, and when each of them received which call."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal

import httpx

from bench.figures import check

START_SECONDS = 30
LOOKS = 10
Kind = Literal["load", "unload"]


class Engines:
    """What the engines' process tells. Times are in monotonic seconds, which all processes of a machine share."""

    def __init__(self, process: asyncio.subprocess.Process, urls: list[str]) -> None:
        self.urls = urls
        self._process = process
        self._received: defaultdict[tuple[str, str], dict[int, float]] = defaultdict(dict)
        self._emptied: list[float] = []
        self._news = asyncio.Event()

    async def follow(self) -> None:
        """Takes in what the process tells until it ends."""
        output = self._process.stdout
        assert output is not None
        while line := await output.readline():
            self._take(json.loads(line))
            self._news.set()

    def _take(self, told: dict[str, Any]) -> None:
        if "emptied" in told:
            self._emptied.append(told["emptied"])
            return
        # What counts is the newest call: a name may be loaded and unloaded several times.
        self._received[told["kind"], told["name"]][told["engine"]] = told["at"]

    def forget(self) -> None:
        """Drops what was received so far."""
        self._received.clear()

    async def received(self, kind: Kind, names: Iterable[str], *, timeout_seconds: float = 30) -> list[float]:
        """When each engine received such a call for each of the names; waits until all have."""
        missing = [(kind, name) for name in names]
        times: list[float] = []
        async with asyncio.timeout(timeout_seconds):
            for key in missing:
                while len(self._received[key]) < len(self.urls):
                    self._news.clear()
                    await self._news.wait()
                times += self._received[key].values()
        return times

    async def empty(self) -> float:
        """Makes all of them look as if they had just been started; returns when that was."""
        known = len(self._emptied)
        assert self._process.stdin is not None
        self._process.stdin.write(b"empty\n")
        async with asyncio.timeout(START_SECONDS):
            while len(self._emptied) == known:
                self._news.clear()
                await self._news.wait()
        return self._emptied[-1]

    async def check_listed(self, names: Iterable[str]) -> None:
        """Raises NotMeasured unless every engine soon lists all of the names."""
        wanted = set(names)
        async with httpx.AsyncClient(timeout=30) as client:

            async def missing() -> set[str]:
                replies = [(await client.get(f"{url}/v1/models")).json()["data"] for url in self.urls]
                return set().union(*(wanted - {card["id"] for card in cards} for cards in replies))

            for _ in range(LOOKS):
                if not await missing():
                    return
                await asyncio.sleep(1)
            check(False, f"not every engine lists {sorted(await missing())[:5]}")  # noqa: FBT003


@asynccontextmanager
async def engines(count: int) -> AsyncIterator[Engines]:
    """Starts so many engines in one process."""
    pipe = asyncio.subprocess.PIPE
    command = [sys.executable, "-m", "bench.engine_host", str(count)]
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_SECONDS):
            host = Engines(process, json.loads(await process.stdout.readline())["urls"])
        task = asyncio.create_task(host.follow())
        yield host
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    finally:
        process.stdin.close()
        await process.wait()
