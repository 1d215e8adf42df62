"""Search for cases that end, freeze, swell or fool what reads them; and the oracle that says so.

A target plays one case on real code. What no case may bring about is the same for all targets: an error that nobody
foresaw, a part that fails, an event loop held for a second, memory, a secret in a log. What else must hold the target
asserts itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import random
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Never, Self
from unittest import mock

import coverage
import structlog

from registry.runtime.process import _json
from tests.fuzz.mutation import Case, Form, hurt

ROOT = Path(__file__).parents[2]
CORPUS = Path(__file__).parent / "corpus"
# Stands wherever a credential may: in no log, answer or message.
SECRET = "canary-5a0c1b7e"  # noqa: S105 - of the fuzzer
# Guarantee X2. What the loop's thread computes counts, not what it waits for, which is up to the machine.
HELD_SECONDS = 1.0
CASE_SECONDS = 60.0
MAX_CASE_GROWTH_BYTES = 256 << 20
HELD = "held"
_MOST_POOLED, _MAX_POOLED_BYTES = 1000, 64 << 10
_SMALLER_SECONDS = 10.0

Run = Callable[[Case], Awaitable[None]]


@dataclass(frozen=True)
class Target:
    """Something that reads what strangers write.

    Attributes:
        name: as on the command line.
        forms: how each part of a case is hurt; the last one, all further parts.
        seeds: valid cases.
        opened: starts what is played on, in a folder; gives what plays a case.
        runs: how many hurt cases `make test` plays.
        held_seconds: what one case may compute in one piece; more than usual where no event loop waits for it.
    """

    name: str
    forms: tuple[Form, ...]
    seeds: Callable[[], Sequence[Case]]
    opened: Callable[[Path], AbstractAsyncContextManager[Run]]
    runs: int = 100
    held_seconds: float = HELD_SECONDS


@dataclass(frozen=True)
class Finding:
    """A case that did what none may; `place` tells it from others of the same target."""

    target: str
    case: Case
    place: str
    text: str

    def __str__(self) -> str:
        shown = ", ".join(repr(part[:200]) for part in self.case)
        return f"{self.target}: {self.place}\n{self.text}case {name_of(self.case)}: {shown}\n{replay(self)}"


def replay(finding: Finding) -> str:
    """The command that plays the case of a finding again."""
    return f"replay: .venv/bin/python -m tests.fuzz --target {finding.target} --replay {name_of(finding.case)}"


def name_of(case: Case) -> str:
    """A name that no other case has."""
    return hashlib.sha256(as_line(case).encode()).hexdigest()[:12]


def as_line(case: Case) -> str:
    """A case as text."""
    return json.dumps([part.decode("latin-1") for part in case])


def case_of(line: str) -> Case:
    """The case that a line is of."""
    return tuple(part.encode("latin-1") for part in json.loads(line))


def kept(target: str, folder: Path = CORPUS) -> list[Case]:
    """The cases that are kept of a target."""
    file = folder / f"{target}.txt"
    lines = file.read_text().splitlines() if file.exists() else []
    return list(map(case_of, lines))


def keep(target: str, case: Case, folder: Path = CORPUS) -> None:
    """Keeps a case; from then on every run plays it."""
    if case not in kept(target, folder):
        with (folder / f"{target}.txt").open("a") as file:
            file.write(as_line(case) + "\n")


def must_say(*said: object) -> None:
    """A refusal has a reason and a sentence, and holds no secret."""
    assert all(said), f"a refusal without a reason: {said}"
    assert SECRET not in str(said), "a secret in a refusal"


class Guide:
    """Tells whether code ran that did not run before, by the tracer of coverage.py."""

    def __init__(self) -> None:
        folders = [str(ROOT / name / "*") for name in ("registry", "sidecar")]
        self._coverage = coverage.Coverage(data_file=None, branch=True, include=folders, config_file=False)
        self._seen = 0

    def __enter__(self) -> Self:
        self._coverage.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._coverage.stop()

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Nothing is traced in the body, which takes its usual time."""
        self._coverage.stop()
        try:
            yield
        finally:
            self._coverage.start()

    def grew(self) -> bool:
        """True if branches were taken that were not taken when it was last asked."""
        collector = self._coverage._collector
        assert collector is not None
        before, self._seen = self._seen, sum(len(arcs) for arcs in list(collector.data.values()))
        return self._seen > before


