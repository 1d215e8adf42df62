"""Modules of an adapter: ranks, alphas, shapes, and PEFT's patterns. Pure.

Keys are regular expressions out of somebody's file. They are matched by RE2, whose time is linear.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Generic, Protocol, TypeVar

import re2

from registry.lora.base import Shape
from registry.lora.config import AdapterConfig
from registry.lora.findings import Finding
from registry.lora.safetensors import Tensor
from registry.lora.tensor_names import PAIR_PARTS, TensorName, TensorPart

Value = TypeVar("Value", bound=float)
_MAX_KEY_CHARACTERS = 256
# For one expression, compiled. Names of modules need a hundredth of it.
_MAX_PROGRAM_BYTES = 1 << 18
# Bound of all matches together. A plain one costs 1, about a microsecond; a repeat costs what its program may take,
# and a large one may have to be run step by step.
_MAX_COST = 4_000_000
_SMALL_PROGRAM = 256
_REPEAT = r"(?:(?:[*+?]|\{\d{1,3}(?:,\d{0,3})?\})\??)?"
_CLASS = r"\[\^?(?:[\w./-]|\\[dw.-])+\]"
# The syntax that Python's re, by which PEFT matches, and RE2 understand alike.
_COMMON = re2.compile(rf"(?:(?:[\w./:-]|\\[dDwW./:_-]|{_CLASS}|\)){_REPEAT}|\||\((?:\?:)?|\^|\$)+")


class _Compiled(Protocol):
    programsize: int

    def fullmatch(self, text: str) -> object | None: ...


def pattern_findings(config: AdapterConfig, modules: int) -> list[Finding]:
    """Keys of the patterns that are not followed, given how many modules there are."""
    keys = [("rank_pattern", key) for key in config.rank_pattern or ()]
    keys += [("alpha_pattern", key) for key in config.alpha_pattern or ()]
    findings = [
        _unsupported(f"{field}.{key}", "an expression that is not read here as PEFT reads it")
        for field, key in keys
        if _compiled(key) is None
    ]
    if not findings and sum(_cost(key) for _, key in keys) * modules > _MAX_COST:
        return [_unsupported("rank_pattern", f"{len(keys)} expressions for {modules} modules")]
    return findings


def _unsupported(key: str, found: str) -> Finding:
    remedy = "name the modules in full instead, as model.layers.0.self_attn.q_proj"
    return Finding("unsupported_pattern", key[:300], found, "few and simple ones", remedy)


@cache
def linear_options(max_program_bytes: int) -> object:
    """RE2's options for an expression of somebody else's that takes so much compiled, and no more."""
    options = re2.Options()
    options.max_mem = max_program_bytes
    options.log_errors = False
    return options


def _compiled(key: str) -> _Compiled | None:
    """PEFT's rule for a key, in time that is linear in the module's name; None: it cannot be had.

    PEFT: ``re.match(rf"(.*\\.)?({key})$", name)`` in ``peft.utils.other.get_pattern_key``.
    """
    if len(key) > _MAX_KEY_CHARACTERS or not key.isascii() or not _COMMON.fullmatch(key):
        return None
    try:
        re.compile(key)  # what Python does not take, PEFT could not follow either
        compiled: _Compiled = re2.compile(rf"(?:.*\.)?(?:{key})$", linear_options(_MAX_PROGRAM_BYTES))
    except (re.error, re2.error, RecursionError):
        return None
    return compiled


def _cost(key: str) -> int:
    if not re.search(r"[*+?{]", key):
        return 1
    compiled = _compiled(key)
    size = compiled.programsize if compiled is not None else 0
    return (2 if size <= _SMALL_PROGRAM else 16) * size


class Patterns(Generic[Value]):
    """Values for modules: that of the first key which the module's name is, or ends with after a dot."""

    def __init__(self, values: Mapping[str, Value] | None, default: Value) -> None:
        """Takes keys that `pattern_findings` has nothing against; others are left out."""
        rules = ((_compiled(key), value) for key, value in (values or {}).items())
        self._rules = [(rule, value) for rule, value in rules if rule is not None]
        self._default = default

    def own(self, module: str) -> Value | None:
        """The value that a key gives the module; None: no key does."""
        return next((value for rule, value in self._rules if rule.fullmatch(module)), None)

    def value(self, module: str) -> Value:
        """The module's value."""
        own = self.own(module)
        return self._default if own is None else own


