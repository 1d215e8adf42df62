"""What an adapter does is proven by short prompts, in real vLLM and in the simulated engine alike."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from registry.model.expected_answers import Expect
from registry.model.records import AdapterSpec
from sidecar.desired.placement import ref_of
from sidecar.engines.observed import Done, NoEffect, NotAsExpected
from sidecar.vllm_plugin.protocol import ExpectedAnswers, PromptedAnswer, expected_key, write_expected
from tests.support.adapters import permuted, without
from tests.support.engines import Asker
from tests.support.resolving import PlayedSidecar, found
from tests.support.rig import running
from tests.support.waiting import eventually
from tests.support.with_torch import loraplane

PROMPT = "The quick brown fox jumps over the lazy dog. " * 6


@pytest.fixture
def flags(plugin_flags):
    return plugin_flags


@pytest.mark.engine
async def test_real_vllm_proves_what_has_no_effect(real_vllm, flags, tiny, tmp_path):
    """R22 applied-whole, R5: a request is answered at once, and what has no effect is told to who polls; or before.

    One that changes nothing, though its lora_B are not 0; an untrained one may do so. The first on a fresh engine: on
    CPUs the base of a proof is answered with what the last slot has (decision 35).
    """
    await real_vllm.ensure(flags)
    asker, engine = real_vllm.asker(), real_vllm.driver()
    good, idle = tiny.adapter("a"), without("lora_A", Path(tiny.adapter("a")), tmp_path / "a")
    async with PlayedSidecar(flags.resolver) as sidecar:
        for name, path in (("good", good), ("idle", idle)):
            sidecar.answers[name] = found(path, prove=True)
            assert (await asker.complete(name, PROMPT)).status_code == 200

        async def is_told() -> bool:
            return (await engine.observe()).no_effect == {idle}

        await eventually(is_told)
    observed = await engine.observe()
    assert observed.facts.proves
    assert observed.adapters == {"good": good, "idle": idle}
    await asker.clear()
    paths = {half: without(half, Path(good), tmp_path / half) for half in ("lora_A", "lora_B")}
    assert await proof(asker, good) == "effect"
    assert await proof(asker, paths["lora_B"]) == "effect"
    assert await proof(asker, paths["lora_A"]) == "no_effect"
    assert await engine.prove(good, request_id="r") == Done()
    assert isinstance(await engine.prove(paths["lora_A"], request_id="r"), NoEffect)
    assert await engine.prove(str(tmp_path / "nowhere"), request_id="r") == Done()
    observed = await engine.observe()
    assert observed.adapters == {}
    assert observed.no_effect & {good, *paths.values()} == {paths["lora_A"]}
    await engine.aclose()
    await asker.client.aclose()


EXPECTED_PROMPTS = ([17, 101, 64], [20, 31, 7, 99, 105, 42, 8])


async def answered(asker: Asker, path: str, tolerance: float = 0.1) -> str:
    """What the engine itself answers with an adapter, as what is expected of it."""
    await asker.load("asked", path)
    found = []
    for prompt in EXPECTED_PROMPTS:
        body = {"model": "asked", "prompt": prompt, "max_tokens": 4, "temperature": 0, "logprobs": 1}
        reply = await asker.client.post("/v1/completions", json=body | {"return_tokens_as_token_ids": True})
        assert reply.status_code == 200, reply.text
        logprobs = reply.json()["choices"][0]["logprobs"]
        tokens = tuple(int(token.removeprefix("token_id:")) for token in logprobs["tokens"])
        found.append(PromptedAnswer(tuple(prompt), tokens, tuple(min(one, 0.0) for one in logprobs["token_logprobs"])))
    await asker.unload("asked")
    return write_expected(ExpectedAnswers(tuple(found), tolerance))


async def test_what_answers_otherwise_than_expected_is_refused_before_a_name_is_bound(engine, asker, tiny, tmp_path):
    """R22 applied-whole, R5: as the engine answers is right; with the rows of one lora_B in another order it is not."""
    facts = (await engine.observe()).facts
    assert (facts.proves, facts.expects) == (True, True)
    right, wrong = tiny.adapter("a"), permuted("q_proj.lora_B", Path(tiny.adapter("a")), tmp_path / "permuted")
    expect = await answered(asker, right)
    assert await proof(asker, right, expect) == "effect"
    assert await proof(asker, wrong, expect) == "not_as_expected"
    # It has an effect, and nothing else is asked of it here. Beside it vLLM's CPU build may apply it to the base, too.
    assert await proof(asker, wrong) in {"effect", "unknown"}
    assert await engine.prove(right, expect, request_id="r") == Done()
    refused = await engine.prove(wrong, expect, request_id="r")
    assert isinstance(refused, NotAsExpected)
    assert "above the tolerance of 0.1" in refused.message
    seen = await engine.observe()
    assert seen.adapters == {}
    assert seen.no_effect.isdisjoint({right, wrong})
    keys = {path: expected_key(path, expect) for path in (right, wrong)}
    assert {path for path, key in keys.items() if key in seen.as_expected} == {right}
    assert {path: seen.unexpected.get(key) for path, key in keys.items()} == {right: None, wrong: refused.message}


@pytest.mark.engine
async def test_real_vllm_answers_as_loraplane_expect_says(real, tiny):
    """R22 applied-whole: PEFT's own answers, within a thousandth; other adapters answer otherwise."""
    arguments = [tiny.adapter("a"), "--base-model", str(tiny.model), "--tolerance", "0.001", "--tokens", "16"]
    told = loraplane("-o", "json", "expect", *arguments).json
    assert (len(told["expect"]["answers"]), told["warnings"]) == (4, [])
    spec = AdapterSpec.model_validate({"source": {"uri": "file:///a"}, "expect": told["expect"]})
    expect = ref_of("p", "a", 1, spec).expect
    asker = real.asker()
    assert await proof(asker, tiny.adapter("a"), expect) == "effect"
    assert await proof(asker, tiny.adapter("b"), expect) == "not_as_expected"
    await asker.client.aclose()


