"""The engine environment's installer and the commands that run inside it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from registry.tools.devstack.engine_environment import vllm_environment
from tests.support import engine_install


def test_vllm_gets_its_variables_and_none_of_ours(monkeypatch):
    """VLLM_CPU_KVCACHE_SPACE must be unset: it overrides the size that the command gives."""
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "40")
    environment = vllm_environment()
    assert environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    assert environment["OMP_NUM_THREADS"] == "1"
    assert "VLLM_CPU_KVCACHE_SPACE" not in environment
    assert "PYTHONPATH" not in {*environment} - {*os.environ}
    lent = vllm_environment(plugin=Path("/plugin"))
    assert (lent["PYTHONPATH"], lent["VLLM_PLUGINS"], lent["LORAPLANE_PLUGIN"]) == ("/plugin", "loraplane", "1")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("first\nERROR: no such release\n  \nlast\n", "ERROR: no such release"),
        ("Traceback\n\n  ImportError: no libnuma \n\n", "ImportError: no libnuma"),
        ("", "no output"),
    ],
)
def test_a_step_is_told_by_its_error_or_its_last_line(said, reason):
    command = [sys.executable, "-SIc", f"import sys; sys.exit({said!r} or 1)"]
    with pytest.raises(engine_install.InstallFailed) as failed:
        engine_install._run(command, "importing vllm")
    assert str(failed.value) == f"engine environment: importing vllm failed: {reason}"
    engine_install._run([sys.executable, "-SIc", ""], "nothing")
