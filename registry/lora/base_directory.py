"""Reads a base model's modules from its directory.

They come from the headers of its weights, else from its config.json.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from registry.lora.base import (
    BaseModules,
    ReadTensor,
    Shape,
    UnknownPacking,
    is_packed,
    layout_of,
    model_name,
    modules_of,
    packed_modules,
)
from registry.lora.directory import read_header_of
from registry.lora.findings import UnfitAdapter
from registry.lora.json_files import json_object
from registry.lora.safetensors import Tensor

# Families whose checkpoints name their modules as Llama's does.
_LIKE_LLAMA = frozenset("llama mistral qwen2 qwen3 gemma gemma2 gemma3_text granite smollm3 olmo2".split())
_FUSED = frozenset({"phi3"})
# Their heads are their embeddings unless config.json says otherwise, and transformers 4 leaves out what is usual.
_TIED = frozenset({"gemma", "gemma2", "gemma3_text", "smollm3"})
_MAX_LAYERS = 10_000
_CLASS_NAME = re.compile(r"[A-Za-z0-9_]{1,128}")


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


_INDEX = "model.safetensors.index.json"
_MAX_FILES = 1024
_MAX_JSON_BYTES = 64 << 20


class BaseUnreadable(Exception):
    """The directory does not tell the modules of a base model; the message says why and what to give instead."""


def read_base(directory: Path, names: tuple[str, ...] = ()) -> BaseModules:
    """The modules of the base model in `directory`.

    Args:
        directory: as transformers saves it: config.json, and usually safetensors files.
        names: that an adapter may call its base by; none: any.

    Raises:
        BaseUnreadable: see there.
    """
    try:
        tensors, weights, read = _read_weights(directory)
    except (OSError, ValueError, UnfitAdapter) as error:
        raise _unreadable(directory, error) from error
    try:
        config, problem = _json(directory / "config.json"), None
    except (OSError, ValueError, UnfitAdapter) as error:
        config, problem = {}, error
    try:
        return base_of_files(tensors, config, weights, names, read)
    except UnknownArchitecture as error:
        raise _unreadable(directory, problem or error) from error


def _unreadable(directory: Path, error: Exception) -> BaseUnreadable:
    why = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else error
    return BaseUnreadable(f"{directory} does not tell the base model's modules: {why}")


def _unread(_: str) -> bytes:
    """Nothing, where the numbers of a checkpoint are elsewhere."""
    return b""


def base_of_files(
    tensors: Iterable[Tensor],
    config: Mapping[str, object],
    weights: str | None = None,
    names: tuple[str, ...] = (),
    read: ReadTensor = _unread,
) -> BaseModules:
    """The modules of a base model whose files have these tensors; what its configuration lacks stays unknown.

    Raises:
        UnknownArchitecture: neither the tensors nor the configuration tell them.
    """
    found = tuple(tensors)
    modules = _modules_of(found, config, read)
    layout = layout_of({one.name: (one.dtype, one.shape) for one in found}) if found else None
    text = config.get("text_config")
    text = text if isinstance(text, dict) else config
    tied = _is_tied({**text, **config}, f"{text.get('model_type')}") and "lm_head" not in modules
    architecture, head_size = _architecture(config), _head_size(text)
    return BaseModules(modules, names, architecture, tied, head_size, layout=layout, weights=weights)


def _architecture(config: Mapping[str, object]) -> str | None:
    """The class that an engine makes; None: config.json says none."""
    match config.get("architectures"):
        case [str(first), *_] if _CLASS_NAME.fullmatch(first):
            return first
        case _:
            return None


def _head_size(config: Mapping[str, object]) -> int | None:
    try:
        return _number(config, "head_dim", _number(config, "hidden_size") // _number(config, "num_attention_heads"))
    except UnknownArchitecture:
        return None


def names_of(directory: Path) -> frozenset[str]:
    """Names of the base model in `directory`, in lower case: as it is there, and where it came from.

    Raises:
        OSError, ValueError, UnfitAdapter: its config.json cannot be read.
    """
    place = directory.resolve()
    config = _json(place / "config.json") if (place / "config.json").exists() else {}
    origin = str(config.get("_name_or_path") or "")
    return frozenset({place.name.lower(), model_name(str(place)), model_name(origin)} - {""})


def _modules_of(tensors: Sequence[Tensor], config: Mapping[str, object], read: ReadTensor) -> Mapping[str, Shape]:
    """By the weights; where there are none, or where they are packed and do not contradict it, by config.json.

    Earlier releases did not read packed weights, and a base keeps its fingerprint.
    """
    plain = modules_of(one for one in tensors if not is_packed(one))
    if not any(map(is_packed, tensors)):
        return plain or derive(config)
    derived: Mapping[str, Shape] = {}
    with suppress(UnknownArchitecture):
        derived = derive(config)
    try:
        modules = plain | packed_modules(tensors, config, read)
    except UnknownPacking as error:
        if not derived:
            raise UnknownArchitecture(str(error)) from error
        return derived
    return derived if derived and derived.items() <= modules.items() else modules


# Of so many tensors so much is read at the start, in the middle and at the end: quick also for the largest models.
_SAMPLED_TENSORS = 2048
_SAMPLED_BYTES = 1024


def _read_weights(directory: Path) -> tuple[list[Tensor], str | None, ReadTensor]:
    """The tensors of all safetensors files, and ``sha256:<hex>`` over a sample of their numbers; None: there are none.

    And what reads one of them.

    `sidecar.vllm_plugin.base_files` takes the same sample.
    """
    tensors: list[Tensor] = []
    places: dict[str, tuple[Path, int, int]] = {}
    for file in weights_files(directory):
        with file.open("rb") as opened:
            header, start = read_header_of(opened, file.name)
        tensors += header.tensors
        places |= {one.name: (file, start + one.begin, start + one.end) for one in header.tensors}

    def read(name: str) -> bytes:
        path, begin, end = places[name]
        with path.open("rb") as file:
            file.seek(begin)
            return file.read(end - begin)

    return tensors, _sample(places) if places else None, read


def _sample(places: Mapping[str, tuple[Path, int, int]]) -> str:
    digest, names = hashlib.sha256(), sorted(places)
    for name in names[:: -(-len(names) // _SAMPLED_TENSORS)]:
        path, begin, end = places[name]
        digest.update(name.encode() + b"\0")
        with path.open("rb") as file:
            for at in (begin, (begin + end) // 2, max(begin, end - _SAMPLED_BYTES)):
                file.seek(at)
                digest.update(file.read(min(_SAMPLED_BYTES, end - at)))
    return "sha256:" + digest.hexdigest()


def weights_files(directory: Path) -> list[Path]:
    """The safetensors files of a model's directory.

    Raises:
        ValueError, OSError: its index cannot be read.
    """
    if (directory / _INDEX).exists():
        files = _json(directory / _INDEX).get("weight_map")
        names = {str(name) for name in files.values()} if isinstance(files, dict) else set()
        if not names or len(names) > _MAX_FILES or any(Path(name).name != name for name in names):
            raise ValueError(f"{_INDEX} names other than files beside it")
        return [directory / name for name in sorted(names)]
    return sorted(directory.glob("*.safetensors"))[:_MAX_FILES]


def _json(path: Path) -> dict[str, Any]:
    if path.stat().st_size > _MAX_JSON_BYTES:
        raise ValueError(f"{path.name} is larger than {_MAX_JSON_BYTES} bytes")
    with path.open("rb") as file:
        return json_object(path.name, file.read(_MAX_JSON_BYTES))
