"""Reads an adapter's files as vLLM's worker does: far enough to refuse what it refuses, and to tell weights apart."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

_CLASSIFIERS = {"classifier", "score"}


class AdapterMissing(Exception):
    """There is no adapter at that path."""


class AdapterRefused(Exception):
    """There is one, and vLLM does not take it; the message is vLLM's."""


def read_weights(path: str, max_rank: int) -> str:
    """Reads the adapter at `path`.

    Returns:
        A digest of its files: what the adapter's output depends on.

    Raises:
        AdapterMissing: `path` is relative, or has no adapter_config.json.
        AdapterRefused: see the class.
    """
    folder = Path(path)
    if not folder.is_absolute():  # vLLM takes it for an id on a hub
        raise AdapterMissing
    try:
        config = (folder / "adapter_config.json").read_bytes()
    except OSError as error:
        raise AdapterMissing from error
    try:
        weights = (folder / "adapter_model.safetensors").read_bytes()
    except OSError as error:
        raise AdapterRefused("<path> doesn't contain tensors") from error
    _check_config(config, max_rank)
    _check_weights(weights)
    return hashlib.sha256(config + weights).hexdigest()


def _check_config(content: bytes, max_rank: int) -> None:
    try:
        config = json.loads(content)
        rank = int(config["r"])
        to_save = set(config.get("modules_to_save") or ())
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise AdapterRefused(f"{error}") from error
    if rank > max_rank:
        raise AdapterRefused(f"LoRA rank {rank} is greater than max_lora_rank {max_rank}.")
    if config.get("use_dora"):
        raise AdapterRefused("vLLM does not yet support DoRA.")
    if config.get("bias", "none") != "none":
        raise AdapterRefused("Adapter bias is not supported.")
    if not to_save <= _CLASSIFIERS:
        raise AdapterRefused(f"vLLM only supports modules_to_save for classifiers. Unsupported: {sorted(to_save)}")


def _check_weights(content: bytes) -> None:
    """Only what a reader of safetensors itself would notice: the header, and that the file is as long as it says."""
    size = int.from_bytes(content[:8], "little")
    if len(content) < 8 or 8 + size > len(content):
        raise AdapterRefused("Error while deserializing header: invalid header length")
    try:
        header = json.loads(content[8 : 8 + size])
        end = max(entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__")
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise AdapterRefused("Error while deserializing header: invalid header") from error
    if end != len(content) - 8 - size:
        raise AdapterRefused("Error while deserializing header: incomplete metadata, file not fully covered")
