"""What the driver does about names that our plugin leaves out of the engine's list before they stop to answer."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from sidecar.engines.driver import HidesNames
from sidecar.engines.observed import AlreadyThere, Done, Refused, Transient
from sidecar.engines.simulated.engine import SimulatedVllm
from sidecar.engines.simulated.options import DEFAULTS
from sidecar.engines.transport import Reply
from sidecar.engines.vllm.driver import VllmEngine
from tests.simulation.loop import virtual
from tests.support.engine_in_memory import InMemory, answer_of, driver_of

WITH_PLUGIN = replace(DEFAULTS, plugin=True, hide_seconds=5.0)


@pytest.fixture
def files(a, b) -> list[str]:
    """Directories of two versions of an adapter."""
    return [a, b]


async def loaded(engine: SimulatedVllm, path: str) -> tuple[VllmEngine, InMemory]:
    driver, way = driver_of(engine)
    await driver.observe()
    assert await driver.load("x", path, request_id="r") == Done()
    return driver, way


async def listed(way: InMemory) -> list[str]:
    """The adapters that anybody sees."""
    reply = await answer_of(way.app, "GET", "/v1/models", {}, b"")
    assert isinstance(reply, Reply)
    return [card["id"] for card in json.loads(reply.body)["data"] if card["parent"]]


@virtual
async def test_what_is_unloaded_answers_on_and_is_gone_for_the_sidecar(files):
    """R9: its status says at once that it is gone."""
    engine = SimulatedVllm(WITH_PLUGIN)
    driver, way = await loaded(engine, files[0])
    assert await driver.unload("x", request_id="r") == Done()
    assert (dict((await driver.observe()).adapters), await listed(way)) == ({}, [])
    assert files[0] in ((await driver.drain_evidence()).paths or ()), "R7: and its files are in use"
    assert await engine.card_of("x") is not None
    await asyncio.sleep(5.1)
    assert "x" not in engine.cards


@pytest.mark.parametrize("version", [0, 1])
@virtual
async def test_a_load_takes_the_unload_back(files, version):
    """Without a moment in which the engine does not answer, whichever version comes."""
    engine = SimulatedVllm(WITH_PLUGIN)
    driver, _ = await loaded(engine, files[0])
    await driver.unload("x", request_id="r")
    await asyncio.sleep(4)
    assert await driver.load("x", files[version], request_id="r") == Done()
    assert dict((await driver.observe()).adapters) == {"x": files[version]}
    await asyncio.sleep(10)
    assert engine.cards["x"].path == files[version]


@virtual
async def test_a_name_that_is_not_on_its_way_out_is_there(files):
    """R11: whoever gave it its files."""
    driver, way = await loaded(SimulatedVllm(WITH_PLUGIN), files[0])
    assert await driver.load("x", files[1], request_id="r") == AlreadyThere()
    await driver.unload("x", request_id="r")
    way.instead["/v1/loraplane/show"].append(Reply(500, b'{"error": {"type": "refused", "message": "no"}}'))
    assert isinstance(await driver.load("x", files[1], request_id="r"), Refused)


@virtual
async def test_while_it_drains_strangers_see_nothing_and_the_sidecar_everything(files):
    """Without our plugin there is nothing to hide."""
    driver, way = await loaded(SimulatedVllm(WITH_PLUGIN), files[0])
    assert isinstance(driver, HidesNames)
    assert await driver.hide(30.0) == Done()
    assert (dict((await driver.observe()).adapters), await listed(way)) == ({"x": files[0]}, [])
    assert await driver.hide(0.0) == Done()
    assert await listed(way) == ["x"]
    plain, way = driver_of(SimulatedVllm())
    assert isinstance(await plain.hide(30.0), Transient)
    await plain.observe()
    assert await plain.hide(30.0) == Done()
    assert "/v1/loraplane/hide" not in [path for _, path, _ in way.asked]
