"""What is no state of an engine, and no file of an adapter, but a fault of our own: it is told as what it is."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from sidecar.engines.listeners import listener_identity
from sidecar.engines.others.single_slot import read_slot
from sidecar.engines.simulated import weights
from sidecar.engines.simulated.weights import read_weights
from sidecar.engines.vllm.http import VllmHttp
from sidecar.engines.vllm.plugin_calls import read_coverage
from sidecar.engines.vllm.process import VllmProcess, says_paused, with_base, with_evidence
from tests.support.adapters import write_adapter

TOLD = {"schema": 1, "architecture": "A", "applied": ["q"], "taken": [], "renames": [{}, {}, {}]}


fault = Mock(side_effect=ZeroDivisionError)


COVERAGE = json.dumps(TOLD).encode()
LISTENER = "sidecar.engines.listeners."


@pytest.mark.parametrize(
    ("broken", "call"),
    [
        ("sidecar.engines.others.single_slot.read_json", lambda: read_slot(b"{}")),
        ("sidecar.engines.vllm.plugin_calls.check_patterns", lambda: read_coverage(COVERAGE, "1")),
        (f"{LISTENER}ip_address", lambda: listener_identity("http://127.0.0.1:8000")),
        (f"{LISTENER}_text", lambda: listener_identity("http://127.0.0.1:8000")),
    ],
    ids=["what one slot was told", "what a plugin says", "where one listens", "who listens"],
)
def test_of_what_is_read(monkeypatch, broken, call):
    """R9, R12, R22: nothing is forgotten for it, and no engine has no process."""
    monkeypatch.setattr(broken, fault)
    with pytest.raises(ZeroDivisionError):
        call()


async def test_of_what_a_process_says_of_itself():
    """R18, R22: that it does not say so is another matter."""
    http: Any = SimpleNamespace(get=fault, find=fault)
    process = VllmProcess("e1", "0.32.0", None, pause_pages=("/is_paused",))
    for call in (says_paused(http, process), with_evidence(http, process, 30), with_base(http, process, 30)):
        with pytest.raises(ZeroDivisionError):
            await call


async def test_of_a_file_with_a_key(tmp_path, monkeypatch):
    """X1, R9: nor is it an engine that cannot be driven."""
    (tmp_path / "key").write_text("key")
    monkeypatch.setattr(Path, "open", fault)
    with pytest.raises(ZeroDivisionError):
        await VllmHttp("http://e", tmp_path / "key").get(["/metrics"], 1.0)


@pytest.mark.parametrize("number", [1, 2], ids=["configuration", "weights"])
def test_of_files_that_a_simulated_engine_loads(tmp_path, monkeypatch, number):
    """A test of a refusal must not be fooled."""
    folder = str(write_adapter(tmp_path / "a").directory)
    assert read_weights(folder, 64)
    for place, function in ((Path, "read_bytes"), (weights.json, "loads")):
        broken = [getattr(place, function)] * (number - 1) + [fault]
        with monkeypatch.context() as patch:
            patch.setattr(place, function, lambda *what, left=broken: left.pop(0)(*what))
            with pytest.raises(ZeroDivisionError):
                read_weights(folder, 64)
