"""Ledger of loads for engines that list no paths, one per incarnation.

It is about one incarnation: with the engine's next process it is void. It is written before the engine is called, so
that a sidecar which dies meanwhile knows afterwards what may be there.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path

from registry.model.stored import read_json
from registry.runtime.local_files import is_shortage, make_way, read_file, sync_directory
from sidecar.engines.driver import EngineUnreachable
from sidecar.engines.observed import Done, Outcome, Transient, Unknown

FILE = "loaded.json"
PAST_FILE = "past.json"
_SCHEMA = 1


class LoadLedger:
    """The record of one replica. A look may add to it while a load is recorded."""

    def __init__(self, directory: Path | None = None, file: str = FILE) -> None:
        """Reads nothing yet: another sidecar of this replica may still be there. What is damaged says nothing.

        Args:
            directory: of the replica's own state; None: it is remembered by this process only.
            file: its name there.
        """
        self._directory = directory
        self._file = file
        self._kept: tuple[str, dict[str, str]] | None = None if directory is not None else ("", {})
        self._changing = asyncio.Lock()

    def of(self, incarnation: str) -> Mapping[str, str]:
        """Name to path in that process of the engine. Raises OSError: it cannot be read now."""
        if self._kept is None and self._directory is not None:
            self._kept = _read(self._directory / self._file)
        kept, paths = self._kept or ("", {})
        return paths if incarnation == kept else {}

    async def seen(self, incarnation: str, listed: Mapping[str, str]) -> Mapping[str, str]:
        """Records what the engine lists, unless it had something under the name before; gives name to path.

        Raises:
            EngineUnreachable: it cannot be read, or recorded.
        """
        try:
            async with self._changing:
                await self._replace(incarnation, {**listed, **self.of(incarnation)})
        except OSError as error:
            raise EngineUnreachable(f"what the engine has cannot be recorded: {error}") from error
        return self.of(incarnation)

    async def recording(
        self, incarnation: str, name: str, path: str, load: Callable[[], Awaitable[Outcome]]
    ) -> Outcome:
        """Loads, once it is recorded what may come of it; what certainly did not come of it is taken back."""
        try:
            had = self.of(incarnation).get(name)
            async with self._changing:
                await self._replace(incarnation, {**self.of(incarnation), name: path})
        except OSError as error:
            return Transient(f"it cannot be recorded what the engine is to load: {error}")
        outcome = await load()
        if not isinstance(outcome, Done | Unknown):
            async with self._changing:
                paths = {one: kept for one, kept in self.of(incarnation).items() if one != name}
                with suppress(OSError):  # it then counts as loaded, which only forbids
                    await self._replace(incarnation, paths if had is None else {**paths, name: had})
        return outcome

    async def forget(self, incarnation: str, name: str) -> None:
        """Records that the engine does not have `name` any more; where that cannot be written, until a restart."""
        async with self._changing:
            paths = {one: path for one, path in self.of(incarnation).items() if one != name}
            with suppress(OSError):
                await self._replace(incarnation, paths)
            self._kept = incarnation, paths

    async def _replace(self, incarnation: str, paths: dict[str, str]) -> None:
        if paths == self.of(incarnation):
            return
        if self._directory is not None:
            value = {"schema": _SCHEMA, "incarnation": incarnation, "paths": paths}
            await asyncio.to_thread(write_synced, self._directory / self._file, json.dumps(value).encode())
        self._kept = incarnation, paths


def write_synced(path: Path, content: bytes) -> None:
    """Replaces a file as a whole, to survive a power cut; its one writer writes one at a time. Raises OSError."""
    temporary = path.with_suffix(".tmp")
    make_way(path)
    make_way(temporary)
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    sync_directory(path.parent)


def _read(path: Path) -> tuple[str, dict[str, str]]:
    """Raises OSError: it cannot be read now; what is missing or damaged says nothing."""
    try:
        value = read_json(read_file(path))
    except OSError as error:
        if is_shortage(error):
            raise
        return "", {}
    except ValueError:
        return "", {}
    match value:
        case {"schema": 1, "incarnation": str(incarnation), "paths": dict(paths)} if all(
            isinstance(path, str) for path in paths.values()
        ):
            return incarnation, paths
        case _:
            return "", {}
