"""Modules that an engine does not apply, or that do nothing: findings. Pure.

The findings follow from `registry.lora.coverage.table`, or from what an engine itself says that it applies adapters to.
What does less than its training meant is not refused: an adapter after its first step of training has zeros, and one
may be served without some modules.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import re2

from registry.lora.base import BaseModules, compress, expand
from registry.lora.config import AdapterConfig
from registry.lora.coverage.table import Unapplied, UnappliedReason
from registry.lora.findings import AdapterWarning, Finding
from registry.lora.modules import Module, ends_of, linear_options
from registry.lora.tensor_names import PAIR_PARTS, TensorName, TensorPart, split_module
from registry.lora.text import some_of

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
    if parts := _parts_of_experts(modules, base):
        causes[_WHOLE_EXPERTS] = parts
    return [finding_of(cause, names) for cause, names in causes.items()]


# vLLM stacks the experts of a layer, and fails an assertion of `pack_moe` where one of them lacks a part.
_WHOLE_EXPERTS = Unapplied("not_taken_by_engine", "vLLM takes all parts of all experts of a layer, or none")
_EXPERT = re.compile(r"(?P<layer>.*\.experts)\.\d+\..+", re.ASCII)


def _parts_of_experts(modules: Iterable[str], base: BaseModules | None) -> list[str]:
    """Modules of experts in layers where the adapter lacks others of the base's."""
    if base is None or base.engine != "vllm":
        return []
    own: dict[str, list[str]] = {}
    for module in modules:
        if (match := _EXPERT.fullmatch(module)) and module in base.served:
            own.setdefault(match["layer"], []).append(module)
    whole = Counter(match["layer"] for name in base.served if (match := _EXPERT.fullmatch(name))) if own else {}
    return [module for layer, names in own.items() if len(names) < whole[layer] for module in names]


def stored_findings(modules: Mapping[str, bool], base: BaseModules | None) -> list[Finding]:
    """The same of modules that are given with ``{0-31}`` for numbers that run through."""
    try:
        return coverage_findings(expand(modules), base)
    except ValueError as error:  # what a stranger called so where no base is known to compare it with
        return [finding_of(Unapplied("not_taken_by_engine", f"{error}"), list(modules))]


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
    return some_of(list(compress(dict.fromkeys(modules))), _MAX_PATTERNS)


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
    except ValueError as error:  # see `stored_findings`
        return finding_of(Unapplied("not_taken_by_engine", f"{error}"), list(modules))
    for module in names:
        if cause := evidence.unapplied(module):
            causes.setdefault(cause, []).append(module)
    return next((finding_of(cause, names) for cause, names in causes.items()), None)


Matches = Callable[[str], bool]


def without_effect(entries: Iterable[TensorName], zeros: frozenset[str]) -> list[AdapterWarning]:
    """Warning about modules that add nothing, given the tensors that are served and those that are all zeros."""
    modules: dict[str, bool] = {}
    has_saved = False
    for entry in entries:
        has_saved |= entry.part is TensorPart.SAVED
        if entry.part in PAIR_PARTS:
            modules[entry.module] = modules.get(entry.module, False) or entry.tensor.name in zeros
    idle = [module for module, is_idle in modules.items() if is_idle]
    if idle and len(idle) == len(modules) and not has_saved:
        message = (
            f"lora_A or lora_B of all {len(idle)} modules are zeros, so that engines answer as the base model does; "
            "unless no step was trained yet, save it again: under ZeRO-3 or FSDP, gather its weights first"
        )
        return [AdapterWarning("without_effect", message)]
    # An expert that no token of a training came to stays as it began.
    trained = [module for module in idle if "experts" not in module.split(".")]
    if not trained:
        return []
    message = f"lora_A or lora_B of {len(trained)} modules are zeros, so that they add nothing: {patterns_of(trained)}"
    return [AdapterWarning("without_effect", message)]


def missing_modules(
    config: AdapterConfig, modules: Iterable[str], renames: Mapping[str, str], base: BaseModules | None
) -> list[AdapterWarning]:
    """Warning about modules that the configuration names and the file lacks, given all modules of the file."""
    names = set(modules)
    missing = dict.fromkeys(_absent(config, names, renames, base) if base is not None else ())
    told = {end for name in missing for end in ends_of(name)}
    missing |= dict.fromkeys(one for one in _unfound(config, names, base) if one not in told)
    if not missing:
        return []
    message = (
        f"adapter_config.json names modules that the file does not have, and that are served as the base's: "
        f"{patterns_of(missing)}; save it again with all of them, or take both files of one training"
    )
    return [AdapterWarning("modules_missing", message)]


