"""Reads an adapter's files as vLLM's worker does, far enough to refuse."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_CLASSIFIERS = {"classifier", "score"}
_UNSUPPORTED = ("use_dora", "lora_bias", "alora_invocation_tokens", "layer_replication", "use_bdlora", "use_qalora")
# The other ways to begin that have a name change the base model's weights as well.
_PLAIN = {"gaussian", "eva", "orthogonal", "mica", "lora_ga"}


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
        path.encode()  # what no message to the engine's core can hold
        config = (folder / "adapter_config.json").read_bytes()
    except FileNotFoundError as error:
        raise AdapterMissing from error
    except (OSError, ValueError) as error:  # a file, not a folder; a path that no system call takes
        raise AdapterRefused(f"{error}") from error
    try:
        weights = (folder / "adapter_model.safetensors").read_bytes()
    except OSError as error:
        raise AdapterRefused("<path> doesn't contain tensors") from error
    _check_config(config, max_rank)
    _check_weights(weights)
    return hashlib.sha256(config + weights).hexdigest()


def _check_config(content: bytes, max_rank: int) -> None:
    try:
        reasons = _reasons(json.loads(content.decode()), max_rank)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise AdapterRefused(f"{error}") from error
    if reasons:
        raise AdapterRefused(" ".join(reasons))


def _reasons(config: Mapping[str, Any], max_rank: int) -> list[str]:
    """Why vLLM does not take a config.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: vLLM's own code stumbles over it likewise.
    """
    rank, alpha, _ = (config[name] for name in ("r", "lora_alpha", "target_modules"))
    ranks = [rank, *(config.get("rank_pattern") or {}).values()]
    special = (config.get("alpha_pattern") or {}).values()  # taken to match modules, without which they do not count
    alphas = [alpha, *(one for one in special if one is not None)]
    to_save, init = config.get("modules_to_save") or (), config.get("init_lora_weights", True)
    refused = {
        f"LoRA rank must be a positive integer, got {ranks}.": min(ranks) <= 0,
        f"lora_alpha must be a number, got {alphas}.": not all(isinstance(one, int | float) for one in alphas),
        f"LoRA rank {max(ranks)} is greater than max_lora_rank {max_rank}.": max(ranks) > max_rank,
        "Adapter bias is not supported.": config.get("bias", "none") != "none",
        f"vLLM does not support init_lora_weights={init!r}.": isinstance(init, str) and init.lower() not in _PLAIN,
        f"vLLM only supports modules_to_save for classifiers, not {to_save}.": not {*to_save} <= _CLASSIFIERS,
    }
    refused |= {f"vLLM does not support {name}.": bool(config.get(name)) for name in _UNSUPPORTED}
    return [reason for reason, is_so in refused.items() if is_so]


def _check_weights(content: bytes) -> None:
    """Only what a reader of safetensors itself would notice: the header, and that the file is as long as it says."""
    size = int.from_bytes(content[:8], "little")
    if len(content) < 8 or 8 + size > len(content):
        raise AdapterRefused("Error while deserializing header: invalid header length")
    try:
        header = json.loads(content[8 : 8 + size])
        end = max(entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__")
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise AdapterRefused("Error while deserializing header: invalid header") from error
    if end != len(content) - 8 - size:
        raise AdapterRefused("Error while deserializing header: incomplete metadata, file not fully covered")
