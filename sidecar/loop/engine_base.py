"""Base model at each start of the engine, read anew where it is not told.

Without the plugin the sidecar reads the folder of ``--base-model``, or the one that the engine itself was given, if it
sees it. It does so once for each process of the engine: what stands there later is not what that process has loaded.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import structlog

from registry.lora.base import BaseModules
from registry.lora.base_directory import BaseUnreadable, read_base
from registry.lora.engine_base import UNKNOWN_BASE, EngineBase
from sidecar.engines.observed import EngineFacts, Observed

_log = structlog.get_logger()


class StartedBases:
    """Knowledge of the base model of the engine's present process."""

    def __init__(self, own: Path | None = None) -> None:
        """Reads nothing yet.

        Args:
            own: the sidecar's folder of the base model; None: it has none.
        """
        self._own = own
        self._told: tuple[str, EngineBase] | None = None
        self._own_now: BaseModules | None = None
        self._seen: BaseModules | None = None
        self._read_for = ""
        self._base = UNKNOWN_BASE

    async def complete(self, observed: Observed) -> Observed:
        """The look, with what was read when that process of the engine was first seen."""
        facts = observed.facts
        if self._told is None or self._told[0] != facts.incarnation or self._told[1] is not facts.base:
            if self._read_for != facts.incarnation:
                await self._read(facts)
            files = facts.base.files or (None if facts.base.is_known else self._seen)
            self._base = replace(facts.base, files=files, own=self._own_now)
            self._told = facts.incarnation, facts.base
        return replace(observed, facts=replace(facts, base=self._base))

    async def _read(self, facts: EngineFacts) -> None:
        self._own_now = await _read_folder(self._own) if self._own else None
        has_other = self._own is not None or not facts.base_path.startswith("/")
        self._seen = None if has_other else await _read_folder(Path(facts.base_path))
        self._read_for = facts.incarnation


async def _read_folder(directory: Path) -> BaseModules | None:
    return await asyncio.to_thread(_read_base, directory)


def _read_base(directory: Path) -> BaseModules | None:
    try:
        return read_base(directory)
    except BaseUnreadable as error:
        _log.info("base_not_read", directory=f"{directory}", error=f"{error}")
        return None
