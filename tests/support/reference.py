"""Reference answers of adapters, printed for the tests by a script that runs inside the engine environment::

    python -P reference.py --model DIR --adapter NAME=DIR --prompt TEXT

It prints ``{"<name>": {"<prompt>": [{"token": 65, "logprob": -0.3}, ...]}}`` with greedy tokens, computed in float32
on the CPU; the base model's answers are under the empty name.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.append(str(Path(__file__).parents[2]))
from registry.tools.devstack.reference import Answer, greedy

TOKENS = 8


def _answers(model: torch.nn.Module, prompts: dict[str, list[int]], tokens: int) -> dict[str, Answer]:
    model.eval()
    with torch.inference_mode():
        return {text: greedy(model, ids, tokens) for text, ids in prompts.items()}


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
