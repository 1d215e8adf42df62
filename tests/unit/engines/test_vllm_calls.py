"""Loads, unloads and swaps by the driver of vLLM: what is sent, in which order, and what is made of each answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from sidecar.engines.driver import Deadlines, EngineUnreachable, check_name
from sidecar.engines.load_ledger import LoadLedger
from sidecar.engines.observed import (
    AlreadyThere,
    Done,
    EngineGone,
    NotThere,
    PathMissing,
    Refused,
    Transient,
    Unknown,
)
from sidecar.engines.simulated.engine import SimulatedVllm
from sidecar.engines.simulated.options import Options
from sidecar.engines.transport import Lost, Reply
from sidecar.engines.vllm.driver import ALONE, VllmEngine
from sidecar.engines.vllm.swap_risk import QUEUE_SECONDS
from tests.simulation.loop import virtual
from tests.support.engine_in_memory import DEADLINES, PLAIN, WITH_PLUGIN, InMemory, driver_of

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
YES, BAD, LATER, LOST = Reply(200, b""), Reply(500, b"no room"), Reply(429, b"later"), Lost("it broke")


def error(status: int, **fields: object) -> Reply:
    return Reply(
        status, json.dumps({"error": {"message": "so", "param": None, "type": "T", "code": status, **fields}}).encode()
    )


THERE, AWAY = error(400), error(404)


async def ready(
    options: Options = PLAIN, deadlines: Deadlines = DEADLINES
) -> tuple[SimulatedVllm, VllmEngine, InMemory]:
    """An engine whose driver has looked at it once."""
    engine = SimulatedVllm(options)
    driver, way = driver_of(engine, deadlines)
    await driver.observe()
    way.asked.clear()
    way.seconds.clear()
    return engine, driver, way


async def test_what_is_called_before_the_first_look_goes_by_the_engines_own_routes(a, b):
    """Nobody knows of a plugin yet."""
    driver, way = driver_of(SimulatedVllm(WITH_PLUGIN))
    assert await driver.load("x", a, request_id="r") == Done()
    assert await driver.swap("x", a, b, request_id="r") == Done()
    assert await driver.unload("x", request_id="r") == Done()
    assert {path for method, path, _ in way.asked if method == "POST"} == {LOAD, UNLOAD}


async def test_a_plugin_unloads_swaps_and_proves(a, b):
    """R4: by one call each, which the plugin carries out between two steps."""
    engine, driver, way = await ready(replace(WITH_PLUGIN, proves=True))
    assert await driver.load("x", a, request_id="r") == Done()
    assert await driver.swap("x", a, b, request_id="r1") == Done()
    assert way.headers["X-Request-Id"] == "r1"
    assert await driver.swap("y", a, b, request_id="r") == Transient("the engine knows no 'y' any more")
    assert isinstance(await driver.swap("x", a, a, request_id="r"), Transient), "it has others by now"
    assert engine.cards["x"].path == b
    assert await driver.prove(b, request_id="r2") == Done()
    assert way.headers["X-Request-Id"] == "r2"
    assert await driver.unload("x", request_id="r") == Done()
    assert await driver.unload("x", request_id="r") == NotThere()
    swapped = {"lora_name": "x", "lora_path": b, "expected_path": a}
    assert [(path.rpartition("/")[2], dict(body)) for _, path, body in way.asked] == [
        ("load_lora_adapter", {"lora_name": "x", "lora_path": a}),
        ("swap", swapped),
        ("swap", swapped | {"lora_name": "y"}),
        ("swap", swapped | {"lora_path": a}),
        ("prove", {"lora_path": b}),
        ("unload", {"lora_name": "x"}),
        ("unload", {"lora_name": "x"}),
    ]
    assert way.seconds == [4, 4, 4, 4, 4, 8, 8]


CHECK = check_name("/new")
PROOF, GO, NEW, OLD = (LOAD, CHECK, "/new"), (UNLOAD, "x"), (LOAD, "x", "/new"), (LOAD, "x", "/old")
CLEAN = (UNLOAD, CHECK)


@pytest.mark.parametrize(
    ("loads", "unloads", "outcome", "told"),
    [
        ([YES, YES], [YES, YES], Done, [PROOF, GO, NEW, CLEAN]),
        ([THERE, YES], [YES, YES], Done, [PROOF, GO, NEW, CLEAN]),
        ([YES, YES], [AWAY, YES], Done, [PROOF, GO, NEW, CLEAN]),
        ([YES, YES], [BAD, YES], Done, [PROOF, GO, NEW, CLEAN]),
        ([YES, YES], [YES, LOST], Done, [PROOF, GO, NEW, CLEAN]),
        ([BAD], [], Refused, [PROOF]),
        ([LATER], [], Transient, [PROOF]),
        ([LOST], [], Unknown, [PROOF]),
        ([AWAY], [], PathMissing, [PROOF]),
        ([YES, LOST], [YES], Unknown, [PROOF, GO, NEW]),
        ([YES, LOST], [BAD], Unknown, [PROOF, GO, NEW]),
        ([YES, THERE], [LATER, YES], Transient, [PROOF, GO, NEW, CLEAN]),
        ([YES, THERE], [BAD, YES], Refused, [PROOF, GO, NEW, CLEAN]),
        ([YES, THERE], [LOST], Unknown, [PROOF, GO, NEW]),
        ([YES, THERE], [YES, YES], AlreadyThere, [PROOF, GO, NEW, CLEAN]),
        ([YES, THERE], [AWAY, YES], AlreadyThere, [PROOF, GO, NEW, CLEAN]),
        ([YES, BAD, YES], [YES, YES], Refused, [PROOF, GO, NEW, OLD, CLEAN]),
        ([YES, BAD, THERE], [AWAY, YES], Refused, [PROOF, GO, NEW, OLD, CLEAN]),
        ([YES, AWAY, YES], [YES, YES], PathMissing, [PROOF, GO, NEW, OLD, CLEAN]),
        ([YES, LATER, YES], [YES, YES], Transient, [PROOF, GO, NEW, OLD, CLEAN]),
        ([YES, BAD, BAD], [YES], Unknown, [PROOF, GO, NEW, OLD]),
        ([YES, BAD, LOST], [YES], Unknown, [PROOF, GO, NEW, OLD]),
    ],
)
async def test_a_swap_proves_the_new_weights_first_and_puts_the_old_ones_back(loads, unloads, outcome, told):
    """R4, R8: a name is away for no longer than it takes, and what came of it is never guessed."""
    _, driver, way = await ready()
    way.instead[LOAD].extend(loads)
    way.instead[UNLOAD].extend(unloads)
    found = await driver.swap("x", "/old", "/new", request_id="r")
    assert isinstance(found, outcome), found
    assert [(path, *body.values()) for method, path, body in way.asked if method == "POST"] == told
    assert [*way.instead[LOAD], *way.instead[UNLOAD]] == []
    assert (OLD in told and outcome is Unknown) is ("putting back" in str(found))
    assert GO not in told or (UNLOAD, LOAD) in way.together, "sent in one piece"


async def test_the_weights_that_a_name_ever_had_are_kept_where_the_engine_remembers_them(a, b, tmp_path):
    """R4: it would answer other weights from its cache. What certainly did not come about is taken back."""
    engine = SimulatedVllm(replace(PLAIN, version="0.30.0"))
    driver, way = driver_of(engine, past=LoadLedger(tmp_path))
    for call in (driver.observe(), driver.load("x", a, request_id="r")):
        await call
    assert driver.is_concurrent is False
    assert isinstance(await driver.swap("x", a, b, request_id="r"), Refused)
    assert await driver.unload("x", request_id="r") == Done()
    assert dict((await driver.observe()).past) == {"x": a}
    way.instead[LOAD].extend([BAD, LOST, BAD])
    for name, outcome in (("refused", Refused), ("lost", Unknown), ("x", Refused)):
        assert isinstance(await driver.load(name, b, request_id="r"), outcome)
    again, _ = driver_of(engine, past=LoadLedger(tmp_path))
    for one in (driver, again):
        assert dict((await one.observe()).past) == {"x": a, "lost": b}
    engine.started_at += 1
    assert dict((await again.observe()).past) == {}, "of another process"


async def crowded(
    max_loras: int, *listed: str, running: str = "x", **options: bool
) -> tuple[SimulatedVllm, VllmEngine, InMemory]:
    """An engine with so many slots and names that has a request for one of these, which does not end."""
    engine, driver, way = await ready(replace(PLAIN, max_loras=max_loras, **options), Deadlines(lull_seconds=5.0))
    for name in listed:
        engine.cards[name] = engine.card(name, f"/{name}")
    if running:
        begin(engine, running)
    await driver.observe()
    way.together.clear()
    way.asked.clear()
    return engine, driver, way


def begin(engine: SimulatedVllm, name: str) -> None:
    engine.running.append(name)
    engine._sample()


def end(engine: SimulatedVllm) -> None:
    engine.running.clear()
    engine._sample()


def accept(way: InMemory) -> None:
    """All that comes is taken, without files."""
    for path in (LOAD, UNLOAD):
        way.instead[path].extend([YES] * 9)


@pytest.mark.parametrize(
    ("slots", "running", "outcome"),
    [(2, "x", Transient), (3, "x", Done), (2, "y", Done), (2, "", Done)],
)
@virtual
async def test_a_swap_that_might_end_the_engine_waits_for_a_moment_without_requests(slots, running, outcome):
    """R7: as long as it may, and is tried again later. Where there is room, or nobody asks for it, it goes at once."""
    engine, driver, way = await crowded(slots, "x", running=running)
    accept(way)
    begin_at = asyncio.get_running_loop().time()
    swap = asyncio.create_task(driver.swap("x", "/x", "/new", request_id="r"))
    await asyncio.sleep(1.0)
    assert driver.is_deciding is (outcome is Transient)
    assert isinstance(await swap, outcome)
    assert (driver.is_deciding, driver._undecided) == (False, 0)
    took = asyncio.get_running_loop().time() - begin_at
    assert (5.0 <= took < 5.2) if outcome is Transient else took == 1.0
    assert (way.changes == []) is (outcome is Transient)
    looks = way.together.count(("/metrics", "/v1/models"))
    assert (5 < looks < 60) if outcome is Transient else looks == 1, "a few times a second, and not more"
    assert len(engine.running) == bool(running)


@pytest.mark.parametrize(
    ("path", "answer", "outcome"),
    [
        ("/v1/models", LOST, EngineGone),
        ("/metrics", Reply(503, b""), EngineGone),
        ("/v1/models", Reply(404, b""), Transient),
        ("/v1/models", Reply(200, b"{}"), EngineGone),
        ("/metrics", None, Transient),
    ],
)
@virtual
async def test_where_it_cannot_be_seen_whether_it_is_safe_nothing_is_sent(path, answer, outcome):
    """R9, R7: unknown is not empty; of an engine that keeps no statistics it cannot be told for as long as it waits."""
    engine, driver, way = await crowded(3, "x", running="" if answer is None else "x")
    page = f"process_start_time_seconds {engine.started_at!r}\n".encode()
    way.instead[path].extend([answer or Reply(200, page)] * (1 if answer else 100))
    found = await driver.swap("x", "/x", "/new", request_id="r")
    assert isinstance(found, outcome)
    assert (way.changes, driver.is_deciding) == ([], False)
    took = asyncio.get_running_loop().time()
    assert (5.0 <= took < 5.2 and "cannot be told" in str(found)) if answer is None else took < 1.0


@pytest.mark.parametrize("gone_by", ["driver", "others"])
@virtual
async def test_a_name_that_was_there_is_loaded_as_carefully_as_it_is_swapped(gone_by):
    """R7: requests of what had the name before may still be in a batch with it; a new name goes at once."""
    engine, driver, way = await crowded(2, "x", "y")
    accept(way)
    assert await driver.load("z", "/z", request_id="r") == Done(), "there never was one"
    engine.cards.pop("y")
    if gone_by == "driver":
        assert await driver.unload("x", request_id="r") == Done()
        found = await driver.load("x", "/new", request_id="r")
    else:
        loading = asyncio.create_task(driver.load("x", "/new", request_id="r"))
        await asyncio.sleep(1.0)
        assert await driver.load("new", "/new", request_id="r") == Transient(ALONE), "what it has must still be so then"
        found = await loading
    assert isinstance(found, Transient)
    assert [one for one in way.changes if one[0] == "load_lora_adapter"] == [("load_lora_adapter", "z", "/z")]
    end(engine)
    assert await driver.load("x", "/new", request_id="r") == Done()
    engine.started_at += 1
    begin(engine, "x")
    engine.cards.pop("x", None)
    way.instead.clear()
    await driver.observe()
    accept(way)
    assert await driver.load("x", "/new", request_id="r") == Done(), "another process never had it"


@virtual
async def test_a_restarted_sidecar_loads_as_carefully_for_a_while_what_an_engine_may_have_had():
    """R7: what it unloaded just before may still be asked for. Not where no request for an adapter ever came."""
    engine, *_ = await crowded(2, "y", running="y")
    later, calls = driver_of(engine, Deadlines(lull_seconds=5.0))
    engine.waiting.append("x")
    await later.observe()
    accept(calls)
    assert isinstance(await later.load("x", "/new", request_id="r"), Transient)
    assert calls.changes == []
    await asyncio.sleep(QUEUE_SECONDS)
    assert await later.load("x", "/new", request_id="r") == Done(), "nothing waits for so long"
    end(engine)
    fresh, calls = driver_of(SimulatedVllm(PLAIN))
    await fresh.observe()
    accept(calls)
    calls.together.clear()
    assert await fresh.load("x", "/new", request_id="r") == Done()
    assert ("/metrics", "/v1/models") not in calls.together, "nothing is asked in between"


@pytest.mark.parametrize("answer", [YES, LOST], ids=["done", "lost"])
@virtual
async def test_what_was_only_just_unloaded_counts_from_then_on(answer):
    """R7: a request that waits may be for it, for two minutes after it went; also if nobody heard that it did."""
    engine, driver, way = await crowded(1, "x", running="")
    accept(way)
    engine.waiting.append("")
    begin(engine, "")
    end(engine)
    await asyncio.sleep(200.0)
    way.instead[UNLOAD].appendleft(answer)
    await driver.unload("x", request_id="r")
    for seconds in (100.0, 10.0):
        assert isinstance(await driver.load("x", "/new", request_id="r"), Transient)
        await asyncio.sleep(seconds)
    assert await driver.load("x", "/new", request_id="r") == Done()


@virtual
async def test_loads_that_are_under_way_count_as_listed():
    """R7: each of them, and no more once it has ended."""
    _, driver, way = await crowded(4, "x")
    way.hangs.add(LOAD)
    accept(way)
    for name, outcome in (("y", Done), ("z", Transient)):
        way.instead[LOAD].appendleft(None)
        loading = asyncio.create_task(driver.load(name, "/none", request_id="r"))
        await asyncio.sleep(0.5)
        assert isinstance(await driver.swap("x", "/x", "/new", request_id="r"), outcome), name
        assert not loading.done()
    loading.cancel()
    await asyncio.wait([loading])
    assert await driver.swap("x", "/x", "/new", request_id="r") == Done()
    assert await driver.load("z", "/z", request_id="r") == Done()
    assert await driver.swap("x", "/new", "/x", request_id="r") == Done()


@virtual
async def test_beside_a_decision_nothing_begins_that_brings_the_engine_an_adapter():
    """R7: what it has must still be so when the swap is sent. Without danger nobody waits for another."""
    engine, driver, way = await crowded(2, "x")
    accept(way)
    swap = asyncio.create_task(driver.swap("x", "/x", "/new", request_id="r"))
    await asyncio.sleep(0.5)
    assert await driver.load("z", "/z", request_id="r") == Transient(ALONE)
    assert await driver.swap("z", "/z", "/new", request_id="r") == Transient(ALONE)
    assert way.changes == []
    assert await driver.unload("z", request_id="r") == Done(), "which brings it nothing"
    end(engine)
    assert await swap == Done()
    assert await driver.load("z", "/z", request_id="r") == Done()


@virtual
async def test_a_load_that_begins_before_a_decision_and_is_sent_after_it_is_not_made_beside_it():
    """R7: until the engine has said whether it is paused, a swap may have begun to wait for its moment."""
    _, driver, way = await crowded(2, "x", development=True)
    accept(way)
    way.hangs.add("/is_paused")
    swap = asyncio.create_task(driver.swap("x", "/x", "/new", request_id="r"))
    await asyncio.sleep(0.5)
    assert await driver.load("z", "/z", request_id="r") == Transient(ALONE)
    assert isinstance(await swap, Transient)
    assert way.changes == []


async def test_with_the_plugin_no_load_waits_for_a_moment(a):
    """It keeps two versions of a name apart itself."""
    engine, driver, way = await ready(replace(WITH_PLUGIN, max_loras=1))
    assert await driver.load("x", a, request_id="r") == Done()
    assert await driver.unload("x", request_id="r") == Done()
    begin(engine, "x")
    way.together.clear()
    assert await driver.load("x", a, request_id="r") == Done()
    assert way.together == [(LOAD,)]


HANGS: list[tuple[str, Callable[[VllmEngine], Awaitable[object]], float]] = [
    ("/v1/models", lambda driver: driver.observe(), 15.0),
    ("/metrics", lambda driver: driver.incarnation(), 5.0),
    (LOAD, lambda driver: driver.load("y", "/y", request_id="r"), 60.0),
    (UNLOAD, lambda driver: driver.unload("x", request_id="r"), 30.0),
    ("/v1/completions", lambda driver: driver.turns(), 30.0),
    ("/v1/completions", lambda driver: driver.pulse(), 15.0),
    (LOAD, lambda driver: driver.swap("x", "/x", "/new", request_id="r"), 65.0),
]


@pytest.mark.parametrize(
    ("path", "call", "seconds"), HANGS, ids=[f"{path} {at}" for at, (path, *_) in enumerate(HANGS)]
)
@virtual
async def test_an_engine_that_hangs_is_waited_for_as_long_as_such_a_call_may_take(path, call, seconds):
    """R16, R18: loads wait for others and for a step; a look, a probe and a pulse tell within half a minute.

    A swap also waits for a moment without requests; here it comes at its very end.
    """
    engine = SimulatedVllm(replace(PLAIN, max_loras=2))
    driver, way = driver_of(engine)
    engine.cards["x"] = engine.card("x", "/x")
    await driver.observe()
    await driver.incarnation()
    await asyncio.sleep(6.0)
    loop = asyncio.get_running_loop()
    if seconds > 60.0:
        begin(engine, "x")
        loop.call_later(4.95, end, engine)
    way.hangs.add(path)
    began = loop.time()
    with suppress(EngineUnreachable):
        await call(driver)
    assert loop.time() - began == pytest.approx(seconds, abs=0.2)


async def test_a_swap_puts_back_nothing_that_may_not_be_given_now():
    """R21 proven-here: simulated seed 772756. Of an earlier process, nobody hashed what it had since the restart."""
    _, driver, way = await ready()
    driver._is_intact = {"/new"}.__contains__
    way.instead[LOAD].extend([YES, BAD])
    way.instead[UNLOAD].extend([YES])
    found = await driver.swap("x", "/old", "/new", request_id="r")
    assert isinstance(found, Unknown)
    assert "/old is not put back" in found.message
    assert [(path, *body.values()) for method, path, body in way.asked if method == "POST"] == [PROOF, GO, NEW]
