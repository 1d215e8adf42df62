"""What a profiled program notes: where functions of ours run, and not what an import runs."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from registry import model
from registry.model.names import matches
from tests.support.profiled import BEGIN, Notes


def noted(folder: Path) -> list[str]:
    found: list[str] = json.loads((folder / "modules.json").read_text())
    return found


@pytest.mark.parametrize("begins", [True, False])
def test_calls_are_noted_once_it_begins_and_imports_are_not(tmp_path, monkeypatch, begins):
    """An import calls functions of other modules too, as decorators of classes."""
    if begins:
        (tmp_path / BEGIN).touch()
    notes = Notes(tmp_path)
    monkeypatch.delitem(sys.modules, "registry.model.replica_reasons", raising=False)
    monkeypatch.setattr(model, "replica_reasons", None, raising=False)
    sys.setprofile(notes.hear)
    try:
        importlib.import_module("registry.model.replica_reasons")
        matches({"a": "b"}, {"a": "b"})
    finally:
        sys.setprofile(None)
    notes.write()
    assert noted(tmp_path) == (["registry/model/names.py"] if begins else [])
