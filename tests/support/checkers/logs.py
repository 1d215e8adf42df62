"""Reads logs of sidecars: one `SidecarProcess` for each start. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from operator import itemgetter

from registry.model.stored import read_json
from registry.tools.verify.history import Document
from tests.support.checkers.engine_names import artifact_of

_FAR = 1 << 62


@dataclass
class Looks:
    """Looks are numbered from 0 on. Only those that showed a change are known.

    Attributes:
        times: unix seconds of each.
        incarnations: the engine's process that each showed.
    """

    times: list[float] = field(default_factory=list)
    incarnations: list[str] = field(default_factory=list)
    _stories: dict[str, list[tuple[int, str | None]]] = field(default_factory=lambda: defaultdict(list))
    _present: set[str] = field(default_factory=set)

    @property
    def count(self) -> int:
        """Their number."""
        return len(self.times)

    def forget(self) -> None:
        """The next look shows another process of the engine, which has nothing of what the last one had."""
        for name in self._present:
            self._stories[name].append((self.count, None))
        self._present.clear()

    def change(self, adapters: Mapping[str, str | None]) -> None:
        """Part of what the next look shows otherwise than the one before it."""
        for name, path in adapters.items():
            self._stories[name].append((self.count, path))
            (self._present.discard if path is None else self._present.add)(name)

    def close(self, at: float, incarnation: str) -> None:
        """Ends the look."""
        self.times.append(at)
        self.incarnations.append(incarnation)

    def path(self, name: str, number: int) -> str | None:
        """Listing under a name in one look."""
        story = self._stories.get(name, [])
        at = bisect_right(story, number, key=itemgetter(0))
        return story[at - 1][1] if at else None

    def names(self, number: int) -> set[str]:
        """Every name that a look showed."""
        return {name for name in self._stories if self.path(name, number) is not None}

    def spans(self) -> dict[str, list[range]]:
        """By artifact the numbers of the looks in a row that listed it under one name."""
        found: dict[str, list[range]] = defaultdict(list)
        for story in self._stories.values():
            ends = [*(number for number, _ in story[1:]), _FAR]
            for (number, path), end in zip(story, ends, strict=True):
                artifact = artifact_of(path) if path else None
                if artifact is not None:
                    found[artifact].append(range(number, min(end, self.count)))
        return found


# A status is derived from the last report, and before the next report at most two looks are told.
LOOKS_BETWEEN_REPORTS = 2
# Lines of worker threads may be written a little later than they are dated.
_DISORDER_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Write:
    """A status that was written at `revision`; of `looks` it must have been derived from one."""

    revision: int
    updated_at: str
    looks: range


@dataclass(frozen=True, slots=True)
class TakenState:
    """An artifact that was removed from the store, at unix seconds."""

    at: float
    artifact: str


@dataclass
class SidecarProcess:
    """One sidecar, from its start to its end.

    Attributes:
        where: its log, for people.
        replica: whose sidecar it is; empty: its log does not have its start, and something that it did may be unknown.
        store: names its store among those of all hosts; empty: it is not known.
        is_steady: its clock was not set back, as far as its lines and those before them tell.
        newest: unix seconds of its last line, by a clock that is not set back.
        made_of: artifact to the digest of what it was made of.
    """

    where: str
    replica: str = ""
    store: str = ""
    grace_seconds: float = 0.0
    is_steady: bool = True
    newest: float = 0.0
    looks: Looks = field(default_factory=Looks)
    writes: list[Write] = field(default_factory=list)
    removals: list[TakenState] = field(default_factory=list)
    made_of: dict[str, str] = field(default_factory=dict)
    _is_whole: bool = False
    _at_last_write: int = 0

    def take(self, line: Document) -> None:
        """The next line."""
        at = self._time(line)
        match line.get("event"):
            case "engine_listed":
                self._look(line, at)
            case "status_written":
                first = max(0, self._at_last_write - 1 - LOOKS_BETWEEN_REPORTS)
                self.writes.append(Write(line["revision"], line["updated_at"], range(first, self.looks.count)))
                self._at_last_write = self.looks.count
            case "artifact_removed":
                self.removals.append(TakenState(at, line["artifact"]))
            case "artifact_staged" if "artifact" in line:
                self.made_of[line["artifact"]] = line["digest"]

    def _look(self, line: Document, at: float) -> None:
        self._is_whole = self._is_whole or line["whole"]
        if not self._is_whole:
            return  # what was listed before is not known
        if line["whole"]:
            self.looks.forget()
        self.looks.change(line["adapters"])
        if not line["more"]:
            self.looks.close(at, line["incarnation"])

    def _time(self, line: Document) -> float:
        at = seconds_of(line.get("timestamp"))
        if at is None or at < self.newest - _DISORDER_SECONDS:
            self.is_steady = False
        self.newest = max(self.newest, at or 0.0)
        return at or 0.0


def documents(lines: Iterable[str]) -> list[Document]:
    """The JSON objects of a log; other lines, such as a traceback or one that a kill cut, are passed over."""
    found = []
    for line in lines:
        with suppress(ValueError):
            found.append(read_json(line))
    return [one for one in found if isinstance(one, dict)]


def processes(where: str, lines: Iterable[Document]) -> list[SidecarProcess]:
    """The processes whose lines one log has, one after another."""
    found = [SidecarProcess(where)]
    for line in lines:
        if line.get("event") == "started" and "store" in line:
            begun = SidecarProcess(where, replica=line["replica"], store=line["store"])
            begun.grace_seconds = line["grace_seconds"]
            begun.newest = found[-1].newest  # a clock that was set back meanwhile is that of all of them
            found.append(begun)
        if "event" in line:
            found[-1].take(line)
    return found


def seconds_of(timestamp: object) -> float | None:
    """The time of a line of a log, in unix seconds; None: it says none."""
    try:
        return datetime.fromisoformat(str(timestamp)).timestamp()
    except ValueError:
        return None
