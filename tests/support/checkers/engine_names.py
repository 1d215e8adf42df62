"""Names and paths in an engine's listing, as LoraPlane gives them."""

from __future__ import annotations

import re

from registry.model.names import name_key

_STORED = re.compile(r".*/adapters/sha256-([0-9a-f]{64})")


def artifact_of(path: str) -> str | None:
    """The artifact that a path of a sidecar's store is named by; None: it is none."""
    match = _STORED.fullmatch(path)
    return match[1] if match else None


def key_of(engine_name: str) -> str:
    """The name key of the adapter that an engine calls so: by its name, or by ``name@generation``."""
    return name_key(engine_name.partition("@")[0])


def generation_of(engine_name: str) -> int | None:
    """The generation in ``name@generation``; None: it is a name alone."""
    generation = engine_name.partition("@")[2]
    return int(generation) if generation.isdigit() else None
