"""Files of an artifact: their names, their digest, its id in a store. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
# The files that matter; nothing else of a source is read.
FILES = (CONFIG_FILE, WEIGHTS_FILE)


@dataclass(frozen=True, slots=True)
class OtherFile:
    """A file that somebody has in place of the weights: why that is refused, what it is, and what to do."""

    reason: Literal["weights_not_safetensors", "other_format", "not_an_adapter"]
    what: str
    remedy: str


_PICKLED = OtherFile(
    "weights_not_safetensors",
    "weights as PEFT wrote them before 2024, which can hold code",
    "convert it to safetensors: load it with PEFT, and save_pretrained writes it anew",
)
OF_MLX = OtherFile(
    "other_format",
    "an adapter of MLX",
    "convert it to PEFT's form, or train it with PEFT: peft_type LORA, and lora_A and lora_B of each module",
)
_OF_IMAGES = OtherFile(
    "other_format", "an adapter of diffusers, for a model that makes images", "name the source of a language model's"
)
_OF_LLAMA_CPP = OtherFile("other_format", "an adapter of llama.cpp", "name what it was converted from")
_WHOLE_MODEL = OtherFile(
    "not_an_adapter", "the weights of a whole model", "save the adapter alone: PEFT's save_pretrained does"
)
OTHER_FILES: Mapping[str, OtherFile] = MappingProxyType(
    {
        "adapter_model.bin": _PICKLED,
        "adapter_model.pt": _PICKLED,
        "adapters.safetensors": OF_MLX,
        "adapters.npz": OF_MLX,
        "pytorch_lora_weights.safetensors": _OF_IMAGES,
        "ggml-adapter-model.bin": _OF_LLAMA_CPP,
        "model.safetensors": _WHOLE_MODEL,
        "model.safetensors.index.json": _WHOLE_MODEL,
    }
)


def instead_of_weights(present: Collection[str]) -> str | None:
    """The file of `OTHER_FILES` that is there in place of the weights; None: these are there, or may be yet to come.

    `present`: names of files.
    """
    others = (name for name in OTHER_FILES if name in present)
    return None if WEIGHTS_FILE in present else next(others, None)


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a manifest: its name, its size in bytes, its sha256 in hexadecimal."""

    path: str
    size: int
    sha256: str


def canonical_json(value: object) -> bytes:
    """JSON with sorted keys and no spaces, so that equal values have equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def manifest_digest(entries: Iterable[FileEntry]) -> str:
    """``sha256:<hex>`` of the canonical manifest of the files, whatever their order."""
    ordered = sorted(entries, key=lambda entry: entry.path)
    files = [{"path": entry.path, "size": entry.size, "sha256": entry.sha256} for entry in ordered]
    return "sha256:" + sha256_of({"schema": "lora-manifest/1", "files": files})


def prepared_id(digest: str, policy: dict[str, object], base: str | None) -> str:
    """The id, 64 hexadecimal digits, of what `policy` makes of the source `digest`.

    Args:
        digest: manifest digest of the source.
        policy: what is done to the files and the version of the code that does it.
        base: fingerprint of the base model's modules; None: not known.
    """
    return sha256_of({"source": digest, "policy": policy, "base": base})


def sha256_of(value: object) -> str:
    """sha256 of a value's canonical JSON, in hexadecimal."""
    return hashlib.sha256(canonical_json(value)).hexdigest()
