"""Slots of stagings on virtual time: slow sources keep each other waiting, and nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from registry.sources.base import ArtifactError, SourceUnchanged
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
from tests.simulation import loop

FOR_EVER = 1800.0


@dataclass
class TimedStore:
    """Stages what a URI ends with in so many seconds; what is stopped begins from its beginning."""

    most: int = 0
    at_once: list[str] = field(default_factory=list)
    begun: list[tuple[float, str]] = field(default_factory=list)
    done: dict[str, float] = field(default_factory=dict)

    async def ensure(self, ref: ArtifactRef, refused: str | None = None) -> Staged:
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


def play(script: Script, store: Any = None, *, seconds: float | None = None, **ends: Any) -> Any:
    """Runs a script on virtual time until all that it started is staged, or its group is ended, and long after that."""
    store = store or TimedStore()
    how = {"on_failure": lambda *_: None, "on_end": lambda: None} | ends

    troubles: list[dict[str, Any]] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(context))
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as tasks:
                staging = Staging(store, tasks, **how)
                await script(staging, store)
        if seconds:
            await asyncio.sleep(2 * FOR_EVER)

    loop.play(run())
    assert (store.at_once, troubles) == ([], [])
    return store


def slow(count: int, *, seconds: float = FOR_EVER, tenant: str = "evil", first: int = 0) -> list[Stage]:
    """Stagings of as many origins."""
    numbers = range(first, first + count)
    return [stage(f"https://slow{number}.example/{number}/{seconds}", f"{tenant}/a{number}") for number in numbers]


def test_any_number_of_slow_sources_holds_up_a_quick_one_for_a_moment_and_a_large_one_for_a_turn():
    """R8, R16, R19: also one of the same tenant or origin. Of long ones who had least is first."""

    async def script(staging: Staging, _: TimedStore) -> None:
        staging.start(slow(100, tenant="same"))
        await asyncio.sleep(60)
        staging.start([stage(f"https://{quick}", tenant) for quick, tenant in quick_ones])
        await asyncio.sleep(240)
        staging.start([stage("https://large.example/100", "good/large")])

    quick_ones = [("good.example/0.5", "good/a"), ("fine.example/0.25", "same/b"), ("slow0.example/0.125", "other/b")]
    store = play(script)
    assert max(store.done[f"https://{quick}"] for quick, _ in quick_ones) <= 60 + QUICK_SECONDS + 0.5 + 0.01
    assert store.done["https://large.example/100"] <= 300 + QUICK_SECONDS + LONG_SECONDS + 100 + 0.01
    assert store.most == QUICK_SLOTS + LONG_SLOTS
    assert len(store.done) == 104


@pytest.mark.parametrize("seconds", [30, 3 * LONG_SECONDS])
def test_what_takes_long_is_not_begun_anew_while_nobody_else_waits(seconds):
    """No work is thrown away for the sake of the same source's next adapter."""

    async def script(staging: Staging, _: TimedStore) -> None:
        staging.start([stage(f"https://one.example/{number}/{seconds}", "one/a") for number in range(40)])

    store = play(script)
    assert len(store.begun) == len(store.done) == 40
    assert max(store.done.values()) == 5 * seconds + QUICK_SECONDS


def test_what_nobody_wants_any_more_ends_at_once_and_its_slots_go_to_others():
    """Critique 29: at work, put back, or not begun; nobody hears of it, and it may be wanted again."""
    told: list[object] = []
    unwanted = slow(QUICK_SLOTS + LONG_SLOTS + 4, tenant="gone")
    good = stage("https://good.example/1", "good/a")

    async def script(staging: Staging, store: TimedStore) -> None:
        staging.start(unwanted)
        await asyncio.sleep(LONG_SECONDS)
        staging.stop(frozenset())
        assert len(store.at_once) == QUICK_SLOTS + LONG_SLOTS
        staging.start([good])
        staging.stop({one.ref for one in unwanted})
        assert staging.in_progress.keys() == {good.ref}
        await asyncio.sleep(1.5)
        assert (store.at_once, list(store.done), staging.in_progress) == ([], [good.ref.uri], {})
        staging.start(unwanted[:1])
        await asyncio.sleep(1.0)
        assert store.at_once == [unwanted[0].ref.uri]

    play(script, on_failure=lambda *each: told.append(each), on_success=told.append)
    assert told == [good, unwanted[0]]


