"""Modules of a base model: names, shapes and a fingerprint. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any, Protocol, TypeVar

from registry.lora.coverage.table import Coverage, Unapplied, coverage_of
from registry.lora.digest import sha256_of
from registry.lora.safetensors import Tensor
from registry.lora.tensor_names import is_vision, split_module

# A module's shape: (outputs, inputs); of an embedding (entries, width).
Shape = tuple[int, int]
MAX_MODULES = 200_000
_RANGES = re.compile(r"\{([0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*)\}", re.ASCII)
_WEIGHT = ".weight"
_CACHED = "models--"
Value = TypeVar("Value")


class EngineSays(Protocol):
    """Modules that an engine says it applies, see `registry.lora.coverage.findings`."""

    def unapplied(self, module: str, /) -> Unapplied | None: ...


@dataclass(frozen=True, slots=True)
class BaseModules:
    """Base model's modules, with which an adapter's are compared.

    Attributes:
        modules: name in the base's own checkpoint to shape.
        names: names of the base that an adapter may say it was trained on; empty: any.
        architecture: as its config.json calls it; None: not known.
        is_tied: its head is its embedding, so that the checkpoint has no ``lm_head``.
        head_size: outputs of one attention head; None: not known.
        engine: kind of the engines that apply adapters to it, see `registry.model.engine_kinds.applying_kind`.
        evidence: what such an engine said that it applies of adapters; None: nobody asked it.
        layout: digest of its files' tensors, see `layout_of`; None: they were not read.
        weights: digest of a sample of their numbers, see `registry.lora.base_directory`; None: as before.
        fingerprint: ``sha256:<hex>`` over `modules`.
        coverage: what such an engine applies of an adapter; None: nothing is known.
        served: `modules`, and the head of a tied base.
        by_tail: tail of a served module's name to its prefixes, see `split_module`.
        usual: prefix and tail of those that an adapter of all its modules has: no experts, towers or draft layers.
    """

    modules: Mapping[str, Shape]
    names: tuple[str, ...] = ()
    architecture: str | None = None
    is_tied: bool = False
    head_size: int | None = None
    engine: str = "vllm"
    evidence: EngineSays | None = field(default=None, compare=False)
    layout: str | None = field(default=None, compare=False)
    weights: str | None = field(default=None, compare=False)
    fingerprint: str = field(init=False)
    coverage: Coverage | None = field(init=False, compare=False, repr=False)
    served: Mapping[str, Shape] = field(init=False, compare=False, repr=False)
    by_tail: Mapping[str, Mapping[str, Shape]] = field(init=False, compare=False, repr=False)
    usual: tuple[tuple[str, str], ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        coverage = coverage_of(self.architecture, self.engine)
        heads = _tied_heads(self.modules) if self.is_tied and coverage else {}
        served = {**heads, **self.modules}
        by_tail: dict[str, dict[str, Shape]] = {}
        for module, shape in served.items():
            prefix, tail = split_module(module)
            by_tail.setdefault(tail, {})[prefix] = shape
        object.__setattr__(self, "fingerprint", fingerprint(self.modules))
        object.__setattr__(self, "coverage", coverage)
        object.__setattr__(self, "served", served)
        object.__setattr__(self, "by_tail", by_tail)
        object.__setattr__(self, "usual", tuple(_usual(by_tail)))

    def unapplied(self, module: str, *, is_embedding: bool) -> Unapplied | None:
        """Why engines do not apply an adapter's module of that name; None: nothing is known against it."""
        cause = self.coverage.unapplied(module, is_embedding=is_embedding) if self.coverage else None
        return cause or (self.evidence.unapplied(module) if self.evidence else None)

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal for bases of which the same is found out about an adapter."""
        return self.fingerprint, self.names, self.architecture, self.is_tied, self.head_size, self.engine

    @property
    def prepared_for(self) -> str:
        """Facts of the base that decide the bytes of a prepared adapter."""
        is_ordered = self.coverage is not None and self.coverage.rotary
        return f"{self.fingerprint} rotary {self.head_size}" if is_ordered else self.fingerprint


# Layers of a checkpoint that predict further tokens have it; transformers leaves them out.
_DRAFT_PART = ".eh_proj"


def _usual(by_tail: Mapping[str, Iterable[str]]) -> Iterable[tuple[str, str]]:
    drafts = tuple(tail.removesuffix(_DRAFT_PART[1:]) for tail in by_tail if tail.endswith(_DRAFT_PART))
    for tail, prefixes in by_tail.items():
        if ".experts." in tail or (drafts and tail.startswith(drafts)):
            continue
        for prefix in prefixes:
            if not is_vision(prefix + tail):
                yield prefix, tail


def _tied_heads(modules: Mapping[str, Shape]) -> dict[str, Shape]:
    """The head that is not in the checkpoint: its matrix is that of the embedding."""
    embedding = "model.embed_tokens"
    ends = {name: name.removesuffix(embedding) for name in modules if name.endswith(embedding)}
    return {f"{prefix}lm_head": modules[name] for name, prefix in ends.items() if prefix in {"", "language_model."}}


# The last parts of their names, in all families that are served.
_OF_TOKENS = frozenset({"embed_tokens", "wte", "embed_in", "word_embeddings", "lm_head"})


def vocabulary_of(modules: Mapping[str, Shape]) -> int | None:
    """Number of tokens that a base model knows, by its embedding or its head; None: neither is known by its name."""
    sizes = (rows for name, (rows, _) in modules.items() if name.rpartition(".")[2] in _OF_TOKENS)
    return max(sizes, default=None)


def hub_name(name: str) -> str:
    """A model's name; of a path into a hub's cache, ``…/models--ORGANISATION--NAME/snapshots/COMMIT``, that of the hub.

    Whoever trained on another system wrote its paths, so that both kinds of slashes part them.
    """
    parts = [part for part in name.replace("\\", "/").split("/") if part]
    cached = [part.removeprefix(_CACHED) for part in parts if part.startswith(_CACHED)]
    return cached[-1].replace("--", "/") if cached else "/".join(parts)


def model_name(name: str) -> str:
    """The last part of a model's name, in lower case: what is left of it wherever it is stored."""
    return hub_name(name).rpartition("/")[2].lower()


