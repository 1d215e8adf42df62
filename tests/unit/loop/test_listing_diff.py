"""Looks at an engine as lines of a log, and read back by the replay checker."""

from __future__ import annotations

import structlog

from registry.tools.verify.logs import processes
from sidecar.engines.observed import EngineFacts, Observed
from sidecar.loop.observer import MAX_NAMES_A_LINE, EngineObserver, listing_diff


def look(incarnation: str = "e1", **adapters: str) -> Observed:
    return Observed(EngineFacts("sim", "1", "u", incarnation), (), adapters)


class Engine:
    """Shows one look after another."""

    url = "u"

    def __init__(self, *looks: Observed) -> None:
        self._looks = iter(looks)

    async def observe(self) -> Observed:
        return next(self._looks)


class Clock:
    def monotonic(self) -> float:
        return 0.0


async def test_each_look_that_shows_a_change_is_logged_before_it_is_acted_upon():
    """R9 status-truth: what a status may say can be read in the log."""
    looks = [look(), look(), look(a="/1", b="/2"), look(a="/1", b="/2"), look(a="/3"), look("e2", a="/3")]
    observer = EngineObserver(Engine(*looks), Clock())  # type: ignore[arg-type]
    with structlog.testing.capture_logs() as logged:
        told = []
        for _ in looks:
            await observer.look_at_most_old(0.0)
            told.append(len(logged))
    assert told == [1, 1, 2, 2, 3, 4]
    assert [line["adapters"] for line in logged] == [{}, {"a": "/1", "b": "/2"}, {"a": "/3", "b": None}, {"a": "/3"}]
    assert [line["whole"] for line in logged] == [True, False, False, True]


def test_a_long_look_is_told_in_several_lines_and_read_as_one():
    """R9: no line is very long."""
    many = {f"n{number}": f"/{number}" for number in range(2 * MAX_NAMES_A_LINE + 1)}
    lines = [*listing_diff(None, look(**many)), *listing_diff(look(**many), look("e2", n5="/5"))]
    assert [len(line["adapters"]) for line in lines] == [MAX_NAMES_A_LINE, MAX_NAMES_A_LINE, 1, 1]
    (process,) = processes("log", [{"event": "engine_listed", **line} for line in lines])
    assert process.looks.incarnations == ["e1", "e2"]
    assert process.looks.names(0) == many.keys()
    assert [process.looks.path("n7", number) for number in (0, 1)] == ["/7", None]
    assert process.looks.names(1) == {"n5"}