class Oracle:
    """What every case is judged by. Use as a context inside the running loop."""

    def __init__(self, held_seconds: float = HELD_SECONDS) -> None:
        self._held_seconds = held_seconds
        self._entries: list[Any] = []
        self._records: list[logging.LogRecord] = []
        self._last = self._worst = 0.0

    @contextmanager
    def watching(self) -> Iterator[Oracle]:
        """Listens to logs, and to the pulse of the loop."""
        handler = logging.Handler(logging.ERROR)
        handler.addFilter(_is_no_pollers)
        handler.emit = self._records.append  # type: ignore[method-assign]
        logging.getLogger().addHandler(handler)
        pulse = asyncio.get_running_loop().create_task(self._pulse())
        processors = structlog.get_config()["processors"]  # loggers that were used already hold this very list
        before, processors[:] = [*processors], [self._note]
        try:
            yield self
        finally:
            processors[:] = before
            pulse.cancel()
            logging.getLogger().removeHandler(handler)

    def _note(self, _: object, __: str, event: MutableMapping[str, Any]) -> Never:
        if event.get("exc_info") is True:
            event["exc_info"] = sys.exc_info()[1]
        self._entries.append({**event})
        raise structlog.DropEvent

    async def _pulse(self) -> None:
        while True:
            self._feel()
            await asyncio.sleep(0.02)

    def _feel(self) -> None:
        now = time.thread_time()
        self._worst, self._last = max(self._worst, now - self._last), now

    async def judge(self, target: str, run: Run, case: Case) -> Finding | None:
        """Plays a case."""
        self._entries.clear()
        self._records.clear()
        before = memory_bytes("VmRSS", forgets_peak=True)
        self._last, self._worst = time.thread_time(), 0.0
        failure: Exception | None = None
        try:
            async with asyncio.timeout(CASE_SECONDS):
                await run(case)
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody foresaw it
            failure = error
        self._feel()
        for place, text in self._complaints(memory_bytes("VmHWM") - before):
            return Finding(target, case, place, f"{text}\n")  # more to the point than what followed from it
        if failure is not None:
            return Finding(target, case, place_of(failure), "".join(traceback.format_exception(failure)))
        return None

    def _complaints(self, grown_bytes: int) -> Iterator[tuple[str, str]]:
        for entry in self._entries:
            line = structlog.processors.JSONRenderer(serializer=_json)(None, "", dict(entry))
            if SECRET in str(line):
                yield "a secret in a log", str(line)[:2000]
            error = entry.get("exc_info")
            if isinstance(error, BaseException):
                yield f"{entry['event']}: {place_of(error)}", "".join(traceback.format_exception(error))
            elif error:
                yield str(entry["event"]), str(line)[:2000]
        for record in self._records:
            error = record.exc_info[1] if record.exc_info else None
            text = "".join(traceback.format_exception(error)) if error else record.getMessage()
            yield f"{record.name}: {place_of(error) if error else record.msg}", text
        if self._worst > self._held_seconds:
            yield HELD, f"the loop's thread computed for {self._worst:.2f} s in one piece"
        if grown_bytes > MAX_CASE_GROWTH_BYTES:
            yield "memory", f"memory grew by {grown_bytes >> 20} MiB"


