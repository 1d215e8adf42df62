"""Checks an adapter against a base and plans its preparation. Pure.

Engines accept many wrong adapters and then serve garbage, or the base model. So everything is looked at before they
hear of it: configuration, names, pairs, shapes, ranks, types; the numbers themselves are `registry.lora.safetensors`'s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from registry.lora.base import BaseModules, model_name
from registry.lora.config import AdapterConfig, config_findings, config_warnings, left_to_save
from registry.lora.coverage.findings import (
    coverage_findings,
    missing_modules,
    patterns_of,
    placed_modules,
    unknown_coverage,
)
from registry.lora.coverage.table import ends_with
from registry.lora.findings import AdapterWarning, Finding, shown
from registry.lora.modules import (
    Module,
    Patterns,
    duplicate,
    head_findings,
    modules_by_name,
    pair_findings,
    pattern_findings,
    rank_findings,
    renamed_pattern,
    shape_findings,
    wrapped_pattern_findings,
)
from registry.lora.policy import AdapterLimits, Policy, is_served
from registry.lora.remap import map_modules
from registry.lora.safetensors import Tensor
from registry.lora.tensor_names import PAIR_PARTS, PREFIX, TensorName, TensorPart, entry_of, is_taken, is_vision


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of preparation: new names of tensors, tensors left out, fields of the configuration, rows in new order.

    `rotary`: tensors whose rows get the order of `registry.lora.prepare.RotaryRows`, with the rows of a head.
    """

    renamed: Mapping[str, str]
    dropped: tuple[str, ...]
    config: Mapping[str, object]
    rotary: Mapping[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.renamed or self.dropped or self.config or self.rotary)


@dataclass(frozen=True, slots=True)
class AdapterVerdict:
    """Findings of a check. `changes` make the adapter right where there are no findings.

    Attributes:
        findings: why it is refused; none: it is not.
        warnings: what somebody should know.
        changes: what has to be done to it.
        rank: the rank that an engine's limit is compared with.
    """

    findings: tuple[Finding, ...]
    warnings: tuple[AdapterWarning, ...]
    changes: Changes
    rank: int


def examine(
    config: AdapterConfig, tensors: Sequence[Tensor], base: BaseModules | None, limits: AdapterLimits, policy: Policy
) -> AdapterVerdict:
    """Findings on an adapter, and the changes that it needs under `policy`.

    Args:
        config: its configuration.
        tensors: the header of its weights.
        base: modules of the base model; None: not known, and so not compared.
        limits: of the replicas.
        policy: what may be done to it.
    """
    entries = [entry_of(tensor) for tensor in tensors]
    kept, sifted, warnings = _sift(entries, config, policy)
    modules, findings = modules_by_name(kept)
    patterns = pattern_findings(config, len(modules))
    findings += [*config_findings(config, policy.drop), *patterns, *sifted, *head_findings(kept)]
    findings += _unread(kept, policy)
    renames, misplaced = _place(modules, config, base, policy)
    ranks = Patterns(config.rank_pattern, config.r) if not patterns else None
    findings += [*misplaced, *_content(modules, renames, ranks, base)]
    findings += [*_limits(modules, config, limits)]
    findings += base_name_findings(config.base_model_name_or_path, base)
    findings += coverage_findings(placed_modules(modules, renames), base)
    rotary, unordered = _rotary(modules, renames, base)
    findings += unordered
    if not any(module.down or module.up for module in modules.values()) and not findings:
        findings.append(Finding("no_tensors", "the weights", "no LoRA weights", "some", "look at its training"))
    changes = Changes(
        renamed=_new_keys(kept, renames, policy),
        dropped=tuple(
            sorted({one.tensor.name for one in entries} - {one.tensor.name for one in kept if is_taken(one)})
        ),
        config=_new_config(config, modules, renames, policy) if not patterns else {},
        rotary=rotary,
    )
    pairs = {entry.module for entry in entries if entry.part in PAIR_PARTS}
    warnings += [*_base_layers(kept), *config_warnings(config), *missing_modules(config, pairs, renames, base)]
    warnings += unknown_coverage(base)
    return AdapterVerdict(tuple(dict.fromkeys(findings)), tuple(warnings), changes, config.highest_rank)