def test_who_waits_begins_as_soon_as_those_before_are_wanted_no_more():
    """R19: and not when their turn would have been over."""
    good = stage("https://good.example/1", "good/a")

    async def script(staging: Staging, _: TimedStore) -> None:
        staging.start(slow(QUICK_SLOTS))
        staging.start([good])
        await asyncio.sleep(0.5)
        staging.stop({one.ref for one in slow(QUICK_SLOTS)})

    assert play(script).done == {good.ref.uri: 1.5}


def test_who_has_both_an_origin_and_a_tenant_among_the_slow_ones_takes_no_slot_of_theirs():
    """R19: of either it is enough that it is another, also where they are those of two of the slow ones."""
    slots, _ = full()
    slots.admit(Turn(stage("https://a.example/x", "tenant-b/x"), 50.0))
    assert moved(slots, 50.0) == ("", "")
    slots.admit(Turn(stage("https://a.example/y", "tenant-of-its-own/y"), 50.0))
    assert moved(slots, 50.0) == ("y", "e")


def test_each_end_of_a_staging_is_told_once_with_its_time_and_makes_room():
    """R8, R9: success, what the store says, and a fault of our own, which ends nothing else."""
    ends: list[tuple[object, ...]] = []
    fine, bad, same, broken = (stage(f"https://{name}.example/a", name) for name in ("fine", "bad", "same", "broken"))
    unchanged = SourceUnchanged()
    errors = {bad.ref: ArtifactError("too_large", "it is"), same.ref: unchanged, broken.ref: ZeroDivisionError()}
    running: list[Staging] = []

    class Store(TimedStore):
        async def ensure(self, ref: ArtifactRef, refused: str | None = None) -> Staged:
            await asyncio.sleep(1.5)
            if ref in errors:
                raise errors[ref]
            return Staged("id", "/path", "sha256:0", 8)

    async def script(staging: Staging, _: TimedStore) -> None:
        running.append(staging)
        await asyncio.sleep(100)
        for one in (fine, fine, bad, same, broken):
            staging.start([one])
        assert staging.in_progress.keys() == {fine.ref, bad.ref, same.ref, broken.ref}

    def failed(stage: Stage, error: ArtifactError | SourceUnchanged) -> None:
        told = (error.reason, error.permanent) if isinstance(error, ArtifactError) else (error,)
        ends.append((stage, *told))

    before = STAGE_SECONDS._sum.get()
    play(
        script,
        Store(),
        on_failure=failed,
        on_end=lambda: ends.append(("left", len(running[0].in_progress))),
        on_success=lambda stage: ends.append((stage,)),
    )
    told = [(fine,), (bad, "too_large", True), (same, unchanged), (broken, "internal_error", False)]
    assert ends == [one for left, end in zip((3, 2, 1, 0), told, strict=True) for one in (end, ("left", left))]
    assert STAGE_SECONDS._sum.get() - before == pytest.approx(4 * 1.5)


def test_origins():
    assert origin_of("https://host:8/a/b") == "https://host:8"
    assert origin_of("hf://org/repo@0") == "hf://org"
    assert origin_of("file:///mnt/a/b") == origin_of("file:///mnt/c") == "file:///mnt"
    assert origin_of("nothing") == "nothing://"


def moved(slots: StagingSlots, now: float) -> tuple[str, str]:
    """Who begins and who is stopped at that time, by the last letter of their names."""
    change = slots.rearrange(now)
    begin, stop = ("".join(turn.stage.name[-1] for turn in turns) for turns in change)
    return begin, stop


def come(slots: StagingSlots, names: str, at: float) -> dict[str, Turn]:
    """Stagings of an origin and a tenant of their own each."""
    made = {name: Turn(stage(f"https://{name}.example/a", f"tenant-{name}/{name}"), at) for name in names}
    for turn in made.values():
        slots.admit(turn)
    return made


def full() -> tuple[StagingSlots, dict[str, Turn]]:
    """Four that are long, and four that have been quick since then."""
    slots = StagingSlots()
    turns = come(slots, "abcdefgh", 0.0)
    slots.rearrange(0.0)
    slots.rearrange(2.0)
    return slots, turns


def test_four_are_quick_for_two_seconds_and_four_are_long():
    """docs/sources.md: and who finds no long slot goes on until somebody else waits."""
    slots = StagingSlots()
    turn = come(slots, "abcdefghi", 0.0)
    assert moved(slots, 0.0) == ("abcd", "")
    assert moved(slots, 1.9) == ("", "")
    assert moved(slots, 2.0) == ("efgh", "")
    assert [(turn[name].is_long, turn[name].had_seconds, turn[name].since) for name in "ad"] == [(True, 2.0, 2.0)] * 2
    assert [turn["a"].gives_way_at, turn["e"].gives_way_at] == [122.0, 4.0]
    assert moved(slots, 3.9) == ("", "")
    assert moved(slots, 4.0) == ("i", "e")
    assert (turn["e"].is_long, turn["e"].had_seconds, turn["e"].since) == (True, 2.0, None)
    assert (turn["e"].worked(9.0), turn["f"].worked(9.0), turn["f"].is_long) == (0.0, 7.0, False)


