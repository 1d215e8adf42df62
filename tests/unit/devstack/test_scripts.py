"""Programs of this room, as `make` and people call them."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from registry.tools import devstack
from registry.tools.devstack import tiny_adapters, tiny_model
from registry.tools.devstack.tiny_adapters import write_adapter


@pytest.mark.parametrize("name", ["demo", "engine_install", "reference", "tiny_adapters", "tiny_model"])
def test_each_program_says_how_it_is_called(monkeypatch, capsys, name):
    """Also the one that runs where torch is, which here is a stand-in."""
    for module in ("torch", "peft", "transformers"):
        monkeypatch.setitem(sys.modules, module, MagicMock())
    program = f"{devstack.__name__}.{name}"
    monkeypatch.delitem(sys.modules, program, raising=False)
    monkeypatch.setattr("sys.argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(program, run_name="__main__")
    assert ended.value.code == 0
    assert "usage: " in capsys.readouterr().out.lower()


@pytest.mark.parametrize(("more", "seed"), [((), 0), (("--seed", "7"), 7)])
def test_a_tiny_model_is_made_where_it_is_asked_for(monkeypatch, more, seed):
    made: list[tuple[Path, int]] = []
    monkeypatch.setattr(tiny_model, "write_model", lambda folder, *, seed: made.append((folder, seed)))
    monkeypatch.setattr("sys.argv", ["tiny_model", "--out", "m", *more])
    tiny_model.main()
    assert made == [(Path("m"), seed)]


@pytest.mark.parametrize("program", [tiny_model, tiny_adapters], ids=["model", "adapters"])
@pytest.mark.parametrize("given", [[], ["--model", "m"]], ids=["nothing", "no place"])
def test_what_is_not_told_where_to_write_writes_nothing(monkeypatch, capsys, program: Any, given):
    monkeypatch.setattr("sys.argv", ["program", *given])
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert (ended.value.code, "--out" in capsys.readouterr().err) == (2, True)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ((), [("out", 0)]),
        (("--seed", "3"), [("out", 3)]),
        (("--name", "a"), [("out/a", "0/a")]),
        (("--name", "a", "--name", "b", "--seed", "2"), [("out/a", "2/a"), ("out/b", "2/b")]),
    ],
    ids=str,
)
def test_tiny_adapters_are_made_by_name_each_with_weights_of_its_own(monkeypatch, more, expected):
    made: list[tuple[str, int | str, Path]] = []
    monkeypatch.setattr(
        tiny_adapters, "write_adapter", lambda folder, *, seed, model: made.append((str(folder), seed, model))
    )
    monkeypatch.setattr("sys.argv", ["tiny_adapters", "--model", "m", "--out", "out", *more])
    tiny_adapters.main()
    assert made == [(folder, seed, Path("m")) for folder, seed in expected]


def test_tiny_adapters_need_a_base_model(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["tiny_adapters", "--out", "out"])
    with pytest.raises(SystemExit):
        tiny_adapters.main()
    assert "--model" in capsys.readouterr().err


def test_an_adapter_is_written_into_a_folder_that_is_there_or_not(tmp_path):
    for _ in range(2):
        write_adapter(tmp_path / "deep" / "a", seed=1)
    assert {file.name for file in (tmp_path / "deep" / "a").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
