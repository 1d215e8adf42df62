"""Fates of matrices: applied, renamed, reordered, dropped or refused. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from registry.lora.base import BaseModules, compress
from registry.lora.check import AdapterVerdict
from registry.lora.coverage.findings import prepared_modules
from registry.lora.safetensors import Tensor
from registry.lora.tensor_names import TensorName, entry_of, split_module

Fate = Literal["applied", "renamed", "reordered", "dropped", "refused"]


@dataclass(frozen=True, slots=True)
class MatrixFate:
    """Fate of modules that are alike.

    Attributes:
        module: as the adapter calls them, with ``{0-31}`` for numbers that run through.
        fate: what becomes of them.
        note: how it is renamed or reordered, or the reason for which it is refused.
    """

    module: str
    fate: Fate
    note: str


def explained(tensors: Sequence[Tensor], verdict: AdapterVerdict, base: BaseModules | None) -> list[MatrixFate]:
    """Each module of an adapter that `verdict` is on, in the order of their names.

    What is wrong with the adapter as a whole is the findings' matter, and changes no fate.
    """
    by_module: dict[str, list[TensorName]] = {}
    for tensor in tensors:
        entry = entry_of(tensor)
        by_module.setdefault(entry.module, []).append(entry)
    reasons = {finding.key: finding.reason for finding in verdict.findings}
    fates = {module: _fate(module, entries, reasons, verdict, base) for module, entries in by_module.items()}
    return [MatrixFate(pattern, fate, note) for pattern, (fate, note) in compress(fates).items()]


def _fate(
    module: str,
    entries: Sequence[TensorName],
    reasons: Mapping[str, str],
    verdict: AdapterVerdict,
    base: BaseModules | None,
) -> tuple[Fate, str]:
    changes, names = verdict.changes, [entry.tensor.name for entry in entries]
    served = _served_name(names[0], verdict)
    if set(names) <= set(changes.dropped):
        return "dropped", ""
    if reason := next((reasons[name] for name in (module, served, *names) if name in reasons), None):
        return "refused", reason
    if base is not None and served not in base.served:
        return "refused", "no_such_module"
    is_embedding = prepared_modules(entries).get(module, False)
    if base is not None and (cause := base.unapplied(served, is_embedding=is_embedding)):
        return "refused", cause.reason
    if any(name in changes.rotary for name in names):
        return "reordered", "the rows of lora_B, as the engine orders the base's"
    if served != module:
        return "renamed", _rename(split_module(module), split_module(served))
    if any(name in changes.renamed for name in names):
        return "renamed", "the keys of its tensors, as engines read them"
    return "applied", ""


def _rename(old: tuple[str, str], new: tuple[str, str]) -> str:
    return f"{old[0]!r} becomes {new[0]!r}" if old[1] == new[1] else "without the wrapper amid its name"


def _served_name(tensor: str, verdict: AdapterVerdict) -> str:
    """The module's name in the prepared file."""
    return entry_of(Tensor(verdict.changes.renamed.get(tensor, tensor), "F32", (), 0, 0)).module
