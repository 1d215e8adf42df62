"""Modules of an architecture that vLLM does not apply LoRA to. Pure.

Read in vLLM 0.32 and measured there against transformers and PEFT. A checkpoint has matrices that the engine takes an
adapter for and then leaves as they are, or that it does not take at all; neither shows in names and shapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from registry.lora.tensor_names import is_vision

UnappliedReason = Literal["not_applied_by_engine", "not_taken_by_engine"]
_BOTH = frozenset({"embed_tokens", "lm_head"})
_INPUT = frozenset({"embed_tokens"})
_NONE: frozenset[str] = frozenset()
_HEADS = frozenset({"lm_head", "embed_out"})
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


@dataclass(frozen=True, slots=True)
class Unapplied:
    """Why an engine does not apply an adapter's module."""

    reason: UnappliedReason
    why: str


@dataclass(frozen=True, slots=True)
class Coverage:
    """Modules that an engine applies for one architecture; modules are named by the ends of their names.

    Attributes:
        embeddings: last parts of the embeddings and heads that it takes.
        ignored: modules that it serves as the base, each with why; ``#`` stands for a number.
        refused: modules that it fails to load, in the same form.
        rotary: modules whose rows the engine orders otherwise than the checkpoint, so that lora_B has to follow.
        is_measured: all else of the architecture was seen to be applied.
    """

    embeddings: frozenset[str] = _BOTH
    ignored: Mapping[str, str] | None = None
    refused: Mapping[str, str] | None = None
    rotary: tuple[str, ...] = ()
    is_measured: bool = True
    # Last parts of all names that anything is known against: most modules have others.
    _lasts: frozenset[str] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        ends = (end for _, table in _tables(self) for end in table)
        object.__setattr__(self, "_lasts", _HEADS | {end.rpartition(".")[2] for end in ends})

    def unapplied(self, module: str, *, is_embedding: bool) -> Unapplied | None:
        """Why the module, under the base's own name, is not applied; None: nothing is known against it."""
        last = module.rpartition(".")[2]
        if (not is_embedding and last not in self._lasts) or is_vision(module):
            return None
        if (is_embedding or last in _HEADS) and last not in self.embeddings:
            return Unapplied("not_taken_by_engine", "vLLM takes no LoRA for it in this architecture")
        name = _NUMBER.sub("#", module)
        for reason, ends in _tables(self):
            if why := next((why for end, why in ends.items() if ends_with(name, end)), None):
                return Unapplied(reason, why)
        return None

    def is_rotary(self, module: str) -> bool:
        """True if the engine orders the module's outputs for its rotary embedding."""
        return any(ends_with(module, end) for end in self.rotary) and not is_vision(module)


def _tables(coverage: Coverage) -> Iterable[tuple[UnappliedReason, Mapping[str, str]]]:
    yield "not_applied_by_engine", coverage.ignored or {}
    yield "not_taken_by_engine", coverage.refused or {}


def ends_with(module: str, end: str) -> bool:
    """True if the module is called `end`, or its name ends with it after a dot."""
    return module == end or module.endswith(f".{end}")


_SHARED_GATE = {"mlp.shared_expert_gate": "vLLM runs the bare gate inside the shared expert"}
_ROUTER = {"mlp.gate": "vLLM's expert runner keeps the bare router"}
_ABSORBED = {"self_attn.kv_b_proj": "vLLM absorbs its weight into MLA attention"}
_FUSED_QKV = {"attn.c_attn": "vLLM fuses it into a layer that no LoRA wraps"}
_FUSED_MLP = {"mlp.gate_up_proj": "vLLM knows only its parts there"}
_SHARED_INPUT = {"shared_mlp.input_linear": "vLLM wraps no fused layer there that its map does not name"}
_NAMED_GATE = {"block_sparse_moe.router.layer": "vLLM calls it gate"}
_HIDDEN_SHARED = dict.fromkeys(
    (f"mlp.shared_experts.{end}" for end in ("gate_proj", "up_proj", "down_proj")),
    "vLLM's Transformers backend runs it inside its experts, under another name",
)
_UNPACKED_EXPERTS = dict.fromkeys(
    (f"mlp.experts.#.{end}" for end in ("gate_proj", "up_proj", "down_proj")),
    "vLLM's Transformers backend does not find the parts of an expert",
)
_REPLACED = {"self_attn.dt_proj": "vLLM's Transformers backend puts its own attention in the place of it"}
# vLLM's Transformers backend runs these with modules of transformers' own.
_TRANSFORMERS = Coverage(_INPUT)
# Its models of sentences have no pooler of their own.
_BERT = Coverage(_NONE, {"pooler.dense": "vLLM's embedding models leave the pooler out"}, is_measured=False)
_DEEPSEEK = Coverage(_NONE, {**_ROUTER, **_ABSORBED})
_LLAMA4 = Coverage(rotary=("self_attn.q_proj", "self_attn.k_proj"))
# Read in vLLM's source, not run.
_READ_DEEPSEEK = Coverage(_NONE, {**_ROUTER, **_ABSORBED}, is_measured=False)


