"""What only axolotl's server does: it believes whatever it is told, lists nothing, and may be told by others."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import shutil
from collections.abc import AsyncIterator

import pytest

from sidecar.engines.driver import Deadlines, EngineUnreachable, EngineUnusable
from sidecar.engines.observed import AlreadyThere, Done, NotThere, PathMissing, Refused, Transient, Unknown
from sidecar.engines.others.axolotl import AxolotlEngine
from sidecar.engines.simulated.engine import Card
from tests.support.engines import BASE_MODEL, PATIENT
from tests.support.kinds import Played
from tests.support.other_engines.axolotl import SimulatedAxolotl
from tests.support.other_engines.server import serving
from tests.support.waiting import eventually

HASTY = Deadlines(probe_seconds=60, list_seconds=0.2, load_seconds=0.2, unload_seconds=0.2)
NOON = 1_800_000_000.0


@pytest.fixture
async def played(tmp_path) -> AsyncIterator[Played]:
    """With a record on disk, and a clock that stands still."""
    axolotl = SimulatedAxolotl(BASE_MODEL)
    async with serving(axolotl.app()) as url:
        yield Played("axolotl", axolotl, url, AxolotlEngine(url, deadlines=PATIENT, state=tmp_path, wall=lambda: NOON))


@pytest.fixture
def axolotl(played) -> SimulatedAxolotl:
    return played.simulated


async def test_each_look_tells_it_again_what_it_was_told(played, axolotl, tiny):
    """R9: its answer to that is the evidence; what somebody else set meanwhile is undone, unseen."""
    a = tiny.adapter("a")
    await played.engine.load("acme/x", a, request_id="r")
    told = axolotl.active
    for other in (Card("active_lora", tiny.adapter("b"), 1), None):
        axolotl.active = other
        assert dict((await played.engine.observe()).adapters) == {"acme/x": a}
        assert axolotl.active == told
    assert axolotl.told == [told, told, told]


async def test_a_server_that_was_told_nothing_is_left_alone(played, axolotl, tiny):
    """R11: until there is something to serve; also after a clear."""
    foreign = Card("active_lora", tiny.adapter("b"), 1)
    axolotl.active = foreign
    await played.engine.observe()
    assert await played.engine.unload("active_lora", request_id="r") == NotThere()
    assert (axolotl.active, axolotl.told) == (foreign, [])
    await played.engine.load("x", tiny.adapter("a"), request_id="r")
    await played.engine.unload("x", request_id="r")
    axolotl.active = foreign
    assert dict((await played.engine.observe()).adapters) == {}
    assert axolotl.active == foreign


async def test_it_has_one_adapter_at_a_time(played, axolotl, tiny):
    a, b = tiny.adapter("a"), tiny.adapter("b")
    await played.engine.load("x", a, request_id="r")
    assert await played.engine.load("x", b, request_id="r") == AlreadyThere()
    assert isinstance(await played.engine.load("y", b, request_id="r"), Refused)
    assert isinstance(await played.engine.swap("y", a, b, request_id="r"), Transient)
    assert isinstance(await played.engine.swap("x", b, a, request_id="r"), Transient)
    assert await played.engine.unload("y", request_id="r") == NotThere()
    assert len(axolotl.told) == 1
    assert (await played.engine.observe()).facts.limits.max_cpu_loras == 1


async def test_no_two_loads_have_one_number_or_one_name(played, axolotl, tiny, tmp_path):
    """R4 digest-true: the worker keeps weights by number and its prefix cache knows them by name, of any age."""
    a, b = tiny.adapter("a"), tiny.adapter("b")
    await played.engine.load("x", a, request_id="r")
    texts = [await played.text("x")]
    assert await played.engine.swap("x", a, b, request_id="r") == Done()
    texts.append(await played.text("x"))
    await played.engine.unload("x", request_id="r")
    texts.append(await played.text("x"))
    again = AxolotlEngine(played.url, deadlines=PATIENT, state=tmp_path, wall=lambda: NOON - 1000)
    await again.load("x", a, request_id="r")
    texts.append(await played.text("x"))
    assert texts[0] == texts[3]
    assert len(set(texts)) == 3  # that of the base model among them: R5 is not kept here
    cards = [card for card in axolotl.told if card is not None]
    assert len({card.number for card in cards}) == len({card.name for card in cards}) == 3
    assert all(0 < card.number < 2**31 for card in cards)


async def test_a_request_is_answered_by_one_version_alone(tiny):
    """R4: also one that runs while the weights are replaced."""
    slow = SimulatedAxolotl(BASE_MODEL, token_seconds=0.02)
    a, b = tiny.adapter("a"), tiny.adapter("b")
    async with serving(slow.app()) as url:
        played = Played("axolotl", slow, url, AxolotlEngine(url, deadlines=PATIENT))
        await played.engine.load("x", a, request_id="r")
        old = await played.text("x")
        running = asyncio.create_task(played.text("x"))
        await eventually(lambda: slow.core.running or running.done())
        assert await played.engine.swap("x", a, b, request_id="r") == Done()
        assert await running == old != await played.text("x")


@contextlib.asynccontextmanager
async def silent(axolotl: SimulatedAxolotl, engine: AxolotlEngine) -> AsyncIterator[None]:
    """Within the body it does what it is told, and does not say so; its driver waits for that a little while."""
    axolotl.silence = asyncio.Event()
    engine._deadlines = HASTY
    yield
    engine._deadlines = PATIENT
    axolotl.silence.set()
    axolotl.silence = None


async def test_what_it_may_have_heard_is_told_again_until_it_says_so(played, axolotl, tiny, tmp_path):
    """R6, R9: unknown is not empty, and what is to go is never told again that it stays."""
    a, b = tiny.adapter("a"), tiny.adapter("b")
    engine = AxolotlEngine(played.url, deadlines=PATIENT, state=tmp_path)
    await engine.load("x", a, request_id="r")
    async with silent(axolotl, engine):
        assert isinstance(await engine.swap("x", a, b, request_id="r"), Unknown)
        with pytest.raises(EngineUnreachable, match="told before"):
            await engine.observe()
    assert dict((await engine.observe()).adapters) == {"x": b}
    async with silent(axolotl, engine):
        assert isinstance(await engine.unload("x", request_id="r"), Unknown)
        assert isinstance(await engine.load("x", a, request_id="r"), Transient)
        assert isinstance(await engine.unload("x", request_id="r"), Unknown)
    await eventually(lambda: len(axolotl.told) == 6)  # all that was said, with or without an answer, has been heard
    restarted = AxolotlEngine(played.url, deadlines=PATIENT, state=tmp_path)
    assert dict((await restarted.observe()).adapters) == {}
    assert axolotl.told[6:] == [None]
    assert await restarted.load("x", a, request_id="r") == Done()


async def test_it_is_told_of_no_files_that_are_not_there(played, axolotl, tiny, tmp_path):
    """It would end at the next request. Files that are gone are let go of, so that they are brought in again."""
    a = str(shutil.copytree(tiny.adapter("a"), tmp_path / "a"))
    assert isinstance(await played.engine.load("x", f"{a}-not", request_id="r"), PathMissing)
    assert axolotl.told == []
    await played.engine.load("x", a, request_id="r")
    assert isinstance(await played.engine.swap("x", a, f"{a}-not", request_id="r"), PathMissing)
    shutil.rmtree(a)
    assert dict((await played.engine.observe()).adapters) == {}
    assert axolotl.active is None


async def test_what_cannot_be_recorded_is_not_told(played, axolotl, tiny, monkeypatch):
    """R12: a sidecar that dies meanwhile would not know of it."""

    def disk_full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    a, b = tiny.adapter("a"), tiny.adapter("b")
    await played.engine.load("x", a, request_id="r")
    told = list(axolotl.told)
    monkeypatch.setattr("sidecar.engines.others.axolotl.write_synced", disk_full)
    assert isinstance(await played.engine.swap("x", a, b, request_id="r"), Transient)
    assert isinstance(await played.engine.unload("x", request_id="r"), Transient)
    assert axolotl.told == told
    assert dict((await played.engine.observe()).adapters) == {"x": a}


async def test_a_server_whose_worker_ended_is_out_of_reach(played, axolotl, tiny):
    """What it was told of and cannot read ends it, which is why the sidecar compares everything before."""
    await played.engine.load("x", tiny.changed("worse", rank=32), request_id="r")
    assert await played.engine.turns()
    with pytest.raises(json.JSONDecodeError):  # 500
        await played.text("x")
    with pytest.raises(EngineUnreachable, match="a worker has ended"):
        await played.engine.observe()
    with pytest.raises(EngineUnreachable, match="503"):
        await played.engine.incarnation()
    assert not await played.engine.turns()


async def test_a_release_that_does_not_name_its_base_model_is_refused():
    async with serving(SimulatedAxolotl(BASE_MODEL, names_base=False).app()) as url:
        with pytest.raises(EngineUnusable) as caught:
            await AxolotlEngine(url, deadlines=PATIENT).observe()
        assert caught.value.reason == "not_an_engine"


async def test_what_may_not_be_told_from_here_is_not(tiny):
    """R9: without its process nobody knows what it was told of."""
    async with serving(SimulatedAxolotl(BASE_MODEL).app()) as url:
        elsewhere = AxolotlEngine(url.replace("127.0.0.1", "localhost.localdomain"), deadlines=PATIENT)
        assert "nothing is seen" in str(await elsewhere.load("x", tiny.adapter("a"), request_id="r"))
