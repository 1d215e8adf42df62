"""Clients of three routers, at a steady pace: by one URL, by polls of engines as llm-d's router has them, by LiteLLM.

Each repeats what failed twice, after half a second and after one, as OpenAI's client does by itself; and other than
that, also a 404: an engine that came back before anybody missed it says so of what it has not loaded yet.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx

from tests.support.http_client import http_client
from tests.support.routed_answers import Answer
from tests.support.waiting import eventually

PROJECT = Path(__file__).parents[2]
LITELLM = PROJECT / ".venv-litellm/bin/python"
PAUSES = (0.5, 1.0)
_SECONDS = 60.0
_PROMPT = {"prompt": "one two three", "max_tokens": 4, "temperature": 0}


class Asked(Protocol):
    """A router, asked for one completion."""

    async def text(self, name: str) -> str:
        """The text. Raises httpx.HTTPError: there is none."""
        ...


@dataclass
class OneUrl:
    """A gateway that decides itself."""

    client: httpx.AsyncClient
    headers: dict[str, str] = field(default_factory=dict)

    async def text(self, name: str) -> str:
        """See `Asked`."""
        answer = await self.client.post("/v1/completions", json={"model": name, **_PROMPT}, headers=self.headers)
        if answer.status_code != 200:
            raise httpx.HTTPError(f"{answer.status_code} {answer.text[:200]}")
        return str(answer.json()["choices"][0]["text"])


@dataclass
class Polling:
    """A router that knows what engines listed at its last poll; what does not connect is tried at another of them."""

    clients: list[httpx.AsyncClient]
    every_seconds: float
    listed: dict[int, frozenset[str]] = field(default_factory=dict)
    dice: random.Random = field(default_factory=lambda: random.Random(0))

    async def poll(self) -> None:
        """Asks all engines again and again; one that does not answer lists nothing."""
        while True:
            found = await asyncio.gather(*(self._listing(one) for one in self.clients))
            self.listed = dict(enumerate(found))
            await asyncio.sleep(self.every_seconds)

    async def _listing(self, client: httpx.AsyncClient) -> frozenset[str]:
        try:
            cards = (await client.get("/v1/models")).json()["data"]
        except httpx.HTTPError:
            return frozenset()
        return frozenset(card["id"] for card in cards if card.get("parent"))

    async def text(self, name: str) -> str:
        """See `Asked`."""
        found = [number for number, names in self.listed.items() if name in names]
        self.dice.shuffle(found)
        for number in found:
            try:
                return await OneUrl(self.clients[number]).text(name)
            except httpx.ConnectError:
                continue
        raise httpx.HTTPError("503: no endpoint that lists it answers")


async def ask(router: str, asked: Asked, name: str) -> Answer:
    """One request, with its repetitions."""
    began, error = time.monotonic(), ""
    for tries, pause in enumerate((*PAUSES, 0.0), start=1):
        try:
            text = await asked.text(name)
        except httpx.HTTPError as failure:
            error = str(failure) or repr(failure)
            await asyncio.sleep(pause)
        else:
            return Answer(router, name, began, time.monotonic(), text, tries=tries, before=error)
    return Answer(router, name, began, time.monotonic(), error=error, tries=len(PAUSES) + 1)


async def steady(router: str, asked: Asked, names: Sequence[str], rate: float, stop: asyncio.Event) -> list[Answer]:
    """Asks for each name in turn until it is told to stop, and waits for what is on its way."""
    tasks: list[asyncio.Task[Answer]] = []
    for name in itertools.cycle(names):
        if stop.is_set():
            break
        tasks.append(asyncio.create_task(ask(router, asked, name)))
        await asyncio.sleep(1 / rate)
    return await asyncio.gather(*tasks)


async def by_url(
    router: str, url: str, names: Sequence[str], rate: float, stop: asyncio.Event, **headers: str
) -> list[Answer]:
    """Requests by one URL."""
    async with http_client(base_url=url, timeout=_SECONDS, limits=httpx.Limits(max_connections=200)) as client:
        asked = OneUrl(client, headers)
        first = await ask(router, asked, names[0])  # alone: LiteLLM's proxy imports much for it
        return [first, *await steady(router, asked, names, rate, stop)]


async def by_polls(
    engines: Sequence[str], every_seconds: float, names: Sequence[str], rate: float, stop: asyncio.Event
) -> list[Answer]:
    """Requests by a router that polls engines."""
    polling = Polling([http_client(base_url=one, timeout=_SECONDS) for one in engines], every_seconds)
    polls = asyncio.create_task(polling.poll())
    try:
        await eventually(lambda: frozenset(names) <= frozenset().union(*polling.listed.values()))
        return await steady("polls", polling, names, rate, stop)
    finally:
        polls.cancel()
        for one in polling.clients:
            await one.aclose()


@asynccontextmanager
async def litellm_router(
    admin: str, pool: str, engines: Sequence[str], names: Sequence[str], rate: float
) -> AsyncIterator[Callable[[], Awaitable[list[Answer]]]]:
    """Requests through LiteLLM's own Router, which have begun; what it gives ends them, and tells what came of each."""
    told: dict[str, Any] = {"admin": admin, "pool": pool, "engines": list(engines), "models": list(names)}
    told |= {"rate": rate, "pauses": PAUSES, **_PROMPT}
    process = await asyncio.create_subprocess_exec(
        str(LITELLM),
        *("-m", "tests.support.litellm_traffic", json.dumps(told)),
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        stdin=PIPE,
        stdout=PIPE,
        stderr=DEVNULL,  # of sessions that it does not close
        limit=1 << 24,
    )

    async def ended() -> list[Answer]:
        output, _ = await process.communicate(b"")  # and the end of its input
        return [Answer("litellm", **one) for one in json.loads(output.splitlines()[-1])["answers"]]

    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"begun\n"
        yield ended
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
