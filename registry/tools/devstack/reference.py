"""Reference answers of an adapter, by transformers and PEFT."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

Answer = list[dict[str, float]]


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


def greedy(model: torch.nn.Module, prompt: list[int], tokens: int) -> Answer:
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
    answer = greedy(adapted, prompt, count)
    tokens = [int(one["token"]) for one in answer]
    with adapted.disable_adapter():
        logits = adapted(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    base = [float(row[token]) for row, token in zip(logprobs, tokens, strict=True)]
    return ReferenceAnswer(prompt, tokens, [one["logprob"] for one in answer], base)
