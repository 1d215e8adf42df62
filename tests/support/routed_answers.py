"""Answers that came by routers, and the verdict on them: by what was right at their time, and who was dead then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a request, its client's repetitions included; `began` and `ended` by the monotonic clock.

    Attributes:
        text: of a completion; empty: there is none.
        error: why; empty: there is none.
        tries: that it took.
        before: why the last try but one failed; empty: there was none.
    """

    router: str
    name: str
    began: float
    ended: float
    text: str = ""
    error: str = ""
    tries: int = 1
    before: str = ""


@dataclass(frozen=True, slots=True)
class Outage:
    """A time in which a name has nobody whom a router could know of.

    Attributes:
        name: whose only replica was killed, or drains.
        began: by the monotonic clock.
        ended: the same.
        router: the one that it is so for; empty: all.
    """

    name: str
    began: float
    ended: float
    router: str = ""


@dataclass
class Timeline:
    """What was right when.

    Attributes:
        right: by name, since when which texts are.
        outages: see `Outage`.
    """

    right: dict[str, list[tuple[float, frozenset[str]]]] = field(default_factory=dict)
    outages: list[Outage] = field(default_factory=list)

    def note(self, now: float, name: str, *texts: str) -> None:
        """From now on a name is answered with one of these."""
        self.right.setdefault(name, []).append((now, frozenset(texts)))

    def allowed(self, name: str, began: float, ended: float) -> frozenset[str]:
        """The texts that were right at any moment of a request."""
        told = self.right[name]
        ends = [since for since, _ in told[1:]] + [float("inf")]
        return frozenset().union(
            *(texts for (since, texts), end in zip(told, ends, strict=True) if since <= ended and end >= began)
        )

    def is_out(self, answer: Answer) -> bool:
        """True for a request for a name that nobody could serve meanwhile."""
        return any(
            one.name == answer.name and answer.began <= one.ended and answer.ended >= one.began
            for one in self.outages
            if one.router in {"", answer.router}
        )


@dataclass(frozen=True, slots=True)
class RoutedVerdict:
    """What came of a router's requests.

    Attributes:
        asked: how many there were.
        repeated: that took more than one try.
        wrong: answers that were another's: the base's, or another version's.
        failed: that nothing excuses.
        excused: in an outage.
        kinds: of failures, also of those that were repeated, and how often.
    """

    asked: int
    repeated: int
    wrong: tuple[Answer, ...]
    failed: tuple[Answer, ...]
    excused: int
    kinds: Counter[str]

    def __str__(self) -> str:
        told = f"{self.asked} requests, {self.repeated} repeated, {len(self.wrong)} wrong, {len(self.failed)} failed"
        return f"{told}, {self.excused} while their only replica was dead, or handed over to one not polled yet"


def judge(timeline: Timeline, answers: Sequence[Answer]) -> RoutedVerdict:
    """The verdict on the answers that came by one router."""
    failures = [one for one in answers if one.error]
    excused = [one for one in failures if timeline.is_out(one)]
    wrong = [
        one for one in answers if not one.error and one.text not in timeline.allowed(one.name, one.began, one.ended)
    ]
    return RoutedVerdict(
        asked=len(answers),
        repeated=sum(one.tries > 1 for one in answers),
        wrong=tuple(wrong),
        failed=tuple(one for one in failures if one not in excused),
        excused=len(excused),
        kinds=Counter(f"{one.name}: {(one.error or one.before)[:160]}" for one in answers if one.error or one.before),
    )
