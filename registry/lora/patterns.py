"""How PEFT finds the rank and the alpha of a module in rank_pattern and alpha_pattern. Pure.

Keys are regular expressions out of somebody's file. Only those are followed whose matching ends soon.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Generic, TypeVar

from registry.lora.config import AdapterConfig
from registry.lora.findings import Finding

Value = TypeVar("Value", bound=float)
_MAX_KEY_CHARACTERS = 256
_MAX_REPEATS = 1
# What all matches together may cost, in plain ones; one with a repeat costs as much as a thousand.
_MAX_COST = 4_000_000
_REPEAT_COST = 1_000
# A repeated group can take for ever; a few repeated single characters cannot.
_SAFE = re.compile(r"(?:(?:[\w./-]|\\[.dw/-]|\[[\w-]+\])[*+?]?|\||\((?:\?:)?|\)|\^|\$)+", re.ASCII)


def pattern_findings(config: AdapterConfig, modules: int) -> list[Finding]:
    """Keys of the patterns that are not followed, given how many modules there are."""
    keys = [("rank_pattern", key) for key in config.rank_pattern or ()]
    keys += [("alpha_pattern", key) for key in config.alpha_pattern or ()]
    cost = sum(_REPEAT_COST if re.search(r"[*+]", key) else 1 for _, key in keys) * modules
    if cost > _MAX_COST:
        return [_unsupported("rank_pattern", f"{len(keys)} expressions for {modules} modules")]
    return [
        _unsupported(f"{field}.{key}", "an expression that may take long to match")
        for field, key in keys
        if not _is_safe(key)
    ]


def _unsupported(key: str, found: str) -> Finding:
    remedy = "name the modules in full instead, as model.layers.0.self_attn.q_proj"
    return Finding("unsupported_pattern", key[:300], found, "few and simple ones", remedy)


def _is_safe(key: str) -> bool:
    if len(key) > _MAX_KEY_CHARACTERS or not _SAFE.fullmatch(key) or len(re.findall(r"[*+]", key)) > _MAX_REPEATS:
        return False
    try:
        re.compile(key)
    except re.error:
        return False
    return True


class Patterns(Generic[Value]):
    """Values for modules: that of the first key which the module's name is, or ends with after a dot."""

    def __init__(self, values: Mapping[str, Value] | None, default: Value) -> None:
        """Takes keys that `pattern_findings` has nothing against; others are left out."""
        safe = {key: value for key, value in (values or {}).items() if _is_safe(key)}
        self._rules = [(re.compile(rf"(?:.*\.)?(?:{key})$"), value) for key, value in safe.items()]
        self._default = default

    def own(self, module: str) -> Value | None:
        """The value that a key gives the module; None: no key does."""
        return next((value for rule, value in self._rules if rule.match(module)), None)

    def value(self, module: str) -> Value:
        """The module's value."""
        own = self.own(module)
        return self._default if own is None else own


def renamed_pattern(values: Mapping[str, Value] | None, renames: Mapping[str, str]) -> dict[str, Value]:
    """The same values for modules under new names: a key for each, longer names first, since the first match wins.

    Args:
        values: the pattern as it is.
        renames: old name to new name of every module, also of those that keep theirs.
    """
    if not values:
        return {}
    patterns: Patterns[Value] = Patterns(values, next(iter(values.values())))
    found = {new: patterns.own(old) for old, new in renames.items()}
    ordered = sorted(found, key=lambda name: (-len(name), name))
    return {re.escape(name): value for name in ordered if (value := found[name]) is not None}
