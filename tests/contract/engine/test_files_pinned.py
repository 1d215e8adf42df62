"""Clean-up at full speed under an engine that has more adapters than it keeps in memory, and requests that queue."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import httpx
import pytest

from registry.tools.devstack.engine_environment import MAX_CPU_LORAS, MAX_LORAS
from sidecar.engines.simulated.app import serving
from sidecar.engines.simulated.engine import SimulatedVllm
from sidecar.engines.simulated.options import Options
from sidecar.loop import drain
from sidecar.loop.drain import DrainTracker
from tests.support.engines import BASE_MODEL, Asker
from tests.support.rig import Keeping, Rig, running
from tests.support.waiting import eventually

NAMES = [f"n{number}" for number in range(MAX_CPU_LORAS + 4)]
PROMPT = "The quick brown fox"
CALLERS, CHANGES = 4, 3
LONG = 300
EAGER = Keeping(grace_seconds=0.3, pause_seconds=0.05)


@pytest.fixture
def simulated_options(tiny) -> Options:
    return Options(
        served_model_name=BASE_MODEL, model=str(tiny.model), max_cpu_loras=MAX_CPU_LORAS, token_seconds=0.005
    )


@pytest.fixture(autouse=True)
def gap(monkeypatch) -> None:
    """Two answers of the engine may follow each other quickly."""
    monkeypatch.setattr(drain, "EVIDENCE_GAP_SECONDS", 0.05)


async def rig_of(folder: Path, tiny, url: str, keeping: Keeping) -> Rig:
    rig = Rig(folder, SimulatedVllm(), url, keeping)
    for name in NAMES:
        shutil.copytree(tiny.adapter(name), rig.sources / name)
    return rig


async def serve(rig: Rig, asker: Asker, revision: int, names: list[str]) -> None:
    """Desires these, and waits until the engine lists just them."""
    rig.desire(revision, **{name: name for name in names})
    await eventually(lambda: lists(asker, names))


async def lists(asker: Asker, names: list[str]) -> bool:
    return set(await asker.adapters()) == set(names)


@dataclass
class Traffic:
    """Requests to random adapters, and what came of them that must not."""

    asker: Asker
    expected: dict[str, str]
    wrong: list[str] = field(default_factory=list)
    right: int = 0

    async def caller(self, seed: int) -> None:
        clock = random.Random(seed)
        while True:
            name = clock.choice(NAMES)
            try:
                reply = await self.asker.complete(name, PROMPT)
            except httpx.TransportError as error:
                self.wrong.append(f"{name}: {error!r}")
                return
            self._judge(name, reply)

    def _judge(self, name: str, reply: httpx.Response) -> None:
        if reply.status_code == 404:  # unloaded at the moment
            return
        text = reply.json()["choices"][0]["text"] if reply.status_code == 200 else reply.text
        if text == self.expected[name]:
            self.right += 1
        else:
            self.wrong.append(f"{name}: HTTP {reply.status_code} {text!r}")


async def running_traffic(traffic: Traffic) -> AsyncIterator[None]:
    callers = [asyncio.create_task(traffic.caller(seed)) for seed in range(CALLERS)]
    yield
    for task in callers:
        task.cancel()
    await asyncio.gather(*callers, return_exceptions=True)


def staged(rig: Rig) -> int:
    return len(rig.store._layout.staged_ids())


async def changes(rig: Rig, asker: Asker, traffic: Traffic) -> None:
    """Some adapters go and come back, again and again, under requests."""
    clock = random.Random(1)
    for change in range(CHANGES):
        left = [name for name in NAMES if clock.random() < 0.5]
        await serve(rig, asker, 2 + change, left)
        before = traffic.right
        await eventually(lambda before=before: traffic.wrong or traffic.right > before)


async def test_the_engine_outlives_clean_up_and_answers_rightly(url, asker, tiny, tmp_path):
    """R7 files-pinned, R4 digest-true, fault 24: files go when they may, and no request ever misses them."""
    rig = await rig_of(tmp_path, tiny, url, EAGER)
    async with running(rig):
        await serve(rig, asker, 1, NAMES)
        traffic = Traffic(asker, {name: await asker.text(name, PROMPT) for name in NAMES})
        assert len(set(traffic.expected.values())) > len(NAMES) / 2
        async for _ in running_traffic(traffic):
            await changes(rig, asker, traffic)
        assert not traffic.wrong
        assert traffic.right
        await serve(rig, asker, 100, NAMES[:2])
        await eventually(lambda: staged(rig) == 2)
        assert await asker.text(NAMES[0], PROMPT) == traffic.expected[NAMES[0]]
    assert (await asker.client.get("/health")).status_code == 200


async def nothing(_path: Path) -> None:
    """Nothing happens."""


async def answer_to_a_queued_request(
    rig: Rig, asker: Asker, meanwhile: Callable[[Path], Awaitable[None]] = nothing
) -> httpx.Response:
    """The answer to a request that queued, behind as many adapters as a batch mixes, when its own was unloaded.

    `meanwhile` happens once it is, and before the request's turn comes; it is told where that adapter's files were.
    How long those in front of it take is up to the machine: where they were too short, others are sent.
    """
    for revision in range(1, 60, 3):
        if (reply := await unload_under_a_queued_request(rig, asker, revision, meanwhile)) is not None:
            return reply
    raise AssertionError("the requests in front were too short")


async def unload_under_a_queued_request(
    rig: Rig, asker: Asker, revision: int, meanwhile: Callable[[Path], Awaitable[None]]
) -> httpx.Response | None:
    """See `answer_to_a_queued_request`; None: its turn came before the unload."""
    await serve(rig, asker, revision, NAMES[:1])
    await serve(rig, asker, revision + 1, NAMES)  # the first one is in the engine's memory no more
    path = Path((await asker.adapters())[NAMES[0]])
    running = [asyncio.create_task(asker.complete(name, PROMPT, tokens=LONG)) for name in NAMES[1 : 1 + MAX_LORAS]]
    await eventually(lambda: counts(asker, "running", MAX_LORAS, unless=running))
    queued = asyncio.create_task(asker.complete(NAMES[0], PROMPT))
    await eventually(lambda: counts(asker, "waiting", 1, unless=[queued]))
    await serve(rig, asker, revision + 2, NAMES[1:])
    is_queued = await asker.requests("waiting") == 1
    if is_queued:
        await meanwhile(path)
    await asyncio.gather(*running)
    reply = await queued
    return reply if is_queued else None


async def counts(
    asker: Asker, kind: Literal["running", "waiting"], number: int, unless: list[asyncio.Task[httpx.Response]]
) -> bool:
    """True also if one of those that should be counted has ended."""
    return await asker.requests(kind) == number or any(task.done() for task in unless)


async def test_a_request_that_queued_when_its_adapter_was_unloaded_is_answered(url, asker, tiny, tmp_path):
    """R7 files-pinned, fault 24: nobody can see whose request waits; the files go when it is done."""
    rig = await rig_of(tmp_path, tiny, url, EAGER)
    async with running(rig):
        reply = await answer_to_a_queued_request(rig, asker)
        assert reply.status_code == 200, reply.text
        await eventually(lambda: staged(rig) == len(NAMES) - 1)
    assert (await asker.client.get("/health")).status_code == 200


class Impatient(DrainTracker):
    """Lets go of what is not listed at the moment."""

    def is_due(self, now: float) -> bool:
        return True

    def proven(self) -> frozenset[str]:
        return frozenset(self._idle)


async def test_clean_up_that_does_not_wait_kills_the_engine(simulated, tiny, tmp_path):
    """R7: the check above can fail. The simulated engine dies as vLLM does when a step misses an adapter's files."""
    async with serving(simulated) as url:
        asker, rig = Asker(url), await rig_of(tmp_path, tiny, url, Keeping(0.0, 0.02, Impatient))

        async def files_go(path: Path) -> None:
            await eventually(lambda: not path.exists())

        async with running(rig):
            # Whoever serves it ends it then, and may be quicker than its answers.
            with suppress(httpx.TransportError):
                reply = await answer_to_a_queued_request(rig, asker, files_go)
                assert reply.status_code == 500
        assert simulated.dead.is_set()
        await asker.client.aclose()
