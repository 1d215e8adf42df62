"""What the driver makes of an engine that does as it should."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from registry.model.names import PROOF_PREFIX
from sidecar.engines.observed import AlreadyThere, Done, NotThere, PathMissing, Refused
from sidecar.engines.vllm.driver import VllmEngine
from tests.support.engines import BASE_MODEL, PATIENT, VllmFlags
from tests.support.real_and_models import RealAndModels
from tests.support.waiting import eventually
from tests.support.wire import wire_to

# Longer than a block of the prefix cache, so that stale entries of it would show.
PROMPT = "The quick brown fox jumps over the lazy dog. " * 6


async def test_observe_tells_process_base_and_adapters(engine, asker, tiny):
    await asker.load("x", tiny.adapter("a"))
    observed = await engine.observe()
    assert observed.base_models == (BASE_MODEL,)
    assert dict(observed.adapters) == {"x": tiny.adapter("a")}
    assert (observed.facts.kind, observed.facts.version) == ("vllm", "0.32.0")
    assert observed.facts.incarnation == await engine.incarnation()
    await asker.text("x", "x", tokens=1)  # it tells its limit after the first request to an adapter
    assert (await engine.observe()).facts.limits.max_loras == 4
    assert await engine.turns()
    await eventually(lambda: is_free(engine))


async def test_load_and_unload(engine, tiny):
    a, b = tiny.adapter("a"), tiny.adapter("b")
    assert await engine.load("x", a, request_id="r1") == Done()
    assert await engine.load("x", a, request_id="r1") == AlreadyThere()
    assert await engine.load("x", b, request_id="r1") == AlreadyThere()
    assert dict((await engine.observe()).adapters) == {"x": a}
    assert await engine.unload("x", request_id="r2") == Done()
    assert await engine.unload("x", request_id="r2") == NotThere()
    assert dict((await engine.observe()).adapters) == {}


async def test_what_cannot_be_loaded(engine, tiny, tmp_path):
    assert isinstance(await engine.load("x", str(tmp_path / "missing"), request_id="r"), PathMissing)
    assert isinstance(await engine.load("x", tiny.changed("big", rank=32), request_id="r"), Refused)
    assert await engine.load(BASE_MODEL, tiny.adapter("a"), request_id="r") == AlreadyThere()  # a listing tells
    assert dict((await engine.observe()).adapters) == {}


async def is_free(engine) -> bool:
    return not await engine.is_busy()


async def test_swap_to_bad_files_leaves_everything_as_it_was(engine, asker, tiny, tmp_path):
    """R8 isolation: a bad new version costs its own name nothing."""
    a = tiny.adapter("a")
    await asker.load("x", a)
    before = await asker.text("x", PROMPT)
    assert isinstance(await engine.swap("x", a, str(tmp_path / "missing"), request_id="r"), PathMissing)
    assert isinstance(await engine.swap("x", a, tiny.changed("worse", rank=32), request_id="r"), Refused)
    assert await asker.adapters() == {"x": a}
    assert await asker.text("x", PROMPT) == before


async def test_swaps_forth_and_back_under_requests_never_mix_versions(engine, asker, tiny):
    """Fault 23: each answer is wholly of one version, and of the new one once it is done; then no stale cache."""
    a, b = tiny.adapter("a"), tiny.adapter("b")
    await asker.load("x", a)
    await asker.load("y", b)
    old, new = await asker.text("x", PROMPT), await asker.text("y", PROMPT)
    base = await asker.text(BASE_MODEL, PROMPT)
    assert len({old, new, base}) == 3
    swapped, seen = asyncio.Event(), []

    async def ask() -> None:
        is_last = False
        while not is_last:
            is_last = swapped.is_set()
            reply = await asker.complete("x", PROMPT)
            seen.append((is_last, reply.status_code, reply.json().get("choices", [{}])[0].get("text")))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(4):
            tasks.create_task(ask())
        assert await engine.swap("x", a, b, request_id="r") == Done()
        swapped.set()
    assert {(status, text) for _, status, text in seen} <= {(200, old), (200, new), (404, None)}
    assert {(status, text) for is_last, status, text in seen if is_last} == {(200, new)}
    assert await asker.adapters() == {"x": b, "y": b}
    assert await engine.swap("x", b, a, request_id="r") == Done()
    assert await asker.text("x", PROMPT) == old


async def test_a_swap_is_sent_in_one_piece_and_every_change_with_its_request_id(url, tiny):
    """Both requests are with the engine before it answers the first, which keeps the gap small."""
    a, b = tiny.adapter("a"), tiny.adapter("b")
    async with wire_to(url) as wire:
        engine = VllmEngine(wire.url, deadlines=PATIENT)
        await engine.load("x", a, request_id="req-load")
        await engine.swap("x", a, b, request_id="req-swap")
        await engine.unload("x", request_id="req-unload")
        await engine.aclose()
    _, _look, check, both, tidy, _ = wire.connections
    assert PROOF_PREFIX.encode() in check[0][1]
    assert PROOF_PREFIX.encode() in tidy[0][1]
    sent = [way for way, _ in both].index("from")
    before_first_reply = b"".join(chunk for _, chunk in both[:sent])
    unload, load = before_first_reply.index(b"/v1/unload_lora"), before_first_reply.index(b"/v1/load_lora")
    assert unload < load
    ids = [line.split(b": ")[1] for line in wire.sent().split(b"\r\n") if line.lower().startswith(b"x-request-id")]
    assert b"load_inplace" not in wire.sent(), "which mixes weights within a sequence"
    assert ids == [b"req-load", *[b"req-swap"] * 4, b"req-unload"]


async def test_an_adapter_answers_from_its_files_alone(asker, tiny, tmp_path):
    """The name and the path have no part in the answer, the weights have."""
    shutil.copytree(tiny.adapter("a"), tmp_path / "copy")
    await asker.load("x", tiny.adapter("a"))
    await asker.load("copied", str(tmp_path / "copy"))
    await asker.load("other", tiny.adapter("b"))
    base, x, copied, other = [await asker.text(name, PROMPT) for name in (BASE_MODEL, "x", "copied", "other")]
    assert x == copied
    assert len({base, x, other}) == 3


@pytest.mark.engine
async def test_real_vllm_answers_what_transformers_and_peft_compute(real, tiny):
    """The tiny model and its adapters mean the same to vLLM as to the reference, to 1e-4."""
    prompts = ["Hello", "one two three", PROMPT]
    reference = await asyncio.to_thread(tiny.reference, ["a", "b", "c"], prompts)
    assert set(reference) == {"", "a", "b", "c"}
    asker = real.asker()
    for name in ("a", "b", "c"):
        assert (await asker.load(name, tiny.adapter(name))).status_code == 200
    for name, answers in reference.items():
        for prompt, expected in answers.items():
            logprobs = (await asker.complete(name or BASE_MODEL, prompt)).json()["choices"][0]["logprobs"]
            assert logprobs["tokens"] == [f"token_id:{step['token']}" for step in expected]
            assert logprobs["token_logprobs"] == pytest.approx([step["logprob"] for step in expected], abs=1e-4)
    await asker.client.aclose()


@pytest.mark.engine
@pytest.mark.timeout(1200)  # a difference is made small, which takes up to five minutes more
def test_real_vllm_and_what_stands_for_it_say_the_same(real_vllm, tiny, sources, tmp_path):
    """R5, R9, R11: what is proven on simulated engines, over HTTP and in the simulation, is so on real vLLM.

    One step comes after another, so two things are never drawn: files that go while an engine may read them, and
    weights that change beside requests for their name (decision 15). Either may end the real engine, and so every
    test after this one; they are played by themselves, in test_files_pinned.py and
    e2e/test_plain_engine.py. Nor is a load in place, which the driver never asks for.
    """
    RealAndModels(real_vllm, tiny.model, sources, tmp_path / "leases", VllmFlags()).play_many()
