"""Writes a prepared adapter: the same numbers under another header. Pure.

No number is decoded, so every type survives, and the same source gives the same bytes on every host. At most the rows
of a matrix get another order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from registry.lora.check import Changes
from registry.lora.config import write_config
from registry.lora.digest import CONFIG_FILE, canonical_json
from registry.lora.json_files import json_object
from registry.lora.safetensors import LENGTH_BYTES, Header, Tensor


@dataclass(frozen=True, slots=True)
class RotaryRows:
    """A matrix of so many rows, `head_size` to an attention head, whose rows get another order.

    vLLM puts the even rows of each head of the base's queries and keys before the odd ones, where a checkpoint has the
    two halves of a rotation side by side (``permute_qk_weight_for_rotary``). It leaves an adapter's as they are.
    """

    rows: int
    head_size: int

    def order(self) -> Iterator[int]:
        """The old place of each row."""
        for head in range(0, self.rows, self.head_size):
            yield from range(head, head + self.head_size, 2)
            yield from range(head + 1, head + self.head_size, 2)


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes of the old file after its header; `rotary`: they are one matrix, whose rows are written in that order."""

    begin: int
    end: int
    rotary: RotaryRows | None = None

    def parts(self) -> Iterator[tuple[int, int]]:
        """Begin and end of each part, in the order in which they are written."""
        if self.rotary is None:
            yield self.begin, self.end
            return
        width = (self.end - self.begin) // self.rotary.rows
        for row in self.rotary.order():
            yield self.begin + row * width, self.begin + (row + 1) * width


@dataclass(frozen=True, slots=True)
class WeightsLayout:
    """A new weights file: its first bytes, and then these ranges of the old file."""

    start: bytes
    ranges: tuple[ByteRange, ...]


def new_weights(header: Header, changes: Changes) -> WeightsLayout:
    """Recipe for the new weights file from the old one."""
    dropped = set(changes.dropped)
    kept = [tensor for tensor in header.tensors if tensor.name not in dropped]
    text = canonical_json(_entries(kept, changes.renamed, header.metadata))
    text += b" " * (-len(text) % 8)
    return WeightsLayout(len(text).to_bytes(LENGTH_BYTES, "little") + text, tuple(_joined(kept, changes.rotary)))


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


def _joined(kept: Iterable[Tensor], rotary: Mapping[str, int]) -> list[ByteRange]:
    """The tensors' ranges, neighbours as one."""
    ranges: list[ByteRange] = []
    for tensor in kept:
        if tensor.name in rotary:
            order = RotaryRows(tensor.shape[0], rotary[tensor.name])
            ranges.append(ByteRange(tensor.begin, tensor.end, order))
        elif ranges and ranges[-1].end == tensor.begin and ranges[-1].rotary is None:
            ranges[-1] = ByteRange(ranges[-1].begin, tensor.end)
        else:
            ranges.append(ByteRange(tensor.begin, tensor.end))
    return ranges


def new_config(content: bytes, changes: Changes) -> bytes:
    """The new adapter_config.json."""
    return write_config({**json_object(CONFIG_FILE, content), **changes.config})
