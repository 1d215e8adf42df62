"""Was every answer wholly of one version, and of one that was current while it was asked for? Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Batches of other shapes add up in another order.
TOLERANCE = 5e-3


@dataclass(frozen=True, slots=True)
class Sequenced:
    """A greedy answer: its tokens, and the logarithm of each one's probability."""

    tokens: tuple[str, ...]
    logprobs: tuple[float, ...]

    def is_like(self, reference: Sequenced) -> bool:
        """True if it is the beginning of `reference`, or the same."""
        count = len(self.tokens)
        return (
            count > 0
            and self.tokens == reference.tokens[:count]
            and all(
                abs(one - other) <= TOLERANCE
                for one, other in zip(self.logprobs, reference.logprobs[:count], strict=True)
            )
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one request, sent and answered at these monotonic seconds; `said` None: it failed."""

    name: str
    prompt: str
    sent_at: float
    ended_at: float
    said: Sequenced | None
    failure: str = ""
    is_stream: bool = False


@dataclass(frozen=True, slots=True)
class Era:
    """A version was current under a name: from when its swap began until the next one's had ended."""

    name: str
    version: str
    began_at: float
    ended_at: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """How many answers there were, and what was wrong with some of them."""

    answers: int
    streams: int
    failed: int
    mixed: int
    stale: int
    spanning: int

    def line(self) -> str:
        """In one line."""
        told = f"{self.answers} answers, {self.streams} of them streams, {self.spanning} across a swap: "
        return told + f"{self.failed} failed, {self.mixed} mixed, {self.stale} stale"


def judge(answers: Sequence[Answer], eras: Sequence[Era], references: Mapping[tuple[str, str], Sequenced]) -> Verdict:
    """Compares every answer with the references, which are by version and prompt."""
    kinds = Counter(_kind(answer, eras, references) for answer in answers)
    spanning = sum(len(_current(answer, eras)) > 1 for answer in answers)
    streams = sum(answer.is_stream for answer in answers)
    return Verdict(len(answers), streams, kinds["failed"], kinds["mixed"], kinds["stale"], spanning)


def _kind(answer: Answer, eras: Sequence[Era], references: Mapping[tuple[str, str], Sequenced]) -> str:
    said = answer.said
    if said is None:
        return "failed"
    like = {
        version
        for (version, prompt), reference in references.items()
        if prompt == answer.prompt and said.is_like(reference)
    }
    if not like:
        return "mixed"
    return "right" if like & _current(answer, eras) else "stale"


def _current(answer: Answer, eras: Sequence[Era]) -> set[str]:
    return {
        era.version
        for era in eras
        if era.name == answer.name and era.began_at <= answer.ended_at and answer.sent_at <= era.ended_at
    }
