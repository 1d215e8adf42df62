"""Names that are not loaded are asked for on the sidecar's socket, by real vLLM and by the simulated engine alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest

from sidecar.engines.observed import AlreadyThere, Done, EngineLimits
from sidecar.engines.vllm.driver import VllmEngine
from tests.support.engines import BASE_MODEL, PATIENT, Asker, while_it_runs
from tests.support.real_and_models import RealAndModels
from tests.support.resolving import PlayedSidecar, found, missing
from tests.support.waiting import eventually

_NUMBERS = count(1)
PROMPT = "The quick brown fox jumps over the lazy dog. " * 6


@pytest.fixture
def flags(plugin_flags):
    return plugin_flags


@pytest.fixture
def name() -> str:
    """A name that was not asked for before: a miss is remembered for a second."""
    return f"n{next(_NUMBERS)}"


@pytest.fixture
async def sidecar(socket) -> AsyncIterator[PlayedSidecar]:
    """Answers on `socket`."""
    async with PlayedSidecar(socket) as sidecar:
        yield sidecar


async def not_found(asker: Asker, name: str) -> bool:
    """True if a request for `name` gets vLLM's answer for a model that there is not; anything else is a failure."""
    reply = await asker.complete(name, PROMPT)
    if reply.status_code == 200:
        return False
    assert reply.status_code == 404, reply.text
    error = reply.json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("NotFoundError", "model", 404)
    assert error["message"] == f"The model `{name}` does not exist. Valid aliases: {BASE_MODEL}."
    return True


async def last_used(asker: Asker) -> dict[str, float]:
    ages: dict[str, float] = (await asker.client.get("/v1/loraplane/uses")).json()["last_used"]
    return ages


async def test_the_engine_says_that_it_resolves_and_what_it_can_hold(engine, url, flags):
    """The sidecar serves lazy adapters only where this is so. What was configured wins; of two ranks the lower."""
    facts = (await engine.observe()).facts
    assert facts.resolves
    assert facts.limits == EngineLimits(max_loras=4, max_cpu_loras=16, max_lora_rank=16)
    told = EngineLimits(max_cpu_loras=8, max_lora_rank=64, target_modules=("q_proj",))
    token = Path(flags.control_token_file)
    configured = VllmEngine(url, deadlines=PATIENT, limits=told, control_token_file=token)
    limits = (await configured.observe()).facts.limits
    assert limits == EngineLimits(max_loras=4, max_cpu_loras=8, max_lora_rank=16, target_modules=("q_proj",))
    await configured.aclose()


async def test_an_unknown_name_is_resolved_loaded_and_served(asker, sidecar, tiny):
    """R4 right-weights: the first answer is that of the files which the sidecar named."""
    a, b = tiny.adapter("a"), tiny.adapter("b")
    await asker.load("eager", a)
    expected = await asker.text("eager", PROMPT)
    sidecar.answers |= {"acme/sql": found(a), "acme/other": found(b)}
    assert await asker.text("acme/sql", PROMPT) == expected != await asker.text("acme/other", PROMPT)
    assert await asker.adapters() == {"eager": a, "acme/sql": a, "acme/other": b}
    assert sidecar.asked[0] == {"schema": 1, "name": "acme/sql", "base_model": str(tiny.model)}
    assert await asker.text("acme/sql", PROMPT) == expected
    assert len(sidecar.asked) == 2


async def test_a_miss_is_vllms_own_404(asker, sidecar):
    """R5 no-silent-base: whatever the sidecar says, the base model never answers for an adapter, and nothing is 500."""
    answers = (missing("unknown_adapter"), missing("staging"), b"garbage\n", b"", found("/nowhere"))
    for number, answer in enumerate(answers):
        sidecar.answers[f"miss{number}"] = answer
        assert await not_found(asker, f"miss{number}"), answer
    assert await asker.adapters() == {}
    asked = len(sidecar.asked)
    for hostile in ("n" * 201, "a\nb", "x" * 20_000):  # no record can have such a name
        assert await not_found(asker, hostile)
    assert len(sidecar.asked) == asked


async def test_no_sidecar_is_a_404_and_one_that_comes_is_asked(asker, socket, tiny, name):
    """R10: while the sidecar is away, what is loaded is served, and what is not is a clean miss."""
    await asker.load("y", tiny.adapter("b"))
    assert await not_found(asker, name)
    assert (await asker.complete("y", PROMPT)).status_code == 200
    async with PlayedSidecar(socket, {name: found(tiny.adapter("a"))}):
        await eventually(lambda: served(asker, name))


async def served(asker: Asker, name: str) -> bool:
    return not await not_found(asker, name)


async def test_a_sidecar_that_hangs_holds_up_nobody_else(asker, sidecar, tiny, name):
    """R8 isolation: other names, loaded or not, are served meanwhile, and the engine turns."""
    sidecar.answers |= {name: None, "fine": found(tiny.adapter("a"))}
    waiting = asyncio.create_task(asker.complete(name, PROMPT))
    await eventually(lambda: sidecar.asked)
    assert (await asker.complete("fine", PROMPT)).status_code == 200
    assert (await asker.complete(BASE_MODEL, PROMPT)).status_code == 200
    assert not waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_what_was_unloaded_is_asked_for_again(engine, asker, sidecar, tiny, name):
    """A removed adapter is refused at once, since the sidecar says so; one that is there comes back."""
    sidecar.answers[name] = found(tiny.adapter("a"))
    first = await asker.text(name, PROMPT)
    assert await engine.unload(name, request_id="r") == Done()
    assert await asker.text(name, PROMPT) == first
    sidecar.answers[name] = missing("unknown_adapter")
    assert await engine.unload(name, request_id="r") == Done()
    assert await not_found(asker, name)
    assert await asker.adapters() == {}