def test_a_long_one_gives_way_after_two_minutes_and_after_twice_as_long_the_next_time():
    """docs/sources.md: at least two minutes, and each time as long as before altogether."""
    slots, turn = full()
    for name in "bcd":
        slots.end(turn[name])
    assert moved(slots, 4.0) == ("", "")
    assert [turn[name].is_long for name in "efgh"] == [True, True, True, False]
    late = come(slots, "i", 5.0)["i"]
    assert moved(slots, 5.0) == ("i", "")
    for name in "fg":
        slots.end(turn[name])
    assert moved(slots, 6.0) == ("", "")
    assert turn["h"].is_long, "it found a place"
    slots.end(turn["h"])
    assert moved(slots, 7.0) == ("", "")
    assert (late.is_long, late.had_seconds, late.gives_way_at) == (True, 2.0, 127.0)
    turn["a"].had_seconds = 500.0
    assert turn["a"].gives_way_at == 502.0


def test_of_the_slow_ones_the_one_that_had_least_is_next_and_takes_only_of_one_that_had_more():
    """R8: whoever has it keeps it against one of the same origin and tenant."""
    slots, turn = full()
    come(slots, "ij", 10.0)
    assert moved(slots, 10.0) == ("ij", "ef"), "the first of those who had as much"
    turn["e"].had_seconds = 9.0
    assert moved(slots, 121.9) == ("", "")
    assert moved(slots, 122.0) == ("fe", "ab")
    assert (turn["a"].had_seconds, turn["a"].since, turn["f"].since) == (122.0, None, 122.0)
    slots.end(turn["c"])
    assert moved(slots, 123.0) == ("a", "d"), "what was quick until then has the place of c"


def test_of_those_whose_turn_is_over_the_one_that_had_most_gives_way():
    slots, turn = full()
    come(slots, "ij", 10.0)
    turn["g"].since = 1.0
    assert moved(slots, 10.0) == ("ij", "ge")
    turn["f"].had_seconds, turn["h"].since = 5.0, 1.0
    come(slots, "k", 11.0)
    assert moved(slots, 11.0) == ("k", "f")


def test_who_had_as_much_time_as_another_takes_no_slot_of_it():
    slots = StagingSlots()
    turn = come(slots, "abcd", 0.0)
    slots.rearrange(0.0)
    slots.rearrange(2.0)
    waiting = Turn(stage("https://x.example/a", "tenant-x/x"), 0.0, had_seconds=122.0, is_long=True)
    slots._slow.append(waiting)
    assert moved(slots, 122.0) == ("", "")
    waiting.had_seconds = 121.9
    assert moved(slots, 122.0) == ("x", "a")
    same = Turn(stage("https://b.example/other", "tenant-b/y"), 0.0, had_seconds=1.0, is_long=True)
    for one in "cd":
        slots.end(turn[one])
        slots.admit(Turn(stage("https://b.example/more", "tenant-b/m"), 122.0))
    slots._slow[:] = [same]
    assert moved(slots, 123.0)[0][-1:] == "y", "a place is free"


def test_who_has_a_slot_keeps_it_against_one_of_the_same_origin_and_tenant():
    """R8: no work is thrown away for the sake of the same source's next adapter."""
    slots = StagingSlots()
    for number in range(LONG_SLOTS):
        slots.admit(Turn(stage(f"https://one.example/{number}", f"one/{number}"), 0.0))
    slots.rearrange(0.0)
    slots.rearrange(2.0)
    waiting = Turn(stage("https://one.example/x", "one/x"), 0.0, had_seconds=1.0, is_long=True)
    slots._slow.append(waiting)
    assert moved(slots, 122.0) == ("", "")
    waiting.tenant = "other"
    assert moved(slots, 122.0) == ("x", "0")


