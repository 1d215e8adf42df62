"""Header and numbers of a safetensors file, read within limits. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import BufferedIOBase
from itertools import groupby
from math import prod

from registry.lora.findings import Finding, UnfitAdapter, shown
from registry.lora.json_files import LFS_POINTER, json_object, lfs_pointer, not_an_adapter

MAX_HEADER_BYTES = 16 << 20
# A safetensors file starts with the length of its header, 8 bytes little-endian.
LENGTH_BYTES = 8
_MAX_DIMENSIONS = 8
_MAX_KEY_CHARACTERS = 512
# An adapter of all experts of the largest models has some 140,000.
MAX_TENSORS = 200_000
_MAX_METADATA = 4096
_WRITTEN_YET = "it is tried again, in case it is still being written"
# Bits of each type that safetensors knows.
_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E5M2FNUZ", "F8_E4M3FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a safetensors file; its bytes are from `begin` to `end` after the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a safetensors file: its tensors in the order of their bytes, and the text that goes with them."""

    tensors: tuple[Tensor, ...]
    metadata: dict[str, str]


def header_length(start: bytes, size_bytes: int, file: str) -> int:
    """Length of a header in bytes, from the first 8 bytes of its file and the file's size.

    Raises:
        UnfitAdapter: ``not_an_adapter``, or ``source_incomplete`` where the file ends before its header does.
    """
    if start == LFS_POINTER[:LENGTH_BYTES]:
        raise lfs_pointer(file)
    length = int.from_bytes(start, "little")
    if len(start) == LENGTH_BYTES and length > MAX_HEADER_BYTES:
        found, expected = f"a claim of {length} bytes of header", f"a safetensors header of at most {MAX_HEADER_BYTES}"
        raise not_an_adapter(file, found, expected)
    if LENGTH_BYTES + length > size_bytes or len(start) < LENGTH_BYTES:
        raise _incomplete(file, size_bytes, LENGTH_BYTES + length)
    return length


def read_header(header: bytes, size_bytes: int, file: str) -> Header:
    """The tensors of a safetensors file of that size, which they must fill without gap or overlap.

    Raises:
        UnfitAdapter: ``not_an_adapter``, or ``source_incomplete`` where the file ends before its tensors do.
    """
    entries = json_object(file, header)
    metadata = _metadata(entries.pop("__metadata__", {}), file)
    if len(entries) > MAX_TENSORS:
        raise not_an_adapter(file, f"{len(entries)} tensors", f"at most {MAX_TENSORS}")
    tensors = sorted((_tensor(name, entry) for name, entry in entries.items()), key=lambda one: (one.begin, one.end))
    if not tensors:
        remedy = "save the adapter again after its training"
        raise UnfitAdapter([Finding("no_tensors", file, "no tensors", "LoRA weights", remedy)])
    expected = 0
    for tensor in tensors:
        if tensor.begin != expected:
            raise not_an_adapter(_key(tensor.name), f"a tensor that begins at {tensor.begin}", f"{expected}")
        expected = tensor.end
    _check_size(size_bytes, LENGTH_BYTES + len(header) + expected, file)
    return Header(tuple(tensors), metadata)


def _metadata(value: object, file: str) -> dict[str, str]:
    if isinstance(value, dict) and len(value) <= _MAX_METADATA and all(isinstance(one, str) for one in value.values()):
        return value
    raise not_an_adapter(file, f"__metadata__ {shown(value)}", f"a mapping of text with at most {_MAX_METADATA} keys")


def _tensor(name: str, entry: object) -> Tensor:
    if len(name) > _MAX_KEY_CHARACTERS:
        raise not_an_adapter(_key(name), f"a key of {len(name)} characters", f"at most {_MAX_KEY_CHARACTERS}")
    fields = entry if isinstance(entry, dict) else {}
    dtype, shape = fields.get("dtype"), fields.get("shape")
    begin, end = _offsets(name, fields.get("data_offsets"))
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise not_an_adapter(_key(name), f"dtype {shown(dtype)}", "a dtype of safetensors")
    if not isinstance(shape, list) or len(shape) > _MAX_DIMENSIONS or not all(_is_count(size) for size in shape):
        raise not_an_adapter(_key(name), f"shape {shown(shape)}", "a short list of sizes")
    bits = prod(shape) * _BITS[dtype]
    if bits != 8 * (end - begin):
        raise not_an_adapter(_key(name), f"{end - begin} bytes", f"those of a tensor {dtype} {shape}")
    return Tensor(name, dtype, tuple(shape), begin, end)


def _offsets(name: str, offsets: object) -> tuple[int, int]:
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_count(offset) for offset in offsets):
        raise not_an_adapter(_key(name), f"data_offsets {shown(offsets)}", "a pair of positions")
    begin, end = offsets
    if end < begin:
        raise not_an_adapter(_key(name), f"an end at {end}", f"one not before its beginning at {begin}")
    return begin, end


