"""Reads JSON that somebody else wrote, strictly. Pure."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

from registry.lora.findings import Finding, UnfitAdapter

LFS_POINTER = b"version https://git-lfs"
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
SAVE_AGAIN = "save it again with PEFT's save_pretrained (safetensors)"


def json_object(file: str, content: bytes) -> dict[str, Any]:
    """The object that a file holds; no key stands there twice.

    Raises:
        UnfitAdapter: ``not_an_adapter``.
    """
    if content.startswith(LFS_POINTER):
        raise lfs_pointer(file)
    try:
        value = json.loads(content.decode(), object_pairs_hook=_without_duplicates)
        if _SURROGATE.search(content):  # half of a pair could be read, and never be written anywhere
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise not_an_adapter(file, f"what is not readable as JSON ({str(error)[:200]})", "JSON") from error
    if not isinstance(value, dict):
        raise not_an_adapter(file, f"a JSON {type(value).__name__}", "a JSON object")
    return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {twice[:200]!r} stands there twice")
    return value


def lfs_pointer(file: str) -> UnfitAdapter:
    """The file is what git-lfs leaves in place of a large file."""
    return not_an_adapter(file, "a git-lfs pointer", "the file itself", "run `git lfs pull` at the source")


def not_an_adapter(key: str, found: str, expected: str, remedy: str = SAVE_AGAIN) -> UnfitAdapter:
    """A file is not what its name says."""
    return UnfitAdapter([Finding("not_an_adapter", key, found, expected, remedy)])
