"""Faults that a test can order: each strikes the next request of its route, once."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Literal

RouteName = Literal["load", "unload", "models", "metrics", "version", "health", "completions"]


@dataclass(frozen=True, slots=True)
class Answer:
    """Answers this instead of doing anything."""

    status: int
    body: str


@dataclass(frozen=True, slots=True)
class Hang:
    """Does nothing until `until` is set, then goes on, whether or not the client still waits."""

    until: asyncio.Event


@dataclass(frozen=True, slots=True)
class Cut:
    """Breaks the connection within the reply: after doing what was asked, or before it."""

    is_done: bool


@dataclass(frozen=True, slots=True)
class Die:
    """Dies, as vLLM does when a step fails."""


Fault = Answer | Hang | Cut | Die


@dataclass
class Faults:
    """The faults that are still to strike, by route and in order."""

    _waiting: defaultdict[RouteName, deque[Fault | None]] = field(default_factory=lambda: defaultdict(deque))

    def order(self, route: RouteName, *faults: Fault, spare: int = 0) -> None:
        """Lets `faults` strike the next requests of `route`, one each, after sparing the first `spare` of them."""
        self._waiting[route].extend([*[None] * spare, *faults])

    def take(self, route: RouteName) -> Fault | None:
        """The fault that strikes now, if any."""
        waiting = self._waiting[route]
        return waiting.popleft() if waiting else None
