"""The sequence by which pegainfer's authors tried its adapters, on its double.

Told in pegainfer-project/pegainfer, pull request 193: three adapters, 36 requests at once over base and adapters, a
second load of a name, a replacement in place, an unload, and a request for what was unloaded. The double is written
from that text and the source that our driver names; no pegainfer was run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import cycle, islice

import httpx
import pytest

from tests.support.engines import BASE_MODEL, Asker
from tests.support.kinds import PROMPT
from tests.support.other_engines.pegainfer import SimulatedPegainfer
from tests.support.other_engines.server import serving

NAMES = ("stress-a", "stress-b", "stress-c")
AT_ONCE = 36


@pytest.fixture
async def asker() -> AsyncIterator[Asker]:
    """Whoever asks the double, which has no adapter yet."""
    async with serving(SimulatedPegainfer(BASE_MODEL).app()) as url:
        asker = Asker(url)
        yield asker
        await asker.client.aclose()


async def names(asker: Asker) -> set[str]:
    return {card["id"] for card in (await asker.client.get("/v1/models")).json()["data"]}


async def answers(asker: Asker) -> dict[str, set[str]]:
    """What 36 requests at once are answered with, by model."""
    models = list(islice(cycle((BASE_MODEL, *NAMES)), AT_ONCE))
    texts = await asyncio.gather(*(asker.text(model, PROMPT) for model in models))
    said: dict[str, set[str]] = {model: set() for model in models}
    for model, text in zip(models, texts, strict=True):
        said[model].add(text)
    return said


def is_told(reply: httpx.Response) -> bool:
    """An error in either form."""
    return bool(reply.json().get("error"))


async def test_the_double_answers_as_the_sequence_tells(asker, tiny):
    """By bare requests; the replacement in place is one that our drivers never ask for."""
    for name in NAMES:
        assert (await asker.load(name, tiny.adapter(name))).status_code == 200
    assert await names(asker) == {BASE_MODEL, *NAMES}
    before = await answers(asker)
    assert [len(texts) for texts in before.values()] == [1] * 4
    assert len(set().union(*before.values())) == 4, "each model has an answer of its own"
    again = await asker.load("stress-b", tiny.adapter("other"))
    assert (again.status_code, is_told(again)) == (400, True)
    replaced = {"lora_name": "stress-b", "lora_path": tiny.adapter("other"), "load_inplace": True}
    assert (await asker.client.post("/v1/load_lora_adapter", json=replaced)).status_code == 200
    assert (await asker.complete("stress-b", PROMPT)).status_code == 200
    assert (await asker.unload("stress-c")).status_code == 200
    assert await names(asker) == {BASE_MODEL, *NAMES} - {"stress-c"}
    gone = await asker.complete("stress-c", PROMPT)
    assert (gone.status_code, is_told(gone)) == (404, True)
