"""The end of a daemon that is its container's first process, while it begins."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys

import pytest

from registry.runtime import first_process


@pytest.mark.parametrize(("number", "handled"), [(1, [signal.SIGTERM]), (2, [])])
def test_a_first_process_handles_its_end_by_itself_and_no_other_does(
    monkeypatch: pytest.MonkeyPatch, number: int, handled: list[int]
) -> None:
    """R20: the kernel would give it none."""
    taken: dict[int, object] = {}
    monkeypatch.setattr(os, "getpid", lambda: number)
    monkeypatch.setattr(signal, "signal", taken.__setitem__)
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    importlib.reload(first_process)
    for end in taken.values():
        end(signal.SIGTERM, None)  # type: ignore[operator]
    assert ([*taken], ended) == (handled, [0] * len(handled))


@pytest.mark.parametrize("program", ["registry.admin.main", "registry.picker.main", "sidecar.main"])
def test_a_daemon_does_so_before_what_takes_long_to_import(program: str) -> None:
    order = "[*sys.modules].index('{}')".format
    code = f"import sys, {program}; print({order('registry.runtime.first_process')} < {order('asyncio')})"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert told.stdout == "True\n"
