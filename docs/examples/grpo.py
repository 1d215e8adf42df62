r"""GRPO by TRL whose rollouts ask the fleet: each sample proves which version of the policy made it.

    pip install trl==1.16.0 peft .           # beside a fleet whose vLLM has the plugin, as of `loraplane dev up`
    python docs/examples/grpo.py --admin 127.0.0.1:PORT --model .loraplane/model --output .loraplane/adapters/grpo

The trainer's own way to vLLM is not used (`use_vllm` stays off): the callback publishes the adapter before the first
step and after each one, and returns when every replica serves it. The rollout function spreads the prompts over the
engines, and takes no answer without the proof that the version of this very step made it.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx
from accelerate.utils import broadcast_object_list
from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

from loraplane import AnsweredBy, Published
from loraplane.integrations.transformers import LoraPlaneCallback


@dataclass(frozen=True)
class Sample:
    """A completion, and the version that made it."""

    step: int
    engine: str
    generation: int
    digest: str
    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float]


class FleetRollouts:
    """A `rollout_func` of TRL: answers of the version that the callback published of this step."""

    def __init__(self, callback: LoraPlaneCallback, log: Path, *, at_once: int = 16) -> None:
        self._callback, self._log, self._at_once = callback, log, at_once

    def __call__(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        version = self._version(trainer)
        prompt_ids = trainer.processing_class(prompts)["input_ids"]
        with httpx.Client(timeout=300, trust_env=False) as client, ThreadPoolExecutor(self._at_once) as threads:
            asked = zip(cycle(version.engine_urls), prompt_ids)
            samples = list(threads.map(lambda one: sample(client, *one, version, trainer), asked))
        with self._log.open("a") as log:
            log.writelines(json.dumps(asdict(one)) + "\n" for one in samples)
        return {
            "prompt_ids": prompt_ids,
            "completion_ids": [one.completion_ids for one in samples],
            "logprobs": [one.logprobs for one in samples],
            "generation": [one.generation for one in samples],  # for reward functions, as any further key
        }

    def _version(self, trainer: GRPOTrainer) -> Published:
        """What rank 0 published, in every process, once it is served."""
        told = [self._callback.published, self._callback.published_step, str(self._callback.last_error)]
        version, step, error = broadcast_object_list(told)
        if version is None or step != trainer.state.global_step:
            raise RuntimeError(f"the policy of step {trainer.state.global_step} is not served: {error}")
        return version


def sample(
    client: httpx.Client, engine: str, prompt_ids: list[int], version: Published, trainer: GRPOTrainer
) -> Sample:
    """One completion.

    Raises:
        RuntimeError: another version made it, or the base did.
    """
    order = {
        "model": version.model,
        "prompt": prompt_ids,
        "max_tokens": trainer.args.max_completion_length,
        "temperature": trainer.args.temperature,
        "top_p": trainer.args.top_p,
        "logprobs": 0,
        "return_token_ids": True,
    }
    answer = client.post(f"{engine}/v1/completions", json=order).raise_for_status()
    made_by = AnsweredBy.of(answer.headers)
    if made_by is None or (made_by.name, made_by.generation) != (version.name, version.generation):
        raise RuntimeError(f"{engine} answered by {made_by}, and not by generation {version.generation}")
    [choice] = answer.json()["choices"]
    proof = (trainer.state.global_step, engine, made_by.generation, made_by.digest)
    return Sample(*proof, prompt_ids, choice["token_ids"], choice["logprobs"]["token_logprobs"])


def letters(completions: list[str], **_: object) -> list[float]:
    """Stands for a reward: the share of letters."""
    return [sum(map(str.isalpha, one)) / max(len(one), 1) for one in completions]


def train(told: argparse.Namespace) -> LoraPlaneCallback:
    """Trains, and gives the callback."""
    told.output.mkdir(parents=True, exist_ok=True)
    callback = LoraPlaneCallback(
        told.name, told.pool, registry=told.admin, at_start=True, every=1, wait=True, on_error="raise"
    )
    trainer = GRPOTrainer(
        model=str(told.model),
        args=GRPOConfig(
            str(told.output),
            max_steps=told.steps,
            per_device_train_batch_size=4,
            num_generations=4,
            max_completion_length=16,
            learning_rate=1e-2,
            logging_steps=1,
            report_to="none",
            save_strategy="no",
            use_cpu=True,
            bf16=False,
        ),
        reward_funcs=letters,
        train_dataset=Dataset.from_dict({"prompt": ["Hello", "SELECT name FROM", "The quick brown"] * 8}),
        peft_config=LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
        rollout_func=FleetRollouts(callback, told.output / "samples.jsonl"),
        callbacks=[callback],
    )
    trainer.train()
    return callback


def main() -> None:
    """Reads its flags and trains."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--admin", required=True, metavar="HOST:PORT")
    parser.add_argument("--model", required=True, type=Path, help="folder of the base model, which the engines serve")
    parser.add_argument("--output", required=True, type=Path, help="for versions; sidecars must be allowed to read it")
    parser.add_argument("--name", default="acme/policy")
    parser.add_argument("--pool", default="dev")
    parser.add_argument("--steps", type=int, default=4)
    callback = train(parser.parse_args())
    print(f"{callback.published_step} steps; generation {callback.published.generation} is served")


if __name__ == "__main__":
    main()
