"""Looks at an engine: when the next one is due, what it means that some fail, and what their log tells."""

from __future__ import annotations

import random

import pytest
from structlog.testing import capture_logs

from registry.runtime.clock import Clock
from sidecar.engines.driver import EngineAbsent, EngineUnreachable
from sidecar.engines.observed import EngineFacts, Observed
from sidecar.loop.observer import (
    BRIEF_SECONDS,
    LOOK_AGAIN_LONGEST_SECONDS,
    MAX_NAMES_A_LINE,
    EngineObserver,
    EngineProbes,
    OwnNames,
    ServedGenerations,
    listing_diff,
)
from tests.support.checkers.logs import processes
from tests.support.worlds import observed, owns, path_of

NOW = "now"


class Time(Clock):
    """The time is what its chance says."""

    def monotonic(self) -> float:
        return float(vars(self.rng).get(NOW, 0.0))


class Engine:
    """Can be looked at or not, and its process answers or not."""

    url = "http://engine"
    paused = ""
    trouble = "HTTP 500"

    def __init__(self) -> None:
        self.is_listing, self.process = True, "e1"
        self.says: bool | None = True
        self.looks, self.during = 0, lambda: None
        self.seen, self.adapters = "e1", dict[str, str]()

    async def observe(self) -> Observed:
        self.looks += 1
        self.during()
        if not self.is_listing:
            raise EngineUnreachable(self.trouble)
        return Observed(EngineFacts("vllm", "1", self.url, self.seen), ("base",), self.adapters)

    async def turns(self) -> bool | None:
        return self.says

    async def incarnation(self) -> str:
        if not self.process:
            raise EngineAbsent("refused")
        if self.process == "odd":
            raise EngineUnreachable("HTTP 500")
        return self.process


class Eyes:
    """An observer of such an engine."""

    def __init__(self) -> None:
        self.engine, self.chance = Engine(), random.Random(0)
        self.woken: list[bool] = []
        self.observer = EngineObserver(self.engine, Time(self.chance), lambda: self.woken.append(True), owns)

    async def look(self, at: float) -> None:
        vars(self.chance)[NOW] = at
        await self.observer.look_at_most_old(0.0)

    async def is_brief(self, at: float) -> bool:
        vars(self.chance)[NOW] = at
        return await self.observer.fails_briefly()


async def test_after_a_failed_look_the_next_is_due_soon_and_then_ever_later():
    """R18 readiness-follows, R17: many that fail within a moment, as one for each part of a change, count as one."""
    eyes = Eyes()
    await eyes.look(0.0)
    eyes.engine.is_listing = False
    waits, at = [], 1.0
    for _ in range(8):
        await eyes.look(at)
        waits.append(eyes.observer.look_again_seconds)
        at += waits[-1]
    assert waits == [0.5, 0.5, 1.0, 2.0, 4.0, 8.0, LOOK_AGAIN_LONGEST_SECONDS, LOOK_AGAIN_LONGEST_SECONDS]
    eyes.engine.is_listing = True
    await eyes.look(at)
    eyes.engine.is_listing = False
    await eyes.look(at + 1.0)
    assert eyes.observer.look_again_seconds == 0.5
    for _ in range(20):
        await eyes.look(at + 1.0)
    assert eyes.observer.look_again_seconds == 0.5


async def test_what_is_distrusted_during_a_look_is_looked_at_again():
    """R3 converge: the look may be from before what it is distrusted for, as a restart; and a round looks soon."""
    eyes = Eyes()
    eyes.engine.during = eyes.observer.distrust
    assert await eyes.observer.look_at_most_old(60.0) is not None
    eyes.engine.during = lambda: None
    assert await eyes.observer.look_at_most_old(60.0) is not None
    assert await eyes.observer.look_at_most_old(60.0) is not None
    assert (eyes.engine.looks, eyes.woken) == (2, [True])


