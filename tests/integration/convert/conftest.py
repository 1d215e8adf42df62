"""A tiny Llama, a tiny Qwen, and adapters of both as trainings leave them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from registry.tools.devstack.engine_environment import find_engine_python
from tests.support.ran import Ran
from tests.support.with_torch import loraplane, reference_command, script

PROMPTS = ["The quick brown", "SELECT"]
Answers = dict[str, dict[str, list[dict[str, float]]]]


@dataclass(frozen=True)
class Trained:
    """Models by name, and adapters of the first two; the third is the first as its training by LoRA-GA left it."""

    models: dict[str, Path]
    adapters: Path

    def adapter(self, model: str, name: str) -> Path:
        return self.adapters / model / name

    def answers(self, model: str, **adapters: Path) -> Answers:
        """What PEFT answers with each adapter, with logprobs; the base model's are under the empty name."""
        answers: Answers = script(reference_command(find_engine_python(), self.models[model], adapters, PROMPTS)).json
        return answers

    def errors(self, model: str, pairs: dict[Path, Path]) -> list[dict[str, float]]:
        """Relative errors by module of each published adapter against the trained one, as PEFT merges both."""
        arguments = ["--model", str(self.models[model])]
        for wanted, made in pairs.items():
            arguments += ["--pair", str(wanted), str(made)]
        errors: list[dict[str, float]] = _ran("measure.py", *arguments).json
        return errors

    def publish(self, model: str, name: str, target: object, *more: str) -> Ran:
        """Publishes an adapter, compared with its own base."""
        source, base = str(self.adapter(model, name)), str(self.models[model])
        return loraplane("-o", "json", "publish", source, str(target), "--base-model", base, *more)

    def cast(self, source: Path, out: Path) -> Path:
        """A copy in bfloat16, made by torch alone."""
        assert _ran("measure.py", "--cast", str(source), "--out", str(out)).code == 0
        return out


def _ran(name: str, *arguments: str) -> Ran:
    return script([str(find_engine_python()), "-P", str(Path(__file__).with_name(name)), *arguments])


@pytest.fixture(scope="session")
def trained(tmp_path_factory, tiny) -> Trained:
    llama, out = tiny.model, tmp_path_factory.mktemp("trained")
    made = _ran("train.py", "--llama", str(llama), "--out", str(out))
    assert made.code == 0, made.err[-2000:]
    models = {"llama": llama, "qwen": out / "qwen", "lora_ga": out / "lora_ga"}
    return Trained(models, out / "adapters")


def distance(one: dict[str, list[dict[str, float]]], other: dict[str, list[dict[str, float]]]) -> float:
    """The largest distance of logprobs over all prompts; infinity where the tokens are others."""
    pairs = [pair for prompt in PROMPTS for pair in zip(one[prompt], other[prompt], strict=True)]
    if any(mine["token"] != theirs["token"] for mine, theirs in pairs):
        return float("inf")
    return max(abs(mine["logprob"] - theirs["logprob"]) for mine, theirs in pairs)
