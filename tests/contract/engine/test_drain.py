"""What engines say of their requests, from which a sidecar concludes that files may go."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from sidecar.engines.simulated.options import Options
from tests.support.engines import BASE_MODEL, while_it_runs
from tests.support.waiting import eventually

# Of one batch the engines of this suite mix as many adapters as this.
MAX_LORAS = 4
LONG = 250


@pytest.fixture
def simulated_options(tiny) -> Options:
    """Slow enough that a request is seen while it runs."""
    return Options(served_model_name=BASE_MODEL, model=str(tiny.model), token_seconds=0.01)


@contextlib.asynccontextmanager
async def asking(asker, *models: str, times: int = 1) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Long requests run, or wait, within the body, so many for each model one after another."""

    async def ask(model: str) -> None:
        for _ in range(times):
            assert (await asker.complete(model, "x", tokens=LONG)).status_code == 200

    tasks = [asyncio.create_task(ask(model)) for model in models]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def idle(engine):
    evidence = await engine.drain_evidence()
    return evidence if not evidence.running else None


async def test_a_running_request_shows_by_its_adapter_s_name_also_after_the_unload(engine, asker, tiny):
    """R7, fault 24: the name is all that is known; the weights may have been unloaded. Idle, it is clear of all."""
    await while_it_runs(lambda name: shows_after_its_unload(engine, asker, name, tiny.adapter("a")))
    evidence = await eventually(lambda: idle(engine))
    assert evidence.incarnation == await engine.incarnation()
    assert (evidence.waiting, evidence.running) == (0, 0)
    assert evidence.is_clear_of({"x"})
    assert evidence.is_clear_of(None)


async def shows_after_its_unload(engine, asker, name: str, path: str) -> bool:
    """False if its request ended too early for that."""
    await asker.load(name, path)
    async with asking(asker, name) as [request]:
        while not await shows(engine, name) and not request.done():
            pass
        await asker.unload(name)
        evidence = await engine.drain_evidence()
    if not evidence.adapters:
        return False
    assert evidence.adapters == {name}
    assert not evidence.is_clear_of({name})
    assert not evidence.is_clear_of(None)
    assert evidence.is_clear_of({"y"})
    return True


async def shows(engine, name: str) -> bool:
    return name in ((await engine.drain_evidence()).adapters or ())


async def test_a_request_that_has_to_wait_for_others_is_counted(engine, asker, tiny):
    """R7, fault 24: more adapters than one batch mixes; which of them wait is not said."""
    names = [f"x{number}" for number in range(MAX_LORAS + 1)]
    for name in names:
        await asker.load(name, tiny.adapter("a"))
    async with asking(asker, *names, times=1000):
        evidence = await eventually(lambda: crowded(engine))
        assert not evidence.is_clear_of({"y"})


async def crowded(engine):
    evidence = await engine.drain_evidence()
    return evidence if evidence.waiting else None


async def test_what_was_asked_of_an_engine_is_counted(engine, asker, tiny):
    """`loraplane top`: requests and tokens since its process began, and the last use where its plugin tells it."""
    await asker.load("x", tiny.adapter("a"))
    await engine.observe()
    before = await engine.activity()
    await asker.text("x", "x", tokens=3)

    async def counted():
        now = await engine.activity()
        assert (now.running, now.waiting) == (0, 0)
        assert now.requests == before.requests + 1
        assert now.generation_tokens == before.generation_tokens + 3
        assert now.prompt_tokens > before.prompt_tokens
        return now

    now = await eventually(counted)
    assert now.last_used is None or now.last_used["x"] < 600
    assert (now.adapter_requests is None) == (now.last_used is None)
    assert now.adapter_requests in (None, {"x": 1})
