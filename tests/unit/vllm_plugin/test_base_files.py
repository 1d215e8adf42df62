"""What the plugin reads of the base model's files: the same as the sidecar finds in that folder."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from registry.lora.base import BaseModules
from registry.lora.base_directory import read_base
from registry.tools.devstack import tiny_model
from sidecar.engines.vllm.plugin_calls import is_being_read, read_base_files, read_shapes
from sidecar.vllm_plugin import adapters as module
from sidecar.vllm_plugin import vllm_internals
from sidecar.vllm_plugin.adapters import Adapters
from sidecar.vllm_plugin.base_files import base_files
from sidecar.vllm_plugin.server import EngineRefused
from tests.support.waiting import eventually
from tests.unit.vllm_plugin.played import PlayedServer


@pytest.fixture
def model(tmp_path):
    tiny_model.write_model(tmp_path / "model")
    return tmp_path / "model"


def page(told: dict[str, object]) -> bytes:
    return json.dumps({"schema": 1, "incarnation": "i"} | told).encode()


def essence(base: BaseModules | None) -> tuple[object, ...]:
    assert base is not None
    return base, base.layout, base.weights


def test_both_sides_find_the_same_in_a_folder(model):
    """R23 same-base: names, shapes, types and a sample of the numbers."""
    found = read_base_files(page(base_files(model)))
    assert essence(found) == essence(read_base(model))
    assert found is not None
    assert found.weights is not None
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    again = read_base_files(page(base_files(model)))
    assert essence(again) == essence(read_base(model))
    assert again is not None
    assert (again.fingerprint, again.layout) == (found.fingerprint, found.layout)
    assert again.weights != found.weights
    other = read_base_files(page({**base_files(model), "weights": 5}))
    assert (other is not None, other and other.weights) == (True, None)


def test_files_are_those_that_an_index_names(model):
    """As vLLM loads them."""
    (model / "model.safetensors").rename(model / "model-1.safetensors")
    (model / "old.safetensors").write_bytes(b"no weights")
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model-1.safetensors"}}))
    assert essence(read_base_files(page(base_files(model)))) == essence(read_base(model))
    for others in ({"a": "../model-1.safetensors"}, {f"{number}": f"{number}" for number in range(1025)}):
        (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": others}))
        assert "names other than files beside it" in base_files(model)["problem"]


@pytest.mark.parametrize("many", [2048, 2049])
def test_of_many_tensors_both_sides_sample_the_same(model, many):
    """R23 same-base: else a base would be told from itself."""
    rows = {f"n{at}": {"dtype": "U8", "shape": [1], "data_offsets": [at, at + 1]} for at in range(many)}
    header = json.dumps(rows).encode()
    (model / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(many))
    assert essence(read_base_files(page(base_files(model)))) == essence(read_base(model))


def test_without_weights_the_configuration_tells(model):
    (model / "model.safetensors").unlink()
    assert essence(read_base_files(page(base_files(model)))) == essence(read_base(model))
    (model / "config.json").unlink()
    told = base_files(model)
    assert (told["config"], told["tensors"], read_base_files(page(told))) == ({}, {}, None)


@pytest.mark.parametrize("content", [b"", b"\xff" * 16, b"\x02" + bytes(7) + b"[]", b"\x08" + bytes(7) + b'{"a": 1}'])
def test_files_that_are_no_weights_are_told_as_that(model, content):
    """X2: nothing of it raises."""
    (model / "model.safetensors").write_bytes(content)
    told = base_files(model)
    assert (told["path"], read_base_files(page(told))) == (str(model), None)
    assert told["problem"]


@pytest.mark.parametrize(
    "tensors",
    [
        {"F32 2 2": "a"},
        {"F32 2 2": [1]},
        {"F32 x": ["a"]},
        {"F32 2 2": ["a.{0-9999999}"]},
        {"F32 2 2": ["a.{0-19}"], "F16 2 2": ["b.{0-9}"]},
        {"F32 " + "1 " * 9: ["a"]},
        {f"F32 {10**13} 1": ["a"]},
    ],
)
def test_a_page_that_nobody_agreed_on_tells_nothing(monkeypatch, tensors):
    """X2: whatever an engine answers."""
    monkeypatch.setattr("sidecar.engines.vllm.plugin_calls.MAX_TENSORS", 20)
    assert read_base_files(page({"config": {}, "tensors": tensors})) is None
    assert read_base_files(b"[]") is None


def test_shapes_in_memory_are_read_in_full_or_not_at_all():
    assert read_shapes(page({"shapes": {"4 2": ["a.{0-1}"], "3": ["b"]}})) == {"a.0": (4, 2), "a.1": (4, 2)}
    for odd in ({"shapes": {"4 2": "a"}}, {"shapes": []}, {}):
        assert read_shapes(page(odd)) == {}


async def test_the_files_are_read_once_and_nobody_waits_for_long(monkeypatch):
    """R23: what stands in the folder later is not what the engine loaded. X2: the event loop goes on meanwhile."""
    monkeypatch.setattr(module, "BASE_SECONDS", 0.01)
    free, reads = threading.Event(), []

    def read() -> dict[str, object]:
        reads.append(1)
        free.wait(60)
        return {"path": "/m"}

    adapters = Adapters(PlayedServer(read_base=read))
    told = await adapters.base()
    assert is_being_read(page(told))
    free.set()
    while is_being_read(page(told)):
        told = await adapters.base()
        await asyncio.sleep(0)
    assert (told, len(reads)) == ({"path": "/m"}, 1)
    assert not is_being_read(page(told))
    with pytest.raises(EngineRefused, match="does not say where"):
        await Adapters(PlayedServer()).base()
    failing = Adapters(PlayedServer(read_base=Mock(side_effect=RuntimeError("ours"))))

    async def fails() -> bool:
        try:
            return not await failing.base()
        except RuntimeError:
            return True

    await eventually(fails)


def test_a_model_that_is_no_folder_is_looked_for_in_the_hubs_cache(monkeypatch, model):
    """Whatever keeps it from being found is told, and vLLM goes on."""
    config = SimpleNamespace(model_config=SimpleNamespace(model="org/name", revision="r"), load_config=None)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "problem" in vllm_internals._read_base(config)
    hub = Mock(snapshot_download=Mock(return_value=str(model)))
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    assert vllm_internals._read_base(config) == base_files(model)
    hub.snapshot_download.assert_called_once_with("org/name", revision="r", cache_dir=None, local_files_only=True)
    config.model_config.model = str(model)
    assert vllm_internals._read_base(config) == base_files(model)
