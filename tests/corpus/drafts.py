"""Adapters and bases in the making: plain values that defects are made in, and that then become files."""

from __future__ import annotations

import json
import os
import random
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
RANK = 4
WIDTH = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I8": 1, "F8_E4M3": 1}
Shape = tuple[int, ...]


@dataclass
class Values:
    """A tensor."""

    dtype: str
    shape: Shape
    data: bytes


@dataclass
class Draft:
    """An adapter: `raw` replaces a whole file, None: there is none."""

    config: dict[str, Any]
    tensors: dict[str, Values]
    metadata: dict[str, Any] = field(default_factory=lambda: {"format": "pt"})
    raw: dict[str, bytes | None] = field(default_factory=dict)

    def files(self) -> dict[str, bytes]:
        made: dict[str, bytes | None] = {
            CONFIG: json.dumps(self.config).encode(),
            WEIGHTS: safetensors(self.tensors, self.metadata),
        }
        return {name: content for name, content in (made | self.raw).items() if content is not None}

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True)
        for name, content in self.files().items():
            (folder / name).write_bytes(content)
        return folder

    def rename(self, old: str, new: str) -> None:
        """Replaces a part of every tensor's name."""
        self.tensors = {name.replace(old, new): values for name, values in self.tensors.items()}


def safetensors(tensors: Mapping[str, Values], metadata: Mapping[str, Any] = {}) -> bytes:
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    body = b""
    for name, values in tensors.items():
        header[name] = {
            "dtype": values.dtype,
            "shape": values.shape,
            "data_offsets": [len(body), len(body) + len(values.data)],
        }
        body += values.data
    return with_header(header, body)


def with_header(header: object, body: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


@dataclass(frozen=True)
class Architecture:
    """A tiny base model: its modules, and those that a usual adapter of it is for."""

    name: str
    modules: dict[str, Shape]
    targets: tuple[str, ...]

    def write_base(self, folder: Path) -> Path:
        folder.mkdir(parents=True)
        zeros = {
            f"{name}.weight": Values("F32", shape, bytes(4 * shape[0] * shape[1]))
            for name, shape in self.modules.items()
        }
        zeros["model.norm.weight"] = Values("F32", (8,), bytes(32))
        (folder / "model.safetensors").write_bytes(safetensors(zeros))
        return folder

    def draft(self, *extra: str, seed: int = 0) -> Draft:
        """A good adapter of the usual modules and of `extra` ones."""
        clock = random.Random(seed)
        tensors: dict[str, Values] = {}
        for module in (*self.targets, *extra):
            outputs, inputs = self.modules[module]
            stem = f"base_model.model.{module}"
            tensors[f"{stem}.lora_A.weight"] = floats(clock, (RANK, inputs))
            tensors[f"{stem}.lora_B.weight"] = floats(clock, (outputs, RANK))
        return Draft(dict(CONFIG_FIELDS, base_model_name_or_path=self.name), tensors)


CONFIG_FIELDS: dict[str, Any] = {
    "peft_type": "LORA",
    "r": RANK,
    "lora_alpha": 8,
    "target_modules": ["q_proj", "v_proj", "o_proj", "down_proj"],
    "bias": "none",
    "init_lora_weights": True,
    "use_dora": False,
    "use_rslora": False,
    "modules_to_save": None,
    "rank_pattern": {},
    "alpha_pattern": {},
}


def floats(clock: random.Random, shape: Shape) -> Values:
    """A float32 tensor."""
    values = [clock.uniform(-0.1, 0.1) for _ in range(shape[0] * shape[1])]
    return Values("F32", shape, struct.pack(f"<{len(values)}f", *values))


def _text(hidden: int, keys: int, mlp: int, layers: int = 2) -> dict[str, Shape]:
    layer = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (mlp, hidden),
        "mlp.up_proj": (mlp, hidden),
        "mlp.down_proj": (hidden, mlp),
    }
    blocks = {f"model.layers.{i}.{name}": shape for i in range(layers) for name, shape in layer.items()}
    return {"model.embed_tokens": (64, hidden), **blocks}


def _tower(hidden: int, out: int) -> dict[str, Shape]:
    block = {
        "attn.qkv": (3 * hidden, hidden),
        "attn.proj": (hidden, hidden),
        "mlp.gate_proj": (2 * hidden, hidden),
        "mlp.up_proj": (2 * hidden, hidden),
        "mlp.down_proj": (hidden, 2 * hidden),
    }
    blocks = {f"visual.blocks.{i}.{name}": shape for i in range(2) for name, shape in block.items()}
    return {**blocks, "visual.merger.mlp.0": (4 * hidden, 4 * hidden), "visual.merger.mlp.2": (out, 4 * hidden)}


_USUAL = ("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.down_proj")
_TARGETS = tuple(f"model.layers.{i}.{name}" for i in range(2) for name in _USUAL)

LLAMA = Architecture("llama", {**_text(32, 16, 48), "lm_head": (64, 32)}, _TARGETS)
QWEN2 = Architecture("qwen2", _text(24, 8, 40), _TARGETS)  # tied: its checkpoint has no lm_head
QWEN2_5_VL = Architecture("qwen2_5_vl", {**_text(28, 12, 44), **_tower(20, 28), "lm_head": (64, 28)}, _TARGETS)
ARCHITECTURES = (LLAMA, QWEN2, QWEN2_5_VL)
# `make corpus` plays all of them; each change is asked of the one that has most kinds of modules.
IS_WHOLE = os.environ.get("CORPUS") == "whole"
PLAYED = ARCHITECTURES if IS_WHOLE else (QWEN2_5_VL,)
