"""Keeps the last-known-good snapshot on disk, crash-safe at every step.

Files in `directory`: ``snapshot-<n>`` (a base) and ``journal-<n>`` (what came after that base). A boot takes the
newest whole base and the journals of consecutive numbers from its own on, and appends to the last of them; a number is
skipped where an entry could not be written, so that nothing is ever folded in after a gap. Only the last journal has
bytes that a power cut may take, for what is missing at the end of one before it would not show. No file can prevent a
boot: what is damaged is left out. What cannot be read for want of descriptors is not: there is no boot without it.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import structlog

from registry.runtime.failpoints import Point, hit
from registry.runtime.local_files import is_shortage, make_way, open_file, sync_directory
from sidecar.desired.snapshot import (
    Entry,
    SnapshotBase,
    SnapshotDamaged,
    decode_base,
    decode_entries,
    encode_base,
    encode_entry,
)

_log = structlog.get_logger()
_NUMBERED = re.compile(r"(snapshot|journal|tmp)-(\d{1,12})")
# A journal smaller than this is never worth a new base.
MIN_JOURNAL_BYTES = 1 << 20
# More than any pool's records have, and far more than the longest line; what is larger was written by somebody else.
MAX_FILE_BYTES = 2 << 30
MAX_LINE_BYTES = 64 << 20
# What is appended within this time is synced together.
SYNC_AFTER_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Restored:
    """State that a boot found: a base, and the entries to fold into it."""

    base: SnapshotBase
    entries: tuple[Entry, ...]


class SnapshotUnread(Exception):
    """Descriptors or memory are short, so that the snapshot cannot be read now; without it a boot goes back in time."""


class Journal:
    """The snapshot of one replica. One task owns it."""

    def __init__(self, directory: Path) -> None:
        """Reads nothing yet."""
        self._directory = directory
        self._number = 0
        self._descriptor: int | None = None
        self._journal_bytes = 0
        self._base_bytes = 0
        self._unsynced = asyncio.Event()
        self._syncing = asyncio.Lock()
        self._named = 0
        self._has_gap = False

    def restore(self, pool: str) -> Restored | None:
        """Reads what an earlier process left; None if there is nothing whole of this pool. Raises SnapshotUnread."""
        try:
            files = self._files()
        except OSError as error:
            _check_shortage(error)
            _log.warning("snapshot_unreadable", error=str(error))
            return None
        self._number = max(files["snapshot"] + files["journal"], default=0)
        for number in sorted(files["snapshot"], reverse=True):
            base = self._read_base(number)
            if base is not None and base.pool == pool:
                restored = Restored(base, self._read_entries(number, set(files["journal"])))
                if not self._has_gap:  # else a new base has to come first
                    self._open(self._number, is_there=self._number in files["journal"])
                return restored
        return None

    def set_aside(self) -> None:
        """Puts what stands there out of the way of the next boot; somebody may want to look at it."""
        self.close()
        try:
            for kind, numbers in self._files().items():
                for number in numbers:
                    name = f"{kind}-{number}"
                    (self._directory / name).replace(self._directory / f"damaged-{name}")
                    _log.error("snapshot_set_aside", file=f"damaged-{name}")
        except OSError as error:
            _log.warning("snapshot_not_set_aside", error=str(error))

    @property
    def wants_base(self) -> bool:
        """True if there is no journal to append to, or it has outgrown its base."""
        return self._descriptor is None or self._journal_bytes > max(MIN_JOURNAL_BYTES, self._base_bytes)

    def append(self, entry: Entry) -> None:
        """Writes an entry to the journal; it survives a kill at once, a power cut after `sync`.

        A failure is logged and closes the journal, for a gap in it must never be followed by more.
        """
        if self._descriptor is None:
            return
        line = encode_entry(entry)
        try:
            written = os.write(self._descriptor, line)
        except OSError as error:
            self._abandon("journal_write_failed", str(error))
            return
        if written != len(line):
            self._abandon("journal_write_failed", "the disk took only a part of it")
            return
        self._journal_bytes += written
        self._unsynced.set()
        hit(Point.ENTRY_APPENDED)

    async def settle(self) -> None:
        """Returns when all that was appended survives a power cut, or cannot be made to. Comes before `rewrite`."""
        while self._unsynced.is_set() or self._syncing.locked():
            await self.sync()

    async def rewrite(self, base: SnapshotBase, *, is_list: bool = False) -> None:
        """Writes a new base of what was appended until now; what is appended meanwhile goes to the journal after it.

        `is_list`: it did not come of the entries before it, so what follows must never be folded into these.
        """
        self._number += 2 if self._has_gap or is_list else 1
        self._has_gap = False
        number = self._number
        self._open(number)
        hit(Point.JOURNAL_OPENED)
        self._journal_bytes = 0
        try:
            self._forget_halves()  # they may have the room that this one needs
            self._base_bytes = await asyncio.to_thread(self._write_base, number, base)
            self._forget_before(number)
        except OSError as error:
            self._abandon("snapshot_write_failed", str(error))
            with suppress(OSError):
                self._forget_halves()

    async def keep_synced(self) -> None:
        """Syncs what is appended, until it is cancelled. Whoever acts upon an entry does not wait for the disk."""
        while True:
            await self._unsynced.wait()
            await asyncio.sleep(SYNC_AFTER_SECONDS)
            await self.sync()

    async def sync(self) -> None:
        """Makes what was appended survive a power cut."""
        async with self._syncing:
            number = self._number
            self._unsynced.clear()
            if self._descriptor is None:
                return
            try:
                # The journal may be replaced meanwhile.
                await asyncio.to_thread(self._sync, number, os.dup(self._descriptor))
            except OSError as error:
                if number == self._number:
                    self._abandon("journal_sync_failed", str(error))
            hit(Point.ENTRY_SYNCED)

    def close(self) -> None:
        """Closes the journal; the files stay."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _sync(self, number: int, descriptor: int) -> None:
        """Syncs a journal, and its name once."""
        _sync(descriptor)
        if self._named != number:
            self._sync_names(number)

    def _sync_names(self, number: int) -> None:
        """Syncs the names that are there, that of this journal among them."""
        sync_directory(self._directory)
        self._named = number

    def _open(self, number: int, *, is_there: bool = False) -> None:
        """Opens a journal to append to it; of one that is there nobody knows whether all of it is synced."""
        self.close()
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | (0 if is_there else os.O_CREAT | os.O_EXCL)
            self._descriptor = os.open(self._directory / f"journal-{number}", flags, 0o600)
        except OSError as error:
            _log.warning("journal_open_failed", error=str(error))
        if is_there:
            self._unsynced.set()

    def _abandon(self, event: str, error: str) -> None:
        _log.warning(event, error=error)
        self._has_gap = True
        self.close()

    def _write_base(self, number: int, base: SnapshotBase) -> int:
        temporary = self._directory / f"tmp-{number}"
        make_way(temporary)
        make_way(self._directory / f"snapshot-{number}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(encode_base(base))
            file.flush()
            hit(Point.BASE_WRITTEN)
            size_bytes = file.tell()
            os.fsync(file.fileno())
        hit(Point.BASE_SYNCED)
        temporary.rename(self._directory / f"snapshot-{number}")
        hit(Point.BASE_NAMED)
        self._sync_names(number)
        hit(Point.BASE_KEPT)
        return size_bytes

    def _forget_halves(self) -> None:
        """Removes what there is of bases that were not written to their end."""
        for number in self._files()["tmp"]:
            (self._directory / f"tmp-{number}").unlink(missing_ok=True)

    def _forget_before(self, number: int) -> None:
        for kind, numbers in self._files().items():
            for old in numbers:
                if old < number:
                    (self._directory / f"{kind}-{old}").unlink(missing_ok=True)
                    hit(Point.OLD_FORGOTTEN)

    def _files(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {"snapshot": [], "journal": [], "tmp": []}
        if self._directory.is_dir():
            for entry in self._directory.iterdir():
                # What is no file would be waited for, or stand in the way of others.
                if (match := _NUMBERED.fullmatch(entry.name)) and entry.is_file():
                    found[match[1]].append(int(match[2]))
        return found

    def _read_base(self, number: int) -> SnapshotBase | None:
        try:
            with open_file(self._directory / f"snapshot-{number}", max_bytes=MAX_FILE_BYTES) as file:
                base = decode_base(_lines(file))
                self._base_bytes = file.tell()
        except (OSError, SnapshotDamaged) as error:
            _check_shortage(error)
            _log.warning("snapshot_damaged", file=f"snapshot-{number}", error=str(error))
            return None
        return base

    def _read_entries(self, number: int, present: set[int]) -> tuple[Entry, ...]:
        """Entries up to the first damage or gap: after it nothing may be folded in any more."""
        entries: list[Entry] = []
        try:
            while number in present:
                with open_file(self._directory / f"journal-{number}", max_bytes=MAX_FILE_BYTES) as file:
                    for line in _lines(file):
                        self._journal_bytes += len(line)
                        entries.extend(decode_entries(line))
                number += 1
            # Of what came after one that is missing, or whose entries were to be in a base, nothing may be folded in.
            self._has_gap = number < self._number
        except (OSError, SnapshotDamaged) as error:
            _check_shortage(error)
            _log.warning("journal_damaged", file=f"journal-{number}", error=str(error))
            self._has_gap = True
        return tuple(entries)


def _check_shortage(error: Exception) -> None:
    """Raises SnapshotUnread: the error says nothing of the file."""
    if isinstance(error, OSError) and is_shortage(error):
        raise SnapshotUnread(f"the snapshot in --store cannot be read now: {error.strerror}") from error


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Raises SnapshotDamaged: a line is longer than any that was written, or they do not end."""
    left_bytes = MAX_FILE_BYTES
    while line := file.readline(MAX_LINE_BYTES + 1):
        left_bytes -= len(line)
        if len(line) > MAX_LINE_BYTES or left_bytes < 0:
            raise SnapshotDamaged(f"it has more than {MAX_LINE_BYTES} bytes in a line, or {MAX_FILE_BYTES} in all")
        yield line


def _sync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
