"""Which interpreter runs vLLM, and the environment that it is installed into."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from registry.tools.devstack import engine_environment, engine_install
from registry.tools.devstack.engine_environment import VARIABLE, EngineNotFound, find_engine_python
from registry.tools.devstack.engine_install import InstallFailed, install


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
    monkeypatch.setattr(engine_environment, "__file__", str(made.project / "registry" / "tools" / "devstack" / "x.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    return made


def test_the_engine_of_this_folder_goes_before_that_of_the_project(places):
    of_project = interpreter(places.project)
    assert find_engine_python() == of_project
    of_here = interpreter(places.here)
    assert find_engine_python() == of_here
    of_here.chmod(0o644)
    assert find_engine_python() == of_project, "what cannot be run is none"


def test_the_one_that_is_named_goes_before_all_and_no_other_is_taken_for_it(places, monkeypatch, tmp_path):
    interpreter(places.here)
    named = interpreter(tmp_path / "named")
    monkeypatch.setenv(VARIABLE, str(named))
    assert find_engine_python() == named
    monkeypatch.setenv(VARIABLE, f"{named}x")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    with pytest.raises(EngineNotFound, match=rf"{named}x is not there; make it with: make engine.*{VARIABLE}"):
        find_engine_python()


def test_a_link_is_that_environment_and_what_it_leads_to_is_another(places, monkeypatch, tmp_path):
    """A relative name is made absolute: the engine is started elsewhere."""
    interpreter(tmp_path / "elsewhere").rename(tmp_path / "python3")
    (places.here / "python").symlink_to(tmp_path / "python3")
    monkeypatch.setenv(VARIABLE, "python")
    assert find_engine_python() == places.here / "python"


def test_without_an_environment_our_own_has_to_have_vllm(places, monkeypatch):
    with pytest.raises(EngineNotFound, match=r"\.venv-engine\) is not there.*--engine sim"):
        find_engine_python()
    asked: list[str] = []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: (asked.append(name), object())[1])
    assert (find_engine_python(), asked) == (Path(sys.executable), ["vllm"])


@pytest.fixture
def steps(monkeypatch) -> list[str]:
    """What an install does, in its order; nothing is installed."""
    did: list[str] = []

    def create(folder: Path, *, with_pip: bool) -> None:
        did.append(f"create {folder.name} {'with' if with_pip else 'without'} pip")
        interpreter(folder.parent)

    def run(command: list[str], what: str) -> None:
        did.append(f"{what}: {' '.join(command[1:])}")

    monkeypatch.setattr(engine_install.venv, "create", create)
    monkeypatch.setattr(engine_install, "_run", run)
    return did


PIP = "-m pip install --quiet --no-deps --require-hashes --only-binary :all: --requirement"
IMPORT = "importing vllm, torch and peft: -c import peft, torch, vllm"


def test_an_environment_is_made_once_and_completed_each_time(tmp_path, steps):
    """A run that broke off is gone on with. What was installed is tried at the end."""
    listed = f"installing the packages of requirements/engine.txt: {PIP} {tmp_path / 'list.txt'}"
    complete = [f"installing torch's CPU build: {PIP} {engine_install._TORCH}", listed, IMPORT]
    install(tmp_path / ".venv-engine", tmp_path / "list.txt")
    assert steps == ["create .venv-engine with pip", *complete]
    steps.clear()
    install(tmp_path / ".venv-engine", tmp_path / "list.txt")
    assert steps == complete


def test_without_a_build_for_cpus_the_plain_one_is_taken(tmp_path, monkeypatch, steps, capsys):
    def run(command: list[str], what: str) -> None:
        if command[-1].endswith("torch-cpu.txt"):
            raise InstallFailed("no such build")
        steps.append(what)

    monkeypatch.setattr(engine_install, "_run", run)
    install(tmp_path / ".venv-engine")
    assert steps[1:] == ["installing the packages of requirements/engine.txt", "importing vllm, torch and peft"]
    assert "no such build" in capsys.readouterr().err


@pytest.mark.parametrize(("version", "is_refused"), [((3, 11), False), ((3, 10), True), ((3, 12), True)], ids=str)
def test_another_python_is_refused_before_anything_is_made(tmp_path, monkeypatch, steps, version, is_refused):
    monkeypatch.setattr(engine_install, "sys", SimpleNamespace(version_info=(*version, 4, "final", 0)))
    if is_refused:
        with pytest.raises(InstallFailed, match=r"run this with python3\.11"):
            install(tmp_path / ".venv-engine")
        assert steps == []
    else:
        install(tmp_path / ".venv-engine")
        assert steps[-1] == IMPORT
