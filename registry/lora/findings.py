"""Findings about an adapter, with reasons that programs can rely on. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Literal

from registry.lora.signatures import SignatureReason
from registry.lora.text import printable

# Stable. Programs may depend on them, not on the sentences beside them.
FindingReason = Literal[
    "ambiguous_module",
    "bias_not_supported",
    "dora_not_supported",
    "dtype_not_supported",
    "duplicate_module",
    "invalid_config",
    "no_such_module",
    "no_tensors",
    "not_an_adapter",
    "not_applied_by_engine",
    "not_finite",
    "not_taken_by_engine",
    "other_base",
    "other_format",
    "rank_mismatch",
    "rank_too_high",
    "shape_mismatch",
    "source_incomplete",
    "target_modules_mismatch",
    "too_many_layers",
    "unknown_tensor",
    "unpaired_tensor",
    "unsupported_feature",
    "unsupported_init",
    "unsupported_modules_to_save",
    "unsupported_pattern",
    "vision_modules",
    "weights_not_safetensors",
    "wrong_peft_type",
    "zero_alpha",
]
WarningReason = Literal[
    "base_layer_ignored",
    "base_name_differs",
    "bundle_left_out",
    "dora_stripped",
    "engine_coverage_unknown",
    "modules_dropped",
    "modules_missing",
    "source_gone",
    "unknown_field",
    "vision_dropped",
    "without_effect",
]
_LONGEST = 200


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        reason: stable.
        key: the tensor, module, field or file at fault.
        found: what is there.
        expected: what should be there.
        remedy: what to do about it.
        permanent: False if the same source may be right later.
    """

    reason: FindingReason | SignatureReason
    key: str
    found: str
    expected: str
    remedy: str
    permanent: bool = True

    def sentence(self) -> str:
        """All of it in one line."""
        return f"{printable(self.key)}: found {self.found}, expected {self.expected}; {self.remedy}"

    def as_dict(self) -> dict[str, object]:
        """The finding for programs."""
        return {**asdict(self), "key": printable(self.key)}


@dataclass(frozen=True, slots=True)
class AdapterWarning:
    """Something that need not be wrong, and that somebody should know."""

    reason: WarningReason
    message: str


class CannotPublish(Exception):
    """An adapter cannot be published as is wanted; the message says why and what to do."""


class UnfitAdapter(Exception):
    """An adapter that cannot be served as it is; `findings` says why, at least once."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__(summary(findings))
        self.findings = tuple(findings)


def leading(findings: Sequence[Finding]) -> list[Finding]:
    """The findings, those that are for good first."""
    return sorted(findings, key=lambda one: not one.permanent)


def summary(findings: Sequence[Finding]) -> str:
    """The first finding in one line, and how many there are beside it."""
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    return findings[0].sentence() + more


def shown(value: object) -> str:
    """A value from somebody's file, cut to a length that can be printed."""
    text = f"a {type(value).__name__}"
    with suppress(RecursionError):
        text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