def fingerprint(modules: Mapping[str, Shape]) -> str:
    """``sha256:<hex>`` of the canonical JSON of names and shapes."""
    return "sha256:" + sha256_of({module: list(shape) for module, shape in modules.items()})


def fingerprint_of_patterns(patterns: Mapping[str, Shape]) -> str:
    """The fingerprint of the modules that patterns stand for.

    Raises:
        ValueError: see `check_patterns`.
    """
    return fingerprint(expand(patterns))


def layout_of(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> str:
    """``sha256:<hex>`` over names, types and shapes: where it differs, samples of numbers cannot be compared."""
    return "sha256:" + sha256_of({name: [dtype, *shape] for name, (dtype, shape) in tensors.items()})


def modules_of(tensors: Iterable[Tensor]) -> dict[str, Shape]:
    """The modules of a checkpoint: everything whose weight is a matrix."""
    return {
        tensor.name.removesuffix(_WEIGHT): (tensor.shape[0], tensor.shape[1])
        for tensor in tensors
        if tensor.name.endswith(_WEIGHT) and len(tensor.shape) == 2
    }


def compress(modules: Mapping[str, Value]) -> dict[str, Value]:
    """The modules with ``{0-31}`` for numbers that run through, so that a large model is a few lines.

    Each has its shape, or another value by which they are told apart.
    """
    entries = {tuple(name.split(".")): shape for name, shape in modules.items()}
    longest = max(map(len, entries), default=0)
    for position in reversed(range(longest)):
        entries = _collapse(entries, position)
    return {".".join(parts): shape for parts, shape in sorted(entries.items())}


def _collapse(entries: Mapping[tuple[str, ...], Value], position: int) -> dict[tuple[str, ...], Value]:
    kept: dict[tuple[str, ...], Value] = {}
    groups: dict[tuple[tuple[str, ...], tuple[str, ...], Value], list[int]] = {}
    for parts, shape in entries.items():
        part = parts[position] if position < len(parts) else ""
        if part.isdecimal() and str(int(part)) == part:
            groups.setdefault((parts[:position], parts[position + 1 :], shape), []).append(int(part))
        else:
            kept[parts] = shape
    for (before, after, shape), numbers in groups.items():
        kept[*before, _ranges_text(sorted(numbers)), *after] = shape
    return kept


def _ranges_text(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return str(numbers[0])
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return "{" + ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in ranges) + "}"


def expand(patterns: Mapping[str, Value]) -> dict[str, Value]:
    """The modules that `compress` made the patterns of.

    Raises:
        ValueError: see `check_patterns`.
    """
    check_patterns(patterns)
    return {name: shape for pattern, shape in patterns.items() for name in _names(pattern)}


def check_patterns(patterns: Iterable[str]) -> None:
    """Raises ValueError where a range is none or there are more than `MAX_MODULES`; cheap for whatever is given."""
    if count_modules(patterns) > MAX_MODULES:
        raise ValueError(f"a base model has at most {MAX_MODULES} modules")


def count_modules(patterns: Iterable[str]) -> int:
    """Number of modules that patterns stand for. Raises ValueError where a range is none."""
    return sum(map(_count, patterns))


def _count(pattern: str) -> int:
    return prod(sum(len(numbers) for numbers in _spans(text)) for text in _RANGES.findall(pattern))


def _names(pattern: str) -> Iterable[str]:
    pieces = _RANGES.split(pattern)
    choices = [[n for span in _spans(text) for n in span] for text in pieces[1::2]]
    for numbers in product(*choices):
        texts = [text for pair in zip(pieces[::2], map(str, numbers), strict=False) for text in pair]
        yield "".join(texts) + pieces[-1]


def _spans(text: str) -> list[range]:
    """The ranges of ``0-3,7``. Numbers of more than six digits are not layers, and count as too many."""
    spans = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        # Backward it would count as none, and be made all the same.
        if max(len(first), len(last)) > 6 or int(last or first) < int(first):
            raise ValueError(f"{part[:40]} is not a range of layers")
        spans.append(range(int(first), int(last or first) + 1))
    return spans


# Quantizers put several numbers of few bits into one of more, so that a tensor has another shape than its module. What
# each form keeps beside them tells the module's shape all the same.
# The bytes of a tensor of that name; only of small ones.
ReadTensor = Callable[[str], bytes]
_PACKED_TYPES = {"U8", "I32", "U32"}
_ENDS = (".qweight", ".weight_packed", ".W_q", ".codes", ".Qidxs", ".weight.compressed")
_WIDTHS = {"I32": 4, "I64": 8}
_MAX_READ_BYTES = 1 << 16
_WORD_BITS = 32


class UnknownPacking(ValueError):
    """Packed weights in a form that is not read here; the message says which, and what to give instead."""


def packed_modules(tensors: Iterable[Tensor], config: Mapping[str, Any], read: ReadTensor) -> dict[str, Shape]:
    """The modules whose weights are packed matrices.

    Args:
        tensors: of all files.
        config: what config.json says.
        read: gives a tensor's bytes.

    Raises:
        UnknownPacking: see there.
    """
    checkpoint = _Checkpoint({tensor.name: tensor for tensor in tensors}, config, read)
    found: dict[str, Shape] = {}
    for tensor in checkpoint.tensors.values():
        if not is_packed(tensor) or len(tensor.shape) > 2:  # experts that are one tensor are no modules here
            continue
        module, _, end = tensor.name.rpartition(".")
        shape = checkpoint.shape(module, end)
        if shape is None or min(shape) < 1:
            raise UnknownPacking(
                f"{tensor.name} is packed ({_method(config)}) in a form that is not read here; name the folder of the "
                "same model before it was quantized"
            )
        found[module] = shape
    return found


def is_packed(tensor: Tensor) -> bool:
    """True if a tensor has not the shape of its module."""
    return tensor.name.endswith(_ENDS) or (tensor.name.endswith(".weight") and tensor.dtype in _PACKED_TYPES)


def _method(config: Mapping[str, Any]) -> str:
    quantization = config.get("quantization_config")
    method = quantization.get("quant_method") if isinstance(quantization, Mapping) else None
    return str(method)[:40] if method else "by what, config.json does not say"


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """Evidence of packed modules; see `packed_modules`."""

    tensors: Mapping[str, Tensor]
    config: Mapping[str, Any]
    read: ReadTensor

    def shape(self, module: str, end: str) -> Shape | None:
        """Shape of a module whose tensor with that end is packed; None: it is unknown."""
        match end:
            case "qweight":
                return self._of_qweight(module)
            case "weight_packed":
                return self._of_compressed(module)
            case "weight":
                return self._of_weight(module)
            case _:
                return None

    def _of_qweight(self, module: str) -> Shape | None:
        """AWQ packs the outputs, GPTQ the inputs; the scales have one column for each output."""
        rows, columns = _sizes(self.tensors.get(f"{module}.qweight"))
        groups, outputs = _sizes(self.tensors.get(f"{module}.scales"))
        _, zeros = _sizes(self.tensors.get(f"{module}.qzeros"))
        if not groups or not columns or self.tensors[f"{module}.qweight"].dtype != "I32":
            return None
        if columns < outputs:
            return (outputs, rows) if zeros in {0, columns} and not outputs % columns else None
        if columns != outputs:
            return None
        indices = self.tensors.get(f"{module}.g_idx")
        if indices is not None and len(indices.shape) == 1 and indices.shape[0]:
            return outputs, indices.shape[0]
        bits = zeros * _WORD_BITS // outputs or _bits(self.config)
        return outputs, rows * _WORD_BITS // bits if bits else 0

    def _of_compressed(self, module: str) -> Shape | None:
        """compressed-tensors keeps the shape beside it, but not where a byte has two numbers."""
        packed, kept = self.tensors[f"{module}.weight_packed"], self.tensors.get(f"{module}.weight_shape")
        outputs, columns = _sizes(packed)
        if f"{module}.weight_scale" not in self.tensors:
            return None
        if packed.dtype == "U8":
            return outputs, 2 * columns
        bits = _bits(self.config)
        if kept is not None and kept.shape == (2,) and kept.dtype in _WIDTHS:
            width, content = _WIDTHS[kept.dtype], self.read(kept.name)
            first, second = (int.from_bytes(content[at : at + width], "little") for at in (0, width))
            if first == outputs and columns <= second <= columns * _WORD_BITS:
                return first, second
        return (outputs, columns * _WORD_BITS // bits) if bits else None

    def _of_weight(self, module: str) -> Shape | None:
        """bitsandbytes keeps a description in JSON, ModelOpt two numbers in a byte, MLX as many as config.json says."""
        weight = self.tensors[f"{module}.weight"]
        outputs, columns = _sizes(weight)
        for kind in ("nf4", "fp4"):
            state = self.tensors.get(f"{module}.weight.quant_state.bitsandbytes__{kind}")
            if state is not None and state.end - state.begin <= _MAX_READ_BYTES:
                shape = _described(self.read(state.name))
                return shape if shape and (shape[0] * shape[1] + 1) // 2 == outputs * columns else None
        if weight.dtype == "U8" and {f"{module}.weight_scale", f"{module}.weight_scale_2"} <= self.tensors.keys():
            return outputs, 2 * columns
        bits = _bits(self.config) if {f"{module}.scales", f"{module}.biases"} <= self.tensors.keys() else 0
        return (outputs, columns * _WORD_BITS // bits) if bits and weight.dtype == "U32" else None


def _sizes(tensor: Tensor | None) -> Shape:
    """Rows and columns of a matrix; nothing for what is none."""
    return (tensor.shape[0], tensor.shape[1]) if tensor is not None and len(tensor.shape) == 2 else (0, 0)


def _described(content: bytes) -> Shape | None:
    with suppress(ValueError, RecursionError):
        match json.loads(content):
            case {"shape": [int(outputs), int(inputs)]}:
                return outputs, inputs
            case _:
                pass
    return None


def _bits(config: Mapping[str, Any]) -> int:
    """Bits of each packed number, as config.json says; 0: it does not, or they differ."""
    found: set[object] = set()
    for name in ("quantization_config", "quantization"):
        match config.get(name):
            case {"config_groups": dict(groups)}:
                found |= {_bits_of_group(one) for one in groups.values()}
            case {"bits": int(bits)}:
                found.add(bits)
    said = found.pop() if len(found) == 1 else 0
    return said if isinstance(said, int) and 1 <= said <= 8 else 0


def _bits_of_group(group: object) -> int:
    match group:
        case {"weights": {"num_bits": int(bits)}}:
            return bits
        case _:
            return 0
