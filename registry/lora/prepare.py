"""Writes an adapter anew as its changes say: the same bytes of numbers under another header. Pure.

No number is decoded, so every type survives, and the same source gives the same bytes on every host.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from registry.lora.check import Changes
from registry.lora.json_files import json_object
from registry.lora.manifest import CONFIG_FILE, canonical_json
from registry.lora.tensors import LENGTH_BYTES, Header, Tensor


@dataclass(frozen=True, slots=True)
class Layout:
    """A new weights file: its first bytes, and then these ranges of the old file's bytes after its header."""

    start: bytes
    ranges: tuple[tuple[int, int], ...]

    @property
    def size_bytes(self) -> int:
        return len(self.start) + sum(end - begin for begin, end in self.ranges)


def new_weights(header: Header, changes: Changes) -> Layout:
    """How the new weights file is made from the old one."""
    dropped = set(changes.dropped)
    kept = [tensor for tensor in header.tensors if tensor.name not in dropped]
    text = canonical_json(_entries(kept, changes.renamed, header.metadata))
    text += b" " * (-len(text) % 8)
    return Layout(len(text).to_bytes(LENGTH_BYTES, "little") + text, tuple(_joined(kept)))


def _entries(kept: Sequence[Tensor], renamed: Mapping[str, str], metadata: Mapping[str, str]) -> dict[str, object]:
    entries: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    position = 0
    for tensor in kept:
        size = tensor.end - tensor.begin
        entries[renamed.get(tensor.name, tensor.name)] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [position, position + size],
        }
        position += size
    return entries


def _joined(kept: Iterable[Tensor]) -> list[tuple[int, int]]:
    """The tensors' ranges, neighbours as one."""
    ranges: list[tuple[int, int]] = []
    for tensor in kept:
        if ranges and ranges[-1][1] == tensor.begin:
            ranges[-1] = (ranges[-1][0], tensor.end)
        else:
            ranges.append((tensor.begin, tensor.end))
    return ranges


def new_config(content: bytes, changes: Changes) -> bytes:
    """The new adapter_config.json."""
    return canonical_json({**json_object(CONFIG_FILE, content), **changes.config})
