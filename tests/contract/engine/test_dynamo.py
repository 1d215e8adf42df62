"""What only a Dynamo worker does: it answers with success what it does not do, and says that it is not ready yet."""

from __future__ import annotations

import pytest

from sidecar.engines.driver import EngineUnreachable, EngineUnusable
from sidecar.engines.observed import AlreadyThere, Done, EngineGone, Refused, Transient, Unknown
from tests.support.engines import BASE_MODEL
from tests.support.kinds import drive
from tests.support.other_engines.dynamo import SimulatedDynamo
from tests.support.other_engines.server import serving


async def test_dynamo_never_believes_a_success_for_a_name_that_had_other_files(tiny):
    """R4 digest-true: a worker answers such a load with success and goes on with the old ones."""
    dynamo = SimulatedDynamo(BASE_MODEL)
    async with serving(dynamo.app()) as url:
        engine = drive("dynamo", url)
        a, b = tiny.adapter("a"), tiny.adapter("b")
        await engine.load("acme/x", a, request_id="r")
        assert await engine.load("acme/x", a, request_id="r") == AlreadyThere()
        assert isinstance(await engine.load("acme/x", b, request_id="r"), Refused)
        assert await engine.unload("acme/x", request_id="r") == Done()
        await engine.observe()
        assert isinstance(await engine.load("acme/x", b, request_id="r"), Refused)
        assert await engine.load("acme/x", a, request_id="r") == Done()
        assert {card.name: card.path for card in dynamo.core.cards.values()} == {"acme/x": a}


async def test_dynamo_that_cannot_be_driven_yet_is_sent_nothing(tiny):
    async with serving(SimulatedDynamo(BASE_MODEL, has_endpoints=False).app()) as url:
        engine = drive("dynamo", url)
        with pytest.raises(EngineUnreachable, match="list_loras"):
            await engine.observe()
        assert isinstance(await engine.load("x", tiny.adapter("a"), request_id="r"), EngineGone)
        assert isinstance(await engine.unload("x", request_id="r"), Unknown)
        assert not await engine.turns()


async def test_dynamo_without_adapters_says_why(tiny):
    async with serving(SimulatedDynamo(BASE_MODEL, lora_enabled=False).app()) as url:
        engine = drive("dynamo", url)
        with pytest.raises(EngineUnusable):
            await engine.observe()
        assert isinstance(await engine.load("x", tiny.adapter("a"), request_id="r"), Transient)
