"""Slots of stagings on virtual time: slow sources keep each other waiting, and nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pytest

from registry.sources.base import ArtifactError
from sidecar.artifacts.ingest import Pace
from sidecar.artifacts.staging import LONG_SECONDS, LONG_SLOTS, QUICK_SECONDS, QUICK_SLOTS, Staging, origin_of
from sidecar.artifacts.types import ArtifactRef, Stage, Staged
from tests.simulation.loop import VirtualLoop

FOR_EVER = 1800.0


@dataclass
class TimedStore:
    """Stages what a URI ends with in so many seconds; what is stopped begins from its beginning."""

    most: int = 0
    at_once: list[str] = field(default_factory=list)
    begun: list[tuple[float, str]] = field(default_factory=list)
    done: dict[str, float] = field(default_factory=dict)

    async def ensure(self, ref: ArtifactRef) -> Staged:
        loop = asyncio.get_running_loop()
        self.begun.append((loop.time(), ref.uri))
        self.at_once.append(ref.uri)
        self.most = max(self.most, len(self.at_once))
        try:
            await asyncio.sleep(float(ref.uri.rpartition("/")[2]))
        finally:
            self.at_once.remove(ref.uri)
        self.done[ref.uri] = loop.time()
        return Staged("id", "/path", "sha256:0", 8)


def stage(uri: str, name: str = "a") -> Stage:
    return Stage(name, ArtifactRef(uri, None), "")


def play(script: Callable[[Staging, TimedStore], Coroutine[Any, Any, None]]) -> TimedStore:
    """Runs a script on virtual time, and until all that it started is staged."""
    store = TimedStore()

    async def run() -> None:
        async with asyncio.TaskGroup() as tasks:
            staging = Staging(store, tasks, on_failure=lambda *_: None, on_end=lambda: None)  # type: ignore[arg-type]
            await script(staging, store)

    with closing(VirtualLoop()) as loop:
        loop.run_until_complete(run())
    assert not store.at_once
    return store


def slow(count: int, *, seconds: float = FOR_EVER, tenant: str = "evil", first: int = 0) -> list[Stage]:
    """Stagings of as many origins."""
    numbers = range(first, first + count)
    return [stage(f"https://slow{number}.example/{number}/{seconds}", f"{tenant}/a{number}") for number in numbers]


def test_any_number_of_slow_sources_holds_up_a_quick_one_for_a_moment():
    """R8, R16, R19: four of them stopped all staging for half an hour."""

    async def script(staging: Staging, _: TimedStore) -> None:
        staging.start(slow(100))
        await asyncio.sleep(60)
        staging.start([stage("https://good.example/0.5", "good/a")])

    store = play(script)
    assert store.done["https://good.example/0.5"] <= 60 + QUICK_SECONDS + 0.5 + 0.01
    assert store.most == QUICK_SLOTS + LONG_SLOTS
    assert len(store.done) == 101


def test_a_quick_one_of_the_same_tenant_or_of_the_same_origin_waits_a_moment_too():
    """R19: of either it is enough that it is another."""

    async def script(staging: Staging, _: TimedStore) -> None:
        staging.start(slow(8, tenant="same"))
        await asyncio.sleep(60)
        staging.start([stage("https://good.example/0.5", "same/b"), stage("https://slow0.example/0.25", "other/b")])

    store = play(script)
    assert max(store.done["https://good.example/0.5"], store.done["https://slow0.example/0.25"]) < 60 + QUICK_SECONDS


def test_those_whose_origin_and_tenant_have_least_at_work_are_first():
    """R19: however many stand before them."""

    async def script(staging: Staging, _: TimedStore) -> None:
        staging.start([stage(f"https://one.example/{number}/1", "one/a") for number in range(50)])
        staging.start([stage("https://two.example/1", "one/b"), stage("https://one.example/x/1", "two/a")])

    begun = play(script).begun
    assert [uri for at, uri in begun if at == begun[0][0]][2:] == ["https://one.example/2/1", "https://one.example/3/1"]
    second = [uri for at, uri in begun if at > begun[0][0]][:4]
    assert {"https://two.example/1", "https://one.example/x/1"} <= set(second)


def test_what_takes_long_is_not_begun_anew_while_nobody_else_waits():
    """No work is thrown away for the sake of the same source's next adapter."""

    async def script(staging: Staging, _: TimedStore) -> None:
        staging.start([stage(f"https://one.example/{number}/30", "one/a") for number in range(40)])

    store = play(script)
    assert len(store.begun) == len(store.done) == 40
    assert max(store.done.values()) == 5 * 30 + QUICK_SECONDS


def test_one_that_is_merely_large_gets_its_time_among_those_that_never_end():
    """R8: of long ones the one that had the least is first; each turn is longer than the last."""

    async def script(staging: Staging, _: TimedStore) -> None:
        staging.start(slow(20))
        await asyncio.sleep(300)
        staging.start([stage("https://large.example/100", "good/large")])

    done = play(script).done["https://large.example/100"]
    assert done <= 300 + QUICK_SECONDS + LONG_SECONDS + 100 + 0.01


def test_stagings_end_with_their_group_and_leave_no_alarm():
    async def script() -> None:
        store = TimedStore()
        try:
            async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
                staging = Staging(store, tasks, on_failure=lambda *_: None, on_end=lambda: None)  # type: ignore[arg-type]
                staging.start(slow(20))
                await asyncio.sleep(FOR_EVER)
        except TimeoutError:
            await asyncio.sleep(2 * FOR_EVER)
        assert not store.at_once
        assert len(store.begun) <= 5 * QUICK_SLOTS + LONG_SLOTS

    with closing(VirtualLoop()) as loop:
        loop.run_until_complete(script())


@pytest.mark.parametrize(
    ("size_bytes", "rate", "is_kept"),
    [
        (200_000_000, 200_000, True),
        (200_000_000, 100_000, False),
        (7_000_000, 45_000, True),
        (7_000_000, 4096, False),
        (1000, 20, True),
        (1000, 1, False),
    ],
)
def test_a_file_comes_at_a_pace_that_follows_from_its_size(size_bytes, rate, is_kept):
    """R8, R16: one that cannot come in time is told so in a minute; what we do with it ourselves does not count."""
    now = 0.0

    def clock() -> float:
        return now

    def source() -> Iterator[bytes]:
        nonlocal now
        for _ in range(size_bytes // rate):
            now += 1.0
            yield b" " * rate

    def take() -> None:
        nonlocal now
        pace = Pace("weights", size_bytes, clock)
        for _ in pace.keep(source()):
            now += 100.0  # a slow disk of ours

    if is_kept:
        take()
        return
    with pytest.raises(ArtifactError, match=f"comes at {rate} bytes a second") as refused:
        take()
    assert (refused.value.reason, refused.value.permanent) == ("source_timeout", False)
    assert now < 2 * 60 * 101


def test_origins():
    assert origin_of("https://host:8/a/b") == "https://host:8"
    assert origin_of("hf://org/repo@0") == "hf://org"
    assert origin_of("file:///mnt/a/b") == origin_of("file:///mnt/c") == "file:///mnt"
    assert origin_of("nothing") == "nothing://"
