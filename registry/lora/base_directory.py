"""Reads a base model's modules from its directory: from the headers of its weights, else from its config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from registry.lora.architectures import UnknownArchitecture, derive
from registry.lora.base import BaseModules, Shape, modules_of
from registry.lora.directory import read_header_of
from registry.lora.findings import UnfitAdapter
from registry.lora.json_files import json_object
from registry.lora.tensors import Tensor

_INDEX = "model.safetensors.index.json"
_MAX_FILES = 1024
_MAX_JSON_BYTES = 64 << 20
# Weights in these are packed: their shapes are not the modules'.
_PACKED_DTYPES = {"U8", "I32"}
_PACKED_ENDS = (".qweight", ".weight_packed")


class BaseUnreadable(Exception):
    """The directory does not tell the modules of a base model; the message says why and what to give instead."""


def read_base(directory: Path, names: tuple[str, ...] = ()) -> BaseModules:
    """The modules of the base model in `directory`.

    Args:
        directory: as transformers saves it: config.json, and usually safetensors files.
        names: that an adapter may call its base by; none: any.

    Raises:
        BaseUnreadable: see there.
    """
    try:
        modules = _from_weights(directory) or derive(_json(directory / "config.json"))
    except (OSError, ValueError, UnfitAdapter, UnknownArchitecture) as error:
        raise BaseUnreadable(f"{directory} does not tell the base model's modules: {error}") from error
    return BaseModules(modules, names)


def names_of(directory: Path) -> frozenset[str]:
    """What the base model in `directory` may be called, in lower case: as it is there, and where it came from.

    Raises:
        OSError, ValueError, UnfitAdapter: its config.json cannot be read.
    """
    place = directory.resolve()
    # A hub's cache has models--ORGANISATION--NAME/snapshots/COMMIT.
    cached = [part.rpartition("--")[2] for part in place.parts if part.startswith("models--")]
    config = _json(place / "config.json") if (place / "config.json").exists() else {}
    origin = str(config.get("_name_or_path") or "").rstrip("/").rpartition("/")[2]
    return frozenset(name.lower() for name in (place.name, origin, *cached) if name)


def _from_weights(directory: Path) -> dict[str, Shape]:
    """The modules by the headers of the weights; empty where these are missing or packed."""
    modules: dict[str, Shape] = {}
    for file in weights_files(directory):
        with file.open("rb") as opened:
            header, _ = read_header_of(opened, file.name)
        if any(_is_packed(tensor) for tensor in header.tensors):
            return {}
        modules |= modules_of(header.tensors)
    return modules


def _is_packed(tensor: Tensor) -> bool:
    is_weight = tensor.name.endswith(".weight") and tensor.dtype in _PACKED_DTYPES
    return is_weight or tensor.name.endswith(_PACKED_ENDS)


def weights_files(directory: Path) -> list[Path]:
    """The safetensors files of a model's directory.

    Raises:
        ValueError, OSError: its index cannot be read.
    """
    if (directory / _INDEX).exists():
        files = _json(directory / _INDEX).get("weight_map")
        names = {str(name) for name in files.values()} if isinstance(files, dict) else set()
        if not names or len(names) > _MAX_FILES or any(Path(name).name != name for name in names):
            raise ValueError(f"{_INDEX} names other than files beside it")
        return [directory / name for name in sorted(names)]
    return sorted(directory.glob("*.safetensors"))[:_MAX_FILES]


def _json(path: Path) -> dict[str, Any]:
    if path.stat().st_size > _MAX_JSON_BYTES:
        raise ValueError(f"{path.name} is larger than {_MAX_JSON_BYTES} bytes")
    return json_object(path.name, path.read_bytes())
