"""Arguments of the pure rooms' functions: data all through, found by their types."""

from __future__ import annotations

import enum
import importlib
import inspect
import pkgutil
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import pytest
from pydantic import BaseModel

import sidecar.plan
from registry.etcd3.backoff import Uniform
from registry.lora.base import EngineSays

# What else of the sidecar is pure and has functions that others call.
OTHERS = (
    "sidecar.desired.assignment",
    "sidecar.desired.placement",
    "sidecar.report.status",
    "sidecar.resolver.policy",
)
MODULES = (*(f"sidecar.plan.{one.name}" for one in pkgutil.iter_modules(sidecar.plan.__path__)), *OTHERS)

# Chance, which is drawn only where a pause needs it; and a frozen table of what an engine says that it applies.
ALLOWED = (Uniform, EngineSays)


def not_data(hint: Any, seen: set[Any]) -> Iterator[Any]:
    """What of a type is a function, or an object that may do anything."""
    kind = typing.get_origin(hint) or hint
    if hint in seen or hint in ALLOWED or kind is typing.Literal:
        return
    seen.add(hint)
    parts = _parts(hint, kind)
    if parts is None and not _is_plain(kind):
        yield hint
    else:
        for one in parts or ():
            yield from not_data(one, seen)


def _parts(hint: Any, kind: Any) -> list[Any] | None:
    """The types of what a value of that type has; None: nothing that can be told."""
    if isinstance(hint, typing.TypeVar):
        return [*hint.__constraints__, *([hint.__bound__] if hint.__bound__ else ())]
    arguments = [one for one in typing.get_args(hint) if one is not Ellipsis]
    if kind is typing.Annotated:
        return arguments[:1]
    if is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return [*arguments, *(hints[one.name] for one in fields(kind))]
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [one.annotation for one in kind.model_fields.values()]
    return arguments if _is_plain(kind) and arguments else None


def _is_plain(kind: Any) -> bool:
    if kind in {types.UnionType, typing.Union, types.NoneType, typing.Annotated, typing.ClassVar}:
        return True
    if not isinstance(kind, type) or kind is Callable:
        return False
    home = kind.__module__.partition(".")[0]
    return issubclass(kind, enum.Enum | Exception) or home in {"builtins", "collections", "datetime", "immutables"}


@dataclass(frozen=True)
class Hidden:
    """Data, but for what it has."""

    numbers: tuple[int, ...]
    look_up: Callable[[str], str]


@pytest.mark.parametrize("module", MODULES)
def test_what_pure_functions_take_is_data(module):
    """R2: so that a plan is made of one moment, and making it touches neither files nor locks nor the engine."""
    assert list(not_data(Mapping[str, Hidden | None], set())) == [Callable[[str], str]], "it finds them"
    found = importlib.import_module(module)
    functions = [one for _, one in inspect.getmembers(found, inspect.isfunction) if one.__module__ == module]
    for function in functions:
        for name, hint in typing.get_type_hints(function).items():
            if name != "return":
                assert not list(not_data(hint, set())), f"{function.__qualname__}({name})"
