"""Renames an adapter's modules to the base's own names, which every engine maps to what it calls them. Pure.

Wrappers of other libraries, and other releases of transformers, change what stands before the numbered blocks. So
all unknown modules that share a beginning are moved together, to the one beginning of the base's where each is found
in the right shape; where there is none or more than one, nothing is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from registry.lora.base import BaseModules
from registry.lora.findings import Finding
from registry.lora.keys import is_vision, split_module
from registry.lora.modules import Module

_BLOCK_NUMBER = re.compile(r"^([A-Za-z_]\w*)\.(\d+)\b", re.ASCII)


@dataclass(slots=True)
class Mapped:
    """New names of modules that need one, and what could not be named."""

    renames: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def map_modules(modules: Mapping[str, Module], base: BaseModules, *, may_rename: bool) -> Mapped:
    """Finds each module in the base."""
    mapped = Mapped()
    known_prefixes = {split_module(name)[0] for name in modules if name in base.modules}
    groups: dict[str, list[Module]] = {}
    for name, module in modules.items():
        if name not in base.modules:
            groups.setdefault(split_module(name)[0], []).append(module)
    for prefix, group in groups.items():
        if may_rename and prefix not in known_prefixes:
            _map_group(prefix, group, base, mapped)
        else:
            mapped.findings += [_missing(module, base, (prefix,)) for module in group]
    return mapped


def _map_group(prefix: str, group: Sequence[Module], base: BaseModules, mapped: Mapped) -> None:
    by_name = _common(group, base, in_shape=False)
    candidates = _common(group, base, in_shape=True)
    if not candidates and len(by_name) == 1:
        candidates = by_name  # found, in another shape: that is what is wrong, and will be said
    match sorted(candidates):
        case [only]:
            mapped.renames |= {module.name: only + split_module(module.name)[1] for module in group}
        case []:
            near = _nearest(group, base)
            mapped.findings += [_missing(module, base, near) for module in group if not _has(module, base, near)] or [
                _nowhere(prefix, group)
            ]
        case several:
            mapped.findings.append(_ambiguous(prefix, group, several))


def _common(group: Sequence[Module], base: BaseModules, *, in_shape: bool) -> set[str]:
    """Beginnings under which the base has every module of the group."""
    common: set[str] | None = None
    for module in group:
        places = base.by_tail.get(split_module(module.name)[1], {})
        here = {
            prefix
            for prefix, shape in places.items()
            if is_vision(prefix) == is_vision(module.name) and (not in_shape or module.fits(shape))
        }
        common = here if common is None else common & here
    return common or set()


def _nearest(group: Sequence[Module], base: BaseModules) -> tuple[str, ...]:
    """The beginnings under which the base has any module of the group."""
    return tuple(sorted({prefix for one in group for prefix in base.by_tail.get(split_module(one.name)[1], {})}))


def _has(module: Module, base: BaseModules, prefixes: Sequence[str]) -> bool:
    tail = split_module(module.name)[1]
    return any(prefix + tail in base.modules for prefix in prefixes)


def _missing(module: Module, base: BaseModules, prefixes: Sequence[str]) -> Finding:
    """The base has no such module; or it has, but ends before its number."""
    tail = split_module(module.name)[1]
    block = _BLOCK_NUMBER.match(tail)
    if block is not None:
        first = f"{block[1]}.0{tail[block.end() :]}"
        if any(prefix + first in base.modules for prefix in prefixes):
            last = _last_block(base, prefixes, block[1])
            if int(block[2]) > last:
                found, expected = f"{block[1]}.{block[2]}", f"at most {block[1]}.{last}, the base's last"
                return Finding("too_many_layers", module.name, found, expected, _OTHER_BASE)
    return Finding("no_such_module", module.name, "a module that the base does not have", _known(base), _OTHER_BASE)


def _last_block(base: BaseModules, prefixes: Sequence[str], block: str) -> int:
    numbers = [
        int(match[2])
        for tail, places in base.by_tail.items()
        if (match := _BLOCK_NUMBER.match(tail)) and match[1] == block and places.keys() & set(prefixes)
    ]
    return max(numbers)


def _known(base: BaseModules) -> str:
    names = sorted({name.rpartition(".")[2] for name in base.modules})
    return "one of the base's, which are called " + ", ".join(names[:12])


def _nowhere(prefix: str, group: Sequence[Module]) -> Finding:
    found = f"{len(group)} modules below {prefix!r} that the base has in several places, never all in one"
    return Finding("no_such_module", group[0].name, found, "modules of one place", _OTHER_BASE)


def _ambiguous(prefix: str, group: Sequence[Module], places: Sequence[str]) -> Finding:
    found = f"{len(group)} modules below {prefix!r} that fit below {' and '.join(map(repr, places[:4]))}"
    remedy = "save the adapter with the base's own module names"
    return Finding("ambiguous_module", group[0].name, found, "exactly one place", remedy)


_OTHER_BASE = "serve it in a pool of the base model that it was trained on"
