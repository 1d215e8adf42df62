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
from sidecar.artifacts.staging import (
    LONG_SECONDS,
    LONG_SLOTS,
    QUICK_SECONDS,
    QUICK_SLOTS,
    Staging,
    StagingSlots,
    Turn,
    origin_of,
)
from sidecar.artifacts.types import ArtifactRef, Stage, Staged
from sidecar.metrics import STAGE_SECONDS
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


def turns(slots: StagingSlots, count: int, at: float, first: int) -> list[Turn]:
    """So many slow stagings of as many origins and tenants that come at that time."""
    made = [
        Turn(stage(f"https://slow{number}.example/a", f"tenant{number}/a"), at)
        for number in range(first, first + count)
    ]
    for turn in made:
        slots.admit(turn)
    return made


def filled() -> tuple[StagingSlots, list[Turn], list[Turn]]:
    """All slots at work: the long ones since the first turns were over, the quick ones one after another since."""
    slots = StagingSlots()
    long = turns(slots, LONG_SLOTS, 0.0, 0)
    slots.rearrange(0.0)
    slots.rearrange(QUICK_SECONDS)
    quick = []
    for number in range(QUICK_SLOTS):
        quick += turns(slots, 1, QUICK_SECONDS + number, LONG_SLOTS + number)
        slots.rearrange(QUICK_SECONDS + number)
    return slots, long, quick


def test_who_had_the_most_time_gives_way_to_a_new_one():
    """R19, R8: the others may be about to end."""
    slots, _, quick = filled()
    (new,) = turns(slots, 1, 50.0, 20)
    change = slots.rearrange(50.0)
    assert (change.begin, change.stop) == ([new], quick[:1])


def test_who_has_both_an_origin_and_a_tenant_among_the_slow_ones_takes_no_slot_of_theirs():
    """R19: of either it is enough that it is another, also where they are those of two of the slow ones."""
    slots, *_ = filled()
    slots.admit(Turn(stage("https://slow0.example/b", "tenant1/b"), 50.0))
    assert slots.rearrange(50.0) == ([], [])
    other = Turn(stage("https://slow0.example/c", "tenant-of-its-own/c"), 50.0)
    slots.admit(other)
    assert slots.rearrange(50.0).begin == [other]


def test_a_long_one_takes_the_slot_of_one_that_had_more_time_than_itself_and_of_no_other():
    """R8: those that are long take turns, and do not put each other back without end."""
    slots, long, quick = filled()
    turns(slots, 1, 50.0, 20)
    slots.rearrange(50.0)
    over = QUICK_SECONDS + LONG_SECONDS
    assert slots.rearrange(over - 1.0) == ([], [])
    change = slots.rearrange(over)
    assert (change.begin, change.stop) == (quick[:1], long[:1])


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


def test_nothing_is_begun_once_the_group_has_ended_however_often_more_was_asked_for():
    """R12: nor is there an error that nobody awaits."""
    store, errors = TimedStore(), list[object]()

    async def script() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: errors.append(context))
        try:
            async with asyncio.timeout(1), asyncio.TaskGroup() as tasks:
                staging = Staging(store, tasks, on_failure=lambda *_: None, on_end=lambda: None)  # type: ignore[arg-type]
                for number in range(5):
                    staging.start(slow(4, first=4 * number))
                await asyncio.sleep(FOR_EVER)
        except TimeoutError:
            await asyncio.sleep(FOR_EVER)

    with closing(VirtualLoop()) as loop:
        loop.run_until_complete(script())
    assert (len(store.begun), errors) == (QUICK_SLOTS, [])


def test_a_staging_that_ends_although_it_was_put_back_ends_nothing_else():
    """R8: it was at its end when its turn was over; its next turn finds what is there."""

    class Stubborn(TimedStore):
        async def ensure(self, ref: ArtifactRef) -> Staged:
            try:
                return await super().ensure(ref)
            except asyncio.CancelledError:
                return Staged("id", "/path", "sha256:0", 8)

    store = Stubborn()

    async def script() -> None:
        async with asyncio.TaskGroup() as tasks:
            staging = Staging(store, tasks, on_failure=lambda *_: None, on_end=lambda: None)  # type: ignore[arg-type]
            staging.start(slow(20, seconds=100.0))

    with closing(VirtualLoop()) as loop:
        loop.run_until_complete(script())
    assert len(store.done) == 20


def test_each_end_of_a_staging_is_told_once_with_its_time_and_makes_room():
    """R8, R9: success, what the store says, and a fault of our own, which ends nothing else."""
    ends: list[tuple[object, ...]] = []
    refused = ArtifactError("too_large", "it is", permanent=True)
    fine, bad, broken = (stage(f"https://{name}.example/a", name) for name in ("fine", "bad", "broken"))

    class Store(TimedStore):
        async def ensure(self, ref: ArtifactRef) -> Staged:
            await asyncio.sleep(1.5)
            if ref == bad.ref:
                raise refused
            if ref == broken.ref:
                raise ZeroDivisionError
            return Staged("id", "/path", "sha256:0", 8)

    async def script() -> None:
        async with asyncio.TaskGroup() as tasks:
            staging = Staging(
                Store(),  # type: ignore[arg-type]
                tasks,
                on_failure=lambda stage, error: ends.append((stage, error.reason, error.permanent)),
                on_end=lambda: ends.append(("left", len(staging.in_progress))),
                on_success=lambda stage: ends.append((stage,)),
            )
            await asyncio.sleep(100)
            for one in (fine, fine, bad, broken):
                staging.start([one])
            assert staging.in_progress == {fine.ref, bad.ref, broken.ref}

    before = STAGE_SECONDS._sum.get()
    with closing(VirtualLoop()) as loop:
        loop.run_until_complete(script())
    told = [(fine,), ("left", 2), (bad, "too_large", True), ("left", 1), (broken, "internal_error", False), ("left", 0)]
    assert ends == told
    assert STAGE_SECONDS._sum.get() - before == pytest.approx(3 * 1.5)


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
