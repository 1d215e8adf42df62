"""What the scales of an adapter's modules follow from."""

from __future__ import annotations

import json

import pytest

from registry.lora.config import read_config
from registry.lora.coverage.scales import scale_sources

QV = ("model.layers.{0-1}.self_attn.q_proj", "model.layers.{0-1}.self_attn.v_proj")
EXPERTS = ("model.layers.{0-1}.mlp.experts.{0-3}.up_proj",)
FUSED = ("model.layers.0.mlp.experts.base_layer", "model.layers.0.mlp.experts")
STABILIZED = {"use_rslora": True, "rank_pattern": {"q_proj": 2}}


def config(**fields: object):
    usual = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}
    return read_config(json.dumps(usual | fields).encode())


@pytest.mark.parametrize(
    ("fields", "modules", "sources"),
    [
        ({}, QV, set()),
        ({"rank_pattern": {"q_proj": 4}}, QV, {"patterns"}),
        ({"alpha_pattern": {"q_proj": 8}}, QV, {"patterns"}),
        ({"alpha_pattern": {"layers.1.self_attn.v_proj": 8}}, QV, {"patterns"}),
        ({"rank_pattern": {"q_proj": 4}, "alpha_pattern": {"q_proj": 8}}, QV, set()),
        ({"rank_pattern": {"q_proj": 8}, "alpha_pattern": {"v_proj": 16}}, QV, set()),
        ({"rank_pattern": {"o_proj": 4}, "alpha_pattern": {"o_proj": 1}}, QV, set()),
        ({"use_rslora": True}, QV, {"rslora"}),
        ({"use_rslora": True}, EXPERTS, {"rslora", "rslora_experts"}),
        ({"use_rslora": True}, (*QV, *FUSED), {"rslora", "rslora_experts"}),
        ({"use_rslora": True, "r": 1}, EXPERTS, set()),
        ({"use_rslora": True, "r": 1, "rank_pattern": {"q_proj": 4}}, QV, {"rslora", "patterns"}),
        (STABILIZED | {"alpha_pattern": {"q_proj": 4}}, QV, {"rslora", "patterns"}),
        (STABILIZED | {"alpha_pattern": {"q_proj": 8}}, QV, {"rslora"}),
        ({"rank_pattern": {"experts.gate_up_proj": 4}}, FUSED, {"patterns"}),
        ({"alpha_pattern": {"experts.down_proj": 4}}, FUSED, {"patterns"}),
        ({"alpha_pattern": {"experts.up_proj": 4}}, FUSED, set()),
    ],
)
def test_a_source_is_named_where_some_module_has_another_scale_for_it(fields, modules, sources):
    """R22 applied-whole: an engine that does not read it would serve the adapter otherwise than it was trained."""
    assert scale_sources(config(**fields), modules) == sources
