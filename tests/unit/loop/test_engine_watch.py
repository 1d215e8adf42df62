"""Probes of the engine tell every change of its identity, that it is away, and that it generates nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from registry.runtime.clock import Clock
from sidecar.engines.driver import EngineUnreachable
from sidecar.loop.observer import (
    ALONE_SECONDS,
    MOST_INCARNATIONS,
    PATIENCE_SECONDS,
    STALLED,
    EngineProbes,
    Incarnations,
    watch_changes,
)
from sidecar.metrics import ENGINE_RESTARTS
from tests.simulation.loop import virtual


class Probed:
    """Answers each probe with the next identity; an empty one: it does not answer."""

    url = "http://engine"
    paused = ""

    def __init__(self, identities: list[str]) -> None:
        self._left = iter(identities)
        self.over = asyncio.Event()

    async def incarnation(self) -> str:
        identity = next(self._left, None)
        if identity is None:
            self.over.set()
            return await asyncio.Future()
        if not identity:
            raise EngineUnreachable("no answer")
        return identity


@pytest.mark.parametrize(
    ("identities", "changes", "restarts"),
    [
        (["1", "1", "1"], 1, 0),
        (["1", "2", "2"], 2, 1),
        (["1", "2", "2", "3"], 3, 2),
        (["1", "", "", "2"], 3, 1),
        (["1", "", "1"], 3, 0),
        (["", "", "1"], 1, 0),
    ],
)
@virtual
async def test_a_restart_is_told_at_once_and_counted_and_so_is_silence(monkeypatch, identities, changes, restarts):
    """R3 converge, R9: what an engine had is gone with its process, whether or not a probe met it while it was away.

    On virtual time, in which no silence lasts: one that did would be told of once more.
    """
    for name in ("PROBE_SECONDS", "PROBE_AWAY_SECONDS"):
        monkeypatch.setattr(f"sidecar.loop.observer.{name}", 0.0)
    told, engine, before = list[None](), Probed(identities), ENGINE_RESTARTS._value.get()
    watching = asyncio.create_task(EngineProbes(engine, Clock(random.Random(0))).watch(lambda: told.append(None)))
    async with asyncio.timeout(30):
        await engine.over.wait()
    watching.cancel()
    assert (len(told), ENGINE_RESTARTS._value.get() - before) == (changes, restarts)


def seen(*pairs: tuple[float, str]) -> tuple[list[bool], list[bool]]:
    """Of each answer, whether it is of another process than before, and whether several answer."""
    incarnations, others, several = Incarnations("http://engine"), [], []
    for at, incarnation in pairs:
        others.append(incarnations.see(incarnation, at))
        several.append(bool(incarnations.several))
    return others, several


def test_a_process_that_comes_back_again_and_again_is_one_of_several():
    """R18: no restart is told then, and nothing is said of one engine that is true of another.

    Processes one after the other are never several, nor is one that was seen once more by mistake.
    """
    pairs = [(float(at), "ab"[at % 2]) for at in range(6)]
    with capture_logs() as logs:
        assert seen(*pairs) == ([False, True, True, False, False, False], [False, False, False, True, True, True])
    assert len(logs) == 1, "it is told once"
    alone = (ALONE_SECONDS + 2.0, "b"), (ALONE_SECONDS + 3.0, "b")
    assert seen(*pairs[:4], *alone)[1] == [False, False, False, True, True, False], "no other answered for a while"
    pairs = [(float(at), f"e{at}") for at in range(2 * MOST_INCARNATIONS)]
    assert seen(*pairs) == ([False, *[True] * (len(pairs) - 1)], [False] * len(pairs))
    assert seen((0.0, "a"), (1.0, "b"), (2.0, "a"), (30.0, "b"))[1] == [False] * 4


class Changing:
    """Tells at each question the next of these, then what it is set to; None: it does not answer."""

    def __init__(self, *told: bool | None) -> None:
        self._left = iter(told)
        self.over = asyncio.Event()
        self.changed, self.asked = False, 0

    async def has_changed(self) -> bool:
        self.asked += 1
        told = next(self._left, ...)
        if told is None:
            raise EngineUnreachable("no answer")
        if told is ...:
            self.over.set()
            return self.changed
        return bool(told)


@asynccontextmanager
async def watched(engine: Changing) -> AsyncIterator[list[None]]:
    """The news of what others did to it."""
    heard: list[None] = []
    watching = asyncio.create_task(watch_changes(engine, lambda: heard.append(None)))  # type: ignore[arg-type]
    yield heard
    watching.cancel()


@pytest.mark.parametrize(
    ("told", "changes"),
    [
        ([False, False], 0),
        ([True, True], 1),
        ([True, False, False], 0),  # it was ours, and was looked at
        ([None, True, None, True, True], 1),
    ],
)
@virtual
async def test_what_others_did_is_told_once_and_what_was_looked_at_is_not(told, changes):
    """R3 converge: every call of our own would cost a look more."""
    engine = Changing(*told)
    async with watched(engine) as heard:
        await engine.over.wait()
        assert len(heard) == changes


@virtual
async def test_what_others_did_is_told_within_two_seconds_by_a_few_questions():
    """R3 converge: it could take a quarter of a minute else."""
    engine = Changing()
    async with watched(engine) as heard:
        await asyncio.sleep(20.0)
        assert (heard, 10 <= engine.asked <= 80) == ([], True)
        engine.changed = True
        await asyncio.sleep(2.0)
        assert heard


@virtual
async def test_what_we_did_ourselves_is_not_told_where_it_is_looked_at_a_moment_later():
    """R16: after each call of ours the engine has other adapters, until the loop's own look."""

    class Ours(Changing):
        async def has_changed(self) -> bool:
            if self.changed:
                asyncio.get_running_loop().call_later(0.1, setattr, self, "changed", False)  # noqa: FBT003 - its value
            return await super().has_changed()

    engine = Ours()
    async with watched(engine) as heard:
        for _ in range(5):
            engine.changed = True
            await asyncio.sleep(3.0)
        assert heard == []


