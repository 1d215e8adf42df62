"""The sequence by which pegainfer's authors tried its adapters, on its double and on the simulated vLLM alike.

Told in pegainfer-project/pegainfer, pull request 193: three adapters, 36 requests at once over base and adapters, a
second load of a name, a replacement in place, an unload, and a request for what was unloaded. The double is written
from that text and the source that our driver names; no pegainfer was run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import cycle, islice
from pathlib import Path

import httpx
import pytest

from loraplane.engines import AlreadyThere, Done, NotThere, Refused
from sidecar.engines.simulated.app import serving as serving_vllm
from sidecar.engines.simulated.engine import SimulatedVllm
from sidecar.engines.simulated.options import Options
from tests.support.engines import BASE_MODEL, Asker
from tests.support.kinds import PROMPT, drive
from tests.support.other_engines.pegainfer import SimulatedPegainfer
from tests.support.other_engines.server import serving

NAMES = ("stress-a", "stress-b", "stress-c")
AT_ONCE = 36


@pytest.fixture(params=["pegainfer", "vllm"])
async def served(request) -> AsyncIterator[tuple[str, Asker]]:
    """Each kind in turn, simulated and without adapters, and whoever asks it."""
    if request.param == "vllm":
        serves = serving_vllm(SimulatedVllm(Options(served_model_name=BASE_MODEL)))
    else:
        serves = serving(SimulatedPegainfer(BASE_MODEL).app())
    async with serves as url:
        asker = Asker(url)
        yield request.param, asker
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


@pytest.mark.parametrize("served", ["pegainfer"], indirect=True)
async def test_the_double_answers_as_the_sequence_tells(served, tiny):
    """By bare requests; the replacement in place is one that our drivers never ask for."""
    _, asker = served
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


async def test_the_sequence_goes_alike_by_drivers(served, tiny, tmp_path):
    """R4, R5, R6, R8: a name that is taken is refused, and other weights under it only where answers stay true."""
    kind, asker = served
    state = tmp_path / "state"
    state.mkdir()
    paths = {name: tiny.adapter(name) for name in NAMES}
    engine = drive(kind, asker.url, Path(state))
    await engine.observe()
    for name, path in paths.items():
        assert await engine.load(name, path, request_id="r") == Done()
    assert dict((await engine.observe()).adapters) == paths
    before = await answers(asker)
    assert [len(texts) for texts in before.values()] == [1] * 4
    assert len(set().union(*before.values())) == 4
    other = tiny.adapter("other")
    assert isinstance(await engine.load("stress-b", other, request_id="r"), AlreadyThere | Refused)
    assert await answers(asker) == before
    swap = await engine.swap("stress-b", paths["stress-b"], other, request_id="r")
    assert isinstance(swap, Done if kind == "vllm" else Refused)
    assert (await answers(asker) != before) == (kind == "vllm")
    assert await engine.unload("stress-c", request_id="r") == Done()
    assert set((await engine.observe()).adapters) == {"stress-a", "stress-b"}
    gone = await asker.complete("stress-c", PROMPT)
    assert gone.status_code == 404
    assert isinstance(await engine.unload("stress-c", request_id="r"), NotThere | Refused)
    await engine.aclose()
