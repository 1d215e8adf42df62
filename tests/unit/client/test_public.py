"""The public package: its names, and two classes that are one."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import loraplane
from loraplane import AsyncRegistry, Registry, RegistryError
from registry.model import errors

METHODS = ["get", "history", "list", "publish", "residency", "retry", "rollback", "wait", "wait_served", "withdraw"]
# How the connection itself is ended differs, as it does in the standard library.
OWN = {"aclose", "close"}


def methods(kind: type) -> list[str]:
    return sorted(name for name in vars(kind) if not name.startswith("_") and name not in OWN)


def test_both_classes_have_the_same_methods():
    assert methods(Registry) == methods(AsyncRegistry) == METHODS


@pytest.mark.parametrize("name", METHODS)
def test_a_method_takes_and_says_the_same_in_both(name):
    """Each parameter, and what it raises; of the one that is to go no more is said than that."""
    plain, asynchronous = getattr(Registry, name), getattr(AsyncRegistry, name)
    parameters, told = inspect.signature(plain).parameters, inspect.getdoc(plain) or ""
    assert (parameters, told) == (inspect.signature(asynchronous).parameters, inspect.getdoc(asynchronous))
    if name != "wait_served":
        assert [one for one in [*parameters][1:] if f"\n    {one}: " not in told] == []
        assert ("timeout_seconds" in told, "\nRaises:\n" in told) == (True, True)


def test_it_re_exports_the_client_and_the_errors_and_nothing_else():
    body = ast.parse(Path(loraplane.__file__).read_text()).body[1:]
    *imports, names = body
    modules = {one.module for one in imports if isinstance(one, ast.ImportFrom)}
    assert all(module == "registry.model.errors" or str(module).startswith("registry.client.") for module in modules)
    assert isinstance(names, ast.Assign)
    assert len(imports) == len(modules)
    assert sorted(loraplane.__all__) == sorted(one.name for each in imports for one in each.names)
    kinds = {kind.__name__ for kind in RegistryError.__subclasses__() if kind.__module__ == errors.__name__}
    assert (kinds <= set(loraplane.__all__), Path(loraplane.__file__).with_name("py.typed").exists()) == (True, True)
