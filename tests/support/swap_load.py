"""Open-loop load over a few names while the versions behind them are swapped, and what came of each request."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx

from sidecar.engines.observed import Done, EngineGone, Outcome, Unknown
from sidecar.engines.vllm.driver import VllmEngine
from tests.support.engines import PATIENT, Asker
from tests.support.http_client import http_client
from tests.support.swap_verdict import Answer, Era, Sequenced, Verdict, judge
from tests.support.tiny import Tiny

PROMPTS = ("one two three", "The quick brown fox jumps over the lazy dog. " * 3, "hello", "LoRA")
TOKENS = 6
STREAM_TOKENS = 80
# Of all requests, each so-many-th is a long stream.
STREAM_EACH = 10
REQUEST_SECONDS = 300
REFERENCE = "reference"


def versions_of(tiny: Tiny) -> dict[str, tuple[str, str]]:
    """Two versions each of three names."""
    pairs = {"x": ("a", "b"), "y": ("c", "d"), "z": ("e", "f")}
    return {name: (tiny.adapter(one), tiny.adapter(other)) for name, (one, other) in pairs.items()}


class Swapper(Protocol):
    """Puts weights behind names."""

    async def begin(self, name: str, version: str) -> None:
        """Gives a name that nobody has its first version."""

    async def swap(self, name: str, old: str, new: str) -> Outcome:
        """Replaces a version; returns when no new request is of the old one."""


@dataclass
class ByDriver:
    """The sidecar's driver of one engine, with nothing around it."""

    driver: VllmEngine

    async def begin(self, name: str, version: str) -> None:
        """See `Swapper.begin`."""
        assert await self.driver.load(name, version, request_id="load") == Done()

    async def swap(self, name: str, old: str, new: str) -> Outcome:
        """See `Swapper.swap`."""
        return await self.driver.swap(name, old, new, request_id="load")


@asynccontextmanager
async def by_driver(url: str) -> AsyncIterator[ByDriver]:
    """A driver that has looked at its engine."""
    driver = VllmEngine(url, deadlines=PATIENT)
    try:
        await driver.observe()
        yield ByDriver(driver)
    finally:
        await driver.aclose()


@dataclass
class ByHand:
    """An unload and a load, as one would do with nothing but vLLM."""

    asker: Asker

    async def begin(self, name: str, version: str) -> None:
        """See `Swapper.begin`."""
        assert (await self.asker.load(name, version)).status_code == 200

    async def swap(self, name: str, old: str, new: str) -> Outcome:
        """See `Swapper.swap`."""
        try:
            assert (await self.asker.unload(name)).status_code == 200
            await self.begin(name, new)
        except httpx.TransportError as error:
            return EngineGone(f"{error!r}")
        return Done()


@asynccontextmanager
async def by_hand(url: str) -> AsyncIterator[ByHand]:
    """See `ByHand`."""
    asker = Asker(url)
    try:
        yield ByHand(asker)
    finally:
        await asker.client.aclose()