async def test_a_look_is_as_old_as_its_beginning():
    """R9 status-truth: what is told with it was so then, and need not be any more when an engine answers late."""
    eyes = Eyes()
    eyes.engine.during = lambda: vars(eyes.chance).update({NOW: 14.0})
    await eyes.look(10.0)
    assert eyes.observer.observed_at == 10.0
    await eyes.observer.look_at_most_old(4.0)
    assert eyes.engine.looks == 2


@pytest.mark.parametrize("says", [True, False, None])
async def test_an_engine_hangs_only_if_it_was_asked_to_generate_and_did_not(says):
    """R18: one that completes nothing does not."""
    eyes = Eyes()
    eyes.engine.says = says
    await eyes.observer.look(has_unsettled=True)
    assert eyes.observer.hangs == (says is False)
    await eyes.observer.look(has_unsettled=False)
    assert not eyes.observer.hangs


async def test_a_short_run_of_failed_looks_is_told_from_an_engine_that_is_gone():
    """R18: of the process that was seen last, and of no other; before it was seen, nothing could still be so."""
    eyes = Eyes()
    for is_listing, at in ((None, -3.0), (False, -2.0), (True, 0.0)):
        if is_listing is not None:
            eyes.engine.is_listing = is_listing
            await eyes.look(at)
        assert (eyes.observer.look_again_seconds, await eyes.is_brief(at)) == (0.5, False), is_listing
    eyes.engine.is_listing = False
    await eyes.look(10.0)
    await eyes.look(11.0)
    assert await eyes.is_brief(10.0 + BRIEF_SECONDS)
    assert not await eyes.is_brief(10.1 + BRIEF_SECONDS)
    assert [await eyes.is_brief(10.0 + seconds) for seconds in (2.0, 9.0)] == [True, False], "in numbers"
    for process, is_brief in (("", False), ("e2", False), ("odd", True)):
        eyes.engine.process = process
        assert await eyes.is_brief(11.0) == is_brief
    assert not await eyes.is_brief(10.1 + BRIEF_SECONDS), "an odd answer is borne with for as long, too"


async def test_the_same_problem_is_logged_once_and_another_is_news():
    """R16: a log of an engine that is away for a night stays readable."""
    eyes = Eyes()
    with capture_logs() as logs:
        await eyes.look(0.0)
        eyes.engine.is_listing = False
        for at in (1.0, 2.0, 3.0):
            await eyes.look(at)
        eyes.engine.trouble = "HTTP 503"
        await eyes.look(4.0)
        eyes.engine.is_listing = True
        await eyes.look(5.0)
        assert eyes.observer.problem == ""
        eyes.engine.is_listing = False
        await eyes.look(6.0)
    assert [one["error"] for one in logs if one["event"] == "engine_not_observed"] == [
        "HTTP 500",
        "HTTP 503",
        "HTTP 503",
    ]


def broken(*_: object) -> None:
    raise RuntimeError("a fault of our own")


async def test_a_fault_of_our_own_is_not_taken_for_one_of_the_engine():
    """Fail stop: whoever keeps the part has to know of it."""
    eyes = Eyes()
    await eyes.look(0.0)
    eyes.engine.is_listing = False
    await eyes.look(1.0)
    eyes.engine.incarnation = broken  # type: ignore[assignment]
    with pytest.raises(RuntimeError):
        await eyes.is_brief(1.0)
    with pytest.raises(RuntimeError):
        await EngineProbes(eyes.engine, Time(eyes.chance)).watch(lambda: None)
    eyes.engine.during = broken
    with pytest.raises(RuntimeError):
        await eyes.look(2.0)


async def test_each_look_that_shows_a_change_is_logged_before_it_is_acted_upon():
    """R9 status-truth: what a status may say can be read in the log."""
    eyes, two = Eyes(), {"a": "/1", "b": "/2"}
    with capture_logs() as logged:
        told = []
        for seen, adapters in (
            ("e1", {}),
            ("e1", {}),
            ("e1", two),
            ("e1", two),
            ("e1", {"a": "/3"}),
            ("e2", {"a": "/3"}),
        ):
            eyes.engine.seen, eyes.engine.adapters = seen, adapters
            await eyes.look(0.0)
            told.append(len(logged))
    assert told == [1, 1, 2, 2, 3, 4]
    assert [line["adapters"] for line in logged] == [{}, two, {"a": "/3", "b": None}, {"a": "/3"}]
    assert [line["whole"] for line in logged] == [True, False, False, True]


