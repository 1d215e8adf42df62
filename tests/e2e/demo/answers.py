"""Answers of engines under traffic, compared with their references."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum

import httpx

PROMPTS = ("Hello", "SELECT name FROM")
TOKENS = 8
# Engine and reference compute in float32 in different orders; different adapters differ by 0.1 and more.
TOLERANCE = 1e-3
BASE = ""


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """Greedy tokens after one prompt, with their logprobs."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]

    def distance(self, other: EngineAnswer) -> float:
        """The largest difference of a logprob; infinite if the tokens differ."""
        if self.tokens != other.tokens:
            return float("inf")
        return max((abs(a - b) for a, b in zip(self.logprobs, other.logprobs, strict=True)), default=float("inf"))

    def is_like(self, other: EngineAnswer) -> bool:
        return self.distance(other) <= TOLERANCE


@dataclass(frozen=True, slots=True)
class AnswerRefused:
    """The engine answered with an error, or not at all (status 0)."""

    status: int
    message: str


Answers = Mapping[str, EngineAnswer]
Reference = Mapping[str, Answers]


def ask(client: httpx.Client, url: str, model: str, prompt: str) -> EngineAnswer | AnswerRefused:
    """One greedy completion with logprobs from the engine at `url`."""
    body = {"model": model, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "logprobs": 1}
    try:
        reply = client.post(f"{url}/v1/completions", json={**body, "return_tokens_as_token_ids": True})
    except httpx.TransportError as error:
        return AnswerRefused(0, f"{type(error).__name__}: {error}")
    if reply.status_code != 200:
        return AnswerRefused(reply.status_code, reply.text[:200])
    logprobs = reply.json()["choices"][0]["logprobs"]
    tokens = tuple(int(token.removeprefix("token_id:")) for token in logprobs["tokens"])
    return EngineAnswer(tokens, tuple(logprobs["token_logprobs"]))


def reference_of(printed: Mapping[str, Mapping[str, Sequence[Mapping[str, float]]]]) -> Reference:
    """Answers that `tests.support.reference` printed."""
    return {
        name: {
            prompt: EngineAnswer(tuple(int(one["token"]) for one in answer), tuple(one["logprob"] for one in answer))
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


class Version(StrEnum):
    """Which generation an answer is of."""

    OLD = "old"
    NEW = "new"
    NEITHER = "neither"
    FAILED = "failed"


@dataclass
class Stream:
    """One engine asked again and again; `seen` is what came back, oldest first."""

    url: str
    seen: list[Version] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)

    def count(self, version: Version) -> int:
        return self.seen.count(version)

    def went_back(self) -> bool:
        """True if an old answer came after a new one."""
        if Version.NEW not in self.seen:
            return False
        return Version.OLD in self.seen[self.seen.index(Version.NEW) :]


@contextmanager
def traffic(
    urls: Sequence[str], model: str, prompt: str, old: EngineAnswer, new: EngineAnswer
) -> Iterator[list[Stream]]:
    """Asks each engine without a pause while the body runs."""
    streams = [Stream(url) for url in urls]
    ended = threading.Event()

    def classify(answer: EngineAnswer | AnswerRefused) -> Version:
        match answer:
            case AnswerRefused():
                return Version.FAILED
            case EngineAnswer():
                return next(
                    (v for v, one in ((Version.OLD, old), (Version.NEW, new)) if answer.is_like(one)), Version.NEITHER
                )

    threads = [threading.Thread(target=_pour, args=(one, model, prompt, classify, ended)) for one in streams]
    for thread in threads:
        thread.start()
    try:
        yield streams
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def _pour(
    stream: Stream,
    model: str,
    prompt: str,
    classify: Callable[[EngineAnswer | AnswerRefused], Version],
    ended: threading.Event,
) -> None:
    with httpx.Client(timeout=60, trust_env=False) as client:
        while not ended.is_set():
            answer = ask(client, stream.url, model, prompt)
            version = classify(answer)
            stream.seen.append(version)
            if version in {Version.FAILED, Version.NEITHER}:
                stream.strange.append(str(answer))
