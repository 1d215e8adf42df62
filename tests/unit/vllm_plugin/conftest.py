"""What all tests of the plugin need."""

from __future__ import annotations

import pytest

from sidecar.vllm_plugin.adapters import Adapters
from sidecar.vllm_plugin.proof import Prover
from tests.unit.vllm_plugin.played import PlayedServer


@pytest.fixture(autouse=True)
def patience(monkeypatch) -> None:
    """Unless a test says so no answer of a played engine is too late, and nothing is swept of itself.

    A sweep that began while the event loop of a test ends would never end, which Python tells in a later test.
    """
    monkeypatch.setitem(Adapters.__init__.__kwdefaults__, "sweep_seconds", 3600.0)
    monkeypatch.setattr(Prover.__init__, "__defaults__", (60.0,))


@pytest.fixture
def server() -> PlayedServer:
    """It has x."""
    server = PlayedServer()
    server.load("x", "/old/x")
    return server


@pytest.fixture
def files(tmp_path) -> str:
    """A directory with something that may be an adapter."""
    (tmp_path / "adapter_config.json").write_text("{}")
    return str(tmp_path)
