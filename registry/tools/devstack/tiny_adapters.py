"""Makes LoRA adapters for the tiny model.

Each seed gives an adapter whose output can be told from the base's and from every other's. The same seed gives the
same bytes, on every machine and without torch.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

from registry.tools.devstack import tiny_model
from registry.tools.devstack.tiny_model import TinyTensor, uniform, write_json, write_safetensors

RANK = 8
MODULES = ("q_proj", "v_proj")


def write_adapter(folder: Path, *, seed: int | str, model: Path | None = None, rank: int = RANK) -> None:
    """Writes one adapter in PEFT's form into `folder`, which is made if it is missing.

    Args:
        folder: the adapter's directory.
        seed: tells one adapter from another.
        model: directory of a Llama model whose attention is square, for its sizes; None: the tiny model's sizes.
        rank: LoRA rank.

    Raises:
        OSError: the model's config cannot be read, or a file not be written.
    """
    layers, hidden = _sizes(model)
    clock = random.Random(f"{seed}")  # noqa: S311 - no secret
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "adapter_config.json", _config(rank, str(model) if model else "tiny"))
    tensors: dict[str, TinyTensor] = {}
    for layer in range(layers):
        for module in MODULES:
            stem = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            tensors[f"{stem}.lora_A.weight"] = uniform((rank, hidden), hidden**-0.5, clock)
            tensors[f"{stem}.lora_B.weight"] = uniform((hidden, rank), rank**-0.5, clock)
    write_safetensors(folder / "adapter_model.safetensors", tensors)


def _sizes(model: Path | None) -> tuple[int, int]:
    if model is None:
        return tiny_model.LAYERS, tiny_model.HIDDEN_SIZE
    config = json.loads((model / "config.json").read_text())
    return int(config["num_hidden_layers"]), int(config["hidden_size"])


def _config(rank: int, base: str) -> dict[str, object]:
    return {
        "base_model_name_or_path": base,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.0,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": rank,
        "target_modules": list(MODULES),
        "task_type": "CAUSAL_LM",
        "use_dora": False,
        "use_rslora": False,
    }
