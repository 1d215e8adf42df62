"""Protocol of the resolver's socket, and form of answers and paths. Pure.

On the socket there is one line of JSON each way: the plugin writes questions and reads answers inside vLLM, the sidecar
reads questions and writes answers.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Literal

SCHEMA = 1
MAX_NAME_LENGTH = 200
MAX_QUESTION_BYTES = 4096
MAX_ANSWER_BYTES = 16384
MAX_PATH_LENGTH = 4096
# What the kernel takes as the address of a socket, without the byte that ends it.
MAX_SOCKET_PATH_BYTES = 107

# As the record has them: `registry.model.expected_answers.Expect`.
MAX_EXPECT_CHARACTERS = 8192
MAX_PROMPTS, MAX_PROMPT_TOKENS, MAX_TOKENS, MAX_TOLERANCE, MAX_TOKEN = 4, 64, 16, 10.0, (1 << 31) - 1

NoReason = Literal["unknown_adapter", "not_lazy", "staging", "refused", "no_room", "not_ready", "bad_question"]


class BadAnswer(Exception):
    """A reply that is no answer; the message says why."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """The adapter is in the directory `path`, and may be loaded from there. `prove`: then it is proven.

    `expect`: what it has to answer, as `write_expected` gives it; empty: anything.
    `version`: what its answers are proven by, ``name@generation sha256:…``; empty: nothing.
    """

    path: str
    prove: bool = False
    expect: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True)
class Unresolved:
    """It may not be loaded; `reason` is stable."""

    reason: NoReason


Answer = Resolved | Unresolved


def plain_path(path: str) -> str:
    """An absolute path without what means nothing: a slash behind, doubled slashes, single dots."""
    if not path.startswith("/"):
        return path
    return "/" + "/".join(part for part in path.split("/") if part not in {"", "."})


def is_askable(name: str) -> bool:
    """False for what cannot be the name of a record: too long, or with control characters."""
    return 0 < len(name) <= MAX_NAME_LENGTH and name.isprintable()


def write_question(name: str, base_model: str) -> bytes:
    """The line that asks for `name` on the base model whose path is `base_model`."""
    return json.dumps({"schema": SCHEMA, "name": name, "base_model": base_model}).encode() + b"\n"


def read_question(line: bytes) -> str | None:
    """The name that is asked for; None: it is no question that is known here."""
    if len(line) > MAX_QUESTION_BYTES:
        return None
    try:
        asked = json.loads(line)
    except (ValueError, RecursionError):
        return None
    match asked:
        case {"schema": 1, "name": str(name), "base_model": str()}:
            return name
        case _:
            return None


def write_answer(answer: Answer) -> bytes:
    """The answer as a line."""
    match answer:
        case Resolved(path, prove, expect, version):
            fields: dict[str, object] = {"schema": SCHEMA, "path": path} | ({"prove": True} if prove else {})
            fields |= {"expect": expect} if prove and expect else {}
            fields |= {"version": version} if version else {}
        case Unresolved(reason):  # pragma: no branch - mypy knows that this is the last case
            fields = {"schema": SCHEMA, "path": None, "reason": reason}
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def read_answer(line: bytes) -> Resolved | None:
    """The absolute directory that an answer names; None: there is none, and the sidecar says so.

    Raises:
        BadAnswer: it is cut short, no JSON, or not as agreed.
    """
    if not line.endswith(b"\n"):
        raise BadAnswer("it is not a whole line")
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        raise BadAnswer("it is no JSON") from None
    match answer:
        case {"schema": 1, "path": None, "reason": str()}:
            return None
        case {"schema": 1, "path": str(path)} if path.startswith("/") and len(path) <= MAX_PATH_LENGTH:
            texts = [answer.get(field) for field in ("expect", "version")]
            expect, version = (one if isinstance(one, str) else "" for one in texts)
            return Resolved(path, answer.get("prove") is True, expect, version)
        case _:
            raise BadAnswer("it names neither an absolute path nor a reason")


# A generated token, and the natural logarithms of the likeliest tokens at its place, its own among them.
Step = tuple[int, Mapping[int, float]]


@dataclass(frozen=True, slots=True)
class PromptedAnswer:
    """The likeliest tokens after a prompt, one by one. `logprobs`: one of each token, or none."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ExpectedAnswers:
    """Answers expected of one. `tolerance`: how far a logprob may be from the expected, or the likeliest, one."""

    answers: tuple[PromptedAnswer, ...]
    tolerance: float