@dataclass
class SwapLoad:
    """Engines that serve the same, the two versions of each name, and what is seen.

    Attributes:
        urls: of the engines; each next request goes to the next of them.
        versions: paths of the versions of each name; the first is loaded.
        aimed: so many swaps, the first ones, begin as a request for the name is sent, and so while it is under way: of
            a fast engine's answers none might be across a swap otherwise.
        ended_by: what a swap came to that found the engine gone; there was none after it.
    """

    urls: Sequence[str]
    versions: Mapping[str, tuple[str, str]]
    aimed: int = 0
    answers: list[Answer] = field(default_factory=list)
    eras: list[Era] = field(default_factory=list)
    swap_seconds: list[float] = field(default_factory=list)
    ended_by: Outcome | None = None
    references: dict[tuple[str, str], Sequenced] = field(default_factory=dict)
    _begun: dict[str, asyncio.Event] = field(default_factory=dict)

    async def run(
        self, swapper: Swapper, *, swaps: int, requests_per_second: float, swaps_per_second: float
    ) -> Verdict:
        """Loads the engines from before the first swap until after the last one, and judges all answers."""
        # A connection that is kept may be closed by the server as the next request is sent on it.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with AsyncExitStack() as stack:
            clients = [http_client(base_url=url, timeout=REQUEST_SECONDS, limits=limits) for url in self.urls]
            for client in clients:
                await stack.enter_async_context(client)
            await self._refer(clients[0])
            for name, (first, _) in self.versions.items():
                await swapper.begin(name, first)
            is_over = asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._ask_on(clients, requests_per_second, is_over))
                await self._swap_on(swapper, swaps, 1 / swaps_per_second)
                is_over.set()
        return judge(self.answers, self.eras, self.references)

    async def _refer(self, client: httpx.AsyncClient) -> None:
        """What each version answers, asked of it alone, under a name that nobody swaps."""
        for path in itertools.chain.from_iterable(self.versions.values()):
            await _post(client, "load", {"lora_name": REFERENCE, "lora_path": path})
            asked = [self._asked(client, REFERENCE, prompt, is_stream=True) for prompt in PROMPTS]
            for answer in await asyncio.gather(*asked):
                assert answer.said is not None
                self.references[path, answer.prompt] = answer.said
            await _post(client, "unload", {"lora_name": REFERENCE})
        assert len({said.tokens for said in self.references.values()}) == len(self.references)

    async def _swap_on(self, swapper: Swapper, swaps: int, pause_seconds: float) -> None:
        """Swaps each name in turn, forth and back."""
        current = {name: (paths[0], float("-inf")) for name, paths in self.versions.items()}
        for number, name in zip(range(swaps), itertools.cycle(self.versions), strict=False):
            await asyncio.sleep(pause_seconds)
            if number < self.aimed:
                await self._sending(name)
            first, second = self.versions[name]
            old, new = (first, second) if number // len(self.versions) % 2 == 0 else (second, first)
            started = time.monotonic()
            outcome = await swapper.swap(name, old, new)
            ended = time.monotonic()
            if isinstance(outcome, EngineGone | Unknown):
                self.ended_by = outcome
                # Nobody knows whether it was carried out.
                self.eras += [Era(name, old, current[name][1], float("inf")), Era(name, new, started, float("inf"))]
                del current[name]
                break
            assert outcome == Done(), outcome
            self.swap_seconds.append(ended - started)
            self.eras.append(Era(name, old, current[name][1], ended))
            current[name] = (new, started)
        await asyncio.sleep(pause_seconds)
        self.eras += [Era(name, version, began, float("inf")) for name, (version, began) in current.items()]

    async def _sending(self, name: str) -> None:
        """Waits for the moment at which the next request for it is sent."""
        begun = self._begun[name] = asyncio.Event()
        await begun.wait()

    async def _ask_on(self, clients: Sequence[httpx.AsyncClient], rate: float, is_over: asyncio.Event) -> None:
        """Sends at a fixed rate, whether or not earlier requests were answered."""
        started = time.monotonic()
        engines = itertools.cycle(clients)
        async with asyncio.TaskGroup() as tasks:
            for number, name in enumerate(itertools.cycle(self.versions)):
                prompt = PROMPTS[number // len(self.versions) % len(PROMPTS)]
                tasks.create_task(self._ask(next(engines), name, prompt, is_stream=number % STREAM_EACH == 0))
                if (begun := self._begun.pop(name, None)) is not None:
                    begun.set()
                await asyncio.sleep(max(0.0, started + (number + 1) / rate - time.monotonic()))
                if is_over.is_set():
                    return

    async def _ask(self, client: httpx.AsyncClient, name: str, prompt: str, *, is_stream: bool) -> None:
        self.answers.append(await self._asked(client, name, prompt, is_stream=is_stream))

    async def _asked(self, client: httpx.AsyncClient, name: str, prompt: str, *, is_stream: bool) -> Answer:
        body: dict[str, Any] = {"model": name, "prompt": prompt, "temperature": 0, "logprobs": 1, "ignore_eos": True}
        body |= {"max_tokens": STREAM_TOKENS if is_stream else TOKENS, "return_tokens_as_token_ids": True}
        sent_at = time.monotonic()
        try:
            said = await (_streamed(client, body) if is_stream else _completed(client, body))
        except (httpx.HTTPError, _Failed) as error:
            failure = f"{error!r}"
            return Answer(name, prompt, sent_at, time.monotonic(), None, failure, is_stream=is_stream)
        return Answer(name, prompt, sent_at, time.monotonic(), said, is_stream=is_stream)


class _Failed(Exception):
    pass


async def _completed(client: httpx.AsyncClient, body: dict[str, Any]) -> Sequenced:
    reply = await client.post("/v1/completions", json=body)
    if reply.status_code != 200:
        raise _Failed(f"HTTP {reply.status_code}: {reply.text[:200]}")
    return _sequenced([reply.json()["choices"][0]["logprobs"]], body["max_tokens"])


async def _streamed(client: httpx.AsyncClient, body: dict[str, Any]) -> Sequenced:
    parts = []
    async with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as reply:
        if reply.status_code != 200:
            raise _Failed(f"HTTP {reply.status_code}")
        async for line in reply.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                raise _Failed(f"{event['error']}")
            parts += [choice["logprobs"] for choice in event["choices"] if choice["logprobs"]]
    return _sequenced(parts, body["max_tokens"])


def _sequenced(parts: Sequence[dict[str, Any]], expected: int) -> Sequenced:
    tokens = tuple(token for part in parts for token in part["tokens"])
    logprobs = tuple(logprob for part in parts for logprob in part["token_logprobs"])
    if len(tokens) != expected:
        raise _Failed(f"{len(tokens)} tokens of {expected}")
    return Sequenced(tokens, logprobs)


async def _post(client: httpx.AsyncClient, verb: str, body: dict[str, str]) -> None:
    reply = await client.post(f"/v1/{verb}_lora_adapter", json=body)
    assert reply.status_code == 200, reply.text
