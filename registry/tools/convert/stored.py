"""Tensors in safetensors files, one at a time.

No more of a base model is in memory than a module needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from registry.lora.base_directory import weights_files
from registry.lora.digest import canonical_json
from registry.lora.directory import read_header_of
from registry.lora.safetensors import LENGTH_BYTES, Tensor

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_NAMES = {kind: name for name, kind in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Place:
    """Place of the bytes of a tensor."""

    path: Path
    start: int
    tensor: Tensor

    def read(self) -> torch.Tensor:
        """The tensor as it is stored.

        Raises:
            KeyError: its type is none of `DTYPES`.
            OSError: it cannot be read.
        """
        dtype = DTYPES[self.tensor.dtype]
        with self.path.open("rb") as file:
            file.seek(self.start + self.tensor.begin)
            content = bytearray(file.read(self.tensor.end - self.tensor.begin))
        return torch.frombuffer(content, dtype=dtype).reshape(self.tensor.shape)


def places_in(path: Path) -> dict[str, Place]:
    """The tensors of one file by name.

    Raises:
        UnfitAdapter, OSError: it is no safetensors file, or cannot be read.
    """
    with path.open("rb") as file:
        header, start = read_header_of(file, path.name)
    return {tensor.name: Place(path, start, tensor) for tensor in header.tensors}


def places_of_base(directory: Path) -> dict[str, Place]:
    """The tensors of a base model by name.

    Raises:
        UnfitAdapter, OSError, ValueError: its files cannot be read.
    """
    return {name: place for path in weights_files(directory) for name, place in places_in(path).items()}


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
    """Writes a safetensors file; equal tensors make equal bytes.

    Raises:
        OSError: it cannot be written.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    position = 0
    for name, tensor in sorted(tensors.items()):
        size = tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [position, position + size],
        }
        position += size
    text = canonical_json(header)
    text += b" " * (-len(text) % 8)
    with path.open("xb") as file:
        file.write(len(text).to_bytes(LENGTH_BYTES, "little") + text)
        for _, tensor in sorted(tensors.items()):
            file.write(memoryview(tensor.contiguous().view(torch.uint8).numpy()))
