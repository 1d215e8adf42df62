"""Decodes what the plugin says of the base model: files, shapes in memory. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from registry.lora.base import BaseModules, Shape, expand
from registry.lora.base_directory import UnknownArchitecture, base_of_files
from registry.lora.safetensors import MAX_TENSORS, Tensor
from sidecar.engines.transport import json_of

_MOST_DIMENSIONS, _MOST_DIGITS = 8, 12


def read_shapes(body: bytes) -> dict[str, Shape]:
    """Outputs and inputs of modules by the engine's own names; nothing, where that cannot be read."""
    match json_of(body):
        case {"schema": 1, "shapes": dict(forms)}:
            try:
                named = list(_named(forms))
            except ValueError:
                return {}
            return {name: (sizes[0], sizes[1]) for name, sizes in named if len(sizes) == 2}
        case _:
            return {}


def is_being_read(body: bytes) -> bool:
    """True if the plugin reads the files of the base model yet."""
    match json_of(body):
        case {"schema": 1, "reading": True}:
            return True
        case _:
            return False


def read_base_files(body: bytes) -> BaseModules | None:
    """The base model whose files the plugin has read; None: it could not, or they do not tell its modules."""
    match json_of(body):
        case {"schema": 1, "config": dict(config), "tensors": dict(forms), **more}:
            weights = more.get("weights")
            try:
                return base_of_files(_tensors(forms), config, weights if isinstance(weights, str) else None)
            except (ValueError, UnknownArchitecture):
                return None
        case _:
            return None


def _tensors(forms: Mapping[object, object]) -> list[Tensor]:
    found: list[Tensor] = []
    for form, patterns in forms.items():
        dtype, _, sizes = f"{form}".partition(" ")
        found += (Tensor(name, dtype, shape, 0, 0) for name, shape in _named({sizes: patterns}))
        if len(found) > MAX_TENSORS:
            raise ValueError(f"more than {MAX_TENSORS} tensors")
    return found


def _named(forms: Mapping[object, object]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and sizes; in `forms` are patterns of names by sizes, ``256 128``. Raises ValueError: they are none."""
    for form, patterns in forms.items():
        sizes = f"{form}".split()
        is_shape = all(one.isdecimal() and len(one) <= _MOST_DIGITS for one in sizes) and len(sizes) <= _MOST_DIMENSIONS
        if not is_shape or not isinstance(patterns, list) or not all(isinstance(one, str) for one in patterns):
            raise ValueError("it has other sizes or names than were agreed")
        shape = tuple(map(int, sizes))
        for name in expand(dict.fromkeys(patterns, (1, 1))):
            yield name, shape
