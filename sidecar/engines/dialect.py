"""What differs between engines that are driven over HTTP in one way: their pages, requests and replies. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from sidecar.engines.exchange import Change, JsonPost, Lost, NotSent, Reply
from sidecar.observed import EngineLimits, Outcome

UNTOLD = EngineLimits()


@dataclass(frozen=True, slots=True)
class Seen:
    """What an engine's pages say.

    Attributes:
        version: of the engine; empty: it does not say.
        base_models: names of the base model, and of whatever cannot be told from it.
        adapters: name to path.
        limits: what it was started with, as far as it says.
    """

    version: str
    base_models: tuple[str, ...]
    adapters: Mapping[str, str]
    limits: EngineLimits = UNTOLD


@dataclass(frozen=True, slots=True)
class Requests:
    """How many requests wait and run."""

    waiting: int
    running: int


@dataclass(frozen=True, slots=True)
class Statistics:
    """The page that tells which requests an engine has.

    `read` gets its text and the engine's URL, and raises EngineUnreachable where it does not say.
    """

    page: str
    read: Callable[[str, str], Requests]


class Dialect(Protocol):
    """One kind of engine."""

    @property
    def kind(self) -> str:
        """As records of pools name it."""
        ...

    @property
    def pages(self) -> Sequence[str]:
        """What a look reads, all at once."""
        ...

    @property
    def health(self) -> str | None:
        """The page that is there while it can generate; None: it completes what it is asked for itself."""
        ...

    @property
    def statistics(self) -> Statistics | None:
        """Where it tells which requests there are; None: nowhere, so that files are never let go of."""
        ...

    @property
    def can_swap(self) -> bool:
        """True if a name that is unloaded and loaded with other weights answers with those."""
        ...

    @property
    def tells_taken(self) -> bool:
        """False if a load of a name that it has is a success, whatever the path: then it is never sent."""
        ...

    def read(self, bodies: Sequence[bytes], ours: Mapping[str, str], url: str) -> Seen:
        """Reads the pages; `ours` are the names that we loaded into this process, with their paths.

        Raises:
            EngineUnreachable: they cannot be read in full.
            EngineUnusable: it is no engine of this kind, or one that cannot be driven.
        """
        ...

    def load(self, name: str, path: str) -> JsonPost:
        """The request that loads."""
        ...

    def load_outcome(self, name: str, answer: Reply | Lost | NotSent) -> Outcome:
        """What a load came to."""
        ...

    def unload(self, name: str) -> Change:
        """The request that unloads."""
        ...

    def unload_outcome(self, name: str, answer: Reply | Lost | NotSent) -> Outcome:
        """What an unload came to."""
        ...
