"""What is run as a program runs, and says what it takes."""

from __future__ import annotations

import runpy
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "flag"), [("sidecar.main", "--replica"), ("sidecar.engines.simulated.__main__", "--max-cpu-loras")]
)
def test_a_program_says_what_it_takes(monkeypatch, capsys, module, flag):
    """Run as Python runs it: by its module, which does nothing where it is only imported."""
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(sys, "argv", ["program", "--help"])
    runpy.run_module(module, run_name="imported")
    assert capsys.readouterr().out == ""
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(module, run_name="__main__")
    assert ended.value.code == 0
    assert flag in capsys.readouterr().out
