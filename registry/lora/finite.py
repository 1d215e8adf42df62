"""Finds numbers that are none: one NaN or infinity in an adapter makes every answer of it fail."""

from __future__ import annotations

from collections.abc import Iterable
from typing import BinaryIO

from registry.lora.findings import Finding
from registry.lora.tensors import Tensor

CHUNK_BYTES = 1 << 20
# Of each type: how its bits are read, and those of the exponent, which are all set in NaN and infinity alone.
_EXPONENTS = {"F32": ("<u4", 0x7F80_0000), "F16": ("<u2", 0x7C00), "BF16": ("<u2", 0x7F80)}


def not_finite(file: BinaryIO, start: int, tensors: Iterable[Tensor]) -> list[Finding]:
    """The tensors that hold a NaN or an infinity; those of other types are passed over.

    Args:
        file: safetensors file, readable from any position.
        start: position of the first tensor's first byte.
        tensors: of its header.

    Raises:
        OSError: the file cannot be read.
    """
    remedy = "look at the training, which has diverged; or fetch the file again"
    return [
        Finding("not_finite", tensor.name, "NaN or infinity", "finite numbers", remedy)
        for tensor in tensors
        if tensor.dtype in _EXPONENTS and not _is_finite(file, start + tensor.begin, start + tensor.end, tensor.dtype)
    ]


def _is_finite(file: BinaryIO, begin: int, end: int, dtype: str) -> bool:
    import numpy as np  # noqa: PLC0415 - 12 MB that a process which examines nothing has no use for

    kind, exponent = _EXPONENTS[dtype]
    mask = np.dtype(kind).type(exponent)
    file.seek(begin)
    while begin < end:
        chunk = file.read(min(CHUNK_BYTES, end - begin))
        begin += len(chunk)
        numbers = np.frombuffer(chunk, dtype=kind)
        if bool(np.any((numbers & mask) == mask)):
            return False
        if not chunk:  # cut off since its size was looked at; whoever hashes it will see
            return True
    return True
