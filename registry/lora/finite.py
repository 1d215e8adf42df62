"""Finds numbers that are none: one NaN or infinity in an adapter makes every answer of it fail."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from io import BufferedIOBase
from itertools import groupby

from registry.lora.findings import Finding
from registry.lora.tensors import Tensor

# As much as stays in a processor's own cache from one step to the next.
CHUNK_BYTES = 1 << 18
# Of each type: how its bits are read, and those of the exponent, which are all set in NaN and infinity alone.
_EXPONENTS = {"F32": ("<u4", 0x7F80_0000), "F16": ("<u2", 0x7C00), "BF16": ("<u2", 0x7F80)}


def not_finite(file: BufferedIOBase, start: int, tensors: Iterable[Tensor]) -> list[Finding]:
    """The tensors that hold a NaN or an infinity; those of other types are passed over.

    Args:
        file: safetensors file, readable from any position.
        start: position of the first tensor's first byte.
        tensors: of its header, in the order of their bytes, which have no gaps.

    Raises:
        OSError: the file cannot be read.
    """
    remedy = "look at the training, which has diverged; or fetch the file again"
    return [
        Finding("not_finite", tensor.name, "NaN or infinity", "finite numbers", remedy)
        for dtype, one_type in groupby(tensors, lambda tensor: tensor.dtype)
        if dtype in _EXPONENTS
        for tensor in _guilty(file, start, list(one_type), dtype)
    ]


def _guilty(file: BufferedIOBase, start: int, tensors: Sequence[Tensor], dtype: str) -> Sequence[Tensor]:
    """Which of them; there are hundreds, and hardly ever any, so that they are read together first."""
    if _is_finite(file, start + tensors[0].begin, start + tensors[-1].end, dtype):
        return ()
    return [one for one in tensors if not _is_finite(file, start + one.begin, start + one.end, dtype)]


def _is_finite(file: BufferedIOBase, begin: int, end: int, dtype: str) -> bool:
    import numpy as np  # noqa: PLC0415 - 12 MB that a process which examines nothing has no use for

    kind, exponent = _EXPONENTS[dtype]
    width = np.dtype(kind).itemsize
    chunk = memoryview(bytearray(min(CHUNK_BYTES, end - begin)))
    exponents = np.empty(len(chunk) // width, kind)
    file.seek(begin)
    while begin < end:
        got = file.readinto(chunk[: min(CHUNK_BYTES, end - begin)])
        numbers = np.frombuffer(chunk[: got - got % width], dtype=kind)
        highest = np.bitwise_and(numbers, exponent, out=exponents[: len(numbers)]).max(initial=0)
        if highest == exponent:
            return False
        if not got:  # cut off since its size was looked at; whoever hashes it will see
            return True
        begin += got
    return True
