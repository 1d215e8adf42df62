"""What can be wrong with an adapter: each defect makes a good draft wrong, and says with which reason it is refused."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.corpus.drafts import CONFIG, RANK, WEIGHTS
from tests.corpus.edits import (
    BF16,
    F16,
    F32,
    F64,
    HTML,
    LFS,
    TWICE,
    Edit,
    config,
    cut,
    dora,
    dropped,
    emptied,
    entry,
    header,
    key,
    linear_embedding,
    long_name,
    more_layers,
    moved_on,
    moved_twin,
    other_width,
    pickled,
    raw,
    renamed,
    reshaped,
    resized_embedding,
    short_embedding,
    strange_metadata,
    tensor,
    twin,
    typed,
    vision,
    whole_embedding,
    without,
    wrapped_twin,
)


@dataclass(frozen=True)
class Defect:
    """`edit` makes a draft wrong; `reason` is what we say of it, under the policy `prepare`."""

    name: str
    reason: str
    edit: Edit
    permanent: bool = True
    prepare: dict[str, str] = field(default_factory=dict)


_NOT_JSON = {"empty": b"", "html": HTML, "lfs": LFS, "cut": b'{"r": 4', "deep": b"[" * 99_999, "utf16": b"\xff\xfe{}"}
DEFECTS: tuple[Defect, ...] = (
    # The configuration.
    *(
        Defect(
            f"config_{name}",
            "source_incomplete" if name == "empty" else "not_an_adapter",
            raw(CONFIG, content),
            name != "empty",
        )
        for name, content in _NOT_JSON.items()
    ),
    Defect("config_list", "not_an_adapter", raw(CONFIG, b"[]")),
    Defect("config_twice", "not_an_adapter", raw(CONFIG, b'{"peft_type": "LORA", "r": 4, "r": 8}')),
    Defect("config_too_large", "too_large", raw(CONFIG, b" " * (1 << 20) + b"{}")),
    Defect("config_missing", "source_incomplete", raw(CONFIG, None), permanent=False),
    *(
        Defect(f"peft_{kind}", "wrong_peft_type", config(peft_type=kind))
        for kind in ("ADALORA", "IA3", "LOHA", "VERA", None)
    ),
    *(Defect(f"rank_{value}", "invalid_config", config(r=value)) for value in (0, -4, "4", 4.5, True, None, 1 << 40)),
    *(Defect(f"no_{name}", "invalid_config", without(name)) for name in ("r", "lora_alpha", "target_modules")),
    *(
        Defect(f"alpha_{value}", "invalid_config", config(lora_alpha=value))
        for value in ("8", float("nan"), float("inf"))
    ),
    Defect("alpha_zero", "zero_alpha", config(lora_alpha=0)),
    Defect("alpha_pattern_zero", "zero_alpha", config(alpha_pattern={"q_proj": 0})),
    Defect("bool_as_text", "invalid_config", config(use_rslora="false")),
    Defect("rank_pattern_list", "invalid_config", config(rank_pattern=["q_proj"])),
    Defect("rank_pattern_lookahead", "unsupported_pattern", config(rank_pattern={"(?=q_proj)x": 4})),
    Defect("rank_pattern_broken", "unsupported_pattern", config(rank_pattern={"(q_proj": 4})),
    Defect("rank_pattern_lies", "rank_mismatch", config(rank_pattern={"q_proj": 2})),
    Defect("rank_too_low", "rank_mismatch", config(r=RANK // 2)),
    Defect("rank_above_tensors", "rank_mismatch", config(r=2 * RANK)),
    Defect("dora_flag", "dora_not_supported", config(use_dora=True)),
    Defect("dora_tensors", "dora_not_supported", dora),
    Defect("bias_all", "bias_not_supported", config(bias="all")),
    Defect("bias_lora_only", "bias_not_supported", config(bias="lora_only")),
    Defect("lora_bias", "bias_not_supported", config(lora_bias=True)),
    Defect("bias_tensor", "bias_not_supported", tensor(key("B").replace("weight", "bias"))),
    Defect("base_bias_tensor", "bias_not_supported", tensor("base_model.model.model.layers.0.self_attn.q_proj.bias")),
    Defect("alora", "unsupported_feature", config(alora_invocation_tokens=[1, 2])),
    Defect("layer_replication", "unsupported_feature", config(layer_replication=[[0, 1], [0, 2]])),
    Defect("trainable_tokens", "unsupported_feature", config(trainable_token_indices=[3])),
    Defect("target_parameters", "unsupported_feature", config(target_parameters=["experts.w1"])),
    Defect("qalora", "unsupported_feature", config(use_qalora=True)),
    Defect("bdlora", "unsupported_feature", config(use_bdlora={"blocks": 2})),
    *(
        Defect(f"init_{name}", "unsupported_init", config(init_lora_weights=name))
        for name in ("pissa", "pissa_niter_4", "olora", "corda", "loftq")
    ),
    Defect("modules_to_save", "unsupported_modules_to_save", config(modules_to_save=["embed_tokens"])),
    # The file of the weights.
    Defect("weights_missing", "source_incomplete", raw(WEIGHTS, None), permanent=False),
    Defect("weights_empty", "source_incomplete", raw(WEIGHTS, b""), permanent=False),
    Defect("weights_cut", "source_incomplete", cut(WEIGHTS, lambda content: content[:-1]), permanent=False),
    Defect("weights_cut_in_header", "source_incomplete", cut(WEIGHTS, lambda content: content[:99]), permanent=False),
    Defect("weights_longer", "not_an_adapter", cut(WEIGHTS, lambda content: content + b"x")),
    Defect("weights_html", "not_an_adapter", raw(WEIGHTS, HTML)),
    Defect("weights_lfs", "not_an_adapter", raw(WEIGHTS, LFS)),
    Defect("weights_pickled", "weights_not_safetensors", pickled),
    Defect("header_bomb", "not_an_adapter", raw(WEIGHTS, (1 << 40).to_bytes(8, "little") + b"{}" * 999)),
    Defect("header_garbage", "not_an_adapter", cut(WEIGHTS, lambda content: content[:8] + b"\0" * (len(content) - 8))),
    Defect("header_bit_flip", "not_an_adapter", cut(WEIGHTS, lambda content: content[:8] + b"z" + content[9:])),
    Defect("header_twice", "not_an_adapter", raw(WEIGHTS, TWICE)),
    Defect("offsets_overlap", "not_an_adapter", entry(key("B"), data_offsets=[0, 4 * RANK * 8])),
    Defect("offsets_reversed", "not_an_adapter", entry(key("A"), data_offsets=[8, 0])),
    Defect("offsets_gap", "not_an_adapter", header(moved_on)),
    Defect("offsets_negative", "not_an_adapter", entry(key("A"), data_offsets=[-8, 0])),
    Defect("offsets_text", "not_an_adapter", entry(key("A"), data_offsets=["0", "8"])),
    Defect("shape_lies", "not_an_adapter", entry(key("A"), shape=[1, 1])),
    Defect("shape_huge", "not_an_adapter", entry(key("A"), shape=[1 << 60, 1 << 60])),
    Defect("dtype_unknown", "not_an_adapter", entry(key("A"), dtype="F31")),
    Defect("metadata_strange", "not_an_adapter", strange_metadata),
    Defect("name_too_long", "not_an_adapter", long_name),
    Defect("no_tensors", "no_tensors", emptied),
    # The tensors.
    *(Defect(f"dtype_{dtype}", "dtype_not_supported", typed(dtype)) for dtype in ("I8", "F8_E4M3")),
    Defect("only_a", "unpaired_tensor", dropped("B")),
    Defect("only_b", "unpaired_tensor", dropped("A")),
    Defect("b_of_one_row", "shape_mismatch", reshaped("B", lambda shape: (1, shape[1]))),
    Defect("a_of_three_dimensions", "shape_mismatch", reshaped("A", lambda shape: (*shape, 1))),
    Defect("halves_of_two_ranks", "rank_mismatch", reshaped("B", lambda shape: (shape[0], 2))),
    Defect("smaller_base", "shape_mismatch", other_width(0.5)),
    Defect("larger_base", "shape_mismatch", other_width(2)),
    Defect("nan_f32", "not_finite", F32(b"\0\0\xc0\x7f")),
    Defect("inf_f32", "not_finite", F32(b"\0\0\x80\xff")),
    Defect("nan_f16", "not_finite", F16(b"\x01\x7c")),
    Defect("inf_f16", "not_finite", F16(b"\0\xfc")),
    Defect("inf_f64", "not_finite", F64(b"\0\0\0\0\0\0\xf0\x7f")),
    Defect("large_inf_f64", "not_finite", F64(b"\0\0\0\0\0\0\xf0\x47")),
    Defect("nan_bf16", "not_finite", BF16(b"\xc0\x7f")),
    Defect("inf_bf16", "not_finite", BF16(b"\x80\x7f")),
    Defect("more_layers", "too_many_layers", more_layers),
    Defect("other_family", "no_such_module", renamed("self_attn.q_proj", "attention.query_key_value")),
    Defect(
        "wrong_prefix_kept",
        "no_such_module",
        renamed("model.model.layers", "model.lm.layers"),
        prepare={"remap": "off"},
    ),
    Defect("of_another_kind", "unknown_tensor", tensor("base_model.model.model.layers.0.self_attn.q_proj.hada_w1_a")),
    Defect("whole_embedding", "unknown_tensor", whole_embedding),
    Defect("stranger", "unknown_tensor", tensor("optimizer_state")),
    Defect("twin", "duplicate_module", twin),
    Defect("two_beginnings", "duplicate_module", moved_twin),
    Defect("wrapped_twin", "duplicate_module", wrapped_twin),
    Defect("foreign_part", "no_such_module", renamed("self_attn.", "self_attn.adapted.")),
    Defect("vision", "vision_modules", vision),
    Defect("linear_embedding", "shape_mismatch", linear_embedding),
    Defect("resized_embedding", "shape_mismatch", resized_embedding),
    Defect("short_embedding", "shape_mismatch", short_embedding),
)
