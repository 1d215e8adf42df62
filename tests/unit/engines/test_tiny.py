"""The tiny model and its adapters: what everything that runs a real engine stands on."""

from __future__ import annotations

import json
import string
from array import array
from hashlib import sha256

from registry.tools.devstack import tiny_model
from registry.tools.devstack.tiny_adapters import write_adapter
from registry.tools.devstack.tiny_model import write_model


def content(folder) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def header(file) -> dict[str, dict[str, object]]:
    data = file.read_bytes()
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])


# The first digits of sha256. Other bytes have other answers: what is written down of these is no more right then.
BYTES = {
    "model": {
        "config.json": "0981d8c0aee3d450",
        "generation_config.json": "a0d88dd58d4b57d7",
        "model.safetensors": "275d9e5909e3c927",
        "tokenizer.json": "235e2471eed6e31f",
        "tokenizer_config.json": "65f34d7937608f24",
    },
    "sql": {"adapter_config.json": "d7ce5c42d4dac155", "adapter_model.safetensors": "a907f482c9807a07"},
    "3": {"adapter_config.json": "001e5ec937e758a4", "adapter_model.safetensors": "6702ad50e10c3230"},
}


def test_the_bytes_are_the_same_on_every_machine_and_in_every_release(tmp_path):
    write_model(tmp_path / "model")
    write_adapter(tmp_path / "sql", seed="sql")
    write_adapter(tmp_path / "3", seed=3, rank=2)
    found = {
        name: {file: sha256(data).hexdigest()[:16] for file, data in content(tmp_path / name).items()} for name in BYTES
    }
    assert found == BYTES
    write_model(tmp_path / "other", seed=2)
    assert content(tmp_path / "other")["model.safetensors"] != content(tmp_path / "model")["model.safetensors"]


def test_an_adapter_fits_its_model_and_the_model_its_tokenizer(tmp_path):
    write_model(tmp_path / "model")
    told = {file.stem: json.loads(file.read_text()) for file in (tmp_path / "model").glob("*.json")}
    numbers = {one["content"]: one["id"] for one in told["tokenizer"]["added_tokens"]}
    for one in (told["config"], told["generation_config"]):
        assert (one["bos_token_id"], one["eos_token_id"]) == (numbers[tiny_model.BEGIN], numbers[tiny_model.END])
    write_adapter(tmp_path / "a", seed=0, model=tmp_path / "model", rank=16)
    tensors = header(tmp_path / "a" / "adapter_model.safetensors")
    tensors.pop("__metadata__")
    base = header(tmp_path / "model" / "model.safetensors")
    assert len(tensors) == tiny_model.LAYERS * 2 * 2
    for name, tensor in tensors.items():
        module, part, _ = name.removeprefix("base_model.model.").rsplit(".", 2)
        out_size, in_size = base[f"{module}.weight"]["shape"]
        assert tensor["shape"] == ([16, in_size] if part == "lora_A" else [out_size, 16])
    config = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    assert (config["r"], config["base_model_name_or_path"]) == (16, str(tmp_path / "model"))
    write_adapter(tmp_path / "b", seed=0)
    assert json.loads((tmp_path / "b" / "adapter_config.json").read_text())["base_model_name_or_path"] == "tiny"


def test_the_models_greedy_answers_are_text(tmp_path):
    """What cannot be printed has no weight in the head, so that it is never the likeliest."""
    write_model(tmp_path)
    data = (tmp_path / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    begin, end = header(tmp_path / "model.safetensors")["lm_head.weight"]["data_offsets"]
    head = array("f", data[start + begin : start + end])
    size = tiny_model.HIDDEN_SIZE
    weighed = {token for token in range(tiny_model.VOCABULARY) if any(head[token * size : (token + 1) * size])}
    assert weighed == {*map(ord, string.printable)} - {*map(ord, "\t\n\r\x0b\x0c")}
