"""The tiny model and its adapters: what everything that runs a real engine stands on."""

from __future__ import annotations

import json
from hashlib import sha256

from registry.tools.devstack.tiny_adapters import write_adapter
from registry.tools.devstack.tiny_model import write_model


def content(folder) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


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


def test_an_adapter_is_of_the_sizes_of_its_model(tmp_path):
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 1, "hidden_size": 4}')
    write_adapter(tmp_path / "a", seed=0, model=tmp_path, rank=16)
    config = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    assert (config["r"], config["base_model_name_or_path"]) == (16, str(tmp_path))
    data = (tmp_path / "a" / "adapter_model.safetensors").read_bytes()
    tensors = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    shapes = {
        name.removeprefix("base_model.model."): tensor["shape"] for name, tensor in tensors.items() if "." in name
    }
    modules = [f"model.layers.0.self_attn.{module}" for module in ("q_proj", "v_proj")]
    parts = {"lora_A": [16, 4], "lora_B": [4, 16]}
    assert shapes == {f"{module}.{part}.weight": shape for module in modules for part, shape in parts.items()}