def memory_bytes(field: str, *, forgets_peak: bool = False) -> int:
    """Memory of this process by its name in /proc/self/status."""
    if forgets_peak:
        Path("/proc/self/clear_refs").write_text("5")
    (line,) = (one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def _is_no_pollers(record: logging.LogRecord) -> bool:
    """gRPC's one poller of a process hands events to all of its loops, also to one that a command has just closed."""
    error = record.exc_info[1] if record.exc_info else None
    frames = traceback.extract_tb(error.__traceback__)[:2] if isinstance(error, RuntimeError) else []
    return not any(one.name.endswith("PollerCompletionQueue._handle_events") for one in frames)


def place_of(error: BaseException) -> str:
    """Kind of an error and the deepest line of ours that it came through."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    frames = traceback.extract_tb(error.__traceback__)
    ours = [one for one in frames if "/registry/" in one.filename or "/sidecar/" in one.filename] or frames
    where = f" at {ours[-1].filename.removeprefix(f'{ROOT}/')}:{ours[-1].lineno}" if ours else ""
    return f"{type(error).__name__}{where}"


@dataclass
class Search:
    """What a search came to. `grown` are cases that brought code to run which no case before had."""

    executions: int = 0
    seconds: float = 0.0
    findings: dict[str, Finding] = field(default_factory=dict)
    grown: list[Case] = field(default_factory=list)


@dataclass(frozen=True)
class Bounds:
    """How far a search goes: so many hurt cases, seconds, or findings; `patience`: times what a case may compute."""

    runs: int = 1 << 60
    findings: int = 1 << 60
    seconds: float = float("inf")
    patience: float = 1.0


async def search(
    target: Target,
    folder: Path,
    rng: random.Random,
    bounds: Bounds,
    *,
    guide: Guide | None = None,
    cases: Sequence[Case] | None = None,
    on_case: Callable[[Case], object] = lambda _: None,
) -> Search:
    """Plays the seeds, what is kept (or only `cases`), and then hurt ones; `on_case` hears of each before."""
    found = Search()
    started = time.monotonic()
    pool = [*target.seeds(), *kept(target.name)] if cases is None else [*cases]
    async with target.opened(folder) as run:
        # No power cut is played, and most of the time would go to the disk.
        with mock.patch("os.fsync"), Oracle(bounds.patience * target.held_seconds).watching() as oracle:
            for case in _cases(target, rng, bounds, pool):
                on_case(case)
                finding = await oracle.judge(target.name, run, case)
                found.executions += 1
                if finding is not None and guide is not None and finding.place == HELD:
                    with guide.resting():
                        finding = await oracle.judge(target.name, run, case)
                if finding is not None and finding.place not in found.findings:
                    found.findings[finding.place] = await smallest(target, oracle, run, finding)
                if guide is not None and guide.grew() and finding is None and case not in pool:
                    found.grown.append(case)
                    _add(pool, case)
                if len(found.findings) >= bounds.findings:
                    break
    found.seconds = time.monotonic() - started
    return found


def _add(pool: list[Case], case: Case) -> None:
    """Has a case hurt further, unless it has grown so large that it would only cost time."""
    if sum(map(len, case)) <= _MAX_POOLED_BYTES and len(pool) < _MOST_POOLED:
        pool.append(case)


def _cases(target: Target, rng: random.Random, bounds: Bounds, pool: list[Case]) -> Iterator[Case]:
    end = time.monotonic() + bounds.seconds
    yield from [*pool]
    for _ in range(bounds.runs):
        if time.monotonic() > end:
            return
        yield hurt(rng, rng.choice(pool), target.forms, pool)


async def smallest(target: Target, oracle: Oracle, run: Run, finding: Finding) -> Finding:
    """The same finding by a smaller case, as far as a few attempts reach."""
    best, end = finding, time.monotonic() + _SMALLER_SECONDS
    for case in _smaller(target, finding.case):
        if time.monotonic() > end:
            break
        other = await oracle.judge(target.name, run, case)
        if other is not None and other.place == finding.place and sum(map(len, case)) < sum(map(len, best.case)):
            best = other
    return best


def _smaller(target: Target, case: Case) -> Iterator[Case]:
    for at, part in enumerate(case):
        for seed in target.seeds()[:20]:
            yield (*case[:at], seed[min(at, len(seed) - 1)], *case[at + 1 :])
        for pieces in (2, 8):
            size = max(1, len(part) // pieces)
            for start in range(0, len(part), size):
                yield (*case[:at], part[:start] + part[start + size :], *case[at + 1 :])