async def test_a_sidecar_keeps_what_answers_otherwise_than_expected_from_its_name(rig, asker, tiny):
    """R22 applied-whole, R8: the old version answers on; what is served as expected is not warned of."""
    rig.sources.mkdir()
    shutil.copytree(tiny.adapter("a"), rig.sources / "right")
    permuted("q_proj.lora_B", rig.sources / "right", rig.sources / "wrong")
    expect = Expect.model_validate(json.loads(await answered(asker, str(rig.sources / "right"))))
    async with running(rig):
        rig.desire(1, expect=expect, x="right")
        await eventually(lambda: bool(rig.statuses) and rig.status.served.count == 1)
        served, before = await asker.adapters(), await asker.text("x", PROMPT)
        await eventually(lambda: "expect_unproven" not in {one.reason for one in rig.status.warnings})
        rig.desire(2, expect=expect, x="wrong", y="wrong")
        wanted = {"x": "not_as_expected", "y": "not_as_expected"}
        await eventually(lambda: rig.reasons() == wanted)
        assert (await asker.adapters(), await asker.text("x", PROMPT)) == (served, before)
        rig.desire(3, x="right", y="wrong")
        await eventually(lambda: rig.status.served.count == 2)


async def proof(asker: Asker, path: str, expect: str = "") -> str:
    """What the plugin says of an adapter once the engine, whose first answer takes long, has answered."""
    found = ""
    body = {"lora_path": path, **({"expect": expect} if expect else {})}

    async def has_come() -> bool:
        nonlocal found
        reply = await asker.client.post("/v1/loraplane/prove", json=body)
        # 504: the engine, in the same process, held the server up for so long that the plugin's own deadline passed.
        assert reply.status_code in {200, 504}, reply.text
        found = reply.json().get("proof", "later")
        return found != "later"

    await eventually(has_come)
    return found
