"""How a good draft is made wrong, or otherwise: one function for each kind of change."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.corpus.drafts import RANK, WEIGHTS, WIDTH, Architecture, Draft, Values, with_header

Edit = Callable[[Draft, Architecture], object]
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
TWICE = (16).to_bytes(8, "little") + b'{"a":{}, "a":{}}'
HTML = b"<!DOCTYPE html><html><title>404</title>" + b" " * 999


def q(draft: Draft, half: str = "A", layer: int = 0) -> Values:
    """One tensor of the draft."""
    return draft.tensors[key(half, layer)]


def key(half: str, layer: int = 0) -> str:
    return f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_{half}.weight"


def config(**fields: Any) -> Edit:
    return lambda draft, _: draft.config.update(fields)


def without(*fields: str) -> Edit:
    return lambda draft, _: [draft.config.pop(name) for name in fields]


def raw(name: str, content: bytes | None) -> Edit:
    return lambda draft, _: draft.raw.update({name: content})


def cut(name: str, change: Callable[[bytes], bytes]) -> Edit:
    return lambda draft, _: draft.raw.update({name: change(draft.files()[name])})


def tensor(name: str, dtype: str = "F32", shape: tuple[int, ...] = (RANK,)) -> Edit:
    def edit(draft: Draft, _: Architecture) -> None:
        count = WIDTH[dtype]
        for size in shape:
            count *= size
        draft.tensors[name] = Values(dtype, shape, bytes(count))

    return edit


def typed(dtype: str) -> Edit:
    def edit(draft: Draft, _: Architecture) -> None:
        for values in draft.tensors.values():
            values.dtype, values.data = dtype, bytes(WIDTH[dtype] * values.shape[0] * values.shape[1])

    return edit


def number(dtype: str, bits: bytes) -> Edit:
    def edit(draft: Draft, architecture: Architecture) -> None:
        typed(dtype)(draft, architecture)
        values = q(draft, "B", 1)
        values.data = values.data[: -len(bits)] + bits

    return edit


def reshaped(half: str, make: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Edit:
    def edit(draft: Draft, _: Architecture) -> None:
        values = q(draft, half)
        values.shape = make(values.shape)
        count = 1
        for size in values.shape:
            count *= size
        values.data = bytes(4 * count)

    return edit


def other_width(factor: float) -> Edit:
    """The adapter of a base with another hidden size."""

    def edit(draft: Draft, architecture: Architecture) -> None:
        for name, values in draft.tensors.items():
            values.shape = tuple(size if size == RANK else int(size * factor) for size in values.shape)
            draft.tensors[name] = Values("F32", values.shape, bytes(4 * values.shape[0] * values.shape[1]))

    return edit


def header(change: Callable[[dict[str, Any]], object]) -> Edit:
    """Changes the header as it is written, so that it lies."""

    def edit(draft: Draft, _: Architecture) -> None:
        content = draft.files()[WEIGHTS]
        length = struct.unpack("<Q", content[:8])[0]
        entries = json.loads(content[8 : 8 + length])
        change(entries)
        draft.raw[WEIGHTS] = with_header(entries, content[8 + length :])

    return edit


def entry(name: str, **fields: Any) -> Edit:
    return header(lambda entries: entries[name].update(fields))


def moved_on(entries: dict[str, Any]) -> None:
    """Every tensor begins four bytes later than the one before it ends."""
    for name, fields in entries.items():
        if name != "__metadata__":
            fields["data_offsets"] = [offset + 4 for offset in fields["data_offsets"]]


def renamed(old: str, new: str) -> Edit:
    return lambda draft, _: draft.rename(old, new)


def dropped(half: str) -> Edit:
    return lambda draft, _: draft.tensors.pop(key(half))


def more_layers(draft: Draft, _: Architecture) -> None:
    for half in "AB":
        draft.tensors[key(half, 7)] = q(draft, half)


def twin(draft: Draft, _: Architecture) -> None:
    draft.tensors[key("A").replace(".weight", ".default.weight")] = q(draft)


def moved_twin(draft: Draft, _: Architecture) -> None:
    """The same modules twice, under two beginnings."""
    copies = {name.replace("model.model.layers", "model.wrapped.layers"): one for name, one in draft.tensors.items()}
    draft.tensors |= copies


def wrapped_twin(draft: Draft, architecture: Architecture) -> None:
    """The same modules twice, and once amid a wrapper."""
    copies = {name.replace("_proj.", "_proj.base_layer."): one for name, one in draft.tensors.items()}
    draft.tensors |= copies


def dora(draft: Draft, _: Architecture) -> None:
    name = key("A").replace("lora_A.weight", "lora_magnitude_vector")
    draft.tensors[name] = Values("F32", (8,), bytes(32))


def linear_embedding(draft: Draft, architecture: Architecture) -> None:
    draft.tensors |= architecture.draft("model.embed_tokens").tensors


def resized_embedding(draft: Draft, architecture: Architecture) -> None:
    draft.tensors["base_model.model.model.embed_tokens.base_layer.weight"] = Values("F32", (65, 8), bytes(4 * 65 * 8))


def short_embedding(draft: Draft, architecture: Architecture) -> None:
    stem, hidden = "base_model.model.model.embed_tokens", architecture.modules["model.embed_tokens"][1]
    draft.tensors[f"{stem}.lora_embedding_A"] = Values("F32", (RANK, 63), bytes(4 * RANK * 63))
    draft.tensors[f"{stem}.lora_embedding_B"] = Values("F32", (hidden, RANK), bytes(4 * RANK * hidden))


def vision(draft: Draft, _: Architecture) -> None:
    for half, shape in (("A", (RANK, 20)), ("B", (60, RANK))):
        name = f"base_model.model.visual.blocks.0.attn.qkv.lora_{half}.weight"
        draft.tensors[name] = Values("F32", shape, bytes(4 * shape[0] * shape[1]))


def emptied(draft: Draft, _: Architecture) -> None:
    draft.tensors = {}


def strange_metadata(draft: Draft, _: Architecture) -> None:
    draft.metadata = {"format": 7}


def pickled(draft: Draft, _: Architecture) -> None:
    draft.raw |= {WEIGHTS: None, "adapter_model.bin": b"\x80\x04."}


def long_name(draft: Draft, _: Architecture) -> None:
    draft.rename("self_attn", "self_attn" * 99)


def whole_embedding(draft: Draft, architecture: Architecture) -> None:
    """As PEFT saves it beside LoRA where the vocabulary was resized."""
    shape = architecture.modules["model.embed_tokens"]
    draft.tensors["base_model.model.model.embed_tokens.weight"] = Values("F32", shape, bytes(4 * shape[0] * shape[1]))


F64, F32, F16, BF16 = (partial(number, one) for one in ("F64", "F32", "F16", "BF16"))
