"""Tiny models of many architectures, as transformers' configurations name their parts. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# The CPU's kernels take no smaller heads.
SIZES: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": 256,
    "initializer_range": 0.09,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


@dataclass(frozen=True)
class Family:
    """One tiny model.

    Attributes:
        name: of its row in the matrix.
        model_type: as `transformers.AutoConfig` knows it.
        fields: what differs from `SIZES`; None: leave the field out.
        flags: of the engine, beside those of all.
        lacks: what the CPU build of the engine lacks for it, so that it cannot be run.
    """

    name: str
    model_type: str
    fields: dict[str, Any] = field(default_factory=dict)
    flags: dict[str, Any] = field(default_factory=dict)
    lacks: str = ""

    @property
    def config(self) -> dict[str, Any]:
        """All fields of its configuration."""
        return {key: value for key, value in (SIZES | self.fields).items() if value is not None}


def _experts(count: str, width: str = "moe_intermediate_size") -> dict[str, Any]:
    return {count: 4, "num_experts_per_tok": 2, width: 64}


_TIED = {"tie_word_embeddings": True}
_GPT = {"n_embd": 128, "n_layer": 2, "n_head": 2, "n_inner": 192, "n_positions": 256}
_NO_GQA = {"num_key_value_heads": 2}
_MLA = {
    "num_key_value_heads": 2,
    "q_lora_rank": None,
    "kv_lora_rank": 512,  # the CPU's kernel is for these
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 64,
    "v_head_dim": 32,
    "head_dim": 64,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
}
# vLLM's rotary embedding for CPUs reads some layouts wrongly; torch's does not.
_TORCH_ROTARY = {"compilation_config": {"custom_ops": ["-rotary_embedding"]}}
# The faster backend takes no float32.
_MLA_FLAGS = {"attention_backend": "CPU_MLA", **_TORCH_ROTARY}
_GRANITE = {"embedding_multiplier": 2.0, "residual_multiplier": 0.5, "attention_multiplier": 0.1, "logits_scaling": 2.0}
_SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 128}
_MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 64, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_expand": 2}
_LLAMA4 = {
    "intermediate_size": 128,
    "intermediate_size_mlp": 192,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "moe_layers": [],
    "interleave_moe_layer_step": 0,
}

FAMILIES: tuple[Family, ...] = (
    Family("llama", "llama"),
    Family("llama_tied", "llama", _TIED),
    Family("llama_biased", "llama", {"attention_bias": True, "mlp_bias": True}),
    Family("llama4", "llama4_text", _LLAMA4),
    Family("mistral", "mistral", {"sliding_window": None}),
    Family("ministral", "ministral", {"sliding_window": 128}),
    Family("mixtral", "mixtral", _experts("num_local_experts", "intermediate_size")),
    Family("qwen2", "qwen2"),
    Family("qwen2_tied", "qwen2", _TIED),
    Family("qwen2_moe", "qwen2_moe", {**_experts("num_experts"), "shared_expert_intermediate_size": 64}),
    Family("qwen3", "qwen3"),
    Family("qwen3_tied", "qwen3", _TIED),
    Family("qwen3_moe", "qwen3_moe", _experts("num_experts")),
    Family("gemma", "gemma", _TIED),
    Family("gemma2", "gemma2", {**_TIED, "query_pre_attn_scalar": 64, "sliding_window": 128}),
    Family("gemma3", "gemma3_text", {**_TIED, "query_pre_attn_scalar": 64, "sliding_window": 128}),
    Family(
        "gemma4",
        "gemma4_text",
        {
            **_TIED,
            **_SLIDING,
            "global_head_dim": 64,
            "hidden_size_per_layer_input": 64,
            "vocab_size_per_layer_input": 256,
        },
    ),
    Family("phi", "phi", {**_NO_GQA, "partial_rotary_factor": 0.5}),
    Family("phi3", "phi3"),
    Family(
        "phimoe",
        "phimoe",
        {**_experts("num_local_experts", "intermediate_size"), "architectures": ["PhiMoEForCausalLM"]},
    ),
    Family("granite", "granite", _GRANITE),
    Family("granite_tied", "granite", {**_GRANITE, **_TIED}),
    Family("granitemoe", "granitemoe", {**_GRANITE, **_experts("num_local_experts", "intermediate_size")}),
    Family(
        "granitemoeshared",
        "granitemoeshared",
        {**_GRANITE, **_experts("num_local_experts", "intermediate_size"), "shared_intermediate_size": 64},
    ),
    Family(
        "granitemoehybrid",
        "granitemoehybrid",
        {
            **_GRANITE,
            **_experts("num_local_experts", "intermediate_size"),
            "shared_intermediate_size": 64,
            "layer_types": ["attention", "attention"],
            "position_embedding_type": "rope",
        },
    ),
    Family("cohere", "cohere", {**_TIED, "use_qk_norm": False}),
    Family("cohere2", "cohere2", {**_TIED, **_SLIDING}),
    Family("olmo", "olmo", _NO_GQA),
    Family("olmo2", "olmo2"),
    Family("olmo3", "olmo3", _SLIDING),
    Family("olmoe", "olmoe", _experts("num_experts", "intermediate_size")),
    Family("exaone4", "exaone4", _SLIDING),
    Family("nemotron", "nemotron", {"partial_rotary_factor": 0.5}),
    Family("smollm3", "smollm3", {"no_rope_layers": [1, 0]}),
    Family("ernie4_5", "ernie4_5"),
    Family("ernie4_5_moe", "ernie4_5_moe", {**_experts("moe_num_experts"), "moe_k": 2, "moe_num_shared_experts": 1}),
    Family("apertus", "apertus"),
    Family("arcee", "arcee"),
    Family("seed_oss", "seed_oss", {"attention_bias": True, "attention_out_bias": False}),
    Family("hunyuan", "hunyuan_v1_dense"),
    Family("starcoder2", "starcoder2", {"sliding_window": None}),
    Family("glm", "glm", {"partial_rotary_factor": 0.5}),
    Family("glm4", "glm4", {"partial_rotary_factor": 0.5}),
    Family(
        "glm4_moe",
        "glm4_moe",
        {
            **_experts("n_routed_experts"),
            "n_shared_experts": 1,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "partial_rotary_factor": 0.5,
        },
    ),
    Family("gpt_oss", "gpt_oss", {**_experts("num_local_experts", "intermediate_size"), "sliding_window": 128}),
    Family("gpt_neox", "gpt_neox", _NO_GQA),
    Family("gpt_bigcode", "gpt_bigcode", {**_GPT, "multi_query": True}),
    Family("gpt2", "gpt2", _GPT),
    Family("gptj", "gptj", {**_GPT, **_NO_GQA, "rotary_dim": 32}),
    Family("opt", "opt", {"ffn_dim": 192, "word_embed_proj_dim": 128, "do_layer_norm_before": True}),
    Family("bloom", "bloom", {**_TIED, "n_layer": 2, "n_head": 2}),
    Family(
        "falcon", "falcon", {"head_dim": None, "new_decoder_architecture": False, "multi_query": True, "alibi": False}
    ),
    Family("stablelm", "stablelm", {"partial_rotary_factor": 0.5}),
    Family("deepseek_v2", "deepseek_v2", {**_experts("n_routed_experts"), **_MLA, "topk_method": "greedy"}, _MLA_FLAGS),
    Family(
        "deepseek_v3",
        "deepseek_v3",
        {
            **_experts("n_routed_experts"),
            **_MLA,
            "q_lora_rank": 64,
            "topk_method": "noaux_tc",
            "scoring_func": "sigmoid",
        },
        _MLA_FLAGS,
    ),
    Family("falcon_h1", "falcon_h1", {**_MAMBA, "mamba_d_ssm": 256, "mamba_chunk_size": 64}),
    Family(
        "jamba",
        "jamba",
        {"attn_layer_period": 2, "attn_layer_offset": 1, **_experts("num_experts", "intermediate_size")},
        lacks="a kernel for Mamba's scan",
    ),
    Family(
        "lfm2",
        "lfm2",
        {
            **_TIED,
            "layer_types": ["conv", "full_attention"],
            "block_multiple_of": 32,
            "conv_dim": 128,
            "block_dim": 128,
        },
        _TORCH_ROTARY,
    ),
    Family("mamba", "mamba", {"state_size": 16}),
    Family("helium", "helium"),
    Family("bitnet", "bitnet"),
    Family(
        "dots1",
        "dots1",
        {
            **_experts("n_routed_experts"),
            "n_shared_experts": 1,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
        },
    ),
    Family("doge", "doge"),
    Family(
        "minimax_m2",
        "minimax_m2",
        {
            **_experts("num_local_experts", "intermediate_size"),
            "rotary_dim": 32,
            "scoring_func": "sigmoid",
            "use_routing_bias": True,
        },
        lacks="routers that score with a sigmoid",
    ),
    Family(
        "exaone_moe",
        "exaone_moe",
        {**_experts("num_experts"), "num_shared_experts": 1, "first_k_dense_replace": 1, **_SLIDING},
    ),
    Family("persimmon", "persimmon", _NO_GQA),
    Family(
        "qwen3_5", "qwen3_5_text", {"layer_types": ["full_attention"] * 2}, lacks="torchvision, which its code imports"
    ),
    Family(
        "qwen3_next",
        "qwen3_next",
        {**_experts("num_experts"), "shared_expert_intermediate_size": 64, "layer_types": ["full_attention"] * 2},
    ),
)
