"""Digest of an artifact's files, and its id in a store. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
# The files that matter; nothing else of a source is read.
FILES = (CONFIG_FILE, WEIGHTS_FILE)


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