def _sift(
    entries: Sequence[TensorName], config: AdapterConfig, policy: Policy
) -> tuple[list[TensorName], list[Finding], list[AdapterWarning]]:
    """The tensors that are to be served, by the policies for vision modules and DoRA."""
    findings, warnings = _dora(entries, config, policy)
    vision = [entry for entry in entries if is_vision(entry.module)]
    if vision and policy.vision == "reject":
        findings.append(_vision_finding(vision))
    if vision and policy.vision == "drop":
        count = len({entry.module for entry in vision})
        warnings.append(
            AdapterWarning("vision_dropped", f"{count} vision modules were left out, as prepare.vision says")
        )
    without = vision if policy.vision != "keep" else []
    unwanted = [entry for entry in entries if any(ends_with(entry.module, end) for end in policy.drop)]
    if unwanted:
        warnings.append(_dropped(unwanted))
    left = {id(entry) for entry in (*without, *unwanted)}
    left |= {id(entry) for entry in entries if entry.part is TensorPart.MAGNITUDE}
    kept = [entry for entry in entries if id(entry) not in left]
    return kept, [*findings, *_foreign(kept)], warnings


def _dropped(entries: Sequence[TensorName]) -> AdapterWarning:
    modules = {entry.module for entry in entries}
    message = f"{len(modules)} modules were left out, as prepare.drop says: {patterns_of(modules)}"
    return AdapterWarning("modules_dropped", f"{message}; answers differ from training")


def _vision_finding(vision: Sequence[TensorName]) -> Finding:
    found = f"{len({entry.module for entry in vision})} vision modules"
    remedy = "set prepare.vision to drop, or to keep where the engines run with tower LoRA"
    return Finding("vision_modules", vision[0].module, found, "modules of the language model", remedy)


def _dora(
    entries: Sequence[TensorName], config: AdapterConfig, policy: Policy
) -> tuple[list[Finding], list[AdapterWarning]]:
    magnitudes = [entry.tensor.name for entry in entries if entry.part is TensorPart.MAGNITUDE]
    if not magnitudes and not config.use_dora:
        return [], []
    if policy.dora == "strip":
        message = (
            f"DoRA was taken off ({len(magnitudes)} magnitudes), as prepare.dora says: answers differ from training"
        )
        return [], [AdapterWarning("dora_stripped", message)]
    key = "use_dora" if config.use_dora else magnitudes[0]
    remedy = "train plain LoRA, or set prepare.dora to strip and accept other answers"
    return [Finding("dora_not_supported", key, f"DoRA ({len(magnitudes)} magnitudes)", "plain LoRA", remedy)], []


def _foreign(entries: Sequence[TensorName]) -> list[Finding]:
    """Tensors that are no part of a LoRA adapter that an engine serves."""
    remedy = "save the adapter again with PEFT, as plain LoRA"
    reasons: dict[TensorPart, Finding] = {}
    for entry in entries:
        name = entry.tensor.name
        if entry.part is TensorPart.UNKNOWN:
            reasons.setdefault(
                entry.part, Finding("unknown_tensor", name, "a tensor of another kind", "LoRA weights", remedy)
            )
        if entry.part is TensorPart.WHOLE:
            reasons.setdefault(entry.part, _whole(name, entries))
        if entry.part is TensorPart.BIAS:
            reasons.setdefault(entry.part, Finding("bias_not_supported", name, "a bias", "none", remedy))
    return list(reasons.values())


def _whole(name: str, entries: Sequence[TensorName]) -> Finding:
    ends = sorted({entry.module.rpartition(".")[2] for entry in entries if entry.part is TensorPart.WHOLE})
    remedy = f"train it without them, or set prepare.drop to [{', '.join(ends[:8])}] and lose what they learned"
    return Finding("unknown_tensor", name, "a whole matrix of the model itself", "LoRA weights", remedy)


def _unread(kept: Sequence[TensorName], policy: Policy) -> list[Finding]:
    """Tensors under names that engines do not read, and that stay as they are; the first of them."""
    if policy.remap == "auto":
        return []
    unread = [name for one in kept if not (name := one.tensor.name).endswith(one.key(one.module).removeprefix(PREFIX))]
    remedy = "set prepare.remap to auto, or save the adapter again with PEFT"
    return [
        Finding("unknown_tensor", name, "a name that engines do not read", "names as PEFT saves them", remedy)
        for name in unread[:1]
    ]


def _place(
    modules: Mapping[str, Module], config: AdapterConfig, base: BaseModules | None, policy: Policy
) -> tuple[dict[str, str], list[Finding]]:
    """New names of modules that the base calls otherwise."""
    if base is None:
        return {}, []
    linear = {
        name: module
        for name, module in modules.items()
        if not module.parts.keys() & {TensorPart.BIAS, TensorPart.UNKNOWN, TensorPart.WHOLE}
    }
    mapped = map_modules(linear, base, may_rename=policy.remap == "auto")
    names = Counter(mapped.renames.get(name, name) for name in modules)
    twice = sorted({name for name in mapped.renames.values() if names[name] > 1})
    unsure = wrapped_pattern_findings(config, mapped.unwrapped)
    return mapped.renames, [*mapped.findings, *unsure, *(duplicate(name, f"module {name}") for name in twice)]


