"""Open-loop load over a few names while the versions behind them are swapped, and what came of each request."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from sidecar.engines.vllm import VllmEngine
from sidecar.observed import Done, Gone, Outcome, Unknown
from tests.support.swap_verdict import Answer, Era, Sequenced, Verdict, judge

PROMPTS = ("one two three", "The quick brown fox jumps over the lazy dog. " * 3, "hello", "LoRA")
TOKENS = 6
STREAM_TOKENS = 80
# Of all requests, each so-many-th is a long stream.
STREAM_EACH = 10
REQUEST_SECONDS = 120


@dataclass
class SwapLoad:
    """One engine, the two versions of each name, and what is seen.

    Attributes:
        url: of the engine.
        versions: paths of the versions of each name; the first is loaded.
        ended_by: what a swap came to that found the engine gone; there was none after it.
    """

    url: str
    versions: Mapping[str, tuple[str, str]]
    answers: list[Answer] = field(default_factory=list)
    eras: list[Era] = field(default_factory=list)
    swap_seconds: list[float] = field(default_factory=list)
    ended_by: Outcome | None = None
    references: dict[tuple[str, str], Sequenced] = field(default_factory=dict)

    async def run(self, *, swaps: int, requests_per_second: float, swaps_per_second: float) -> Verdict:
        """Loads the engine from before the first swap until after the last one, and judges all answers."""
        limits = httpx.Limits(max_connections=500)
        async with httpx.AsyncClient(base_url=self.url, timeout=REQUEST_SECONDS, limits=limits) as client:
            await self._refer(client)
            driver = VllmEngine(self.url)
            await driver.observe()
            is_over = asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._ask_on(client, requests_per_second, is_over))
                await self._swap_on(driver, swaps, 1 / swaps_per_second)
                is_over.set()
            await driver.aclose()
        return judge(self.answers, self.eras, self.references)

    async def _refer(self, client: httpx.AsyncClient) -> None:
        """What each version answers, asked of it alone; then its name gets its first version."""
        for name, paths in self.versions.items():
            for path in reversed(paths):
                await _post(client, "load", {"lora_name": name, "lora_path": path})
                for prompt in PROMPTS:
                    said = (await self._asked(client, name, prompt, is_stream=True)).said
                    assert said is not None
                    self.references[path, prompt] = said
                if path != paths[0]:
                    await _post(client, "unload", {"lora_name": name})
        assert len({said.tokens for said in self.references.values()}) == len(self.references)

    async def _swap_on(self, driver: VllmEngine, swaps: int, pause_seconds: float) -> None:
        """Swaps each name in turn, forth and back."""
        current = {name: (paths[0], float("-inf")) for name, paths in self.versions.items()}
        for number, name in zip(range(swaps), itertools.cycle(self.versions), strict=False):
            await asyncio.sleep(pause_seconds)
            first, second = self.versions[name]
            old, new = (first, second) if number // len(self.versions) % 2 == 0 else (second, first)
            started = time.monotonic()
            outcome = await driver.swap(name, old, new, request_id="load")
            ended = time.monotonic()
            if isinstance(outcome, Gone | Unknown):
                self.ended_by = outcome
                current[name] = (new, started)
                break
            assert outcome == Done(), outcome
            self.swap_seconds.append(ended - started)
            self.eras.append(Era(name, old, current[name][1], ended))
            current[name] = (new, started)
        await asyncio.sleep(pause_seconds)
        self.eras += [Era(name, version, began, float("inf")) for name, (version, began) in current.items()]

    async def _ask_on(self, client: httpx.AsyncClient, rate: float, is_over: asyncio.Event) -> None:
        """Sends at a fixed rate, whether or not earlier requests were answered."""
        started = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for number, name in enumerate(itertools.cycle(self.versions)):
                prompt = PROMPTS[number // len(self.versions) % len(PROMPTS)]
                tasks.create_task(self._ask(client, name, prompt, is_stream=number % STREAM_EACH == 0))
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
