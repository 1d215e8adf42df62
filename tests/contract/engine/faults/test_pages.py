"""What is made of pages that fail, hang or cannot be read in full."""

from __future__ import annotations

import asyncio

import pytest

from sidecar.engines.driver import EngineUnreachable
from sidecar.engines.simulated.options import Hang, OrderedAnswer
from sidecar.engines.vllm.driver import VllmEngine
from tests.contract.engine.faults.hasty import SHORT, listing_of
from tests.support.waiting import eventually


async def test_an_endless_page_is_unreachable(engine, monkeypatch):
    """R16 bounded: nor is a listing."""
    await engine.observe()
    monkeypatch.setattr("sidecar.engines.vllm.http.MAX_ANSWER_BYTES", 100)
    with pytest.raises(EngineUnreachable, match="more than 100 bytes"):
        await engine.incarnation()


BASE_CARD = '{"id": "t", "parent": null, "root": "/m"}'


def listing(*cards: str) -> str:
    """The body of /v1/models with these cards."""
    return f'{{"data": [{", ".join(cards)}]}}'


async def test_a_listing_of_the_right_form_is_read(engine, simulated):
    simulated.faults.order("models", OrderedAnswer(200, listing(BASE_CARD, '{"id": "x", "parent": "t", "root": "/a"}')))
    assert await listing_of(engine) == {"x": "/a"}


@pytest.mark.parametrize(
    "body",
    [
        "<html>",
        "[]",
        "{}",
        '{"data": []}',
        listing('{"id": "x", "parent": "t", "root": "/a"}'),
        listing('{"id": "t"}'),
        listing(BASE_CARD, '{"id": "x", "parent": "t"}'),
        listing(BASE_CARD, '{"id": "x", "parent": "t", "root": null}'),
        listing(BASE_CARD, '{"id": "x", "parent": "t", "root": ""}'),
        listing(BASE_CARD, '{"id": 3, "parent": "t", "root": "/a"}'),
        listing(BASE_CARD, '{"id": "t", "parent": "t", "root": "/a"}'),
        listing(BASE_CARD, '{"id": "x", "parent": "t", "root": "/a"}', '{"id": "x", "parent": "t", "root": "/b"}'),
        '{"data": [' * 100_000,
    ],
)
async def test_a_listing_that_cannot_be_read_in_full_is_no_listing(engine, simulated, tiny, body):
    """R3 converge: no plan is made from a guess; unknown is not empty."""
    await engine.load("x", tiny.adapter("a"), request_id="r")
    simulated.faults.order("models", OrderedAnswer(200, body))
    with pytest.raises(EngineUnreachable):
        await engine.observe()


async def test_a_restart_within_a_look_is_noticed(engine, simulated):
    """R9 status-truth: a listing belongs to one process."""
    release = asyncio.Event()
    simulated.faults.order("models", Hang(release))
    look = asyncio.create_task(engine.observe())
    await eventually(lambda: not simulated.faults.left)  # the look hangs in its listing now
    simulated.started_at += 1
    release.set()
    with pytest.raises(EngineUnreachable, match="restarted"):
        await look


@pytest.mark.parametrize("page", ["metrics", "version", "models"])
async def test_a_page_that_hangs_is_unreachable(url, simulated, page):
    hasty, release = VllmEngine(url, deadlines=SHORT), asyncio.Event()
    simulated.faults.order(page, Hang(release))
    with pytest.raises(EngineUnreachable, match="no answer within"):
        await hasty.observe()
    release.set()
    await hasty.aclose()


@pytest.mark.parametrize("status", [500, 502, 503, 429])
@pytest.mark.parametrize("page", ["metrics", "version", "models"])
async def test_a_page_that_fails_is_unreachable(engine, simulated, page, status):
    simulated.faults.order(page, OrderedAnswer(status, "no"))
    with pytest.raises(EngineUnreachable, match=str(status)):
        await engine.observe()