def _content(
    modules: Mapping[str, Module], renames: Mapping[str, str], ranks: Patterns[int] | None, base: BaseModules | None
) -> list[Finding]:
    """`ranks` None: which rank a module should have is not known, since a pattern is not followed."""
    findings: list[Finding] = []
    for name, module in modules.items():
        findings += pair_findings(module)
        if ranks is not None:
            findings += rank_findings(module, ranks.value(name))
        served = renames.get(name, name)
        if base is not None and served in base.served:
            findings += shape_findings(module, served, base.served[served])
    return findings


def _rotary(
    modules: Mapping[str, Module], renames: Mapping[str, str], base: BaseModules | None
) -> tuple[dict[str, int], list[Finding]]:
    """The tensors whose rows have to be ordered as the engine orders the base's, each with the outputs of a head."""
    coverage = base.coverage if base else None
    if base is None or coverage is None:
        return {}, []
    found = {name: module.up for name, module in modules.items() if coverage.is_rotary(renames.get(name, name))}
    size = base.head_size
    if size is not None and not size % 2 and all(up is None or not up.shape[0] % size for up in found.values()):
        return {up.name: size for up in found.values() if up is not None}, []
    remedy = "let loraplane pool update --from read the base model again"
    found_text = "rows that vLLM orders for its rotary embedding"
    expected = f"the outputs of an attention head, as a divisor of them; it is {size}"
    return {}, [
        Finding("not_applied_by_engine", name, found_text, expected, remedy) for name, up in found.items() if up
    ][:1]


def _limits(modules: Mapping[str, Module], config: AdapterConfig, limits: AdapterLimits) -> list[Finding]:
    findings = []
    rank, most = config.highest_rank, limits.max_rank
    if most is not None and rank > most:
        remedy = f"start the engines with --max-lora-rank {rank} or more, or train with a lower rank"
        findings.append(Finding("rank_too_high", "r", f"rank {rank}", f"at most {most}", remedy))
    left_out = [name for name in modules if not is_served(name, limits.target_modules)]
    if left_out:
        expected = f"modules among {', '.join(limits.target_modules or ())}"
        remedy = "start the engines with --lora-target-modules that name all of the adapter's"
        found = f"{len(left_out)} modules that the replicas leave out"
        findings.append(Finding("target_modules_mismatch", left_out[0], found, expected, remedy))
    return findings


def base_name_findings(name: str | None, base: BaseModules | None) -> list[Finding]:
    """Another base of the same shapes cannot be told by its shapes; where the pool lists names, one must be right.

    `name`: what the adapter calls its base; None: nothing.
    """
    known = {model_name(one) for one in base.names} if base else set()
    if base is None or not known or (name is not None and model_name(name) in known):
        return []
    remedy = "serve it in a pool of its own base model, or add the name to those that the pool knows"
    return [Finding("other_base", "base_model_name_or_path", shown(name), " or ".join(base.names[:8]), remedy)]


def _new_keys(kept: Sequence[TensorName], renames: Mapping[str, str], policy: Policy) -> dict[str, str]:
    if policy.remap == "off":
        return {}
    pairs = {entry.tensor.name: entry.key(renames.get(entry.module, entry.module)) for entry in kept}
    return {old: new for old, new in pairs.items() if old != new}


def _new_config(
    config: AdapterConfig, modules: Mapping[str, Module], renames: Mapping[str, str], policy: Policy
) -> dict[str, object]:
    changes = {**config.rewritten, **({"use_dora": False} if config.use_dora else {})}
    if config.names_weights:  # the same adapter, as every engine takes it
        targets = sorted({name.rpartition(".")[2] for name in modules})
        changes |= {"target_modules": targets, "target_parameters": None}
    left = left_to_save(config, policy.drop)
    # Trainers may leave out the name of a head, and vLLM takes its matrix for half of a pair then.
    heads = {name.rpartition(".")[2] for name, module in modules.items() if TensorPart.SAVED in module.parts}
    left += sorted(heads.difference(left))
    if left != (config.modules_to_save or []):
        changes["modules_to_save"] = left or None
    if renames:
        names = {name: renames.get(name, name) for name in modules}
        patterns = {"rank_pattern": config.rank_pattern, "alpha_pattern": config.alpha_pattern}
        defaults = {"rank_pattern": config.r, "alpha_pattern": config.lora_alpha}
        changes |= {
            field: renamed_pattern(values, names, defaults[field]) for field, values in patterns.items() if values
        }
    return changes


def _base_layers(kept: Sequence[TensorName]) -> list[AdapterWarning]:
    names = [entry.tensor.name for entry in kept if entry.part is TensorPart.BASE_LAYER]
    message = f"{len(names)} weights of the base model are in the file; engines use their own"
    return [AdapterWarning("base_layer_ignored", message)] if names else []