def wrapped_pattern_findings(config: AdapterConfig, unwrapped: Mapping[str, str]) -> list[Finding]:
    """Patterns that mean another module once wrappers are left out of its name: nobody knows which was trained."""
    findings = []
    for field, values in (("rank_pattern", config.rank_pattern), ("alpha_pattern", config.alpha_pattern)):
        patterns: Patterns[float] = Patterns(values, 0)
        if any(patterns.own(name) != patterns.own(inner) for name, inner in unwrapped.items()):
            found, expected = "expressions that mean others with the wrapper amid the names", "the same modules"
            remedy = "take the wrapper out of the tensors' names, and look whether the pattern means those"
            findings.append(Finding("unsupported_pattern", field, found, expected, remedy))
    return findings


def renamed_pattern(values: Mapping[str, Value] | None, renames: Mapping[str, str], default: Value) -> dict[str, Value]:
    """The same values for modules under new names, see `pattern_of`.

    Args:
        values: the pattern as it is.
        renames: old name to new name of every module, also of those that keep theirs.
        default: value of those that no key gives one.
    """
    patterns: Patterns[Value] = Patterns(values, default)
    return pattern_of({new: patterns.own(old) for old, new in renames.items()}, default)


def pattern_of(own: Mapping[str, Value | None], default: Value) -> dict[str, Value]:
    """A pattern by which modules have these values, and the default where that is None.

    It has a key for each, longer names first, since the first match wins.
    """
    # A key means whatever ends with its name, too.
    meant = [name for name in own if any(own.get(end) is not None for end in ends_of(name))]
    ordered = sorted(meant, key=lambda name: (-len(name), name))
    return {re.escape(name): default if (value := own[name]) is None else value for name in ordered}


def ends_of(name: str) -> Iterable[str]:
    """The name, and all that it ends with after a dot."""
    parts = name.split(".")
    return (".".join(parts[first:]) for first in range(len(parts)))


# All engines cast to their own type as they read; what would not fit there is `registry.lora.safetensors.not_finite`'s.
DTYPES = ("F32", "F16", "BF16", "F64")


@dataclass(frozen=True, slots=True)
class Module:
    """The tensors of one module by what they are; `name` is the adapter's own."""

    name: str
    parts: dict[TensorPart, Tensor]

    @property
    def down(self) -> Tensor | None:
        """A: rank x inputs."""
        return self.parts.get(TensorPart.A) or self.parts.get(TensorPart.EMBEDDING_A)

    @property
    def up(self) -> Tensor | None:
        """B: outputs x rank."""
        return self.parts.get(TensorPart.B) or self.parts.get(TensorPart.EMBEDDING_B)

    @property
    def is_embedding(self) -> bool:
        return TensorPart.EMBEDDING_A in self.parts or TensorPart.EMBEDDING_B in self.parts

    def shape(self) -> tuple[int | None, int | None]:
        """The shape of the base's module that this one was trained on, as far as it can be told."""
        outputs = self.up.shape[0] if self.up and len(self.up.shape) == 2 else None
        inputs = self.down.shape[1] if self.down and len(self.down.shape) == 2 else None
        # An embedding takes entries in and gives its width out; its matrix lies the other way round.
        return (inputs, outputs) if self.is_embedding else (outputs, inputs)

    def fits(self, shape: Shape) -> bool:
        """True if nothing that is known speaks against that shape."""
        return all(own in (None, theirs) for own, theirs in zip(self.shape(), shape, strict=True))


def modules_by_name(entries: Iterable[TensorName]) -> tuple[dict[str, Module], list[Finding]]:
    """All modules, and what two tensors claim to be at once."""
    modules: dict[str, Module] = {}
    findings = []
    for entry in entries:
        module = modules.setdefault(entry.module, Module(entry.module, {}))
        if entry.part in module.parts and entry.part is not TensorPart.SAVED:
            findings.append(duplicate(entry.tensor.name, f"{entry.part} of {entry.module}"))
        module.parts[entry.part] = entry.tensor
    return modules, findings


def duplicate(key: str, what: str) -> Finding:
    """Two tensors would come to have one name."""
    return Finding("duplicate_module", key, f"a second {what}", "one", "save the adapter again with one adapter in it")


