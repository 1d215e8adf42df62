"""Bases whose weights are packed, in the forms in which quantizers save them."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from registry.lora.base_directory import BaseUnreadable, UnknownArchitecture, base_of_files, read_base
from registry.lora.safetensors import Tensor
from tests.corpus.drafts import LLAMA, Values, safetensors

WIDTHS = {"F16": 2, "F32": 4, "BF16": 2, "F8_E4M3": 1, "U8": 1, "I8": 1, "I32": 4, "U32": 4, "I64": 8}
Tensors = Mapping[str, Values]
# A family that is not derived from its config.json.
UNKNOWN = {"model_type": "qwen2_5_vl", "architectures": ["Qwen2_5_VLForConditionalGeneration"]}
DERIVED = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 64,
}
SHAPE = (48, 64)


def zeros(dtype: str, *shape: int) -> Values:
    count = WIDTHS[dtype]
    for size in shape:
        count *= size
    return Values(dtype, shape, bytes(count))


def awq(outputs: int, inputs: int) -> dict[str, Values]:
    packed = outputs // 8
    return {
        "qweight": zeros("I32", inputs, packed),
        "qzeros": zeros("I32", 1, packed),
        "scales": zeros("F16", 1, outputs),
    }


def gptq(outputs: int, inputs: int, bits: int = 4) -> dict[str, Values]:
    return {
        "qweight": zeros("I32", inputs * bits // 32, outputs),
        "qzeros": zeros("I32", 2, outputs * bits // 32),
        "scales": zeros("F16", 2, outputs),
        "g_idx": zeros("I32", inputs),
    }


def compressed(outputs: int, inputs: int, dtype: str = "I64") -> dict[str, Values]:
    content = struct.pack("<2q" if dtype == "I64" else "<2i", outputs, inputs)
    return {
        "weight_packed": zeros("I32", outputs, -(-inputs // 8)),
        "weight_scale": zeros("BF16", outputs, 1),
        "weight_shape": Values(dtype, (2,), content),
    }


def nvfp4(outputs: int, inputs: int) -> dict[str, Values]:
    packed, scale = zeros("U8", outputs, inputs // 2), zeros("F8_E4M3", outputs, inputs // 16)
    return {"weight_packed": packed, "weight_scale": scale, "weight_global_scale": zeros("F32", 1)}


def modelopt(outputs: int, inputs: int) -> dict[str, Values]:
    packed, scale = zeros("U8", outputs, inputs // 2), zeros("F8_E4M3", outputs, inputs // 16)
    return {"weight": packed, "weight_scale": scale, "weight_scale_2": zeros("F32")}


def bitsandbytes(outputs: int, inputs: int, kind: str = "nf4", said: object = None) -> dict[str, Values]:
    state = json.dumps(said or {"quant_type": kind, "blocksize": 64, "shape": [outputs, inputs]}).encode()
    return {
        "weight": zeros("U8", outputs * inputs // 2, 1),
        "weight.absmax": zeros("U8", 9),
        f"weight.quant_state.bitsandbytes__{kind}": Values("U8", (len(state),), state),
    }


def fp8(outputs: int, inputs: int) -> dict[str, Values]:
    return {"weight": zeros("F8_E4M3", outputs, inputs), "weight_scale": zeros("F32", outputs, 1)}


def int8(outputs: int, inputs: int) -> dict[str, Values]:
    return {"weight": zeros("I8", outputs, inputs), "SCB": zeros("F32", outputs)}


def mlx(outputs: int, inputs: int) -> dict[str, Values]:
    scales = {name: zeros("F16", outputs, inputs // 64) for name in ("scales", "biases")}
    return {"weight": zeros("U32", outputs, inputs // 8), **scales}


def without(made: Mapping[str, Values], *names: str) -> dict[str, Values]:
    return {name: values for name, values in made.items() if name not in names}


def write(folder: Path, modules: Mapping[str, Tensors], config: Mapping[str, Any] | None) -> Path:
    folder.mkdir(exist_ok=True)
    tensors = {f"{module}.{name}": one for module, made in modules.items() for name, one in made.items()}
    (folder / "model.safetensors").write_bytes(safetensors(tensors))
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


FORMS: dict[str, tuple[Tensors, dict[str, Any]]] = {
    "awq": (awq(*SHAPE), {}),
    "awq without zeros": (without(awq(*SHAPE), "qzeros"), {}),
    "gptq": (gptq(*SHAPE), {}),
    "gptq of 8 bits": (gptq(*SHAPE, bits=8), {}),
    "gptq without indices": (without(gptq(*SHAPE), "g_idx"), {}),
    "gptq of 8 bits without indices": (without(gptq(*SHAPE, bits=8), "g_idx"), {}),
    "gptq by config": (without(gptq(*SHAPE), "g_idx", "qzeros"), {"quantization_config": {"bits": 4}}),
    "gptq with empty indices": (gptq(*SHAPE) | {"g_idx": zeros("I32", 0)}, {}),
    "compressed": (compressed(*SHAPE), {}),
    "compressed, short": (compressed(*SHAPE, dtype="I32"), {}),
    "compressed by config": (
        compressed(*SHAPE) | {"weight_shape": zeros("I64", 2)},
        {"quantization_config": {"config_groups": {"a": {"weights": {"num_bits": 4}}}}},
    ),
    "nvfp4": (nvfp4(*SHAPE), {}),
    "modelopt": (modelopt(*SHAPE), {}),
    "nf4": (bitsandbytes(*SHAPE), {}),
    "fp4": (bitsandbytes(*SHAPE, kind="fp4"), {}),
    "fp8": (fp8(*SHAPE), {}),
    "int8": (int8(*SHAPE), {}),
    "mlx": (mlx(*SHAPE), {"quantization": {"bits": 4, "group_size": 64}}),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_packed_module_has_the_shape_that_it_has_unpacked(tmp_path, form):
    """The checkpoint that is served is the one at hand."""
    made, config = FORMS[form]
    plain = {"weight": zeros("BF16", 9, 7)}
    folder = write(tmp_path, {"model.layers.0.mlp.up_proj": made, "lm_head": plain}, UNKNOWN | config)
    assert read_base(folder).modules == {"model.layers.0.mlp.up_proj": SHAPE, "lm_head": (9, 7)}


@pytest.mark.parametrize("pack", [awq, gptq, compressed, fp8])
def test_a_packed_base_has_the_fingerprint_of_the_plain_one(tmp_path, pack: Callable[[int, int], Tensors]):
    """Adapters are prepared alike for both, whether its modules are derived, as they were before, or read."""

    def base(make: Callable[[int, int], Tensors], config: Mapping[str, Any]) -> str:
        sizes = {name: tuple(16 * size for size in shape) for name, shape in LLAMA.modules.items()}
        ends = {"model.embed_tokens", "lm_head"}
        modules = {name: plain(*shape) if name in ends else make(*shape) for name, shape in sizes.items()}
        return read_base(write(tmp_path, modules, config)).fingerprint

    sizes = {name: 16 * DERIVED[name] for name in ("hidden_size", "intermediate_size", "vocab_size")}
    assert len({base(make, config) for make in (plain, pack) for config in (UNKNOWN, DERIVED | sizes)}) == 1


def plain(outputs: int, inputs: int) -> Tensors:
    return {"weight": zeros("F16", outputs, inputs)}


def test_experts_that_are_one_tensor_are_no_modules(tmp_path):
    experts = {"qweight": zeros("I32", 2, 4, 4), "scales": zeros("F16", 2, 1, 32)}
    modules = {"a.experts.gate_up_proj": experts, "a.experts.0.up_proj": awq(*SHAPE)}
    assert read_base(write(tmp_path, modules, UNKNOWN)).modules == {"a.experts.0.up_proj": SHAPE}


WRONG: dict[str, tuple[Tensors, dict[str, Any]]] = {
    "another end": ({"W_q": zeros("U8", 8, 8), "meta": zeros("U8", 1)}, {}),
    "a part of a byte": ({"weight": zeros("U8", 8, 8)}, {}),
    "no scales": (without(awq(*SHAPE), "scales"), {}),
    "scales of one row": (awq(*SHAPE) | {"scales": zeros("F16", 48)}, {}),
    "packed in floats": (gptq(*SHAPE) | {"qweight": zeros("F32", 8, 48)}, {}),
    "zeros of another width": (awq(*SHAPE) | {"qzeros": zeros("I32", 1, 5)}, {}),
    "no multiple": (awq(*SHAPE) | {"scales": zeros("F16", 1, 47)}, {}),
    "rows and columns exchanged": (awq(*SHAPE) | {"scales": zeros("F16", 48, 1)}, {}),
    "gptq of how many bits": (without(gptq(*SHAPE), "g_idx", "qzeros"), {}),
    "gptq of too many bits": (without(gptq(*SHAPE), "g_idx", "qzeros"), {"quantization_config": {"bits": 16}}),
    "marlin": (without(compressed(*SHAPE), "weight_shape", "weight_scale") | {"meta": zeros("I32", 2, 2)}, {}),
    "compressed without its shape": (without(compressed(*SHAPE), "weight_shape"), {"quantization_config": 5}),
    "a shape of three": (compressed(*SHAPE) | {"weight_shape": zeros("I64", 3)}, {}),
    "a shape and one more": (
        compressed(*SHAPE) | {"weight_shape": Values("I64", (3,), struct.pack("<3q", *SHAPE, 1))},
        {},
    ),
    "a shape below nothing": (
        compressed(*SHAPE) | {"weight_shape": Values("I64", (2,), struct.pack("<2q", 48, -64))},
        {},
    ),
    "a shape of nothing": (compressed(*SHAPE) | {"weight_shape": zeros("I64", 2)}, {}),
    "a shape of halves": (compressed(*SHAPE) | {"weight_shape": zeros("F16", 2)}, {}),
    "a larger shape": (compressed(*SHAPE) | {"weight_shape": Values("I64", (2,), struct.pack("<2q", 48, 999))}, {}),
    "groups that differ": (
        compressed(*SHAPE) | {"weight_shape": zeros("I64", 2)},
        {"quantization_config": {"config_groups": {"a": {"weights": {"num_bits": 4}}, "b": 1}}},
    ),
    "a description without a shape": (bitsandbytes(*SHAPE, said={"shape": [1]}), {}),
    "a description of another size": (bitsandbytes(*SHAPE, said={"shape": [48, 65]}), {}),
    "a description that is none": (
        bitsandbytes(*SHAPE) | {"weight.quant_state.bitsandbytes__nf4": zeros("U8", 4)},
        {},
    ),
    "a description that is too long": (
        bitsandbytes(*SHAPE) | {"weight.quant_state.bitsandbytes__nf4": zeros("U8", 99_999)},
        {},
    ),
    "mlx of how many bits": (mlx(*SHAPE), {}),
    "words that are not mlx's": (without(mlx(*SHAPE), "biases"), {"quantization": {"bits": 4}}),
    "a matrix of nothing": ({"qweight": zeros("I32", 0, 8), "scales": zeros("F16", 1, 64)}, {}),
}


@pytest.mark.parametrize("form", WRONG)
def test_what_is_packed_otherwise_is_said_to_be(tmp_path, form):
    """R14: nothing is guessed, and who asks knows which folder to name."""
    made, config = WRONG[form]
    folder = write(tmp_path, {"a": made}, UNKNOWN | config)
    with pytest.raises(BaseUnreadable, match=r"is packed \(by what.*before it was quantized"):
        read_base(folder)


def test_the_quantizer_is_named_where_config_json_names_it(tmp_path):
    config = UNKNOWN | {"quantization_config": {"quant_method": "hqq"}}
    with pytest.raises(BaseUnreadable, match=re.escape("is packed (hqq)")):
        read_base(write(tmp_path, {"a": {"W_q": zeros("U8", 8, 8)}}, config))
    assert read_base(write(tmp_path / "b", {"a": awq(*SHAPE)}, None)).modules == {"a": SHAPE}


@pytest.mark.parametrize("bits", [0, 4])
def test_of_headers_alone_config_json_says_how_many_bits_there_are(bits):
    """Who is told of a base by its engine has no numbers of it."""
    tensors = [Tensor(f"a.{name}", one.dtype, one.shape, 0, len(one.data)) for name, one in compressed(*SHAPE).items()]
    config = UNKNOWN | {"quantization_config": {"bits": bits}}
    if bits:
        assert base_of_files(tensors, config).modules == {"a": SHAPE}
        return
    with pytest.raises(UnknownArchitecture, match="before it was quantized"):
        base_of_files(tensors, config)
