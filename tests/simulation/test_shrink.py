"""A failing seed becomes a course that a person can read, with the command that plays it."""

from __future__ import annotations

import random

import pytest

from tests.simulation import shrink as module
from tests.simulation.checks import Checks
from tests.simulation.cut import ORDER, SLOW, Cut, read_cut
from tests.simulation.pace import LONGEST_SECONDS, Pace
from tests.simulation.shrink import shrunk, told
from tests.simulation.simulation import SimulationFailed, simulate

SEED = 3


@pytest.fixture
def broken(monkeypatch):
    """A rule that a sidecar violates as soon as it starts a second time."""
    on_log = Checks.on_log

    def odd(checks: Checks, process: str, event: str) -> None:
        on_log(checks, process, event)
        if event == "started" and process.endswith(".2"):
            checks.violated(f"R99 {process} started")

    monkeypatch.setattr(Checks, "on_log", odd)


def failure(cut: Cut) -> SimulationFailed:
    with pytest.raises(SimulationFailed) as caught:
        simulate(SEED, cut=cut)
    return caught.value


@pytest.mark.usefixtures("broken")
def test_what_has_nothing_to_do_with_it_is_left_out_and_what_is_left_fails_when_played():
    """One fault is enough; neither the order, nor slow answers, nor any change is needed."""
    whole = failure(Cut())
    smallest = shrunk(whole)
    assert len(smallest.parts) == 1
    assert smallest.parts[0].name[0] in "fn"
    assert smallest.cut.only == frozenset({smallest.parts[0].name})
    assert smallest.seconds < whole.seconds
    words = dict(word.split("=") for word in smallest.command.split()[2:])
    assert words["SEED"] == str(SEED)
    again = failure(read_cut(words["ONLY"], float(words["SECONDS"])))
    assert again.violations[0] == smallest.violations[0]
    text = told(smallest)
    assert text.startswith(smallest.command)
    assert "R99" in text.splitlines()[-1]
    assert len(text.splitlines()) < module.LINES + 20


def test_what_is_left_out_shifts_nothing_else():
    """Else a course would fail otherwise, or not at all, with each event that is left out."""
    without = simulate(SEED, cut=Cut(only=frozenset({ORDER, SLOW, "f0"}))).trace
    alone = simulate(SEED, cut=Cut(only=frozenset({ORDER, SLOW, "f0", "s0"}))).trace
    first = [next(line for line in trace if ": f0 " in line) for trace in (without, alone)]
    assert first[0] == first[1]


def test_a_cut_is_what_its_command_says():
    for cut in (Cut(), Cut(5.0), Cut(5.0, frozenset({"f10", "f2", ORDER})), Cut(only=frozenset())):
        words = dict(word.split("=") for word in cut.arguments().split())
        seconds = words.get("SECONDS")
        read = read_cut(words.get("ONLY"), None if seconds is None else float(seconds))
        assert (read.seconds, read.has("f10"), read.has("s1")) == (cut.seconds, cut.has("f10"), cut.has("s1"))
    assert Cut(5.0, frozenset({"f10", "f2", ORDER})).arguments() == f" SECONDS=5 ONLY={ORDER},f2,f10"


def test_how_long_answers_take_is_drawn_and_ends_when_all_is_healed():
    """Some are prompt, some take as long as anybody waits; none takes longer."""
    pace = Pace(random.Random(0), one_in=2)
    seconds = [pace.seconds() for _ in range(1000)]
    assert min(seconds) == 0.0
    assert 20.0 < max(seconds) <= LONGEST_SECONDS
    pace.heal()
    assert {pace.seconds() for _ in range(100)} == {0.0}
