"""The modules of a base model: their names and shapes, and a fingerprint over both. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product
from math import prod

from registry.lora.keys import split_module
from registry.lora.manifest import sha256_of
from registry.lora.tensors import Tensor

# A module's shape: (outputs, inputs); of an embedding (entries, width).
Shape = tuple[int, int]
MAX_MODULES = 200_000
_RANGES = re.compile(r"\{([0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*)\}", re.ASCII)
_WEIGHT = ".weight"


@dataclass(frozen=True, slots=True)
class BaseModules:
    """What an adapter's modules are compared with.

    Attributes:
        modules: name in the base's own checkpoint to shape.
        names: names of the base that an adapter may say it was trained on; empty: any.
        fingerprint: ``sha256:<hex>`` over `modules`.
        by_tail: tail of a module's name to its prefixes, see `split_module`.
    """

    modules: Mapping[str, Shape]
    names: tuple[str, ...] = ()
    fingerprint: str = field(init=False)
    by_tail: Mapping[str, Mapping[str, Shape]] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        by_tail: dict[str, dict[str, Shape]] = {}
        for module, shape in self.modules.items():
            prefix, tail = split_module(module)
            by_tail.setdefault(tail, {})[prefix] = shape
        object.__setattr__(self, "fingerprint", fingerprint(self.modules))
        object.__setattr__(self, "by_tail", by_tail)


def fingerprint(modules: Mapping[str, Shape]) -> str:
    """``sha256:<hex>`` of the canonical JSON of names and shapes."""
    return "sha256:" + sha256_of({module: list(shape) for module, shape in modules.items()})


def modules_of(tensors: Iterable[Tensor]) -> dict[str, Shape]:
    """The modules of a checkpoint: everything whose weight is a matrix."""
    return {
        tensor.name.removesuffix(_WEIGHT): (tensor.shape[0], tensor.shape[1])
        for tensor in tensors
        if tensor.name.endswith(_WEIGHT) and len(tensor.shape) == 2
    }


def compress(modules: Mapping[str, Shape]) -> dict[str, Shape]:
    """The modules with ``{0-31}`` for numbers that run through, so that a large model is a few lines."""
    entries = {tuple(name.split(".")): shape for name, shape in modules.items()}
    longest = max(map(len, entries), default=0)
    for position in reversed(range(longest)):
        entries = _collapse(entries, position)
    return {".".join(parts): shape for parts, shape in sorted(entries.items())}


def _collapse(entries: Mapping[tuple[str, ...], Shape], position: int) -> dict[tuple[str, ...], Shape]:
    kept: dict[tuple[str, ...], Shape] = {}
    groups: dict[tuple[tuple[str, ...], tuple[str, ...], Shape], list[int]] = {}
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


def expand(patterns: Mapping[str, Shape]) -> dict[str, Shape]:
    """The modules that `compress` made the patterns of.

    Raises:
        ValueError: see `check_patterns`.
    """
    check_patterns(patterns)
    return {name: shape for pattern, shape in patterns.items() for name in _names(pattern)}


def check_patterns(patterns: Mapping[str, Shape]) -> None:
    """Raises ValueError where a range is none or there are more than `MAX_MODULES`; cheap for whatever is given."""
    if sum(_count(pattern) for pattern in patterns) > MAX_MODULES:
        raise ValueError(f"a base model has at most {MAX_MODULES} modules")


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
        if max(len(first), len(last)) > 6:
            raise ValueError(f"{part[:40]} is not a range of layers")
        spans.append(range(int(first), int(last or first) + 1))
    return spans
