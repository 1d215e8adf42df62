"""Reference answers of an adapter, by transformers and PEFT.

Runs inside the engine environment, as a script, and imports nothing of ours::

    python -P reference.py --model DIR --adapter NAME=DIR --prompt TEXT

It prints ``{"<name>": {"<prompt>": [{"token": 65, "logprob": -0.3}, ...]}}`` with greedy tokens, computed in float32
on the CPU; the base model's answers are under the empty name. `loraplane expect` calls `expected` where torch and PEFT
are installed beside us.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

Answer = list[dict[str, float]]
TOKENS = 8


@dataclass(frozen=True, slots=True)
class ReferenceAnswer:
    """Answer of PEFT to one prompt.

    Attributes:
        prompt: its tokens.
        tokens: the likeliest after it, one by one.
        logprobs: of these.
        base_logprobs: of the same where the adapter is off.
    """

    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]
    base_logprobs: list[float]


def _greedy(model: torch.nn.Module, prompt: list[int], tokens: int) -> Answer:
    """The likeliest tokens after `prompt`, one by one, each with its logprob."""
    sequence, answer = list(prompt), []
    for _ in range(tokens):
        logits = model(torch.tensor([sequence])).logits[0, -1]
        logprobs = torch.log_softmax(logits.float(), dim=-1)
        token = int(logprobs.argmax())
        answer.append({"token": token, "logprob": float(logprobs[token])})
        sequence.append(token)
    return answer


def expected(
    model: str, adapter: str, prompts: Sequence[str | list[int]], tokens: int, dtype: str = "float32"
) -> list[ReferenceAnswer]:
    """Answers of an adapter to prompts: texts, or numbers of tokens, in a float type of torch's.

    Raises:
        OSError, ValueError, RuntimeError: model, tokenizer or adapter cannot be read, or do not go together.
    """
    numbers = [_numbers(model, prompt) for prompt in prompts]
    base = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
    known = base.get_input_embeddings().num_embeddings
    if (most := max(max(prompt) for prompt in numbers)) >= known:
        raise ValueError(f"a prompt has the token {most}, and the model knows {known}")
    adapted = PeftModel.from_pretrained(base, adapter).eval()
    with torch.inference_mode():
        return [_expected(adapted, prompt, tokens) for prompt in numbers]


def _numbers(model: str, prompt: str | list[int]) -> list[int]:
    return list(AutoTokenizer.from_pretrained(model)(prompt)["input_ids"]) if isinstance(prompt, str) else prompt


def _expected(adapted: PeftModel, prompt: list[int], count: int) -> ReferenceAnswer:
    answer = _greedy(adapted, prompt, count)
    tokens = [int(one["token"]) for one in answer]
    with adapted.disable_adapter():
        logits = adapted(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    base = [float(row[token]) for row, token in zip(logprobs, tokens, strict=True)]
    return ReferenceAnswer(prompt, tokens, [one["logprob"] for one in answer], base)


def _answers(model: torch.nn.Module, prompts: dict[str, list[int]], tokens: int) -> dict[str, Answer]:
    model.eval()
    with torch.inference_mode():
        return {text: _greedy(model, ids, tokens) for text, ids in prompts.items()}


def _base(folder: str) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def reference(model: str, adapters: dict[str, str], prompts: list[str], tokens: int) -> dict[str, dict[str, Answer]]:
    """Answers of the base model and of each adapter on a base of its own.

    Raises:
        OSError: a model or an adapter cannot be read.
    """
    tokenizer = AutoTokenizer.from_pretrained(model)
    encoded = {text: tokenizer(text)["input_ids"] for text in prompts}
    answers = {"": _answers(_base(model), encoded, tokens)}
    for name, folder in adapters.items():
        answers[name] = _answers(PeftModel.from_pretrained(_base(model), folder), encoded, tokens)
    return answers


def main() -> None:
    """Entry point of the script."""
    parser = argparse.ArgumentParser(description="Print reference answers as JSON.")
    parser.add_argument("--model", type=Path, required=True, help="directory of the base model")
    parser.add_argument("--adapter", action="append", default=[], metavar="NAME=DIR", help="repeatable")
    parser.add_argument("--prompt", action="append", required=True, help="repeatable")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="how many tokens to generate")
    arguments = parser.parse_args()
    adapters = dict(pair.split("=", 1) for pair in arguments.adapter)
    json.dump(reference(str(arguments.model), adapters, arguments.prompt, arguments.tokens), sys.stdout)


if __name__ == "__main__":
    main()
