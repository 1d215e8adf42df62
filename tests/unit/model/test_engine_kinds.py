"""What is known of kinds of engines where there is no driver."""

from __future__ import annotations

import pytest

from registry.lora.coverage.table import coverage_of
from registry.model.engine_kinds import applying_kind


@pytest.mark.parametrize(("kind", "applies"), [("axolotl", "vllm"), ("vllm", "vllm"), ("sglang", "sglang"), ("x", "x")])
def test_axolotl_applies_what_vllm_does_and_others_speak_for_themselves(kind, applies):
    """What is known of vLLM is not taken for known of another engine."""
    assert applying_kind(kind) == applies
    known = coverage_of("LlamaForCausalLM", applying_kind(kind))
    assert (known is not None) == (applies == "vllm")
