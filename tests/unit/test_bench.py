"""What is measured where parts are lacking."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.__main__ import main
from registry.tools.devstack.engine_environment import VARIABLE


def test_what_takes_the_engines_environment_is_left_out_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a fresh clone `make bench` ends with 0, and says what it could not measure and how to get that."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "python"))
    monkeypatch.setattr(sys, "argv", ["bench", "--only", "swap", "--only", "lazy"])
    assert main() == 0
    said = capsys.readouterr()
    assert said.out == "bench: swap left out, lazy left out\n"
    assert [line.partition(": left out: ")[0] for line in said.err.splitlines()] == ["swap", "lazy"]
    assert said.err.count("make engine") == 2