async def test_one_that_the_engine_refuses_is_400_and_leaves_nothing(asker, sidecar, tiny, name):
    refused = tiny.changed("worse", rank=32)
    sidecar.answers[name] = found(refused)
    reply = await asker.complete(name, PROMPT)
    assert (reply.status_code, reply.json()["error"]["type"]) == (400, "BadRequestError")
    assert await asker.adapters() == {}
    await eventually(lambda: is_forgotten(asker, refused))


async def is_forgotten(asker: Asker, path: str) -> bool:
    """Others may still lie in the memory of an engine that other tests have used."""
    rows = (await asker.client.get("/v1/loraplane/state")).json()["adapters"]
    return path not in {row["path"] for row in rows}


async def test_loads_and_unloads_of_a_name_that_is_being_resolved_wait_for_it(engine, asker, sidecar, tiny, name):
    """The deadlock rule: they end as soon as the sidecar has answered, each in its own way."""
    a, b = tiny.adapter("a"), tiny.adapter("b")
    sidecar.answers[name] = None
    request = asyncio.create_task(asker.complete(name, PROMPT))
    await eventually(lambda: sidecar.asked)
    load = asyncio.create_task(engine.load(name, b, request_id="r"))
    await asyncio.sleep(0)
    sidecar.held[name].set_result(found(a))
    assert (await request).status_code == 200
    assert isinstance(await load, AlreadyThere)
    assert await asker.adapters() == {name: a}
    sidecar.answers[name] = found(a)
    unloads = [engine.unload(name, request_id="r") for _ in range(2)]
    requests = [asker.complete(name, PROMPT) for _ in range(4)]
    done = await asyncio.gather(*unloads, *requests)
    assert Done() in done[:2]


async def test_requests_are_counted_by_adapter_as_they_end(engine, asker, sidecar, tiny, name):
    """Each once: also those that waited together for one question. None that is refused, or of the base."""
    sidecar.answers[name] = found(tiny.adapter("a"))
    replies = await asyncio.gather(*[asker.complete(name, PROMPT) for _ in range(12)])
    assert {reply.status_code for reply in replies} == {200}
    assert len(sidecar.asked) == 1
    await asker.load("loaded", tiny.adapter("b"))
    for model in ("loaded", BASE_MODEL, "loaded"):
        await asker.text(model, PROMPT)
    body = {"model": "loaded", "prompt": PROMPT, "max_tokens": 0}
    assert (await asker.client.post("/v1/completions", json=body)).status_code == 400

    async def all_counted() -> bool:
        assert (await engine.activity()).adapter_requests == {name: 12, "loaded": 2}
        return True

    await eventually(all_counted)
    await asker.unload("loaded")
    assert (await engine.activity()).adapter_requests == {name: 12}


async def test_last_use_is_of_the_last_request_and_not_of_a_look(engine, asker, sidecar, tiny, name):
    """What decides which lazy adapter makes room."""
    loaded = f"{name}-loaded"  # which had no use under that name before
    await asker.load(loaded, tiny.adapter("a"))
    sidecar.answers[name] = found(tiny.adapter("b"))
    await asker.text(name, PROMPT)
    first = await engine.observe()
    assert first.last_used.keys() & first.adapters.keys() == {name}
    second = await engine.observe()
    assert second.last_used[name] > first.last_used[name] > 0
    await asker.text(loaded, PROMPT)
    third = await engine.observe()
    assert third.last_used[name] > second.last_used[name]
    assert third.last_used[loaded] < third.last_used[name]
    rows = (await asker.client.get("/v1/loraplane/state")).json()["adapters"]
    assert {row["name"]: row["last_used"] for row in rows}[name] >= third.last_used[name]


async def test_a_request_that_runs_is_a_use(asker, sidecar, tiny):
    await while_it_runs(lambda name: is_used_while_it_runs(asker, name, tiny.adapter("a")))


async def is_used_while_it_runs(asker: Asker, name: str, path: str) -> bool:
    """True if a request was seen to be a use after it had come in."""
    await asker.load(name, path)
    body = {"model": name, "prompt": "x", "max_tokens": 250, "temperature": 0, "ignore_eos": True}
    running = asyncio.create_task(asker.client.post("/v1/completions", json=body))
    while name not in await last_used(asker):
        assert not running.done() or running.result().status_code == 200
    loop = asyncio.get_running_loop()
    begin, looks = loop.time(), []
    while not running.done():
        elapsed = loop.time() - begin
        looks.append((elapsed, (await last_used(asker))[name]))
    await asker.unload(name)
    return any(age < elapsed for elapsed, age in looks)


@pytest.mark.engine
@pytest.mark.timeout(1200)  # a difference is made small, which takes up to five minutes more
def test_real_vllm_and_what_stands_for_it_say_the_same(real_vllm, tiny, sources, tmp_path, flags):
    """R5, R9, R11, with the plugin; what is not drawn, and why, says the test of the same name in test_driver.py."""
    RealAndModels(real_vllm, tiny.model, sources, tmp_path / "leases", flags).play_many()
