"""Makes a tiny Llama model.

For development and tests: two layers, 1.6 MB, readable output. The same seed gives the same bytes, on every machine
and without torch.
"""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TinyTensor:
    """A float32 tensor, row by row."""

    shape: tuple[int, ...]
    values: Sequence[float]


def ones(size: int) -> TinyTensor:
    """A vector of ones, as norms start with."""
    return TinyTensor((size,), [1.0] * size)


def uniform(shape: tuple[int, ...], deviation: float, clock: random.Random) -> TinyTensor:
    """Evenly distributed values around 0 with the given standard deviation.

    Only `Random.random` is called, whose sequence Python promises to keep over its releases.
    """
    width = 2 * 3**0.5 * deviation
    return TinyTensor(shape, [(clock.random() - 0.5) * width for _ in range(prod(shape))])


def write_safetensors(path: Path, tensors: Mapping[str, TinyTensor]) -> None:
    """Writes `tensors` in the order of their names, so that equal tensors make equal bytes.

    Raises:
        OSError: the file cannot be written.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    body = bytearray()
    for name, tensor in sorted(tensors.items()):
        packed = array("f", tensor.values).tobytes()
        offsets = [len(body), len(body) + len(packed)]
        header[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": offsets}
        body += packed
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def write_json(path: Path, value: Mapping[str, object]) -> None:
    """Writes readable JSON with a fixed order of keys.

    Raises:
        OSError: the file cannot be written.
    """
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")


HIDDEN_SIZE = 128
HEADS = 2  # of 64 each: the CPU kernels refuse smaller ones
LAYERS = 2
MLP_SIZE = 256
MAX_TOKENS = 512
BYTES = 256
BEGIN, END = "<s>", "</s>"
VOCABULARY = BYTES + 2
_PRINTABLE = range(0x20, 0x7F)
_CHAT = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "


def write_model(folder: Path, *, seed: int = 0) -> None:
    """Writes config, weights and tokenizer into `folder`, which is made if it is missing.

    Raises:
        OSError: a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", _config())
    write_json(folder / "generation_config.json", {"bos_token_id": BYTES, "eos_token_id": BYTES + 1})
    write_json(folder / "tokenizer.json", _tokenizer())
    write_json(folder / "tokenizer_config.json", _tokenizer_config())
    write_safetensors(folder / "model.safetensors", _weights(random.Random(seed)))  # noqa: S311 - no secret


def _config() -> Mapping[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "bos_token_id": BYTES,
        "eos_token_id": BYTES + 1,
        "head_dim": HIDDEN_SIZE // HEADS,
        "hidden_act": "silu",
        "hidden_size": HIDDEN_SIZE,
        "intermediate_size": MLP_SIZE,
        "max_position_embeddings": MAX_TOKENS,
        "mlp_bias": False,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": HEADS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vocab_size": VOCABULARY,
    }


def _weights(clock: random.Random) -> dict[str, TinyTensor]:
    tensors = {
        "model.embed_tokens.weight": uniform((VOCABULARY, HIDDEN_SIZE), 1.0, clock),
        "lm_head.weight": _head(clock),
        "model.norm.weight": ones(HIDDEN_SIZE),
    }
    for layer in range(LAYERS):
        for name, tensor in _layer(clock).items():
            tensors[f"model.layers.{layer}.{name}.weight"] = tensor
    return tensors


def _layer(clock: random.Random) -> dict[str, TinyTensor]:
    square, wide, narrow = (HIDDEN_SIZE, HIDDEN_SIZE), (MLP_SIZE, HIDDEN_SIZE), (HIDDEN_SIZE, MLP_SIZE)
    return {
        **{f"self_attn.{part}_proj": uniform(square, HIDDEN_SIZE**-0.5, clock) for part in "qkvo"},
        "mlp.gate_proj": uniform(wide, HIDDEN_SIZE**-0.5, clock),
        "mlp.up_proj": uniform(wide, HIDDEN_SIZE**-0.5, clock),
        "mlp.down_proj": uniform(narrow, MLP_SIZE**-0.5, clock),
        "input_layernorm": ones(HIDDEN_SIZE),
        "post_attention_layernorm": ones(HIDDEN_SIZE),
    }


def _head(clock: random.Random) -> TinyTensor:
    """Rows of zeros for what cannot be printed: greedy output then is text, and never ends early."""
    rows = [uniform((HIDDEN_SIZE,), 0.2, clock).values for _ in range(VOCABULARY)]
    zeros = [0.0] * HIDDEN_SIZE
    kept = [row if token in _PRINTABLE else zeros for token, row in enumerate(rows)]
    return TinyTensor((VOCABULARY, HIDDEN_SIZE), [value for row in kept for value in row])


def byte_letters() -> list[str]:
    """The letter that stands for each byte in a byte-level vocabulary, as GPT-2 laid down."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte) if byte in plain else chr(next(spare)) for byte in range(BYTES)]


def _tokenizer() -> Mapping[str, object]:
    """A byte-level BPE without merges: each byte is a token, and its number is the byte."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    vocabulary = {letter: byte for byte, letter in enumerate(byte_letters())}
    special = {BYTES: BEGIN, BYTES + 1: END}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, "content": text, **flags} for number, text in special.items()],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {"type": "BPE", "vocab": {**vocabulary, BEGIN: BYTES, END: BYTES + 1}, "merges": []},
    }


def _tokenizer_config() -> Mapping[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "pad_token": END,
        "model_max_length": MAX_TOKENS,
        "clean_up_tokenization_spaces": False,
        "chat_template": _CHAT,
    }
