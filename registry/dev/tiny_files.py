"""Writes safetensors files with the standard library alone, so that a tiny model needs no torch to be made."""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Tensor:
    """A float32 tensor, row by row."""

    shape: tuple[int, ...]
    values: Sequence[float]


def ones(size: int) -> Tensor:
    """A vector of ones, as norms start with."""
    return Tensor((size,), [1.0] * size)


def uniform(shape: tuple[int, ...], deviation: float, chance: random.Random) -> Tensor:
    """Evenly distributed values around 0 with the given standard deviation.

    Only `Random.random` is called, whose sequence Python promises to keep over its releases.
    """
    width = 2 * 3**0.5 * deviation
    return Tensor(shape, [(chance.random() - 0.5) * width for _ in range(prod(shape))])


def write_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes `tensors` in the order of their names, so that equal tensors make equal bytes.

    Raises:
        OSError: the file cannot be written.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    body = bytearray()
    for name, tensor in sorted(tensors.items()):
        packed = array("f", tensor.values).tobytes()
        offsets = [len(body), len(body) + len(packed)]
        header[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": offsets}
        body += packed
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def write_json(path: Path, value: Mapping[str, object]) -> None:
    """Writes readable JSON with a fixed order of keys.

    Raises:
        OSError: the file cannot be written.
    """
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")