def _is_count(value: object) -> bool:
    # The bound keeps products of a hostile header small enough to be computed.
    return type(value) is int and 0 <= value < 1 << 48


def _check_size(size_bytes: int, whole: int, file: str) -> None:
    if size_bytes < whole:
        raise _incomplete(file, size_bytes, whole)
    if size_bytes > whole:
        raise not_an_adapter(file, f"{size_bytes} bytes", f"the {whole} that its header describes")


def _key(name: str) -> str:
    return shown(name)[1:-1]


def _incomplete(file: str, found: int, expected: int) -> UnfitAdapter:
    finding = Finding(
        "source_incomplete", file, f"{found} bytes", f"at least {expected} by its header", _WRITTEN_YET, permanent=False
    )
    return UnfitAdapter([finding])


# As much as stays in a processor's own cache from one step to the next.
CHUNK_BYTES = 1 << 18
_FIRST_LOOK_BYTES = 1 << 12
# Of each type: how its bits are read, those that are looked at, and from which number on they are NaN, infinity, or,
# of a double, what float32 rounds to infinity.
_BOUNDS = {
    "F64": ("<u8", 0x7FFF_FFFF_FFFF_FFFF, 0x47EF_FFFF_F000_0000),
    "F32": ("<u4", 0x7F80_0000, 0x7F80_0000),
    "F16": ("<u2", 0x7C00, 0x7C00),
    "BF16": ("<u2", 0x7F80, 0x7F80),
}
_FOUND = {"F64": "NaN, infinity, or more than float32 holds"}


def not_finite(file: BufferedIOBase, start: int, tensors: Iterable[Tensor]) -> list[Finding]:
    """The tensors that hold a NaN, an infinity, or what becomes one in an engine; other types are passed over.

    Args:
        file: safetensors file, readable from any position.
        start: position of the first tensor's first byte.
        tensors: of its header, in the order of their bytes, which have no gaps.

    Raises:
        OSError: the file cannot be read.
    """
    remedy = "look at the training, which has diverged; or fetch the file again"
    return [
        Finding("not_finite", tensor.name, _FOUND.get(dtype, "NaN or infinity"), "finite numbers", remedy)
        for dtype, one_type in groupby(tensors, lambda tensor: tensor.dtype)
        if dtype in _BOUNDS
        for tensor in _guilty(file, start, list(one_type), dtype)
    ]


def all_zeros(file: BufferedIOBase, start: int, tensors: Iterable[Tensor]) -> frozenset[str]:
    """The names of the tensors that hold nothing but zeros, given as `not_finite` takes them. Raises OSError."""
    return frozenset(tensor.name for tensor in tensors if tensor.dtype in _BOUNDS and _is_zero(file, start, tensor))


def _is_zero(file: BufferedIOBase, start: int, tensor: Tensor) -> bool:
    import numpy as np  # noqa: PLC0415 - see `_is_finite`

    kind, _, _ = _BOUNDS[tensor.dtype]
    width, left = np.dtype(kind).itemsize, tensor.end - tensor.begin
    file.seek(start + tensor.begin)
    size_bytes = _FIRST_LOOK_BYTES  # most tensors have another number soon
    while left:
        content = file.read(min(size_bytes, left))
        numbers = np.frombuffer(content[: len(content) - len(content) % width], dtype=kind)
        # A zero may have a sign, which is lost by the shift.
        if not content or np.left_shift(numbers, 1).any():
            return False
        left, size_bytes = left - len(content), CHUNK_BYTES
    return True


def _guilty(file: BufferedIOBase, start: int, tensors: Sequence[Tensor], dtype: str) -> Sequence[Tensor]:
    """Finds which of them; there are hundreds, and hardly ever any, so that they are read together first."""
    if _is_finite(file, start + tensors[0].begin, start + tensors[-1].end, dtype):
        return ()
    return [one for one in tensors if not _is_finite(file, start + one.begin, start + one.end, dtype)]


def _is_finite(file: BufferedIOBase, begin: int, end: int, dtype: str) -> bool:
    import numpy as np  # noqa: PLC0415 - 12 MB that a process which examines nothing has no use for

    kind, mask, bound = _BOUNDS[dtype]
    width = np.dtype(kind).itemsize
    chunk = memoryview(bytearray(min(CHUNK_BYTES, end - begin)))
    masked = np.empty(len(chunk) // width, kind)
    file.seek(begin)
    while begin < end:
        got = file.readinto(chunk[: min(CHUNK_BYTES, end - begin)])
        numbers = np.frombuffer(chunk[: got - got % width], dtype=kind)
        highest = np.bitwise_and(numbers, mask, out=masked[: len(numbers)]).max(initial=0)
        if highest >= bound:
            return False
        if not got:  # cut off since its size was looked at; whoever hashes it will see
            return True
        begin += got
    return True