def _unfound(config: AdapterConfig, names: Iterable[str], base: BaseModules | None) -> list[str]:
    """Listed names that no module has or ends with, and that the base is not known to lack."""
    found = {end for name in names for end in ends_of(name)}
    targets = [] if isinstance(config.target_modules, str) else config.target_modules
    unfound = [one for one in targets if one not in found]
    if not unfound:
        return []
    others = [prefix + tail for prefix, tail in base.usual] if base is not None else [f".{one}" for one in unfound]
    is_excluded = _matcher((config.model_extra or {}).get("exclude_modules"), len(others))
    there = {end for name in others for end in ends_of(name) if not is_excluded(name)}
    return [one for one in unfound if one in there]


# transformers leaves out the keys and values of layers that take those of others.
_SHARES_KEYS = ("Gemma3n", "Gemma4")
_SHARED_PARTS = (".k_proj", ".v_proj")


def _absent(
    config: AdapterConfig, names: Collection[str], renames: Mapping[str, str], base: BaseModules
) -> Iterable[str]:
    """The base's modules that the configuration names, beside those that are there."""
    placed = {renames.get(name, name): name for name in names}
    beginnings = {
        split_module(served)[0]: split_module(name)[0] for served, name in placed.items() if served in base.served
    }
    # By the base's own name, and by the one that the file would have for it, which is what the configuration names.
    left = {
        prefix + tail: own
        for prefix, tail in base.usual
        if prefix in beginnings and prefix + tail not in placed and (own := beginnings[prefix] + tail) not in names
    }
    is_named = _named(config, len(left))
    shares = (base.architecture or "").startswith(_SHARES_KEYS)
    return (name for name, own in left.items() if is_named(own) and not (shares and name.endswith(_SHARED_PARTS)))


def _block(name: str) -> str:
    """The name up to its last number, which is that of its layer."""
    parts = name.split(".")
    last = max((place for place, part in enumerate(parts) if part.isdecimal()), default=-1)
    return ".".join(parts[: last + 1])


def _named(config: AdapterConfig, count: int) -> Matches:
    """True if PEFT trains a module of that name by the configuration, to be asked `count` times."""
    extra = config.model_extra or {}
    is_target = _matcher(config.target_modules, count)
    is_excluded = _matcher(extra.get("exclude_modules"), count)
    layers, kinds = _several(extra.get("layers_to_transform")), _several(extra.get("layers_pattern"))

    def is_in_layer(name: str) -> bool:
        *_, kind, number = ["", *_block(name).split(".")]
        return number in layers and (not kinds or kind in kinds)

    return lambda name: is_target(name) and not is_excluded(name) and (not layers or is_in_layer(name))


def _several(value: object) -> set[str]:
    """One or several numbers or names, as text."""
    values = value if isinstance(value, list) else [value]
    return {f"{one}" for one in values if isinstance(one, int | str) and one != ""}


def _matcher(targets: object, count: int) -> Matches:
    """PEFT's rule for a list of names, an expression, or all linear modules; what cannot be followed names nothing."""
    if isinstance(targets, list):
        ends = {one for one in targets if isinstance(one, str)}
        return lambda name: not ends.isdisjoint(ends_of(name))
    if not isinstance(targets, str) or not targets:
        return lambda _: False
    if targets.lower() == "all-linear":
        # Of the matrices that a checkpoint has, routers and others are no linear modules of transformers.
        return lambda name: name.endswith("_proj")
    return _expression(targets, count)


_MAX_CHARACTERS = 4096
_MAX_PROGRAM_BYTES = 1 << 20
# Bound of all matches together, which take a microsecond at most for each.
_MAX_COST = 8_000_000


def _expression(text: str, count: int) -> Matches:
    try:
        compiled = re2.compile(text[:_MAX_CHARACTERS], linear_options(_MAX_PROGRAM_BYTES))
    except re2.error:
        return lambda _: False
    if len(text) > _MAX_CHARACTERS or compiled.programsize * count > _MAX_COST:
        return lambda _: False
    return lambda name: compiled.fullmatch(name) is not None
