"""When each name was last used, and locks that live as long as they are needed."""

from __future__ import annotations

import asyncio

import pytest

from sidecar.vllm_plugin.usage import LEFT_SECONDS, MAX_LEFT, NameLocks, RequestStates, Usage
from tests.support.waiting import eventually
from tests.unit.vllm_plugin.played import Clock


def test_a_binding_is_a_use_and_a_look_is_none():
    """vLLM looks by ``in`` and `get`, and binds by ``[name]``."""
    clock = Clock()
    registered = Usage({"a": 1, "b": 2}, now=clock)
    assert "a" in registered
    assert registered.get("a") == 1
    assert dict(registered.items()) == {"a": 1, "b": 2}
    assert registered.ages() == {}
    assert registered["a"] == 1
    clock.at += 5
    assert registered.ages() == {"a": 5.0}
    for name in ("b", "gone"):
        registered.note(name)  # a request that still runs
    clock.at += 2
    assert registered.ages() == {"a": 7.0, "b": 2.0}


def test_what_was_used_before_an_unload_is_told_for_as_long_as_somebody_may_have_to_hear_of_it():
    """R25: what a sidecar hears at its next look; a name that is loaded anew goes on with it. R16: of few names."""
    clock = Clock()
    registered = Usage({"a": 1, "b": 2}, now=clock)
    assert registered["a"] == 1
    clock.at += 5
    del registered["a"], registered["b"]
    assert registered.ages() == {"a": 5.0}
    registered["a"] = 3
    assert registered.ages() == {"a": 5.0}
    del registered["a"]
    clock.at += LEFT_SECONDS
    assert registered.ages() == {"a": 5 + LEFT_SECONDS}
    clock.at += 1
    assert registered.ages() == {}
    for number in range(MAX_LEFT + 2):
        registered[f"n{number}"] = 1
        assert registered[f"n{number}"] == 1
        del registered[f"n{number}"]
    assert len(registered.ages()) == MAX_LEFT
    assert "n0" not in registered.ages()


def test_what_is_unloaded_is_counted_no_more_and_new_weights_keep_the_use_of_their_name():
    """R16 bounded: one entry for each name that is registered.

    R3 converge: vLLM's own routes change the same dictionary, and a sidecar is to hear of that, and of nothing else.
    """
    registered = Usage({"a": 1}, now=Clock())
    assert registered["a"] == 1
    registered.note("a")
    assert registered.changes == 0
    registered["a"] = 2
    assert registered.ages() == {"a": 0.0}
    del registered["a"]
    registered["a"] = 3
    with pytest.raises(KeyError):
        registered["b"]
    with pytest.raises(KeyError):
        del registered["b"]
    assert (registered.ages(), registered.changes) == ({"a": 0.0}, 3)


def test_requests_are_counted_by_name_as_they_end():
    """R16 bounded: of names that are registered alone, from then on; new weights go on counting."""
    registered = Usage({"a": 1, "b": 2}, now=Clock())
    assert registered["a"] == 1
    registered.note("a")
    assert registered.counts() == {}, "what was bound may be refused yet"
    for name in ("a", "a", "gone"):
        registered.count(name)
    registered["a"] = 2
    registered.count("a")
    assert registered.counts() == {"a": 3}
    del registered["a"]
    registered.count("a")
    registered["a"] = 3
    assert registered.counts() == {}


def test_of_requests_that_end_somebody_hears_once():
    """As vLLM takes them out, when they end and when they are aborted, which may be twice."""
    ended = list[tuple[str, object]]()
    states = RequestStates({"r1": 1}, lambda request, state: ended.append((request, state)))
    states["r2"] = 2
    assert (states.pop("r1"), states.pop("r1", None), states.pop("r2", None)) == (1, None, 2)
    with pytest.raises(KeyError):
        states.pop("r2")
    assert (ended, len(states)) == ([("r1", 1), ("r2", 2)], 0)


async def test_a_lock_is_gone_with_the_last_who_needs_it():
    """R16 bounded: hostile names leave nothing behind."""
    locks = NameLocks()
    for number in range(1000):
        async with locks[f"hostile-{number}"]:
            assert len(locks) == 1
    assert len(locks) == 0


async def test_all_who_ask_for_a_name_meanwhile_get_one_and_the_same_lock():
    """Whoever holds it, waits for it, or was just woken and did not run yet."""
    locks, inside = NameLocks(), []

    async def work(number: int) -> None:
        async with locks["x"]:
            inside.append(number)
            assert len(inside) == 1
            await asyncio.sleep(0)
            inside.remove(number)

    async with locks["x"]:
        waiting = [asyncio.create_task(work(number)) for number in range(20)]
        await asyncio.sleep(0)
        waiting[0].cancel()
    # Released, and the first who waits is only woken: one who comes now must not overtake him with a lock of its own.
    late = asyncio.create_task(work(99))
    await asyncio.gather(*waiting, late, return_exceptions=True)
    assert not inside
    assert [task.cancelled() for task in waiting].count(True) == 1
    assert late.exception() is None
    del waiting, late
    await eventually(lambda: not locks)  # the loop itself refers for a moment to one who was cancelled
