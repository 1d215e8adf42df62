"""What engines answer, and whether it is what an adapter should answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import httpx

PROMPTS = ("Hello", "SELECT name FROM")
TOKENS = 8
# Engine and reference compute in float32 in different orders; different adapters differ by 0.1 and more.
TOLERANCE = 1e-3
BASE = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """Greedy tokens after one prompt, with their logprobs."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]

    def distance(self, other: Answer) -> float:
        """The largest difference of a logprob; infinite if the tokens differ."""
        if self.tokens != other.tokens:
            return float("inf")
        return max((abs(a - b) for a, b in zip(self.logprobs, other.logprobs, strict=True)), default=float("inf"))

    def is_like(self, other: Answer) -> bool:
        return self.distance(other) <= TOLERANCE


@dataclass(frozen=True, slots=True)
class Refused:
    """The engine answered with an error, or not at all (status 0)."""

    status: int
    message: str


Answers = Mapping[str, Answer]
Reference = Mapping[str, Answers]


def ask(client: httpx.Client, url: str, model: str, prompt: str) -> Answer | Refused:
    """One greedy completion with logprobs from the engine at `url`."""
    body = {"model": model, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "logprobs": 1}
    try:
        reply = client.post(f"{url}/v1/completions", json={**body, "return_tokens_as_token_ids": True})
    except httpx.TransportError as error:
        return Refused(0, f"{type(error).__name__}: {error}")
    if reply.status_code != 200:
        return Refused(reply.status_code, reply.text[:200])
    logprobs = reply.json()["choices"][0]["logprobs"]
    tokens = tuple(int(token.removeprefix("token_id:")) for token in logprobs["tokens"])
    return Answer(tokens, tuple(logprobs["token_logprobs"]))


def reference_of(printed: Mapping[str, Mapping[str, Sequence[Mapping[str, float]]]]) -> Reference:
    """What `registry.dev.reference` printed."""
    return {
        name: {
            prompt: Answer(tuple(int(one["token"]) for one in answer), tuple(one["logprob"] for one in answer))
            for prompt, answer in answers.items()
        }
        for name, answers in printed.items()
    }


def indistinct(reference: Reference) -> list[tuple[str, str]]:
    """Pairs of names that answer some prompt alike, so that a check by that prompt would prove nothing."""
    names = sorted(reference)
    return [
        (one, other)
        for number, one in enumerate(names)
        for other in names[number + 1 :]
        if any(reference[one][prompt].is_like(reference[other][prompt]) for prompt in PROMPTS)
    ]
