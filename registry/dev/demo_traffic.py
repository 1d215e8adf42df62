"""Requests without a pause while something changes, and what came back, in order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum

import httpx

from registry.dev.demo_answers import Answer, Refused, ask


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
def traffic(urls: Sequence[str], model: str, prompt: str, old: Answer, new: Answer) -> Iterator[list[Stream]]:
    """Asks each engine without a pause while the body runs."""
    streams = [Stream(url) for url in urls]
    ended = threading.Event()

    def classify(answer: Answer | Refused) -> Version:
        match answer:
            case Refused():
                return Version.FAILED
            case Answer():
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
    classify: Callable[[Answer | Refused], Version],
    ended: threading.Event,
) -> None:
    with httpx.Client(timeout=60, trust_env=False) as client:
        while not ended.is_set():
            answer = ask(client, stream.url, model, prompt)
            version = classify(answer)
            stream.seen.append(version)
            if version in {Version.FAILED, Version.NEITHER}:
                stream.strange.append(str(answer))
