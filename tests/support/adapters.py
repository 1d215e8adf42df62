"""Writes tiny LoRA adapters with the standard library alone, in the form that PEFT saves."""

from __future__ import annotations

import hashlib
import json
import math
import random
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from registry.lora.digest import FileEntry, manifest_digest

MODULES = ("q_proj", "v_proj")
COSTLY_TENSORS = 150_000


@dataclass(frozen=True)
class WrittenAdapter:
    """An adapter on disk."""

    directory: Path
    digest: str

    @property
    def uri(self) -> str:
        return self.directory.as_uri()


def adapter_config(rank: int = 4, base: str = "tiny") -> bytes:
    """An adapter_config.json."""
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": list(MODULES),
        "task_type": "CAUSAL_LM",
        "bias": "none",
    }
    return json.dumps(config, indent=2).encode()


def adapter_weights(rank: int = 4, seed: int = 0, *, hidden: int = 16, layers: int = 1) -> bytes:
    """An adapter_model.safetensors of F32 tensors; another seed gives other numbers."""
    numbers = random.Random(seed)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    content = b""
    for layer in range(layers):
        for module in MODULES:
            for part, shape in (("A", [rank, hidden]), ("B", [hidden, rank])):
                values = [numbers.uniform(-0.1, 0.1) for _ in range(rank * hidden)]
                name = f"base_model.model.model.layers.{layer}.self_attn.{module}.lora_{part}.weight"
                start, content = len(content), content + struct.pack(f"<{len(values)}f", *values)
                header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, len(content)]}
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    return struct.pack("<Q", len(encoded)) + encoded + content


def write_adapter(
    directory: Path, *, rank: int = 4, seed: int = 0, hidden: int = 16, layers: int = 1, base: str = "tiny"
) -> WrittenAdapter:
    """Writes an adapter into `directory`, which is made; what is there is overwritten."""
    return write_files(directory, adapter_config(rank, base), adapter_weights(rank, seed, hidden=hidden, layers=layers))


def write_costly_adapter(directory: Path) -> WrittenAdapter:
    """Writes one whose header names as many modules as are read: seconds of a processor to examine, and refused."""
    entries = {
        f"m.{i:x}.lora_A.weight": {"dtype": "F16", "shape": [1, 1], "data_offsets": [2 * i, 2 * i + 2]}
        for i in range(COSTLY_TENSORS)
    }
    header = json.dumps(entries, separators=(",", ":")).encode()
    return write_files(directory, adapter_config(), struct.pack("<Q", len(header)) + header + bytes(2 * COSTLY_TENSORS))


def write_files(directory: Path, config: bytes, weights: bytes) -> WrittenAdapter:
    """Writes the two files of an adapter with any content."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "adapter_config.json").write_bytes(config)
    (directory / "adapter_model.safetensors").write_bytes(weights)
    return WrittenAdapter(directory, digest_of(directory))


def digest_of(directory: Path) -> str:
    """The manifest digest of what a directory holds now."""
    return manifest_digest(
        FileEntry(name, len(content), _sha256(content))
        for name in ("adapter_config.json", "adapter_model.safetensors")
        for content in [(directory / name).read_bytes()]
    )


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def without(half: str, adapter: Path, folder: Path) -> str:
    """A copy in which all of one half's numbers are 0."""
    return _changed(half, adapter, folder, lambda numbers, _: bytes(len(numbers)))


def permuted(part: str, adapter: Path, folder: Path) -> str:
    """A copy in which the rows of some matrices stand in another order: the even ones first."""

    def ordered(numbers: bytes, rows: int) -> bytes:
        size = len(numbers) // rows
        each = [numbers[at : at + size] for at in range(0, len(numbers), size)]
        return b"".join([*each[::2], *each[1::2]])

    return _changed(part, adapter, folder, ordered)


def _changed(part: str, adapter: Path, folder: Path, change: Callable[[bytes, int], bytes]) -> str:
    """A copy with other numbers in the matrices that are called so; `change` is given these and how many rows."""
    shutil.copytree(adapter, folder)
    weights = folder / "adapter_model.safetensors"
    content = bytearray(weights.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    for name, entry in json.loads(content[8:start]).items():
        if part in name:
            begin, end = (start + offset for offset in entry["data_offsets"])
            content[begin:end] = change(bytes(content[begin:end]), entry["shape"][0])
    weights.write_bytes(content)
    return str(folder)


def spoil(folder: Path) -> Path:
    """Writes what is no number over the last weight of an adapter."""
    weights = folder / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + struct.pack("<f", math.nan))
    return folder
