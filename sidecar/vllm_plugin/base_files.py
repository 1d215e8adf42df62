"""Base model's files: tensors, configuration, a sample of the numbers.

They are read once, when the engine has started. The sidecar makes of them what it also finds in a folder that it sees.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .coverage import compressed

_INDEX = "model.safetensors.index.json"
_MAX_FILES = 1024
_MAX_HEADER_BYTES = 16 << 20
_MAX_JSON_BYTES = 64 << 20
_MAX_CONFIG_BYTES = 256 * 1024
# As `registry.lora.base_directory` takes its samples.
_SAMPLED_TENSORS = 2048
_SAMPLED_BYTES = 1024
_LENGTH_BYTES = 8
# Of each tensor its type and shape, and where its numbers begin and end.
_Places = dict[str, tuple[Path, int, int]]


def base_files(directory: Path) -> dict[str, Any]:
    """Facts of the base model in a folder's files; `problem` says why they cannot be read.

    `tensors` has names, with ``{0-31}`` for numbers that run through, by type and shape: ``BF16 4096 1024``.
    """
    told: dict[str, Any] = {"path": f"{directory}"}
    try:
        kinds: dict[str, list[str]] = {}
        places: _Places = {}
        for path in _weights_files(directory):
            for name, kind, begin, end in _tensors(path):
                kinds.setdefault(kind, []).append(name)
                places[name] = path, begin, end
        told["config"] = _config(directory / "config.json")
        told["tensors"] = {kind: compressed(names) for kind, names in kinds.items()}
        told["weights"] = _sample(places) if places else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        told["problem"] = f"{error}"[:400]
    return told


def _weights_files(directory: Path) -> list[Path]:
    if not (directory / _INDEX).exists():
        return sorted(directory.glob("*.safetensors"))[:_MAX_FILES]
    names = {str(name) for name in _json(directory / _INDEX)["weight_map"].values()}
    if not names or len(names) > _MAX_FILES or any(Path(name).name != name for name in names):
        raise ValueError(f"{_INDEX} names other than files beside it")
    return [directory / name for name in sorted(names)]


def _tensors(path: Path) -> Iterator[tuple[str, str, int, int]]:
    """Name, kind, begin and end of each tensor of a file."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if length > _MAX_HEADER_BYTES:
            raise ValueError(f"{path.name} claims a header of {length} bytes")
        header = json.loads(file.read(length))
    for name, tensor in header.items():
        if name != "__metadata__":
            begin, end = (_LENGTH_BYTES + length + int(at) for at in tensor["data_offsets"])
            yield name, " ".join(map(str, (tensor["dtype"], *tensor["shape"]))), begin, end


def _sample(places: _Places) -> str:
    digest, names = hashlib.sha256(), sorted(places)
    for name in names[:: -(-len(names) // _SAMPLED_TENSORS)]:
        path, begin, end = places[name]
        digest.update(name.encode() + b"\0")
        with path.open("rb") as file:
            for at in (begin, (begin + end) // 2, max(begin, end - _SAMPLED_BYTES)):
                file.seek(at)
                digest.update(file.read(min(_SAMPLED_BYTES, end - at)))
    return "sha256:" + digest.hexdigest()


def _config(path: Path) -> dict[str, Any]:
    """The configuration, which tells modules where there are no safetensors files; empty: none that is of use."""
    try:
        return _json(path) if path.stat().st_size <= _MAX_CONFIG_BYTES else {}
    except FileNotFoundError:
        return {}


def _json(path: Path) -> dict[str, Any]:
    if path.stat().st_size > _MAX_JSON_BYTES:
        raise ValueError(f"{path.name} is larger than {_MAX_JSON_BYTES} bytes")
    with path.open("rb") as file:
        found: dict[str, Any] = json.loads(file.read(_MAX_JSON_BYTES))
    return found
