"""Renames an adapter's modules to the base's own names. Pure.

Every engine maps those to its own names.

Wrappers of other libraries, and other releases of transformers, change what stands before the numbered blocks. So
all unknown modules that share a beginning are moved together, to the one beginning of the base's where each is found
in the right shape; where there is none or more than one, nothing is guessed.

Wrappers of trainers also stand amid names, as ``_checkpoint_wrapped_module``. What is surely one is left out. Any other
part that the base has nowhere may make it a module of another model, and is only told.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from registry.lora.base import BaseModules
from registry.lora.findings import Finding
from registry.lora.modules import Module
from registry.lora.tensor_names import is_vision, split_module

_BLOCK_NUMBER = re.compile(r"^([A-Za-z_]\w*)\.(\d+)\b", re.ASCII)


@dataclass(slots=True)
class Mapped:
    """New names of modules that need one, and what could not be named."""

    renames: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    # Names of modules without the wrappers that stood amid them.
    unwrapped: dict[str, str] = field(default_factory=dict)


def map_modules(modules: Mapping[str, Module], base: BaseModules, *, may_rename: bool) -> Mapped:
    """Finds each module in the base."""
    mapped = _mapped(modules, base, may_rename=may_rename)
    if not mapped.findings or not may_rename:
        return mapped
    own = {part for name in base.served for part in name.split(".")}
    wrapped = {name: _without(name, own, _is_wrapper) for name in modules if name not in base.served}
    inner = {name: short for name, short in wrapped.items() if short not in {name, ""}}
    if inner:
        return _unwrapped(modules, inner, base)
    strange = _common_parts(wrapped, own)
    bare = {name: _without(name, own, strange.__contains__) for name in wrapped}
    if strange and "" not in bare.values() and not _unwrapped(modules, bare, base).findings:
        return Mapped(findings=[_amid(sorted(strange), list(wrapped))])
    return mapped


def _is_wrapper(part: str) -> bool:
    """FSDP's, torch.compile's and others' begin with an underscore; DDP and PEFT have these two."""
    return part.startswith("_") or part in {"module", "base_layer"}


def _without(name: str, own: Collection[str], is_left_out: Callable[[str], bool]) -> str:
    """The name without such parts as the base has nowhere."""
    return ".".join(part for part in name.split(".") if part in own or not is_left_out(part))


def _common_parts(names: Iterable[str], own: Collection[str]) -> set[str]:
    """Parts that stand in all of the names, and nowhere in the base."""
    several = [{part for part in name.split(".") if part not in own and not part.isdecimal()} for name in names]
    return set.intersection(*several) if several else set()


def _unwrapped(modules: Mapping[str, Module], inner: Mapping[str, str], base: BaseModules) -> Mapped:
    """The same for modules under their inner names. Two of one name are the caller's matter."""
    shorts = {name: inner.get(name, name) for name in modules}
    found = _mapped(
        {shorts[name]: replace(one, name=shorts[name]) for name, one in modules.items()}, base, may_rename=True
    )
    outer = {short: name for name, short in inner.items()}
    new = {name: found.renames.get(short, short) for name, short in shorts.items()}
    findings = [replace(one, key=outer.get(one.key, one.key)) for one in found.findings]
    return Mapped({name: one for name, one in new.items() if one != name}, findings, dict(inner))


def _amid(parts: Sequence[str], names: Sequence[str]) -> Finding:
    called = " and ".join(map(repr, parts[:4]))
    found = f"{called} amid the names of {len(names)} modules, which are the base's without it"
    remedy = "save the adapter from the model without that wrapper, or take the part out of its tensors' names"
    return Finding("no_such_module", names[0], found, "the base's own names", remedy)


def _mapped(modules: Mapping[str, Module], base: BaseModules, *, may_rename: bool) -> Mapped:
    mapped, absences = Mapped(), _Absences(base)
    known_prefixes = {split_module(name)[0] for name in modules if name in base.served}
    groups: dict[str, list[Module]] = {}
    for name, module in modules.items():
        if name not in base.served:
            groups.setdefault(split_module(name)[0], []).append(module)
    for prefix, group in groups.items():
        if may_rename and prefix not in known_prefixes:
            _map_group(prefix, group, absences, mapped)
        else:
            mapped.findings += [absences.finding(module, (prefix,)) for module in group]
    return mapped


def _map_group(prefix: str, group: Sequence[Module], absences: _Absences, mapped: Mapped) -> None:
    base = absences.base
    by_name = _common(group, base, in_shape=False)
    # Found once, in another shape: that is what is wrong, and will be said.
    candidates = by_name if len(by_name) == 1 else _common(group, base, in_shape=True)
    match sorted(candidates):
        case [only]:
            mapped.renames |= {module.name: only + split_module(module.name)[1] for module in group}
        case []:
            near = _nearest(group, base)
            mapped.findings += [absences.finding(module, near) for module in group if not _has(module, base, near)] or [
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
    return any(prefix + tail in base.served for prefix in prefixes)


class _Absences:
    """Says that the base has no such module. There may be as many as tensors, so the base is looked through once."""

    def __init__(self, base: BaseModules) -> None:
        self.base = base

    def finding(self, module: Module, prefixes: Sequence[str]) -> Finding:
        """The base has no such module below the prefixes; or it has, but ends before its number."""
        tail = split_module(module.name)[1]
        block = _BLOCK_NUMBER.match(tail)
        if block is not None:
            first = f"{block[1]}.0{tail[block.end() :]}"
            if any(prefix + first in self.base.served for prefix in prefixes):
                last = max(self._last_blocks.get((prefix, block[1]), 0) for prefix in prefixes)
                if int(block[2]) > last:
                    found, expected = f"{block[1]}.{block[2]}", f"at most {block[1]}.{last}, the base's last"
                    return Finding("too_many_layers", module.name, found, expected, _OTHER_BASE)
        found = "a module that the base does not have"
        return Finding("no_such_module", module.name, found, self._known, _OTHER_BASE)

    @cached_property
    def _last_blocks(self) -> dict[tuple[str, str], int]:
        """The last number of each kind of block, by its prefix and name."""
        last: dict[tuple[str, str], int] = {}
        for tail, places in self.base.by_tail.items():
            if match := _BLOCK_NUMBER.match(tail):
                for prefix in places:
                    last[prefix, match[1]] = max(int(match[2]), last.get((prefix, match[1]), 0))
        return last

    @cached_property
    def _known(self) -> str:
        names = sorted({name.rpartition(".")[2] for name in self.base.served})
        return "one of the base's, which are called " + ", ".join(names[:12])


def _nowhere(prefix: str, group: Sequence[Module]) -> Finding:
    found = f"{len(group)} modules below {prefix!r} that the base has in several places, never all in one"
    return Finding("no_such_module", group[0].name, found, "modules of one place", _OTHER_BASE)


def _ambiguous(prefix: str, group: Sequence[Module], places: Sequence[str]) -> Finding:
    found = f"{len(group)} modules below {prefix!r} that fit below {' and '.join(map(repr, places[:4]))}"
    remedy = "save the adapter with the base's own module names"
    return Finding("ambiguous_module", group[0].name, found, "exactly one place", remedy)


_OTHER_BASE = "serve it in a pool of the base model that it was trained on"