def _all_of(names: str, coverage: Coverage) -> dict[str, Coverage]:
    return dict.fromkeys((f"{name}ForCausalLM" for name in names.split()), coverage)


_VLLM: Mapping[str, Coverage] = {
    **_all_of("Llama Qwen3 Phi3 Mixtral Exaone4 Nemotron FalconH1 Ernie4_5 Apertus Granite", Coverage()),
    **_all_of("Solar HyperCLOVAX MiniCPM Lfm2", Coverage()),
    **_all_of("Jamba PhiMoE", Coverage(is_measured=False)),
    **_all_of("Cohere Cohere2", Coverage(_INPUT)),
    **_all_of("Olmo Olmo2 Olmo3 Arcee SeedOss HunYuanDenseV1 Starcoder2 Phi GPTNeoX SmolLM3 Ministral", _TRANSFORMERS),
    **_all_of("Glm Helium BitNet Persimmon", _TRANSFORMERS),
    **_all_of("Cwm Jais2 Nanbeige VaultGemma", Coverage(_INPUT, is_measured=False)),
    "DogeForCausalLM": Coverage(_INPUT, _REPLACED, is_measured=False),
    "Dots1ForCausalLM": Coverage(_INPUT, {**_ROUTER, **_HIDDEN_SHARED}, _UNPACKED_EXPERTS),
    **_all_of("Gemma Gemma2 Gemma3 Mistral Qwen2 Olmoe Glm4Moe GptOss Ernie4_5_Moe OPT", Coverage(_NONE)),
    "Gemma3ForConditionalGeneration": Coverage(_NONE),
    "Qwen2_5_VLForConditionalGeneration": Coverage(_NONE),
    "Glm4ForCausalLM": Coverage(_NONE, refused=_FUSED_MLP),
    **_all_of("GraniteMoe GraniteMoeHybrid", Coverage(refused=_NAMED_GATE)),
    "GraniteMoeSharedForCausalLM": Coverage(ignored=_SHARED_INPUT, refused=_NAMED_GATE),
    "Llama4ForCausalLM": _LLAMA4,
    "Llama4ForConditionalGeneration": _LLAMA4,
    "Qwen2MoeForCausalLM": Coverage(_NONE, _SHARED_GATE),
    "Qwen3MoeForCausalLM": Coverage(_BOTH, {**_ROUTER, **_SHARED_GATE}),
    "Qwen3NextForCausalLM": Coverage(_NONE, {**_ROUTER, **_SHARED_GATE}, is_measured=False),
    **_all_of("DeepseekV2 DeepseekV3", _DEEPSEEK),
    **_all_of("DeepseekV32 GlmMoeDsa MistralLarge3 AXK1", _READ_DEEPSEEK),
    "ExaoneMoeForCausalLM": Coverage(_BOTH, _ROUTER),
    **_all_of("ExaoneMoE K2Horizon", Coverage(_BOTH, _ROUTER, is_measured=False)),
    "GPTBigCodeForCausalLM": Coverage(_INPUT, _FUSED_QKV),
    "Gemma4ForCausalLM": Coverage(_NONE),
    **dict.fromkeys(("BertModel", "RobertaModel", "XLMRobertaModel"), _BERT),
    **dict.fromkeys(("LlamaForSequenceClassification", "LlamaModel"), Coverage(_INPUT, is_measured=False)),
    "Qwen3Model": Coverage(_INPUT, is_measured=False),
    "Qwen2Model": Coverage(_NONE, is_measured=False),
    "Qwen3_5ForCausalLM": Coverage(_BOTH, is_measured=False),
    "Qwen3_5MoeForCausalLM": Coverage(_BOTH, {**_ROUTER, **_SHARED_GATE}, is_measured=False),
    **dict.fromkeys(
        (f"{name}ForConditionalGeneration" for name in "Gemma4 Llava Qwen3VL Qwen3_5".split()),
        Coverage(_NONE, is_measured=False),
    ),
    "Qwen3VLMoeForConditionalGeneration": Coverage(_NONE, _ROUTER, is_measured=False),
    "Qwen3_5MoeForConditionalGeneration": Coverage(_NONE, {**_ROUTER, **_SHARED_GATE}, is_measured=False),
}


def coverage_of(architecture: str | None, engine: str) -> Coverage | None:
    """Knowledge of an architecture, as config.json's ``architectures`` names it, on a kind of engine."""
    return _VLLM.get(architecture or "") if engine == "vllm" else None
