"""Who may run where many callers come at once, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import ExitStack

import pytest

from registry.admin.rpc import limiter as limiter_module
from registry.admin.rpc.limiter import (
    FEW,
    FIRST_LIMIT,
    LAG_SECONDS,
    MAX_WAITING,
    TURN_SECONDS,
    Batcher,
    ByteLimiter,
    FairLimiter,
)
from registry.model.errors import Reason, ResourceExhausted, Unavailable
from tests.simulation.loop import virtual
from tests.support.played_etcd import now


async def _call(
    limiter: FairLimiter, caller: str, begun: list[str], seconds: float = 1.0, connection: str = ""
) -> None:
    async with limiter.held(caller, connection, timeout_seconds=1000):
        begun.append(caller)
        await asyncio.sleep(seconds)


async def _end(tasks: Iterable[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


@virtual
async def test_one_caller_leaves_room_for_others():
    """X2 unbreakable: calls that hang take at most half of the places, so another one waits for nothing."""
    limiter, begun = FairLimiter(FIRST_LIMIT), list[str]()
    hanging = [asyncio.create_task(_call(limiter, "bad", begun, 1000)) for _ in range(100)]
    await asyncio.sleep(1)
    assert begun == ["bad"] * (FIRST_LIMIT // 2)
    async with limiter.held("good", timeout_seconds=0.5):
        assert now() == 1.0
    await _end(hanging)
    begun.clear()
    await asyncio.gather(*(_call(limiter, f"c{number}", begun) for number in range(FIRST_LIMIT)))
    assert len(begun) == FIRST_LIMIT


@virtual
async def test_who_ended_one_call_holds_the_others_still():
    """X2 unbreakable: else calls that hang would take all places one by one, behind short ones."""
    limiter, begun = FairLimiter(4), list[str]()
    hanging = [asyncio.create_task(_call(limiter, "bad", begun, 1000))]
    await asyncio.sleep(1)
    await _call(limiter, "bad", begun, 1)
    begun.clear()
    hanging += [asyncio.create_task(_call(limiter, "bad", begun, 1000)) for _ in range(3)]
    await asyncio.sleep(1)
    assert begun == ["bad"]
    await _end(hanging)


@virtual
async def test_who_ran_least_goes_first():
    """X2 unbreakable: whatever others have waiting, the next place is of who used least."""
    limiter, begun = FairLimiter(1), list[str]()
    bad = [asyncio.create_task(_call(limiter, f"bad{number % 5}", begun)) for number in range(50)]
    await asyncio.sleep(7.5)
    begun.clear()
    await _call(limiter, "good", begun)
    assert begun[:2] == ["good"], "after the one that was running"
    await _call(limiter, "good", begun)
    assert len(begun) < 6, "who used as much as the others takes turns with them"
    await asyncio.gather(*bad)


@virtual
async def test_whoever_is_next_can_be_told_after_months():
    """R12 crash-only: uses are weighed by their age, in numbers that never grow with the age of the process."""
    limiter, begun = FairLimiter(1), list[str]()
    await asyncio.sleep(100 * 86_400.0)
    await asyncio.gather(*(_call(limiter, caller, begun) for caller in "aab"))
    await _call(limiter, "a", begun)
    assert begun == ["a", "b", "a", "a"]


@virtual
async def test_a_loop_that_lags_runs_one_call_after_another():
    """X2 unbreakable: what takes the processor is never many at once."""
    limiter, loop = FairLimiter(64, narrows=True), asyncio.get_running_loop()
    clock, most, running = loop.time, 0, 0
    late = 0.0
    loop.time = lambda: clock() + late  # type: ignore[method-assign]

    async def heavy(caller: str) -> None:
        nonlocal most, running, late
        async with limiter.held(caller, timeout_seconds=10_000):
            running += 1
            most = max(most, running)
            late += 2 * LAG_SECONDS  # of the processor's time
            await asyncio.sleep(1)
            running -= 1

    await asyncio.gather(*(heavy(f"c{number}") for number in range(20)))
    assert most <= FIRST_LIMIT
    most = 0
    await asyncio.gather(*(heavy(f"c{number}") for number in range(20)))
    assert most <= 2
    for number in range(200):
        await _call(limiter, f"c{number}", [], 0)
    begun: list[str] = []
    await asyncio.gather(*(_call(limiter, f"c{number}", begun) for number in range(64)))
    assert len(begun) == 64, "and it grows again"


async def _order(limiter: FairLimiter, *callers: str) -> list[str]:
    """Who goes first of those who come in this order while the only place is taken."""
    begun: list[str] = []
    running = asyncio.create_task(_call(limiter, "x", begun, 0.001))
    await asyncio.sleep(0)
    await asyncio.gather(running, *(asyncio.create_task(_call(limiter, one, begun, 0)) for one in callers))
    return begun[1:]


@pytest.mark.parametrize(("recent", "first"), [(3.7, "recent"), (4.3, "old")])
@virtual
async def test_a_use_counts_half_after_half_a_minute(recent, first):
    limiter = FairLimiter(1)
    await _call(limiter, "old", [], 8.0)
    await asyncio.sleep(30.0 - recent)
    await _call(limiter, "recent", [], recent)
    other = "old" if first == "recent" else "recent"
    assert await _order(limiter, other, first) == [first, other]


@pytest.mark.parametrize(("used", "first"), [(0.08, "a"), (0.13, "b"), (0.5, "b")])
@virtual
async def test_who_used_about_the_same_goes_in_the_order_in_which_they_came(used, first):
    """A tenth of a second is about the same: else who comes last would always go first."""
    limiter = FairLimiter(1)
    await _call(limiter, "a", [], used)
    assert (await _order(limiter, "a", "b"))[0] == first


@virtual
async def test_a_place_that_is_held_counts_before_all_that_was_used():
    """X2: who holds less goes first, however much it used before."""
    limiter, begun = FairLimiter(3), list[str]()
    await _call(limiter, "frugal", [], 100.0)
    running = [asyncio.create_task(_call(limiter, one, begun, 5.0 + number)) for number, one in enumerate("aab")]
    await asyncio.sleep(1)
    waiting = [asyncio.create_task(_call(limiter, one, begun, 0)) for one in ("b", "frugal")]
    await asyncio.gather(*running, *waiting)
    assert begun == ["a", "a", "b", "frugal", "b"]


@pytest.mark.parametrize(("others", "first"), [(8, "new"), (9, "old")])
@virtual
async def test_so_many_callers_are_remembered(monkeypatch, others, first):
    """R16 bounded: of more, who was here longest ago is a new one again."""
    monkeypatch.setattr(limiter_module, "_CALLERS_REMEMBERED", 10)
    limiter = FairLimiter(1)
    await _call(limiter, "c0", [], 0.0)
    await _call(limiter, "old", [], 50.0)
    for number in range(others):
        await _call(limiter, f"c{number}", [], 0.0)
    assert (await _order(limiter, "old", "new"))[0] == first


@pytest.mark.parametrize(("late", "most"), [(0.049, 64), (0.051, 4)])
@virtual
async def test_a_loop_that_is_a_twentieth_of_a_second_late_lags(late, most):
    """X2 unbreakable: then half as many run at once as before; whatever its clock shows."""
    limiter, loop = FairLimiter(64, narrows=True), asyncio.get_running_loop()
    await asyncio.sleep(1000)
    if most == 64:
        for number in range(64):
            await _call(limiter, f"warm{number}", [], 0)
    clock, behind = loop.time, 0.0
    loop.time = lambda: clock() + behind  # type: ignore[method-assign]
    async with limiter.held("late", timeout_seconds=1):
        behind += late
        await asyncio.sleep(0)
    behind = 0.0
    await asyncio.sleep(0.01)
    begun: list[str] = []
    calls = [asyncio.create_task(_call(limiter, f"c{number}", begun, 100)) for number in range(200)]
    for _ in range(2):
        await asyncio.sleep(0)
    at_once = len(begun)
    assert at_once <= most + 2 if most < 64 else at_once >= 60
    await _end(calls)


@virtual
async def test_who_leaves_in_the_moment_in_which_its_turn_came_takes_no_place_along():
    """X2: else a few callers that hang up would leave no place to anybody, for ever."""
    limiter = FairLimiter(1)
    for _ in range(3):
        async with limiter.held("a", timeout_seconds=1):
            waiting = asyncio.create_task(_call(limiter, "b", []))
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
    await _call(limiter, "c", begun := list[str]())
    assert begun == ["c"]


async def test_who_has_waited_too_long_in_the_moment_in_which_its_turn_came_takes_no_place_along():
    """X2: as where something took the processor for long."""
    limiter, loop = FairLimiter(1), asyncio.get_running_loop()
    clock, behind = loop.time, 0.0
    loop.time = lambda: clock() + behind  # type: ignore[method-assign]
    async with limiter.held("a", timeout_seconds=1):
        waiting = asyncio.create_task(_call(limiter, "b", []))
        await asyncio.sleep(0)
        behind = 2000.0
        await asyncio.sleep(0)
    with pytest.raises(Unavailable):
        await waiting
    await _call(limiter, "c", begun := list[str](), 0)
    assert begun == ["c"]


@virtual
async def test_one_connection_leaves_room_for_others_of_its_caller():
    """X2 unbreakable: behind one address there may be many, of whom a few make calls that hang."""
    limiter, begun = FairLimiter(128), list[str]()
    hanging = [asyncio.create_task(_call(limiter, "proxy", begun, 1000, f"bad{number % 3}")) for number in range(300)]
    await asyncio.sleep(1)
    assert 32 < len(begun) < 64, "of half of the places each holds no more than are left"
    async with limiter.held("proxy", "good", timeout_seconds=0.5), limiter.held("other", "c", timeout_seconds=0.5):
        assert now() == 1.0
    await _end(hanging)


@virtual
async def test_of_the_connections_of_a_caller_who_used_least_goes_first():
    """X3 given-back: whoever never sends a request uses all of its time, and waits for those who do."""
    limiter, begun = FairLimiter(4), list[str]()

    async def hang(connection: str) -> None:
        while True:
            await _call(limiter, "proxy", begun, 1.0, connection)

    hanging = [asyncio.create_task(hang(f"bad{number}")) for number in range(100)]
    await asyncio.sleep(70)
    for _ in range(5):
        before = now()
        await _call(limiter, "proxy", begun, 0.01, "good")
        assert now() - before < 1.1, "as long as one hangs"
    await _end(hanging)


async def _waiting(limiter: FairLimiter, caller: str, connections: int) -> list[asyncio.Task[None]]:
    """As many as may wait, of so many connections, behind those who hold the caller's places."""
    tasks = [
        asyncio.create_task(_call(limiter, caller, [], 1000, f"{caller}:{number % connections}"))
        for number in range(MAX_WAITING + FIRST_LIMIT // 2)
    ]
    await asyncio.sleep(1)
    return tasks


def _refused(tasks: Iterable[asyncio.Task[None]]) -> list[BaseException | None]:
    return [task.exception() for task in tasks if task.done()]


@virtual
async def test_of_too_many_that_wait_the_longest_queue_loses_one():
    """X3 given-back, R16 bounded: neither another caller nor another connection is refused for those who have most."""
    limiter = FairLimiter(FIRST_LIMIT)
    hanging = await _waiting(limiter, "bad", 10)
    assert _refused(hanging) == []
    more = asyncio.create_task(_call(limiter, "bad", [], 1, "bad:0"))
    beside = asyncio.create_task(_call(limiter, "bad", [], 1, "bad:good"))
    others = [asyncio.create_task(_call(limiter, f"c{number}", [], 1000)) for number in range(10)]
    await asyncio.sleep(1)
    refused = _refused([more, *hanging])
    assert len(refused) > 5
    assert {type(one) for one in refused} == {ResourceExhausted}
    assert {one.reason for one in refused if isinstance(one, ResourceExhausted)} == {Reason.TOO_MANY_CALLS}
    assert not beside.done()
    assert _refused(others) == []
    await _end([one for one in [*hanging, more, beside, *others] if not one.done()])
    assert not limiter._waiting
    assert not limiter._held
    async with limiter.held("bad", timeout_seconds=1):
        pass


@virtual
async def test_of_queues_of_one_who_used_most_or_came_last_is_refused():
    """X3 given-back."""
    limiter = FairLimiter(FIRST_LIMIT)
    async with limiter.held("bad", "bad:7", timeout_seconds=1):
        await asyncio.sleep(10)
    hanging = await _waiting(limiter, "bad", MAX_WAITING + FIRST_LIMIT // 2)
    first, last = (asyncio.create_task(_call(limiter, "bad", [], 1, one)) for one in ("first", "last"))
    await asyncio.sleep(1)
    assert [number for number, task in enumerate(hanging) if task.done()] == [7]
    assert (first.done(), last.done()) == (False, True)
    await _end([one for one in [*hanging, first] if not one.done()])
    assert _refused([last])


@virtual
async def test_of_callers_with_one_that_waits_who_used_most_is_refused(monkeypatch):
    """X3 given-back."""
    monkeypatch.setattr(limiter_module, "MAX_WAITING", 2)
    limiter, begun = FairLimiter(1), list[str]()
    await _call(limiter, "greedy", [], 10.0)
    async with limiter.held("a", timeout_seconds=1):
        calls = [asyncio.create_task(_call(limiter, one, begun)) for one in ("greedy", "b", "c")]
        await asyncio.wait(calls, timeout=1)
        assert [type(one) for one in _refused(calls)] == [ResourceExhausted]
    await asyncio.wait(calls)
    assert begun == ["b", "c"]


@pytest.mark.parametrize("is_refused_first", [True, False])
@virtual
async def test_who_leaves_in_the_moment_in_which_it_is_refused_frees_no_place(monkeypatch, is_refused_first):
    """X2, R16 bounded: it had none; and whoever it would make room for gets a turn."""
    monkeypatch.setattr(limiter_module, "MAX_WAITING", 2)
    limiter, begun = FairLimiter(1), list[str]()
    async with limiter.held("a", timeout_seconds=1):
        first, leaving = (asyncio.create_task(_call(limiter, "b", begun)) for _ in range(2))
        await asyncio.sleep(0)
        last = asyncio.create_task(_call(limiter, "c", begun))
        if is_refused_first:
            await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait([leaving])
        await asyncio.sleep(1)
        assert (leaving.cancelled(), begun) == (True, [])
    await asyncio.gather(first, last)
    assert not limiter._held


@virtual
async def test_calls_that_hang_leave_all_places_to_others_and_no_more():
    """X2 unbreakable, R16 bounded: the limit grows with each that begins, also where none ends."""
    limiter, begun = FairLimiter(64, narrows=True), list[str]()
    hanging = [asyncio.create_task(_call(limiter, f"c{number}", begun, 1000)) for number in range(200)]
    await asyncio.sleep(1)
    assert len(begun) == 64
    await _end(hanging)


_MIB = 1 << 20


def test_the_requests_of_one_caller_have_so_many_bytes_together():
    """X3 given-back, R16 bounded: four of the largest; what is small is never refused for those that are large."""
    limiter = ByteLimiter()
    with ExitStack() as held:
        for _ in range(4):
            held.enter_context(limiter.held("bad", 4 * _MIB))
        with pytest.raises(ResourceExhausted) as told, limiter.held("bad", 4 * _MIB):
            pytest.fail("it has too many")
        assert (told.value.reason, "16 MiB" in told.value.message) == (Reason.TOO_MANY_CALLS, True)
        with limiter.held("bad", 1000), limiter.held("good", 4 * _MIB):
            pass
        for number in range(28):
            held.enter_context(limiter.held(f"c{number % 7}", 4 * _MIB))
        with pytest.raises(ResourceExhausted), limiter.held("good", 4 * _MIB):
            pytest.fail("all have too many")
        with limiter.held("good", 1000):
            pass
    with limiter.held("bad", 16 * _MIB):
        pass
    assert not limiter._held


@pytest.mark.parametrize("number", [1, 3])
@virtual
async def test_who_gave_up_is_not_waited_for(number):
    """R16 bounded: neither by its place nor by its name; nor who was cancelled."""
    limiter, begun = FairLimiter(1), list[str]()
    running = asyncio.create_task(_call(limiter, "a", begun, 10))
    await asyncio.sleep(0)
    for _ in range(number):
        with pytest.raises(Unavailable) as told:
            async with limiter.held("b", timeout_seconds=1):
                pytest.fail("it has no place")
        assert told.value.reason is Reason.DEADLINE_EXCEEDED
    cancelled = asyncio.create_task(_call(limiter, "c", begun))
    await asyncio.sleep(0)
    assert limiter._queued == 1, "those who gave up leave at once, and take no place of those who wait"
    await _end([cancelled])
    assert (limiter._queued, limiter._waiting) == (0, {})
    await running
    assert not limiter._held
    await asyncio.gather(*(_call(limiter, one, begun) for one in "bc"))
    assert begun == ["a", "b", "c"]


LONG = 10.0


async def _turn(turns: Batcher, begun: list[float], seconds: float = LONG) -> None:
    async with turns.taken():
        begun.append(now())
        await asyncio.sleep(seconds)


@virtual
async def test_who_comes_to_many_goes_on_with_those_who_come_next():
    """A few calls wait for nothing."""
    turns, begun, start = Batcher(), list[float](), now()
    await asyncio.gather(*(_turn(turns, begun) for _ in range(FEW)))
    await asyncio.gather(*(_turn(turns, begun) for _ in range(FEW)))
    assert begun == [start] * FEW + [start + LONG] * FEW
    begun.clear()
    start = now()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(FEW + 2):
            tasks.create_task(_turn(turns, begun))
        await asyncio.sleep(TURN_SECONDS / 2)
        tasks.create_task(_turn(turns, begun))
        await asyncio.sleep(TURN_SECONDS)
        tasks.create_task(_turn(turns, begun))
    first, second = start + TURN_SECONDS, start + 2.5 * TURN_SECONDS
    assert begun == pytest.approx([start] * FEW + [first] * 3 + [second])


@virtual
async def test_a_turn_waits_for_no_call_that_hangs():
    """X2: a call that etcd does not answer keeps nobody: not those of its group, not those after it."""
    turns, begun, start = Batcher(), list[float](), now()
    hanging = [asyncio.create_task(_turn(turns, begun, 1e6)) for _ in range(2 * FEW)]
    await asyncio.sleep(1)
    await _turn(turns, begun)
    await _end(hanging)
    assert begun[-1] == pytest.approx(start + 1 + TURN_SECONDS)


@virtual
async def test_who_is_cancelled_while_it_waits_takes_nobody_along():
    turns, begun = Batcher(), list[float]()
    calls = [asyncio.create_task(_turn(turns, begun)) for _ in range(2 * FEW + 2)]
    await asyncio.sleep(TURN_SECONDS / 2)
    await _end(calls[FEW:-1])
    await asyncio.wait(calls)
    assert len(begun) == FEW + 1
    begun.clear()
    free = now()
    await _turn(turns, begun)
    assert begun == [free], "nobody is thought to run still"
