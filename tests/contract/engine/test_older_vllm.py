"""vLLM 0.10 to 0.30: what a driver makes of releases whose prefix cache knows an adapter by its name only.

They are played by the simulated engine, as far as their sources and facts say what they answer.
"""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator

import pytest

from sidecar.engines import load_ledger
from sidecar.engines.load_ledger import FILE, LoadLedger
from sidecar.engines.observed import AlreadyThere, Done, NotThere, PathMissing, Refused, Transient
from sidecar.engines.simulated.app import serving
from sidecar.engines.simulated.engine import SimulatedVllm
from sidecar.engines.simulated.options import Options
from sidecar.engines.vllm.driver import VllmEngine
from tests.support.engines import BASE_MODEL, PATIENT

PROMPT = "The quick brown fox jumps over the lazy dog. " * 6
RELEASES = ["0.10.0", "0.10.1", "0.22.1", "0.23.0", "0.30.2"]


@pytest.fixture(params=RELEASES)
async def url(request, tiny) -> AsyncIterator[str]:
    """An engine of each kind of release in turn, some with our plugin, which does not help here."""
    options = Options(served_model_name=BASE_MODEL, model=str(tiny.model), version=request.param, plugin=True)
    async with serving(SimulatedVllm(options)) as url:
        yield url


async def test_outcomes_are_those_of_later_releases(engine, tiny, tmp_path):
    """Error bodies and statuses differ by release; no text of them is read."""
    a, b = tiny.adapter("a"), tiny.adapter("b")
    assert (await engine.observe()).facts.swap == "refused"
    assert await engine.load("x", a, request_id="r") == Done()
    assert await engine.load("x", b, request_id="r") == AlreadyThere()
    assert dict((await engine.observe()).adapters) == {"x": a}
    assert isinstance(await engine.load("y", str(tmp_path / "missing"), request_id="r"), PathMissing)
    refused = await engine.load("y", tiny.changed("big", rank=32), request_id="r")
    assert isinstance(refused, Refused)
    assert "add_lora" in refused.message
    assert "{" not in refused.message
    assert await engine.unload("x", request_id="r") == Done()
    assert await engine.unload("x", request_id="r") == NotThere()


async def test_why_other_weights_under_a_name_are_refused(asker, tiny):
    """Facts 0.5: the name answers with the weights that it had before."""
    await asker.load("x", tiny.adapter("a"))
    old = await asker.text("x", PROMPT)
    await asker.unload("x")
    await asker.load("x", tiny.adapter("b"))
    assert await asker.text("x", PROMPT) == old
    await asker.load("x@2", tiny.adapter("b"))
    assert await asker.text("x@2", PROMPT) != old


async def test_a_swap_is_refused_and_changes_nothing(engine, asker, tiny):
    a, b = tiny.adapter("a"), tiny.adapter("b")
    await engine.observe()
    await engine.load("x", a, request_id="r")
    assert isinstance(await engine.swap("x", a, b, request_id="r"), Refused)
    assert await asker.adapters() == {"x": a}


async def test_what_a_name_had_is_known_after_its_unload_and_what_failed_is_not(engine, asker, tiny):
    """R4: deleted and added again with other weights, a name would be answered from the cache."""
    a, b = tiny.adapter("a"), tiny.adapter("b")
    await asker.load("foreign", b)
    await engine.observe()
    await engine.load("x", a, request_id="r")
    await engine.load("big", tiny.changed("big", rank=32), request_id="r")
    await engine.unload("x", request_id="r")
    await asker.unload("foreign")
    assert dict((await engine.observe()).past) == {"x": a, "foreign": b}


async def test_it_is_known_after_a_restart_of_the_sidecar_but_not_of_the_engine(url, tiny, tmp_path):
    """R12 crash-only."""
    a = tiny.adapter("a")
    first = VllmEngine(url, deadlines=PATIENT, past=LoadLedger(tmp_path))
    await first.observe()
    await first.load("x", a, request_id="r")
    await first.unload("x", request_id="r")
    again = VllmEngine(url, deadlines=PATIENT, past=LoadLedger(tmp_path))
    assert dict((await again.observe()).past) == {"x": a}
    options = Options(served_model_name=BASE_MODEL, version=RELEASES[-1])
    async with serving(SimulatedVllm(options)) as other:
        next_process = VllmEngine(other, deadlines=PATIENT, past=LoadLedger(tmp_path))
        assert dict((await next_process.observe()).past) == {}


async def test_nothing_is_loaded_that_cannot_be_recorded(url, tiny, tmp_path, asker, monkeypatch):
    engine = VllmEngine(url, deadlines=PATIENT, past=LoadLedger(tmp_path))
    await engine.observe()
    monkeypatch.setattr(load_ledger, "write_synced", disk_full)
    assert isinstance(await engine.load("x", tiny.adapter("a"), request_id="r"), Transient)
    assert await asker.adapters() == {}


def disk_full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "no space left")


DAMAGED = [b"", b"[", b"[]", b'{"schema": 2}', b'{"schema": 1, "incarnation": "e", "paths": {"x": 1}}']


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_record_says_nothing(tmp_path, content):
    (tmp_path / FILE).write_bytes(content)
    assert dict(LoadLedger(tmp_path).of("e")) == {}
