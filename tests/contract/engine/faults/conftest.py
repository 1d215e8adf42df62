"""A simulated engine, which can be told to fail, and beside the usual driver one that does not wait for long."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sidecar.engines.simulated.app import serving
from sidecar.engines.vllm.driver import VllmEngine
from tests.contract.engine.faults.hasty import HASTY


@pytest.fixture
async def url(simulated) -> AsyncIterator[str]:
    async with serving(simulated) as url:
        yield url


@pytest.fixture
async def hasty(url) -> AsyncIterator[VllmEngine]:
    """A driver whose calls do not wait long, for what hangs; whatever else is called might come too late."""
    engine = VllmEngine(url, deadlines=HASTY)
    yield engine
    await engine.aclose()
