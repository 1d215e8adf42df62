"""Findings about modules that an engine does not apply. Pure.

They follow from `registry.lora.coverage.table`, or from what an engine itself says that it applies adapters to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from registry.lora.base import BaseModules, compress, expand
from registry.lora.coverage.table import Unapplied, UnappliedReason
from registry.lora.findings import AdapterWarning, Finding
from registry.lora.modules import Module
from registry.lora.tensor_names import PAIR_PARTS, TensorName, TensorPart

_MAX_PATTERNS = 8
_EMBEDDING_PARTS = {TensorPart.EMBEDDING_A, TensorPart.EMBEDDING_B}


def placed_modules(modules: Mapping[str, Module], renames: Mapping[str, str]) -> dict[str, bool]:
    """The base's name of each module that is trained, and whether it is an embedding."""
    return {
        renames.get(name, name): module.is_embedding
        for name, module in modules.items()
        if not PAIR_PARTS.isdisjoint(module.parts)
    }


def prepared_modules(entries: Iterable[TensorName]) -> dict[str, bool]:
    """The same of an adapter that is prepared."""
    modules: dict[str, bool] = {}
    for entry in (one for one in entries if one.part in PAIR_PARTS):
        modules[entry.module] = modules.get(entry.module, False) or entry.part in _EMBEDDING_PARTS
    return modules


def coverage_findings(modules: Mapping[str, bool], base: BaseModules | None) -> list[Finding]:
    """One for each cause for which engines do not apply modules, given as `placed_modules` gives them."""
    causes: dict[Unapplied, list[str]] = {}
    for module, is_embedding in modules.items():
        if base and (cause := base.unapplied(module, is_embedding=is_embedding)):
            causes.setdefault(cause, []).append(module)
    return [finding_of(cause, names) for cause, names in causes.items()]


def unknown_coverage(base: BaseModules | None) -> list[AdapterWarning]:
    """Warning where nobody knows whether engines apply all of an adapter that is right for that base."""
    if base is None or base.evidence is not None or (base.coverage is not None and base.coverage.is_measured):
        return []
    named = base.architecture or "a base whose architecture its pool does not say; see loraplane pool update --from"
    message = f"nobody has seen whether {base.engine} applies all of these modules for {named}"
    return [AdapterWarning("engine_coverage_unknown", message)]


def finding_of(cause: Unapplied, modules: list[str]) -> Finding:
    """The finding about modules that are not applied for one cause."""
    served = "serves as the base" if cause.reason == "not_applied_by_engine" else "does not load"
    found = f"{len(modules)} modules that the engine {served} ({patterns_of(modules)}): {cause.why}"
    return Finding(cause.reason, modules[0], found, "modules that the engine applies", _remedy(modules))


def _remedy(modules: Iterable[str]) -> str:
    """By the last two parts of their names, as prepare.drop takes them, where these are few."""
    ends = sorted({".".join(module.split(".")[-2:]) for module in modules})
    if len(ends) > _MAX_PATTERNS:
        return "train without them"
    return f"train without them, or set prepare.drop to [{', '.join(ends)}] and lose what they learned"


def patterns_of(modules: Iterable[str]) -> str:
    """The modules in a few words, ``{0-31}`` for numbers that run through."""
    patterns = list(compress(dict.fromkeys(modules)))
    more = f" and {len(patterns) - _MAX_PATTERNS} more" if len(patterns) > _MAX_PATTERNS else ""
    return ", ".join(patterns[:_MAX_PATTERNS]) + more


Renames = tuple[tuple[str, str], ...]
_MAX_REMEMBERED = 4096
_KEY_END = ".lora_A.weight"
_SAYS = "says the engine itself"


@dataclass(frozen=True, slots=True)
class EngineEvidence:
    """Answer of one engine, in its own names.

    Attributes:
        engine: kind and version, e.g. ``vllm 0.32.0``.
        architecture: the class of its model.
        applied: modules, with ``{0-31}`` for numbers that run through, that it applies adapters to.
        taken: ends of names, in the same form, that it does not refuse when it reads an adapter.
        parts: how it renames parts of a checkpoint's names: old and new, in its order; the first place only.
        beginnings: how it then renames their beginnings.
        ends: how it then renames their ends.
    """

    engine: str
    architecture: str
    applied: tuple[str, ...]
    taken: tuple[str, ...]
    parts: Renames = ()
    beginnings: Renames = ()
    ends: Renames = ()

    def unapplied(self, module: str) -> Unapplied | None:
        """Why it does not apply a module of the base's own name; None: it does."""
        name = self.engine_name(module)
        if name in _expanded(self.applied):
            return None
        experts = name.find(".experts")
        end = name[experts + 1 :] if experts >= 0 else name.rpartition(".")[2]
        reason: UnappliedReason = "not_applied_by_engine" if end in _expanded(self.taken) else "not_taken_by_engine"
        return Unapplied(reason, f"{_SAYS} ({self.engine}, {self.architecture})")

    def engine_name(self, module: str) -> str:
        """The engine's own name. It renames whole keys of a file, so that rules for ends see those of lora_A."""
        key = module + _KEY_END
        for old, new in self.parts:
            key = key.replace(old, new, 1)
        for old, new in self.beginnings:
            key = new + key.removeprefix(old) if key.startswith(old) else key
        for old, new in self.ends:
            key = key.removesuffix(old) + new if key.endswith(old) else key
        return key.removesuffix(_KEY_END)


@lru_cache(8)
def _expanded(patterns: tuple[str, ...]) -> frozenset[str]:
    return frozenset(expand(dict.fromkeys(patterns, (1, 1))))


@lru_cache(_MAX_REMEMBERED)
def evidence_finding(modules: tuple[str, ...], evidence: EngineEvidence) -> Finding | None:
    """Finding against an adapter of these modules, given with ``{0-31}``; None: nothing.

    Asked at every plan for every adapter, so what was found is remembered.
    """
    causes: dict[Unapplied, list[str]] = {}
    try:
        names = expand(dict.fromkeys(modules, (1, 1)))
    except ValueError as error:  # what a stranger called so where no base is known to compare it with
        return finding_of(Unapplied("not_taken_by_engine", f"{error}"), list(modules))
    for module in names:
        if cause := evidence.unapplied(module):
            causes.setdefault(cause, []).append(module)
    return next((finding_of(cause, names) for cause, names in causes.items()), None)