@virtual
async def test_a_fault_of_our_own_ends_the_watch_for_changes(monkeypatch):
    """Fail stop: it would be silent for ever."""

    async def broken(_: object) -> bool:
        raise RuntimeError

    monkeypatch.setattr(Changing, "has_changed", broken)
    with pytest.raises(RuntimeError):
        await watch_changes(Changing(), lambda: None)  # type: ignore[arg-type]


SILENT_SECONDS = 5.0  # a probe's deadline


class Played:
    """An engine whose state is what a test sets it to."""

    paused = ""
    url = "http://engine"
    says = "no answer"

    def __init__(self) -> None:
        self.identity, self.is_frozen, self.generates = "1", False, True
        self.probes = self.pulses = 0

    async def incarnation(self) -> str:
        self.probes += 1
        if self.is_frozen:
            await asyncio.sleep(SILENT_SECONDS)
        if self.is_frozen or not self.identity:
            raise EngineUnreachable(self.says.format(self.probes))
        return self.identity

    async def pulse(self) -> bool | None:
        self.pulses += 1
        return self.generates


@asynccontextmanager
async def probed() -> AsyncIterator[tuple[Played, EngineProbes, list[tuple[str, str]]]]:
    """An engine and its probes, which found it, and the news of it: its process and what is wrong with it then."""
    engine, heard = Played(), list[tuple[str, str]]()
    probes = EngineProbes(engine, Clock(random.Random(0)))  # type: ignore[arg-type] - of an engine only what is probed
    assert (probes.incarnation, probes.problem) == ("", "")

    def hear() -> None:
        heard.append((probes.incarnation, probes.problem))

    tasks = [asyncio.create_task(watch(hear)) for watch in (probes.watch, probes.feel_pulse)]
    await asyncio.sleep(1.5)
    assert heard == [("1", "")]
    yield engine, probes, heard
    for task in tasks:
        task.cancel()