def test_ties_go_to_the_origin_then_to_the_tenant_that_has_less_and_then_to_who_came_first():
    """R19: at work or put back, both count."""
    slots = StagingSlots()

    def admit(origin: str, tenant: str, name: str, at: float) -> Turn:
        turn = Turn(stage(f"https://{origin}.example/{name}", f"{tenant}/{name}"), at)
        slots.admit(turn)
        return turn

    first = admit("o1", "t1", "a", 0.0)
    assert moved(slots, 0.0) == ("a", "")
    admit("o1", "t2", "b", 0.1)
    admit("o2", "t1", "c", 0.3)
    admit("o3", "t3", "d", 0.4)
    admit("o4", "t4", "e", 0.2)
    assert moved(slots, 0.5) == ("edc", "")
    slots.end(first)
    assert moved(slots, 0.6) == ("b", "")
    assert slots._fresh == {}, "nothing is left of queues that are empty"


def test_an_alarm_comes_when_the_next_turn_is_over_and_none_where_all_are():
    """R8: nobody has to call for what waits to be begun; and nothing is called for without need."""
    at: list[float] = []

    async def script(staging: Staging, _: TimedStore) -> None:
        rearrange = staging._slots.rearrange
        staging._slots.rearrange = lambda now: at.append(round(now, 3)) or rearrange(now)  # type: ignore[method-assign]
        staging.start(slow(1, seconds=500.0))
        await asyncio.sleep(1)
        staging.start(slow(1, seconds=500.0, first=1))

    play(script)
    assert at == [0.0, 1.0, 2.0, 3.0, 122.0, 123.0, 500.0, 501.0]


@pytest.mark.parametrize(
    ("size_bytes", "seconds"),
    [(0, 60), (64 << 10, 61), (64 << 20, 60 + 1024), ((1440 * 64) << 10, 1500), (1 << 40, 1500)],
)
def test_a_file_has_a_minute_and_a_second_for_each_64_kib_and_25_minutes_at_most(size_bytes, seconds):
    """docs/sources.md."""
    assert Pace("weights", size_bytes).bytes_per_second == size_bytes / seconds


@pytest.mark.parametrize(("missing", "is_kept"), [(0, True), (1, False)])
def test_a_pace_is_judged_after_a_minute_of_waiting_for_the_source(missing, is_kept):
    """R8, R16: to the byte, and not before; what we do with it ourselves does not count."""
    clock = iter([0.0, 59.0, 500.0, 501.0, 1000.0])
    pace = Pace("weights", 4 << 16, lambda: next(clock))
    size_bytes = 60 * 4096 - 1 - missing * 2
    chunks = pace.keep(iter([b"x", b"x" * size_bytes]))
    assert next(chunks) == b"x"
    with nullcontext() if is_kept else pytest.raises(ArtifactError, match="of 262144 bytes comes at 4096 b") as refused:
        assert len(next(chunks)) == size_bytes
    if not is_kept:
        assert (refused.value.reason, refused.value.permanent) == ("source_timeout", False)


Script = Callable[[Staging, Any], Coroutine[Any, Any, None]]


@pytest.mark.parametrize(
    ("ends", "seconds"), [("cancelled", 0.0), ("cancelled", LONG_SECONDS), ("staged", 0.5), ("staged", LONG_SECONDS)]
)
def test_nothing_is_begun_once_a_group_ends_however_long_its_stagings_take_to_end(ends, seconds):
    """X2, R12: turns are over meanwhile, and stagings may come to their end; the group takes no more, nor an alarm."""

    class Lingering(TimedStore):
        async def ensure(self, ref: ArtifactRef, refused: str | None = None) -> Staged:
            try:
                return await super().ensure(ref)
            except asyncio.CancelledError:
                await asyncio.sleep(seconds)
                if ends == "staged":
                    return Staged("id", "/path", "sha256:0", 8)
                raise

    async def script(staging: Staging, _: TimedStore) -> None:
        for number in range(5):
            staging.start(slow(4, first=4 * number))
        await asyncio.sleep(FOR_EVER)

    assert len(play(script, Lingering(), seconds=1).begun) == QUICK_SLOTS
    assert len(play(script, Lingering(), seconds=10).begun) <= 5 * QUICK_SLOTS + LONG_SLOTS


def test_a_staging_that_ends_although_it_was_put_back_ends_nothing_else():
    """R8: it was at its end when its turn was over; its next turn finds what is there."""

    class Stubborn(TimedStore):
        async def ensure(self, ref: ArtifactRef, refused: str | None = None) -> Staged:
            with suppress(asyncio.CancelledError):
                return await super().ensure(ref)
            return Staged("id", "/path", "sha256:0", 8)

    async def script(staging: Staging, _: TimedStore) -> None:
        staging.start(slow(20, seconds=100.0))

    assert len(play(script, Stubborn()).done) == 20
