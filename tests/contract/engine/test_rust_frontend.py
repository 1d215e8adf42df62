"""vLLM's Rust frontend, a program of a newer release, before the engine of the CPU build (`make rust-frontend`)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sidecar.engines.driver import EngineUnusable
from sidecar.engines.observed import Done, NotThere, Refused
from tests.support.engines import BASE_MODEL, VllmFlags

VARIABLE = "LORAPLANE_TEST_RUST_FRONTEND"
PROMPT = "The quick brown fox"

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(VARIABLE not in os.environ, reason="make rust-frontend fetches the program"),
]


@pytest.fixture
def flags() -> VllmFlags:
    return VllmFlags(rust_frontend=Path(os.environ[VARIABLE]))


async def test_versioned_names_are_loaded_listed_with_their_files_and_unloaded(real, tiny):
    """R5 no-silent-base: a name that is gone is an error."""
    asker, engine = real.asker(), real.driver()
    a, b = tiny.adapter("a"), tiny.adapter("b")
    assert await engine.load("x@1", a, request_id="r1") == Done()
    assert await engine.load("x@2", b, request_id="r2") == Done()
    assert await asker.adapters() == {"x@1": a, "x@2": b}
    assert len({await asker.text(name, PROMPT) for name in (BASE_MODEL, "x@1", "x@2")}) == 3
    assert await engine.unload("x@1", request_id="r3") == Done()
    assert await engine.unload("x@1", request_id="r3") == NotThere()
    assert (await asker.complete("x@1", PROMPT)).status_code == 404
    assert await asker.adapters() == {"x@2": b}
    await engine.aclose()


async def test_what_it_refuses_changes_nothing(real, tiny, tmp_path):
    """R8 isolation: a name that is there keeps its files; what cannot be loaded is named."""
    asker, engine = real.asker(), real.driver()
    a, b = tiny.adapter("a"), tiny.adapter("b")
    assert await engine.load("x@1", a, request_id="r") == Done()
    for name, path, why in (
        ("x@1", b, "already loaded"),
        ("y@1", str(tmp_path / "missing"), "must exist"),
        ("y@1", tiny.changed("big", rank=32), "max_lora_rank"),
    ):
        told = await engine.load(name, path, request_id="r")
        assert isinstance(told, Refused)
        assert why in told.message
    assert await asker.adapters() == {"x@1": a}
    await engine.aclose()


async def test_it_is_refused_by_name_since_it_does_not_say_which_process_it_is(real):
    """R23 same-base: a restart that nobody notices could bring another base."""
    engine = real.driver()
    with pytest.raises(EngineUnusable, match="does not say which process it is") as told:
        await engine.observe()
    assert told.value.reason == "rust_frontend"
    await engine.aclose()