def write_expected(expected: ExpectedAnswers) -> str:
    """The text that a plugin is given; the same of equal ones."""
    return json.dumps(asdict(expected), separators=(",", ":"))


def read_expected(text: str) -> ExpectedAnswers | None:
    """Answers that an adapter has to give; None: the text does not say it, or asks for more than an engine is asked."""
    try:
        told = json.loads(text) if len(text) <= MAX_EXPECT_CHARACTERS else None
    except (ValueError, RecursionError):
        return None
    match told:
        case {"answers": [*answers], "tolerance": int() | float() as tolerance} if 0 < tolerance <= MAX_TOLERANCE:
            found = [one for one in map(_answer, answers) if one is not None]
            if 0 < len(found) == len(answers) <= MAX_PROMPTS:
                return ExpectedAnswers(tuple(found), tolerance)
    return None


def _answer(told: object) -> PromptedAnswer | None:
    match told:
        case {"prompt": [*prompt], "tokens": [*tokens], "logprobs": [*logprobs]}:
            numbers = all(type(one) is int and 0 <= one <= MAX_TOKEN for one in (*prompt, *tokens))
            is_whole = all(type(one) in (int, float) and math.isfinite(one) for one in logprobs)
            fits = 0 < len(prompt) <= MAX_PROMPT_TOKENS and 0 < len(tokens) <= MAX_TOKENS
            if numbers and is_whole and fits and len(logprobs) in (0, len(tokens)):
                return PromptedAnswer(tuple(prompt), tuple(tokens), tuple(logprobs))
    return None


def expected_key(path: str, expect: str) -> str:
    """The name by which both sides know what was found of the adapter in a directory and what it has to answer."""
    return hashlib.sha256(f"{path}\0{expect}".encode(errors="surrogateescape")).hexdigest()[:32]


def beyond(expected: ExpectedAnswers, vocabulary: int | None) -> str:
    """Sentence on a number that is of no token of the base model; empty: none is known to be."""
    tokens = (
        (f"the {part} of answer {number}", token)
        for number, one in enumerate(expected.answers, start=1)
        for part, numbers in (("prompt", one.prompt), ("tokens", one.tokens))
        for token in numbers
    )
    strange = (found for found in tokens if vocabulary is not None and found[1] >= vocabulary)
    where, token = next(strange, ("", 0))
    return f"token {token} in {where} is none of the {vocabulary} that the base model knows" if where else ""


def deviation(expected: PromptedAnswer, found: Iterable[Step], tolerance: float) -> str | None:
    """Sentence on where an answer is not as expected; empty: nowhere; None: it is too short to tell.

    A token that is as likely as the expected one, within the tolerance, ends the comparison: what follows it is
    another text.
    """
    steps = list(found)
    for place, (token, step) in enumerate(zip(expected.tokens, steps, strict=False)):
        (answered, likely) = step
        wanted = expected.logprobs[place] if expected.logprobs else None
        distance = _distance(token, answered, likely, wanted)
        if not distance <= tolerance:
            start = ", ".join(map(str, expected.prompt[:8])) + (", …" if len(expected.prompt) > 8 else "")
            return (
                f"after the prompt [{start}] token {place + 1} should be {_shown(token, wanted)}, found "
                f"{_shown(answered, likely.get(answered))}{_beside(token, answered, likely)}: a distance of "
                f"{distance:.3g}, above the tolerance of {tolerance:g}"
            )
        if answered != token:
            return ""
    return "" if len(steps) >= len(expected.tokens) else None


def _distance(token: int, answered: int, likely: Mapping[int, float], wanted: float | None) -> float:
    """The largest one that counts; infinite where the engine does not say how likely a token is, or no number."""
    if token not in likely or answered not in likely:
        return math.inf
    distances = [likely[answered] - likely[token], *([] if wanted is None else [abs(likely[token] - wanted)])]
    return max(distances) if all(map(math.isfinite, distances)) else math.inf


def _shown(token: int, logprob: float | None) -> str:
    return f"{token}" if logprob is None else f"{token} (logprob {logprob:.4f})"


def _beside(token: int, answered: int, likely: Mapping[int, float]) -> str:
    if token == answered:
        return ""
    return f", with {token} " + (f"at {likely[token]:.4f}" if token in likely else "among none of the likeliest")