@virtual
async def test_an_engine_that_says_nothing_is_away_within_ten_seconds_and_one_failed_probe_takes_nothing_out():
    """R18 readiness-follows: nor do several in a short time; and it is back soon."""
    async with probed() as (engine, probes, _):
        engine.is_frozen = True
        await asyncio.sleep(10.0)
        assert probes.problem == "no answer"
        engine.is_frozen = False
        await asyncio.sleep(SILENT_SECONDS + 1.0)
        assert (probes.incarnation, probes.problem) == ("1", "")
        for _ in range(2):  # it answers in between
            engine.identity = ""
            await asyncio.sleep(PATIENCE_SECONDS - 1.0)
            assert probes.problem == ""
            engine.identity = "1"
            await asyncio.sleep(1.5)
        engine.identity = ""
        await asyncio.sleep(PATIENCE_SECONDS + 1.0)
        assert probes.problem == "no answer"


@virtual
async def test_an_engine_that_generates_nothing_is_told_of_until_it_does_or_another_process_answers():
    """R18 readiness-follows: where it cannot be told, nothing is claimed; each change is news once."""
    async with probed() as (engine, probes, heard):
        for generates, problem, news in ((None, "", 1), (False, STALLED, 2), (True, "", 3), (False, STALLED, 4)):
            engine.generates = generates
            await asyncio.sleep(20.0)
            assert (probes.problem, len(heard)) == (problem, news)
        engine.identity, engine.generates = "2", None
        await asyncio.sleep(1.5)
        assert probes.problem == ""


@virtual
async def test_an_engine_that_is_away_is_asked_oftener_and_none_is_pressed():
    """R17 heals, R18: its adapters are back soon after it is. One that serves has better things to do."""
    async with probed() as (engine, _, _):
        probes, pulses = engine.probes, engine.pulses
        await asyncio.sleep(20.0)
        assert 10 <= engine.probes - probes <= 25
        assert 2 <= engine.pulses - pulses <= 10
        engine.identity, probes = "", engine.probes
        await asyncio.sleep(20.0)
        assert 40 <= engine.probes - probes <= 200


@virtual
async def test_what_pauses_an_engine_is_told_as_soon_as_its_driver_knows():
    """R18 readiness-follows, R17: and that it woke; it answers all the while."""
    async with probed() as (engine, probes, heard):
        engine.paused = "it sleeps"
        await asyncio.sleep(1.5)
        assert (probes.problem, probes.incarnation, len(heard)) == ("it sleeps", "1", 2)
        await asyncio.sleep(5.0)
        assert len(heard) == 2
        engine.paused = ""
        await asyncio.sleep(1.5)
        assert (probes.problem, len(heard)) == ("", 3)


@virtual
async def test_why_an_engine_is_away_is_told_as_it_began_and_is_forgotten_when_it_is_back():
    """R16: a reason that changes with each probe would be a new status each time."""
    async with probed() as (engine, probes, heard):
        engine.generates, engine.says = None, "no answer to probe {}"  # type: ignore[assignment]
        engine.identity = ""
        await asyncio.sleep(2.5)
        assert (probes.problem, len(heard)) == ("", 2), "in numbers: not within two seconds"
        await asyncio.sleep(4.0)
        first = probes.problem
        assert first.startswith("no answer to probe")
        await asyncio.sleep(20.0)
        assert (probes.problem, len(heard)) == (first, 3)
        engine.identity = "1"
        await asyncio.sleep(1.5)
        assert (probes.problem, len(heard)) == ("", 4)


@virtual
async def test_whoever_hears_of_a_change_finds_it():
    """R18 readiness-follows: the status is made anew within the call, and says why."""
    async with probed() as (engine, _, heard):
        engine.generates = False
        await asyncio.sleep(10.0)
        engine.generates, engine.identity = True, ""
        await asyncio.sleep(10.0)
        engine.identity, engine.paused = "2", "it sleeps"
        await asyncio.sleep(10.0)
        assert ("1", STALLED) in heard
        assert heard[-2:] == [("", "no answer"), ("2", "it sleeps")]
