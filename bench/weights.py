"""Adapters of any size on disk, each with bytes of its own."""

from __future__ import annotations

import json
import random
import struct
from array import array
from pathlib import Path

from tests.support.adapters import WrittenAdapter, adapter_config, write_files

RANK = 16
_MODULE = "base_model.model.model.layers.0.self_attn.q_proj"


def write_large_adapter(directory: Path, size_bytes: int, seed: int) -> WrittenAdapter:
    """An adapter of rank 16 with about so many bytes of weights."""
    hidden = size_bytes // (8 * RANK)
    numbers = random.Random(seed)  # noqa: S311 - reproducible on purpose
    # A few numbers over and over: what counts is that every byte is written, and that no two adapters are equal.
    block = array("f", [numbers.uniform(-0.1, 0.1) for _ in range(RANK)]).tobytes()
    shapes = {"A": [RANK, hidden], "B": [hidden, RANK]}
    part_bytes = 4 * RANK * hidden
    header = {
        f"{_MODULE}.lora_{part}.weight": {
            "dtype": "F32",
            "shape": shape,
            "data_offsets": [part_bytes * index, part_bytes * (index + 1)],
        }
        for index, (part, shape) in enumerate(shapes.items())
    }
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    return write_files(directory, adapter_config(RANK), struct.pack("<Q", len(encoded)) + encoded + block * 2 * hidden)
