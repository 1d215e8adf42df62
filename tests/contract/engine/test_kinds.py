"""The public suite on every kind of engine that we bring, and what each of ours says that it cannot do."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from loraplane.engines import Done, Engine, EngineUnreachable, EngineUnusable, contract
from tests.support.kinds import KINDS, LISTING_PATHS, SWAPS, Played, drive


@pytest.fixture(params=KINDS)
def kind(request) -> str:
    return str(request.param)


@pytest.fixture
async def played(kind, tiny) -> AsyncIterator[Played]:
    engine = Played(kind, (tiny.adapter("a"), tiny.adapter("b")), [tiny.changed("big", rank=32)])
    await engine.start()
    yield engine
    await engine.stop()


@pytest.mark.parametrize("check", contract.CHECKS, ids=lambda check: check.__name__)
async def test_each_driver_keeps_the_contract(played, check):
    """R4, R6, R7, R8, R9, R11, R12: see the checks."""
    await check(played)


class Wrong:
    """A driver that does one thing otherwise than it should."""

    def __init__(self, engine: Engine, **instead: object) -> None:
        self._engine, self._instead = engine, instead

    def __getattr__(self, name: str) -> object:
        return self._instead.get(name) or getattr(self._engine, name)


async def done(*_: object, **__: object) -> Done:
    return Done()


async def same(*_: object) -> str:
    return "process 1"


@pytest.mark.parametrize("kind", ["sglang"])
@pytest.mark.parametrize(
    ("check", "instead"),
    [
        (contract.check_observed, {"kind": "other"}),
        (contract.check_observed, {"incarnation": same}),
        (contract.check_load_and_unload, {"load": done}),
        (contract.check_load_and_unload, {"unload": done}),
        (contract.check_swap, {"swap": done}),
        (contract.check_foreign, {"load": done}),
        (contract.check_restarts, {"load": done}),
        (contract.check_requests, {"is_busy": done}),
        (contract.check_requests, {"incarnation": same}),
    ],
)
async def test_a_driver_that_breaks_a_promise_fails(played, monkeypatch, check, instead):
    """Each check can fail."""
    drive = played.drive
    monkeypatch.setattr(played, "drive", lambda state=None: Wrong(drive(state), **instead))
    with pytest.raises(AssertionError):
        await check(played)


async def test_what_a_driver_cannot_do_it_says(played):
    """R7 files-pinned, R11: the checks allow for this; of ours it is known which of them does which."""
    engine = played.drive()
    await played.load_foreign("foreign", played.adapters[1])
    observed = await engine.observe()
    assert observed.facts.swap == SWAPS.get(played.kind, "refused")
    is_listed = played.kind in LISTING_PATHS
    assert observed.adapters.get("foreign") == (played.adapters[1] if is_listed else None)
    if is_listed:
        assert (await engine.drain_evidence()).incarnation == observed.facts.incarnation
    else:
        with pytest.raises(EngineUnreachable, match="files stay"):
            await engine.drain_evidence()
    await engine.aclose()


async def test_something_else_is_no_engine_of_this_kind(played):
    """A wrong --engine-kind is said, and nothing is done."""
    for kind in KINDS:
        if kind != played.kind:
            with pytest.raises(EngineUnusable):
                await drive(kind, played.url).observe()
