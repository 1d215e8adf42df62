"""Derives a base model's modules from its config.json, where its weights are not at hand. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from registry.lora.base import Shape

# Families whose checkpoints name their modules as Llama's does.
_LIKE_LLAMA = frozenset("llama mistral qwen2 qwen3 gemma gemma2 gemma3_text granite smollm3 olmo2".split())
_FUSED = frozenset({"phi3"})
# Their heads are their embeddings unless config.json says otherwise, and transformers 4 leaves out what is usual.
_TIED = frozenset({"gemma", "gemma2", "gemma3_text", "smollm3"})
_MAX_LAYERS = 10_000


class UnknownArchitecture(Exception):
    """The modules cannot be derived; the message says what to give instead."""


def derive(config: Mapping[str, object]) -> dict[str, Shape]:
    """The modules of the model that a config.json describes.

    Raises:
        UnknownArchitecture: it is of a family that is not known here, or a size is missing.
    """
    family = config.get("model_type")
    if not isinstance(family, str) or family not in _LIKE_LLAMA | _FUSED:
        raise UnknownArchitecture(
            f"modules of a {family!r} model are read from its safetensors files, which are not there"
        )
    layer = _fused_layer(config) if family in _FUSED else _llama_layer(config)
    layers = min(_number(config, "num_hidden_layers"), _MAX_LAYERS)
    modules = {f"model.layers.{i}.{name}": shape for i in range(layers) for name, shape in layer.items()}
    vocabulary = (_number(config, "vocab_size"), _number(config, "hidden_size"))
    heads = {} if _is_tied(config, family) else {"lm_head": vocabulary}
    return {"model.embed_tokens": vocabulary, **modules, **heads}


def _is_tied(config: Mapping[str, object], family: str) -> bool:
    said = config.get("tie_word_embeddings")
    return family in _TIED if said is None else bool(said)


def _llama_layer(config: Mapping[str, object]) -> dict[str, Shape]:
    hidden, mlp = _number(config, "hidden_size"), _number(config, "intermediate_size")
    queries, keys = _attention(config)
    return {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (mlp, hidden),
        "mlp.up_proj": (mlp, hidden),
        "mlp.down_proj": (hidden, mlp),
    }


def _fused_layer(config: Mapping[str, object]) -> dict[str, Shape]:
    hidden, mlp = _number(config, "hidden_size"), _number(config, "intermediate_size")
    queries, keys = _attention(config)
    return {
        "self_attn.qkv_proj": (queries + 2 * keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_up_proj": (2 * mlp, hidden),
        "mlp.down_proj": (hidden, mlp),
    }


def _attention(config: Mapping[str, object]) -> tuple[int, int]:
    """Widths of queries, and of keys and values."""
    heads = _number(config, "num_attention_heads")
    groups = _number(config, "num_key_value_heads", heads)
    width = _number(config, "head_dim", _number(config, "hidden_size") // heads)
    return heads * width, groups * width


def _number(config: Mapping[str, object], name: str, default: int = 0) -> int:
    value = config.get(name)
    number = value if type(value) is int else default
    if number < 1:
        raise UnknownArchitecture(f"config.json has no {name}; give the directory of the whole base model")
    return number
