"""Whether two files are a LoRA adapter at all. Pure; raises `ArtifactError` with what was found and what to do."""

from __future__ import annotations

import json
from typing import Any

from sidecar.artifacts.manifest import CONFIG_FILE, WEIGHTS_FILE
from sidecar.artifacts.types import ArtifactError

MAX_CONFIG_BYTES = 1 << 20
MAX_HEADER_BYTES = 16 << 20
# A safetensors file starts with the length of its header, 8 bytes little-endian.
LENGTH_BYTES = 8
_LFS_POINTER = b"version https://git-lfs"


def check_config(content: bytes) -> int:
    """The LoRA rank that an adapter_config.json declares.

    Raises:
        ArtifactError: ``not_an_adapter``.
    """
    config = _json_object(CONFIG_FILE, content)
    if config.get("peft_type") != "LORA":
        raise _not_an_adapter(f"{CONFIG_FILE} has peft_type {_shown(config.get('peft_type'))}, only 'LORA' is served")
    rank = config.get("r")
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        raise _not_an_adapter(f"{CONFIG_FILE} has r = {_shown(rank)}, expected a whole number of at least 1")
    return rank


def header_bytes(start: bytes, size_bytes: int) -> int:
    """Length of the header of a safetensors file, from its first 8 bytes and its size.

    Raises:
        ArtifactError: ``not_an_adapter``, or ``source_incomplete`` where the file ends before its header does.
    """
    if start == _LFS_POINTER[:LENGTH_BYTES]:
        raise _not_an_adapter(f"{WEIGHTS_FILE} is a git-lfs pointer, not the weights; run `git lfs pull` at the source")
    length = int.from_bytes(start, "little")
    if len(start) == LENGTH_BYTES and length > MAX_HEADER_BYTES:
        raise _not_an_adapter(
            f"{WEIGHTS_FILE} claims a header of {length} bytes, at most {MAX_HEADER_BYTES} are read; "
            "it is not a safetensors file"
        )
    if LENGTH_BYTES + length > size_bytes or len(start) < LENGTH_BYTES:
        raise _incomplete(size_bytes, LENGTH_BYTES + length)
    return length


def check_header(header: bytes, size_bytes: int) -> None:
    """Checks that the tensors of a safetensors header fill a file of that size without gap or overlap.

    Raises:
        ArtifactError: ``not_an_adapter``, or ``source_incomplete`` where the file ends before its tensors do.
    """
    spans = sorted(_span(name, entry) for name, entry in _tensors(header))
    if not spans:
        raise _not_an_adapter(f"{WEIGHTS_FILE} has no tensors")
    expected = 0
    for begin, end, name in spans:
        if begin != expected:
            raise _not_an_adapter(f"{WEIGHTS_FILE}: tensor {name[:200]!r} begins at {begin}, expected {expected}")
        expected = end
    whole = LENGTH_BYTES + len(header) + expected
    if size_bytes < whole:
        raise _incomplete(size_bytes, whole)
    if size_bytes > whole:
        raise _not_an_adapter(f"{WEIGHTS_FILE} has {size_bytes} bytes, its header describes {whole}")


def _tensors(header: bytes) -> list[tuple[str, object]]:
    entries = _json_object(WEIGHTS_FILE, header)
    return [(name, entry) for name, entry in entries.items() if name != "__metadata__"]


def _span(name: str, entry: object) -> tuple[int, int, str]:
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    if not isinstance(offsets, list) or [type(offset) for offset in offsets] != [int, int]:
        raise _not_an_adapter(f"{WEIGHTS_FILE}: tensor {name[:200]!r} has no pair of data_offsets")
    begin, end = offsets
    if end < begin:
        raise _not_an_adapter(f"{WEIGHTS_FILE}: tensor {name[:200]!r} ends at {end}, before it begins at {begin}")
    return begin, end, name


def _json_object(file: str, content: bytes) -> dict[str, Any]:
    if content.startswith(_LFS_POINTER):
        raise _not_an_adapter(f"{file} is a git-lfs pointer, not the file; run `git lfs pull` at the source")
    try:
        value = json.loads(content.decode(), object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise _not_an_adapter(f"{file} is not readable as JSON ({str(error)[:200]})") from error
    if not isinstance(value, dict):
        raise _not_an_adapter(f"{file} holds a JSON {type(value).__name__}, expected an object")
    return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:200]!r} stands there twice")
    return value


def _shown(value: object) -> str:
    return repr(value)[:100]


def _not_an_adapter(message: str) -> ArtifactError:
    remedy = "save it again with PEFT's save_pretrained (safetensors)"
    return ArtifactError("not_an_adapter", f"{message}; {remedy}", permanent=True)


def _incomplete(found: int, expected: int) -> ArtifactError:
    return ArtifactError(
        "source_incomplete",
        f"{WEIGHTS_FILE} has {found} bytes, its header says at least {expected}; it is tried again, "
        "in case it is still being written",
        permanent=False,
    )
