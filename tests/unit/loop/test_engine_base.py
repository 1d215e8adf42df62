"""Which folder the base model of a process of the engine is read from, and when."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import pytest

from registry.lora.base_directory import read_base
from registry.lora.engine_base import UNKNOWN_BASE, EngineBase
from registry.tools.devstack.tiny_model import TinyTensor, write_safetensors
from sidecar.engines.driver import EngineUnreachable
from sidecar.engines.observed import EngineFacts, Observed
from sidecar.loop import observer
from sidecar.loop.observer import StartedBases
from tests.support.waiting import eventually


def write_base(folder: Path, width: int) -> Path:
    folder.mkdir(exist_ok=True)
    write_safetensors(folder / "model.safetensors", {"q.weight": TinyTensor((width, 2), [1.0] * 2 * width)})
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return folder


@pytest.fixture
def folder(tmp_path) -> Path:
    return write_base(tmp_path / "base", 2)


def look(incarnation: str, path: object = "", base: EngineBase = UNKNOWN_BASE) -> Observed:
    return Observed(EngineFacts("vllm", "1", "u", incarnation, base=base, base_path=f"{path}"), ("base",))


async def seen(bases: StartedBases, observed: Observed) -> EngineBase:
    return (await bases.complete(observed)).facts.base


async def test_the_engines_own_folder_is_read_once_for_each_process(folder):
    """R23 same-base: what stands there later is not what that process has loaded."""
    bases = StartedBases()
    first = await seen(bases, look("e1", folder))
    assert (first.files, first.own) == (read_base(folder), None)
    write_base(folder, 4)
    assert await seen(bases, look("e1", folder)) is first
    assert (await seen(bases, look("e1", folder, EngineBase(awaited="it is asked again")))).files == first.files
    second = await seen(bases, look("e2", folder))
    assert second.files == read_base(folder) != first.files


async def test_the_sidecars_folder_comes_first_and_what_the_engine_says_before_both(folder, tmp_path):
    other = read_base(write_base(tmp_path / "other", 8))
    bases = StartedBases(folder)
    assert await seen(bases, look("e1", tmp_path / "other")) == EngineBase(own=read_base(folder))
    told = EngineBase(files=other)
    assert await seen(bases, look("e2", "", told)) == EngineBase(files=other, own=read_base(folder))
    assert await seen(StartedBases(), look("e1", folder, told)) == told


async def test_what_the_engine_says_only_later_of_the_same_process_is_taken_up(folder):
    bases = StartedBases()
    awaited = EngineBase(awaited="it is asked again")
    assert (await seen(bases, look("e1", folder, awaited))).awaited
    assert (await seen(bases, look("e1", folder, EngineBase(files=read_base(folder))))).awaited == ""


@pytest.mark.parametrize("path", ["", "org/name", "/nowhere"])
async def test_a_folder_that_is_not_there_tells_nothing(path, folder):
    """R12: and keeps nothing from going on."""
    assert not (await seen(StartedBases(), look("e1", path))).is_known
    shutil.rmtree(folder)
    assert not (await seen(StartedBases(folder), look("e1", path))).is_known


async def test_a_folder_that_hangs_is_said_and_waited_for(folder, monkeypatch):
    """R9: a round that hung would leave what was said last standing; what comes late is taken up, read once."""
    hung, reads = threading.Event(), []

    def read(directory):
        reads.append(directory)
        hung.wait(60)
        return read_base(directory)

    monkeypatch.setattr(observer, "read_base", read)
    monkeypatch.setattr(observer, "READ_SECONDS", 0.05)
    bases = StartedBases(folder)
    for _ in range(2):
        with pytest.raises(EngineUnreachable, match=f"{folder} is read for"):
            await seen(bases, look("e1"))
    hung.set()
    await eventually(bases._reading[1].done)
    assert ((await seen(bases, look("e1"))).own, reads) == (read_base(folder), [folder])
