"""The engine environment's installer and the commands that run inside it."""

from __future__ import annotations

import os
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from registry.tools.devstack.engine_environment import vllm_command, vllm_environment
from tests.support import engine_install
from tests.support.with_torch import reference_command


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


def test_commands_name_what_they_are_given():
    """And what makes an engine of the tiny model small and quick to start."""
    serve = 'import runpy; runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")'
    plain = [
        *("/py", "-c", serve, "--model", "/model", "--served-model-name", "tiny"),
        *("--host", "127.0.0.1", "--port", "81", "--enable-lora", "--max-lora-rank", "16"),
        *("--max-loras", "4", "--max-cpu-loras", "16", "--dtype", "float32", "--enforce-eager"),
        *("--max-model-len", "512", "--kv-cache-memory-bytes", "67108864", "--distributed-executor-backend", "uni"),
    ]
    assert vllm_command(Path("/py"), Path("/model"), port=81) == plain
    command = vllm_command(Path("/py"), Path("/model"), port=81, served_model_name="base")
    assert ("--served-model-name", "base") in {*pairwise(command)}
    reference = reference_command(Path("/py"), Path("/model"), {"a": Path("/a")}, ["one", "two"])
    assert reference[-6:] == ["--adapter", "a=/a", "--prompt", "one", "--prompt", "two"]


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
