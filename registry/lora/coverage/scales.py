"""Scales of modules that an engine may compute otherwise than training. Pure.

The training multiplies what a module adds by ``lora_alpha / r``, or by what its configuration says instead. An engine
that does not read all of that serves the adapter without a word, and wrongly.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import Literal

from registry.lora.base import expand
from registry.lora.config import AdapterConfig
from registry.lora.modules import Patterns

# What makes some module's scale another one: `rank_pattern` or `alpha_pattern`; `use_rslora`; the same of experts.
ScaleSource = Literal["patterns", "rslora", "rslora_experts"]


def scale_sources(config: AdapterConfig, modules: Collection[str]) -> frozenset[ScaleSource]:
    """Sources of scales that engines have to read, to serve these modules as they were trained.

    Args:
        config: of the adapter as an engine gets it.
        modules: its modules, with ``{0-31}`` for numbers that run through.

    Raises:
        ValueError: see `registry.lora.base.expand`.
    """
    return frozenset(_sources(config, modules))


def _sources(config: AdapterConfig, modules: Collection[str]) -> Iterator[ScaleSource]:
    if config.use_rslora and config.highest_rank > 1:
        yield "rslora"
        if any(".experts" in name for name in modules):
            yield "rslora_experts"
    if config.rank_pattern or config.alpha_pattern:
        ranks, alphas = Patterns(config.rank_pattern, config.r), Patterns(config.alpha_pattern, config.lora_alpha)
        usual = _scale(config, config.r, config.lora_alpha)
        names = map(_trained_name, expand(dict.fromkeys(modules, (1, 1))))
        if any(not math.isclose(_scale(config, ranks.value(one), alphas.value(one)), usual) for one in names):
            yield "patterns"


def _scale(config: AdapterConfig, rank: int, alpha: float) -> float:
    return alpha / (math.sqrt(rank) if config.use_rslora else rank)


def _trained_name(module: str) -> str:
    """The name that PEFT compares patterns with: that of a parameter, where it trains all experts of a layer as one."""
    if module.endswith(".experts.base_layer"):
        return module.removesuffix("base_layer") + "gate_up_proj"
    return f"{module}.down_proj" if module.endswith(".experts") else module