def test_a_long_look_is_told_in_several_lines_and_read_as_one():
    """R9: no line is very long."""
    before, after = (
        Observed(EngineFacts("sim", "1", "u", incarnation), (), {f"n{number}": f"/{number}" for number in numbers})
        for incarnation, numbers in (("e1", range(2 * MAX_NAMES_A_LINE + 1)), ("e2", [5]))
    )
    lines = [*listing_diff(None, before), *listing_diff(before, after)]
    assert [len(line["adapters"]) for line in lines] == [MAX_NAMES_A_LINE, MAX_NAMES_A_LINE, 1, 1]
    (process,) = processes("log", [{"event": "engine_listed", **line} for line in lines])
    assert process.looks.incarnations == ["e1", "e2"]
    assert process.looks.names(0) == before.adapters.keys()
    assert [process.looks.path("n7", number) for number in (0, 1)] == ["/7", None]
    assert process.looks.names(1) == {"n5"}


THEIRS = "/elsewhere/a"


def everything(_: str) -> bool:
    return True


def nothing(_: str) -> bool:
    return False


def test_a_name_that_was_ours_and_has_other_files_was_taken():
    """R4 digest-true, R11 foreign-safe."""
    names = OwnNames()
    assert names.taken(observed({"a": THEIRS})) == frozenset()  # as far as is known it was always theirs
    names.note(observed({"a": "v1", "x": "/elsewhere/x"}), [], everything)
    assert names.taken(observed({"a": "v2", "x": "/elsewhere/x"})) == frozenset()
    assert names.taken(observed({"a": THEIRS, "x": "/elsewhere/y"})) == {"a"}


ANEW = observed(incarnation="e2"), [], everything


@pytest.mark.parametrize(
    ("notes", "is_taken"),
    [
        pytest.param([(observed(), [], everything), (observed({"a": THEIRS}), ["a"], everything)], True, id="desired"),
        pytest.param([(observed({"a": THEIRS}), [], nothing)], False, id="desired no more"),
        pytest.param([(observed({"a": "v1"}), ["a"], everything), (observed(), [], everything)], False, id="unloaded"),
        pytest.param([(observed({"a": THEIRS}, incarnation="e2"), [], everything)], False, id="of a new process"),
        pytest.param([ANEW], False, id="not in a new process"),
    ],
)
def test_it_stays_ours_while_it_is_desired_and_is_anybodys_once_we_or_its_process_let_go_of_it(notes, is_taken):
    """R11: a lazy adapter that nobody used, or one that others serve now; a new process has nothing from us."""
    names, now = OwnNames(), notes[-1][0].facts.incarnation
    names.note(observed({"a": "v1"}), [], everything)
    if now == "e2":
        assert names.taken(observed({"a": THEIRS}, incarnation="e2")) == frozenset()
    for note in notes:
        names.note(*note)
    assert names.taken(observed({"a": THEIRS}, incarnation=now)) == ({"a"} if is_taken else frozenset())


def test_what_was_served_as_desired_is_known_by_its_files_while_the_engine_lists_them():
    """R9 status-truth: so that a status can say which generation answers while the newest one cannot be had."""
    seen = ServedGenerations()
    assert seen.by_use == {}
    seen.note(observed({"a": "v1", "b": "v1"}), [("a", 3), ("b", 1), ("gone", 7)])
    assert seen.by_use == {("a", path_of("v1")): 3, ("b", path_of("v1")): 1}
    seen.note(observed({"a": "v1", "b": "v2"}), [])
    assert seen.by_use == {("a", path_of("v1")): 3}
    seen.note(observed({"a": "v1"}), [("a", 4)])
    assert seen.by_use == {("a", path_of("v1")): 4}
    seen.note(observed(), [("a", 4)])
    assert seen.by_use == {}
