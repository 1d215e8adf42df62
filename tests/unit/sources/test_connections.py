"""How long a source may keep us waiting, by a clock of the test's own."""

from __future__ import annotations

from functools import cache

import httpcore
import pytest

from registry.sources import connections
from registry.sources.base import ArtifactError, SourceLimits, Stop
from registry.sources.connections import STOP_SECONDS, Watch

LIMITS = SourceLimits()


@cache
def content_of(size_bytes: int) -> bytes:
    """So many bytes, made once."""
    return bytes(size_bytes)


class Slow:
    """A source whose reads take as long as told, on the clock that the watch reads."""

    def __init__(self, monkeypatch) -> None:
        self.now = 0.0
        self.watch = Watch(LIMITS, Stop())
        monkeypatch.setattr(connections, "perf_counter", lambda: self.now)

    def read(self, size_bytes: int, seconds: float) -> None:
        def take(_: float) -> bytes:
            self.now += seconds
            return content_of(size_bytes)

        self.watch.read(take, LIMITS.idle_seconds)

    def trickle(self) -> float:
        """A byte a second from now on; gives after how many seconds it is given up."""
        begun = self.now
        with pytest.raises(httpcore.ReadTimeout, match="too slow"):
            self._drip(begun + 1800)
        return self.now - begun

    def _drip(self, until: float) -> None:
        while self.now < until:
            self.read(1, 1.0)


@pytest.fixture
def slow(monkeypatch) -> Slow:
    return Slow(monkeypatch)


def test_a_source_that_sends_too_little_is_given_up_after_one_look(slow):
    """R8, R16."""
    assert slow.trickle() == LIMITS.pace_seconds


def test_a_source_that_was_fast_at_first_is_given_up_as_soon(slow):
    """R8, R16: what came long ago does not count, else a gigabyte would buy days at a byte a second."""
    while slow.now <= 2 * LIMITS.pace_seconds:
        slow.read(100 << 20, 0.5)
    assert slow.trickle() <= 2 * LIMITS.pace_seconds


def test_what_we_do_with_it_ourselves_is_no_fault_of_the_source(slow):
    """A slow disk of ours lies between the reads."""
    for _ in range(100):
        slow.read(LIMITS.min_bytes_per_second, 1.0)
        slow.now += 60.0


class Silent:
    """A source that says nothing, on the clock that the watch reads; after so many waits it does, or we are stopped."""

    def __init__(self, monkeypatch, speaks_after: float = 1e9, stops_after: float = 1e9) -> None:
        self.now = 0.0
        self.waits: list[float] = []
        self.stop = Stop()
        self.watch = Watch(LIMITS, self.stop)
        self._speaks_after, self._stops_after = speaks_after, stops_after
        monkeypatch.setattr(connections, "perf_counter", lambda: self.now)

    def read(self, timeout_seconds: float) -> bytes:
        return self.watch.read(self._take, timeout_seconds)

    def _take(self, seconds: float) -> bytes:
        self.waits.append(seconds)
        self.now += seconds
        if self.now >= self._stops_after:
            self.stop.set()
        if self.now >= self._speaks_after:
            return b"x"
        raise httpcore.ReadTimeout


def test_a_silent_source_is_waited_for_as_long_as_was_said(monkeypatch):
    """R8, R12: in short waits, so that a staging which is stopped does not wait on."""
    silent = Silent(monkeypatch)
    with pytest.raises(httpcore.ReadTimeout):
        silent.read(3.25)
    assert silent.now == pytest.approx(3.25)
    assert max(silent.waits) <= STOP_SECONDS
    assert not silent.watch.has_answer
    late = Silent(monkeypatch, speaks_after=3.0)
    assert late.read(3.25) == b"x"
    assert late.watch.has_answer


def test_who_is_stopped_waits_no_longer(monkeypatch):
    """R12."""
    silent = Silent(monkeypatch, stops_after=1.0)
    with pytest.raises(ArtifactError) as stopped:
        silent.read(30.0)
    assert (stopped.value.reason, silent.now) == ("staging_stopped", 1.0)
