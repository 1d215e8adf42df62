"""Which interpreter runs vLLM with which plugin, what is installed for it, and the programs of this room."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from registry.tools.devstack import engine_environment
from registry.tools.devstack.engine_environment import (
    PACKAGE,
    VARIABLE,
    EngineNotFound,
    find_engine_python,
    plugin_environment,
    plugin_folder,
)
from registry.tools.devstack.tiny_adapters import write_adapter
from sidecar import vllm_plugin
from tests import support
from tests.support import engine_install
from tests.support.engine_install import InstallFailed, install


def interpreter(folder: Path) -> Path:
    """The engine environment of a folder."""
    python = folder / ".venv-engine" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    return python


@pytest.fixture
def places(tmp_path, monkeypatch) -> SimpleNamespace:
    """Folders in which nothing is yet: the current one, and the project."""
    made = SimpleNamespace(here=tmp_path / "here", project=tmp_path / "project")
    made.here.mkdir()
    monkeypatch.chdir(made.here)
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(engine_environment, "_BESIDE_US", made.project)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    return made


def test_the_engine_that_is_named_is_taken_then_that_of_this_folder_then_the_projects(places, monkeypatch, tmp_path):
    """What cannot be run is none; no other is taken for what is named. A relative name is made absolute. Without any
    our own has to have vLLM.
    """
    asked: list[str] = []
    with pytest.raises(EngineNotFound, match=r"\.venv-engine\) is not there.*--engine sim"):
        find_engine_python()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: (asked.append(name), object())[1])
    assert (find_engine_python(), asked) == (Path(sys.executable), ["vllm"])
    of_project = interpreter(places.project)
    assert find_engine_python() == of_project
    of_here = interpreter(places.here)
    assert find_engine_python() == of_here
    of_here.chmod(0o644)
    assert find_engine_python() == of_project
    (places.here / "python").symlink_to(interpreter(tmp_path / "named"))
    monkeypatch.setenv(VARIABLE, "python")
    assert find_engine_python() == places.here / "python", "a link is that environment, what it leads to another"
    monkeypatch.setenv(VARIABLE, "pythonx")
    with pytest.raises(EngineNotFound, match=rf"pythonx is not there; make it with: make engine.*{VARIABLE}"):
        find_engine_python()


@pytest.fixture
def steps(monkeypatch) -> Any:
    """What an install does, in its order; nothing is installed, and a step may fail that is named."""
    made = SimpleNamespace(did=list[str](), fails="nothing")

    def create(folder: Path, *, with_pip: bool) -> None:
        made.did.append(f"create {folder.name} {'with' if with_pip else 'without'} pip")
        interpreter(folder.parent)

    def run(command: list[str], what: str) -> None:
        if made.fails in command[-1]:
            raise InstallFailed("no such build")
        made.did.append(f"{what}: {' '.join(command[1:])}")

    monkeypatch.setattr(engine_install.venv, "create", create)
    monkeypatch.setattr(engine_install, "_run", run)
    return made


PIP = "-m pip install --quiet --no-deps --require-hashes --only-binary :all: --requirement"
IMPORT = "importing vllm, torch and peft: -c import peft, torch, vllm"


def test_an_environment_is_made_once_and_completed_each_time(tmp_path, steps, capsys):
    """A run that broke off is gone on with. What was installed is tried at the end. Without a build for CPUs the plain
    one is taken.
    """
    listed = f"installing the packages of requirements/engine.txt: {PIP} {tmp_path / 'list.txt'}"
    complete = [f"installing torch's CPU build: {PIP} {engine_install._TORCH}", listed, IMPORT]
    install(tmp_path / ".venv-engine", tmp_path / "list.txt")
    assert steps.did == ["create .venv-engine with pip", *complete]
    steps.did.clear()
    install(tmp_path / ".venv-engine", tmp_path / "list.txt")
    assert steps.did == complete
    steps.did.clear()
    steps.fails = "torch-cpu.txt"
    install(tmp_path / ".venv-engine", tmp_path / "list.txt")
    assert (steps.did, "no such build" in capsys.readouterr().err) == ([listed, IMPORT], True)


@pytest.mark.parametrize(("version", "is_refused"), [((3, 11), False), ((3, 10), True), ((3, 12), True)], ids=str)
def test_another_python_is_refused_before_anything_is_made(tmp_path, monkeypatch, steps, version, is_refused):
    monkeypatch.setattr(engine_install, "sys", SimpleNamespace(version_info=(*version, 4, "final", 0)))
    with pytest.raises(InstallFailed, match=r"run this with python3\.11") if is_refused else nullcontext():
        install(tmp_path / ".venv-engine")
    assert steps.did[-1:] == ([] if is_refused else [IMPORT])


def test_vllm_finds_the_plugin_of_this_installation(tmp_path):
    """One that moved, or is another, would leave vLLM with the old plugin, or none."""
    folder = tmp_path / "deep" / "plugin"
    for _ in range(2):
        assert plugin_folder(folder) == folder
        assert (folder / PACKAGE).readlink() == Path(vllm_plugin.__file__).parent
    (folder / PACKAGE).unlink()
    (folder / PACKAGE).symlink_to(tmp_path / "gone")
    assert (plugin_folder(folder) / PACKAGE).readlink() == Path(vllm_plugin.__file__).parent
    expected = {"PYTHONPATH": str(folder), "VLLM_PLUGINS": "loraplane", "LORAPLANE_PLUGIN": "1"}
    assert plugin_environment(folder) == expected


@pytest.mark.parametrize("name", ["engine_install", "reference"])
def test_each_program_says_how_it_is_called(monkeypatch, capsys, name):
    """Also the one that runs where torch is, which here is a stand-in."""
    for module in ("torch", "peft", "transformers"):
        monkeypatch.setitem(sys.modules, module, MagicMock())
    program = f"{support.__name__}.{name}"
    monkeypatch.delitem(sys.modules, program, raising=False)
    monkeypatch.setattr("sys.argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(program, run_name="__main__")
    assert (ended.value.code, "usage: " in capsys.readouterr().out.lower()) == (0, True)


def test_an_adapter_is_written_into_a_folder_that_is_there_or_not(tmp_path):
    for _ in range(2):
        write_adapter(tmp_path / "deep" / "a", seed=1)
    found = sorted(file.name for file in (tmp_path / "deep" / "a").iterdir())
    assert found == ["adapter_config.json", "adapter_model.safetensors"]