def pair_findings(module: Module) -> list[Finding]:
    """Findings on a module's pair of tensors in itself."""
    if not PAIR_PARTS & module.parts.keys():
        return []
    findings = [_dtype(tensor) for part, tensor in module.parts.items() if tensor.dtype not in DTYPES]
    findings += [
        _flat(module.parts[part]) for part in PAIR_PARTS & module.parts.keys() if len(module.parts[part].shape) != 2
    ]
    if module.down is None or module.up is None:
        there, missing = ("lora_B", "lora_A") if module.down is None else ("lora_A", "lora_B")
        remedy = "save the adapter again, or fetch the whole file"
        findings.append(Finding("unpaired_tensor", module.name, f"{there} without {missing}", "both", remedy))
    elif (TensorPart.A in module.parts) != (TensorPart.B in module.parts):
        findings.append(Finding("unpaired_tensor", module.name, "halves of two kinds", "a pair", "save it again"))
    return findings


def head_findings(entries: Iterable[TensorName]) -> list[Finding]:
    """Findings on heads that are saved whole. Engines take one, whose weight there is, beside pairs alone."""
    heads: dict[str, dict[str, Tensor]] = {}
    findings = []
    for entry in (one for one in entries if one.part is TensorPart.SAVED):
        parts = heads.setdefault(entry.module, {})
        if entry.leaf in parts:
            findings.append(duplicate(entry.tensor.name, f"{entry.leaf} of {entry.module}"))
        if entry.tensor.dtype not in DTYPES:
            findings.append(_dtype(entry.tensor))
        parts[entry.leaf] = entry.tensor
    findings += [duplicate(name, f"head, {name}") for name in list(heads)[1:]]
    return findings + [one for name, parts in heads.items() for one in _head(name, parts)]


def _head(name: str, parts: Mapping[str, Tensor]) -> list[Finding]:
    weight, bias = parts.get("weight"), parts.get("bias")
    if weight is None:
        remedy = "save the adapter again, or fetch the whole file"
        return [Finding("unpaired_tensor", name, "a bias without its weight", "both", remedy)]
    if len(weight.shape) != 2:
        return [_flat(weight)]
    if bias is not None and bias.shape != weight.shape[:1]:
        found, expected = f"a bias of shape {list(bias.shape)}", f"one number for each of {weight.shape[0]} outputs"
        return [Finding("shape_mismatch", bias.name, found, expected, "save the adapter again with PEFT")]
    return []


def _dtype(tensor: Tensor) -> Finding:
    remedy = "save the adapter in float32, float16 or bfloat16"
    return Finding("dtype_not_supported", tensor.name, tensor.dtype, " or ".join(DTYPES), remedy)


def _flat(tensor: Tensor) -> Finding:
    return Finding(
        "shape_mismatch", tensor.name, f"shape {list(tensor.shape)}", "a matrix", "save the adapter again with PEFT"
    )


def rank_findings(module: Module, rank: int) -> list[Finding]:
    """Halves that have not the rank that the configuration says."""
    if module.down is None or module.up is None or {len(module.down.shape), len(module.up.shape)} != {2}:
        return []
    remedy = "take adapter_config.json and adapter_model.safetensors of the same training"
    return [
        Finding("rank_mismatch", tensor.name, f"rank {found}", f"{rank} as adapter_config.json says", remedy)
        for tensor, found in ((module.down, module.down.shape[0]), (module.up, module.up.shape[1]))
        if found != rank
    ]


def shape_findings(module: Module, name: str, shape: Shape) -> list[Finding]:
    """Contradictions to the base's shape of the module that it was trained on; at most one."""
    kind = name.rpartition(".")[2] == "embed_tokens"
    remedy = "serve it in a pool of the base model that it was trained on"
    own = module.parts.get(TensorPart.BASE_LAYER)
    if own is not None and own.shape != shape:
        found, expected = f"base weights of shape {list(own.shape)}", f"the base's {list(shape)}"
        return [Finding("shape_mismatch", own.name, found, expected, remedy)]
    if kind and module.parts.keys() & {TensorPart.A, TensorPart.B}:
        return [Finding("shape_mismatch", module.name, "a linear adapter", "an embedding adapter", remedy)]
    if module.fits(shape):
        return []
    outputs, inputs = module.shape()
    found, expected = f"outputs x inputs {outputs} x {inputs}", f"{shape[0]} x {shape[1]} of the base's {name}"
    return [Finding("shape_mismatch", module.name, found, expected, remedy)]
