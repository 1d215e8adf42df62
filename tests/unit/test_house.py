"""The rules of the house: rooms, sizes and names of the product's modules."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOPS = ("loraplane", "registry", "sidecar")
GENERATED = re.compile(r"_pb2(_grpc)?\.py$")
RELATIVE = re.compile(r"(What|How|When|Who|Whose|Whoever|Whatever|Which|Where|Whether|That)\b")
# Docstrings that begin so and were there before the rule: the number may only fall.
MOST_RELATIVE = 23
# What the sidecar may take from the registry; everything else is forbidden to it.
OPEN_TO_SIDECAR = {"etcd3", "lora", "model", "runtime", "sources"}
# How many of our modules may be imported where parts are wired: what is more is a part of its own.
MOST_WIRED = {"sidecar/app.py": 35}
# Each remembers something and was a heap of it once: at most so many attributes, and arguments of its constructor.
LIGHT = ("LocalStore", "Reconciler", "ResidentSet", "StatusWriter", "Watcher")
MOST_ATTRIBUTES, MOST_ARGUMENTS = 12, 7
DECISION = ROOT / "docs/decisions/0025-house.md"


@cache
def modules() -> dict[str, ast.Module]:
    """Path below the root to the parsed module."""
    found = (path for top in TOPS for path in sorted((ROOT / top).rglob("*.py")) if not GENERATED.search(path.name))
    paths = (path for path in found if "build" not in path.parts)  # left by an installation of the plugin from here
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in paths}


def lines_of(path: str) -> int:
    return (ROOT / path).read_text().count("\n")


def name_of(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def importers() -> dict[str, set[str]]:
    """Name of a module to the paths of those that import it, or something of it."""
    found: dict[str, set[str]] = defaultdict(set)
    for path, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    found[alias.name].add(path)
            elif isinstance(node, ast.ImportFrom) and node.module:
                for target in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                    found[target].add(path)
    return found


def settings() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]


def test_no_class_name_stands_twice():
    found = defaultdict(list)
    for path, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(path)
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_the_first_line_of_a_docstring_names_the_thing():
    wrong = {}
    for path, tree in modules().items():
        first = (ast.get_docstring(tree) or "").partition("\n")[0]
        if not first or len(first) > 80 or RELATIVE.match(first):
            wrong[path] = first
    assert wrong == {}


def test_docstrings_name_the_thing():
    """``Bytes that have to go`` is read once, ``What has to go`` twice."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = (node for tree in modules().values() for node in ast.walk(tree) if isinstance(node, documented))
    assert sum(bool(RELATIVE.match(ast.get_docstring(node) or "")) for node in nodes) <= MOST_RELATIVE


def test_no_module_is_too_long_no_room_is_crowded_and_modules_are_of_a_middle_size():
    assert [path for path in modules() if lines_of(path) > 450] == []
    rooms = defaultdict(list)
    for path in modules():
        if not path.endswith("__init__.py"):
            rooms[str(Path(path).parent)].append(path)
    assert {room: len(paths) for room, paths in rooms.items() if len(paths) > 18} == {}
    sizes = sorted(lines_of(path) for path in modules() if not path.endswith("__init__.py"))
    assert 110 <= sizes[len(sizes) // 2] <= 200


def test_a_small_module_serves_several_others():
    small = [path for path in modules() if not path.endswith("__init__.py") and lines_of(path) < 60]
    assert len(small) < 30
    explained, known = DECISION.read_text(), importers()
    alone = [path for path in small if len(known[name_of(path)]) < 2 and f"`{name_of(path)}`" not in explained]
    assert alone == []


def test_what_wires_parts_knows_few_modules():
    for path, most in MOST_WIRED.items():
        nodes = [node for node in ast.walk(modules()[path]) if isinstance(node, ast.ImportFrom)]
        assert len({node.module for node in nodes if (node.module or "").partition(".")[0] in TOPS}) <= most


def attributes(made: ast.ClassDef) -> set[str]:
    """Names that are set of an object in its class, or stand in the class as fields."""
    fields = {one.target.id for one in made.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)}
    stored = (one for one in ast.walk(made) if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store))
    return fields | {one.attr for one in stored if isinstance(one.value, ast.Name) and one.value.id == "self"}


def test_classes_that_remember_hold_few_things_and_are_made_of_few():
    nodes = (node for tree in modules().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    found = {node.name: node for node in nodes if node.name in LIGHT}
    assert set(found) == set(LIGHT)
    for name, made in found.items():
        assert len(attributes(made)) <= MOST_ATTRIBUTES, name
        (made_by,) = (one for one in made.body if isinstance(one, ast.FunctionDef) and one.name == "__init__")
        arguments = made_by.args
        assert len([*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]) - 1 <= MOST_ARGUMENTS, name
        assert arguments.vararg is arguments.kwarg is None, name


def test_only_rooms_that_are_open_to_it_are_not_forbidden_to_the_sidecar():
    rooms = {path.parent.name for path in (ROOT / "registry").glob("*/__init__.py")}
    contracts = settings()["importlinter"]["contracts"]  # type: ignore[index]
    (contract,) = (one for one in contracts if one["name"].startswith("The sidecar takes from the registry"))
    assert {name.removeprefix("registry.") for name in contract["forbidden_modules"]} == rooms - OPEN_TO_SIDECAR


def test_whole_coverage_is_asked_of_pure_modules():
    """All that the report asks for is held to be pure by the import contracts, too."""
    contracts = settings()["importlinter"]["contracts"]  # type: ignore[index]
    (contract,) = (one for one in contracts if one["name"].startswith("Pure rooms"))
    pure = {name.replace(".", "/") for name in contract["source_modules"]}
    asked = settings()["coverage"]["report"]["include"]  # type: ignore[index]
    assert [entry for entry in asked if entry.removesuffix("/*").removesuffix(".py") not in pure] == []
    whole = {entry.removesuffix("/*") for entry in asked if entry.endswith("/*")}
    assert whole >= {name for name in pure if (ROOT / name).is_dir()}
