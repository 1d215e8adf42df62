"""Adapters that are right, or can be made right: each a change of a good draft that leaves what it computes."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

from tests.corpus.drafts import RANK, Architecture, Draft, Values
from tests.corpus.edits import Edit, config, dora, key, renamed, vision, whole_embedding

USUAL = ("q_proj", "v_proj", "self_attn.o_proj", "down_proj")
LAYERS = "base_model.model.model.layers."


@dataclass(frozen=True)
class Good:
    """`edit` changes a draft; `prepare` is the policy under which it is served as the draft itself would be."""

    name: str
    edit: Edit
    prepare: dict[str, Any] = field(default_factory=dict)


def spelled(prefix: str) -> Edit:
    """The modules under another beginning, as other libraries and releases write it."""
    return lambda draft, _: draft.rename(LAYERS, f"{prefix}layers.")


def adapter_named(name: str) -> Edit:
    def edit(draft: Draft, _: Architecture) -> None:
        draft.rename("lora_A.weight", f"lora_A.{name}.weight")
        draft.rename("lora_B.weight", f"lora_B.{name}.weight")

    return edit


def both(*edits: Edit) -> Edit:
    def edit(draft: Draft, architecture: Architecture) -> None:
        for one in edits:
            one(draft, architecture)

    return edit


def higher_rank_of_one(draft: Draft, _: Architecture) -> None:
    """rank_pattern says in full which module has another rank, by the name that the file has for it."""
    draft.config["rank_pattern"] = {r"model\.layers\.1\.self_attn\.q_proj": 2, "down_proj": RANK}
    draft.config["alpha_pattern"] = {"layers.1.self_attn.q_proj": 2 * draft.config["lora_alpha"] / RANK}
    for half, keep in (("A", _first_rows), ("B", _first_columns)):
        draft.tensors[key(half, 1)] = keep(draft.tensors[key(half, 1)])


def _first_rows(values: Values) -> Values:
    return Values("F32", (2, values.shape[1]), values.data[: 2 * values.shape[1] * 4])


def _first_columns(values: Values) -> Values:
    rows = [values.data[i : i + 8] for i in range(0, len(values.data), RANK * 4)]
    return Values("F32", (values.shape[0], 2), b"".join(rows))


def patterns_under_another_name(draft: Draft, architecture: Architecture) -> None:
    higher_rank_of_one(draft, architecture)
    draft.config["rank_pattern"] = {"model.wrapped.layers.1.self_attn.q_proj": 2}
    draft.config["alpha_pattern"] = {"wrapped.layers.1.self_attn.q_proj": draft.config["lora_alpha"] / 2}
    spelled("base_model.model.model.wrapped.")(draft, architecture)


def in_bf16(draft: Draft, _: Architecture) -> None:
    for values in draft.tensors.values():
        floats = struct.unpack(f"<{len(values.data) // 4}f", values.data)
        values.dtype = "BF16"
        values.data = b"".join(struct.pack("<f", number)[2:] for number in floats)


def in_f64(draft: Draft, _: Architecture) -> None:
    for values in draft.tensors.values():
        floats = struct.unpack(f"<{len(values.data) // 4}f", values.data)
        values.dtype, values.data = "F64", struct.pack(f"<{len(floats)}d", *floats)


def with_base_layer(draft: Draft, architecture: Architecture) -> None:
    shape = architecture.modules["model.embed_tokens"]
    name = "base_model.model.model.embed_tokens.base_layer.weight"
    draft.tensors[name] = Values("F32", shape, bytes(4 * shape[0] * shape[1]))


def stripped(draft: Draft, architecture: Architecture) -> None:
    dora(draft, architecture)
    draft.config["use_dora"] = True


SPELLINGS = {
    "no_prefix": "model.",
    "doubled_prefix": "base_model.model.base_model.model.model.",
    "language_model": "base_model.model.model.language_model.",
    "language_model_first": "base_model.model.language_model.model.",
    "bare": "base_model.model.",
    "compiled": "base_model.model._orig_mod.model.",
    "parallel": "base_model.model.module.model.",
    "decoder": "base_model.model.model.decoder.",
    "wrapped_bare": "wrapper.transformer.",
}
WRAPPERS = {
    "_checkpoint_wrapped_module": (".self_attn", "._checkpoint_wrapped_module.self_attn"),
    "_orig_mod": ("base_model.model.model.layers.1.", "base_model.model._orig_mod.model.layers.1._orig_mod."),
    "_fsdp_wrapped_module": ("_proj.", "_proj._fsdp_wrapped_module."),
    "module": ("layers.", "layers.module."),
    "base_layer": ("_proj.", "_proj.base_layer."),
}
GOODS: tuple[Good, ...] = (
    Good("plain", lambda draft, _: None),
    Good("remap_off", lambda draft, _: None, {"remap": "off"}),
    *(Good(f"spelled_{name}", spelled(prefix)) for name, prefix in SPELLINGS.items()),
    *(Good(f"wrapped_in_{name}", renamed(old, new)) for name, (old, new) in WRAPPERS.items()),
    Good(
        "wrapped_elsewhere", both(renamed("_proj.", "_proj.module."), spelled("base_model.model.module.transformer."))
    ),
    Good("default_keys", adapter_named("default")),
    Good("default_keys_elsewhere", both(adapter_named("sql"), spelled("base_model.model.transformer."))),
    Good("rslora", config(use_rslora=True)),
    Good("patterns", higher_rank_of_one),
    Good("patterns_renamed", patterns_under_another_name),
    Good("bf16", in_bf16),
    Good("f64", in_f64),
    Good("rank_4.0", config(r=4.0, rank_pattern={"q_proj": 4.0})),
    Good("parameters", config(target_modules=[], target_parameters=[f"{one}.weight" for one in USUAL])),
    Good("embedding_dropped", whole_embedding, {"drop": ["embed_tokens"]}),
    Good(
        "saved_embedding_dropped",
        both(whole_embedding, config(modules_to_save=["embed_tokens"])),
        {"drop": ["embed_tokens"]},
    ),
    Good("bf16_renamed", both(in_bf16, spelled("base_model.model."))),
    Good(
        "without_defaults", lambda draft, _: [draft.config.pop(name) for name in ("bias", "use_dora", "alpha_pattern")]
    ),
    Good("vision_dropped", vision, {"vision": "drop"}),
    Good("dora_stripped", stripped, {"dora": "strip"}),
    Good("base_layer", with_base_layer),
    Good("gaussian_init", config(init_lora_weights="gaussian")),
)
