"""TRL's own GRPO trainer, whose rollouts ask two real vLLM for what its callback published: docs/examples/grpo.py.

STEPS says how many; `make training` plays it. TRL is in an environment of its own, and the engines in another.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from loraplane import AsyncRegistry
from registry.v1 import registry_pb2 as pb
from tests.e2e.test_fleet_swaps import fleet
from tests.support.admin import admin_inside, wait_ready
from tests.support.engines import BASE_MODEL
from tests.support.fleet import POOL

PROJECT = Path(__file__).parents[2]
PYTHON = PROJECT / ".venv-training/bin/python"
STEPS = int(os.environ.get("STEPS", "4"))
RUN_SECONDS = 900
NAME = "acme/policy"
# What float32 on another's kernels may differ in the logprob of a token; a step of training changes far more.
CLOSE = 1e-3

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not os.environ.get("TRAINING"), reason="make training plays it"),
    pytest.mark.timeout(1800),
]


async def in_training(*arguments: str) -> str:
    """Output of a program in that environment. AssertionError: it failed."""
    # No variables of a hub, and no network: everything is here.
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    ran = await asyncio.create_subprocess_exec(
        *(str(PYTHON), *arguments), cwd=PROJECT, env=environment, stdout=asyncio.subprocess.PIPE, stderr=-1
    )
    try:
        out, error = await asyncio.wait_for(ran.communicate(), RUN_SECONDS)
    finally:
        if ran.returncode is None:
            ran.kill()
    assert ran.returncode == 0, error.decode(errors="replace")[-4000:]
    return out.decode()


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def folders(out: Path) -> dict[str, str]:
    """What the callback keeps of versions, by step."""
    return {one.name.partition("-")[2]: str(one) for one in (out / "loraplane").iterdir()}


async def test_each_sample_of_grpo_proves_the_version_that_made_it(
    real_vllm, second_vllm, plugin_flags, tiny, etcd, tmp_path
):
    """R26, R5, R8: both replicas answer each step with the version of that step alone, also before the first step.

    That the header is true is seen in the logprobs: PEFT has the same of that version, and others of the base.
    """
    out = tiny.folder / "adapters/grpo"
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(admin_inside(etcd.endpoints, etcd.prefix))
        await wait_ready(admin)
        await admin.stub.CreatePool(pb.CreatePoolRequest(pool=pb.Pool(name=POOL, base_models=[BASE_MODEL])))
        registry = await stack.enter_async_context(AsyncRegistry(admin.address))
        engines = {"r1": real_vllm, "r2": second_vllm}
        await stack.enter_async_context(fleet(engines, plugin_flags, tmp_path, tiny, etcd))
        told = ["--admin", admin.address, "--model", str(tiny.model), "--output", str(out), "--pool", POOL]
        said = await in_training("docs/examples/grpo.py", *told, "--name", NAME, "--steps", str(STEPS))
        history = await registry.history(NAME, POOL)
    assert f"{STEPS} steps; generation {STEPS + 1} is served" in said
    samples = lines(out / "samples.jsonl")
    steps = {int(one.labels["step"]): one.generation for one in history.generations}
    assert steps == {step: step + 1 for step in range(STEPS + 1)}
    urls = {vllm.url for vllm in engines.values()}
    made = Counter((one["step"], one["engine"]) for one in samples)
    assert set(made) == {(step, url) for step in range(STEPS) for url in urls}
    assert {(one["step"], one["generation"]) for one in samples} == {(step, step + 1) for step in range(STEPS)}
    assert len({(one["step"], one["digest"]) for one in samples}) == STEPS == len({one["digest"] for one in samples})
    kept = {step: folder for step, folder in folders(out).items() if int(step) < STEPS}
    of_kept = [one for one in samples if str(one["step"]) in kept]
    assert len(kept) >= 2
    file = tmp_path / "samples.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in of_kept))
    question = {"model": str(tiny.model), "versions": kept, "samples": str(file)}
    found = await in_training("-m", "tests.support.grpo_reference", json.dumps(question))
    answers = json.loads(found.splitlines()[-1])
    assert max(one["own"] for one in answers) < CLOSE
    print(f"{len(samples)} samples of {STEPS} steps on two engines; logprobs: {answers}")
    trained = [one["base"] for one, sample in zip(answers, of_kept, strict=True) if sample["step"]]
    assert min(trained) > 10 * CLOSE
