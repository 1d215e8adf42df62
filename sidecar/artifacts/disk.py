"""Size index of the store, and the quota of its disk.

With thousands of artifacts a listing takes as long as staging a small one. So whoever puts an artifact in its place, or
takes one out, says so in a file that all sidecars of the host share: a byte is appended just before something comes,
and another just after something came or went. While the file is as long as it was before we listed the store, plus our
own bytes, nobody else changed anything since. Nothing waits for anything here. Of a process that is killed just before
its second byte, whoever listed the store between its first byte and its rename learns at his next listing only;
maintenance makes one every few seconds, and where the budget is nearly used up each arrival does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

from registry.model.status import ReportedStore
from registry.sources.base import ArtifactError
from sidecar.artifacts.layout import StoreLayout

# Then the file is emptied, and whoever has seen it longer lists the store again. It would have to grow by as much
# between two looks of one sidecar to deceive that, and maintenance looks every few seconds.
MAX_CHANGES_BYTES = 1 << 20
_CHANGES = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class SizeIndex:
    """Sizes of what is in the store. A directory never changes, so each is measured once. Safe for threads."""

    def __init__(self, layout: StoreLayout) -> None:
        """Looks at nothing yet."""
        self._layout = layout
        self._changes = layout.lock("changes")
        self._mutex = Lock()
        self._sizes: dict[str, int] = {}
        self._used_bytes = 0
        # How long the file of changes is if only we changed something since the sizes were listed; None: never listed.
        self._length: int | None = None

    def sizes(self) -> dict[str, int]:
        """Bytes of each artifact's files by id, listed anew.

        Raises:
            OSError: the store cannot be read.
        """
        with self._mutex:
            self._list()
            return dict(self._sizes)

    def used_bytes(self) -> int:
        """Bytes of all artifacts; the store is listed only if another sidecar changed something.

        Raises:
            OSError: the store cannot be read.
        """
        with self._mutex:
            if self._length != self._changes_bytes():
                self._list()
            return self._used_bytes

    @contextmanager
    def adding(self, artifact: str, size_bytes: int) -> Iterator[None]:
        """In the body the artifact gets its name. If that fails, too much is counted until the store is listed.

        Raises:
            OSError: nobody could be told.
        """
        descriptor = os.open(self._changes, _CHANGES, 0o644)
        try:
            self._tell(descriptor)
            try:
                yield
            finally:
                self._note(artifact, size_bytes)
                # It is announced already; only those who looked in between do not know.
                with suppress(OSError):
                    self._tell(descriptor)
        finally:
            os.close(descriptor)

    @contextmanager
    def removing(self, artifact: str) -> Iterator[None]:
        """In the body the artifact loses its name. That nobody can be told makes the store look fuller than it is."""
        yield
        self._note(artifact, 0)
        with suppress(OSError):
            descriptor = os.open(self._changes, _CHANGES, 0o644)
            try:
                self._tell(descriptor)
            finally:
                os.close(descriptor)

    def _list(self) -> None:
        """The caller holds the mutex."""
        # Whatever changes from here on makes the file longer than this.
        length = self._changes_bytes()
        if length > MAX_CHANGES_BYTES:
            os.truncate(self._changes, 0)
            length = 0
        present = self._layout.staged_ids()
        for gone in self._sizes.keys() - present:
            del self._sizes[gone]
        for new in present - self._sizes.keys():
            self._sizes[new] = _size(self._layout.adapter(new))
        self._used_bytes = sum(self._sizes.values())
        self._length = length

    def _note(self, artifact: str, size_bytes: int) -> None:
        with self._mutex:
            self._used_bytes += size_bytes - self._sizes.pop(artifact, 0)
            if size_bytes:
                self._sizes[artifact] = size_bytes

    def _tell(self, descriptor: int) -> None:
        with self._mutex:
            told_bytes = os.write(descriptor, b".")
            if self._length is not None:
                self._length += told_bytes

    def _changes_bytes(self) -> int:
        try:
            return self._changes.stat().st_size
        except FileNotFoundError:
            return 0


def _size(directory: Path) -> int:
    """0 where it vanished meanwhile, or is no directory."""
    try:
        return sum(path.lstat().st_size for path in directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return 0


# What downloads leave free, for whatever else writes to that disk: so much, or on a small disk this share of it.
MAX_RESERVE_BYTES = 64 << 20
RESERVE_DIVISOR = 50
# While files arrive it is looked again this often, in bytes.
CHECK_BYTES = 32 << 20
# Where less than this share of the budget would be left, the store is listed before anything is let in or refused.
NEAR_DIVISOR = 10

# Tries to remove so many bytes of what nobody leases.
Collect = Callable[[int], object]


class Quota:
    """Admits what is about to arrive, within the budget and the disk. Safe for threads."""

    def __init__(self, root: Path, index: SizeIndex, budget_bytes: int | None, collect: Collect) -> None:
        """`budget_bytes` is for all artifacts of the store; None: as much as the disk has."""
        self._root = root
        self._index = index
        self._budget_bytes = budget_bytes
        self._collect = collect
        self._mutex = Lock()
        self._reserved_bytes = 0

    def excess_bytes(self) -> int:
        """Bytes that have to go: over the budget, or of what should stay free on the disk; 0: nothing.

        Raises:
            OSError: the store cannot be read.
        """
        return max(self._over_budget_anew(), self._short_of_disk(0), 0)

    def room(self, sizes: Mapping[str, int], in_use: Collection[str] | None) -> ReportedStore:
        """Bytes still to be taken. `sizes`: as `SizeIndex` has them; `in_use`: what cannot go; None: nothing can.

        Raises:
            OSError: the disk does not say.
        """
        in_use_bytes = sum(size for artifact, size in sizes.items() if in_use is None or artifact in in_use)
        used_bytes, left_bytes, bound = sum(sizes.values()), -self._short_of_disk(0), "disk"
        budget_bytes = None if self._budget_bytes is None else self._budget_bytes - self._reserved_bytes
        if budget_bytes is not None and budget_bytes - used_bytes < left_bytes:
            left_bytes, bound = budget_bytes - used_bytes, "budget"
        return ReportedStore(
            room_bytes=max(0, left_bytes + used_bytes - in_use_bytes),
            in_use_bytes=in_use_bytes,
            largest_bytes=max(sizes.values(), default=0),
            bound=bound,
        )

    @contextmanager
    def reservation(self) -> Iterator[Reservation]:
        """Room for one artifact while it arrives."""
        reservation = Reservation(self)
        try:
            yield reservation
        finally:
            reservation.end()

    def admit(self, size_bytes: int, name: str) -> None:
        """Reserves room, for which old artifacts are removed if need be.

        Raises:
            ArtifactError: ``disk_full`` or ``store_full``.
            OSError: the store cannot be read.
        """
        self.give_back(-size_bytes)
        try:
            if (lacking := max(self._over_budget(), self._short_of_disk(size_bytes))) > 0:
                self._collect(lacking)
                self._check(size_bytes, name)
        except BaseException:  # whatever it was: what is not admitted holds no room
            self.give_back(size_bytes)
            raise

    def _check(self, size_bytes: int, name: str) -> None:
        if self._over_budget_anew() > 0:
            raise ArtifactError(
                "store_full",
                f"{name} has {size_bytes} bytes, the store's {self._index.used_bytes()} are in use and its "
                f"budget is {self._budget_bytes}; raise --store-budget, or serve fewer adapters",
            )
        self.check_disk(size_bytes, name)

    def check_disk(self, size_bytes: int, name: str) -> None:
        """Looks whether so many bytes still fit on the disk.

        Raises:
            ArtifactError: ``disk_full``.
        """
        if self._short_of_disk(size_bytes) > 0:
            free_bytes, reserve_bytes = self._disk()
            raise ArtifactError(
                "disk_full",
                f"{name} needs {size_bytes} bytes more, {free_bytes} are free in {self._root}, of which "
                f"{reserve_bytes} are kept free; make room there",
            )

    def _over_budget(self) -> int:
        """Negative: so much would be left. The store is listed anew only where that is not much."""
        if self._budget_bytes is None:
            return 0
        over_bytes = self._index.used_bytes() + self._reserved_bytes - self._budget_bytes
        return over_bytes if over_bytes < -(self._budget_bytes // NEAR_DIVISOR) else self._over_budget_anew()

    def _over_budget_anew(self) -> int:
        if self._budget_bytes is None:
            return 0
        return sum(self._index.sizes().values()) + self._reserved_bytes - self._budget_bytes

    def _short_of_disk(self, size_bytes: int) -> int:
        free_bytes, reserve_bytes = self._disk()
        return size_bytes + reserve_bytes - free_bytes

    def _disk(self) -> tuple[int, int]:
        disk = os.statvfs(self._root)
        reserve_bytes = min(MAX_RESERVE_BYTES, disk.f_blocks * disk.f_frsize // RESERVE_DIVISOR)
        return disk.f_bavail * disk.f_frsize, reserve_bytes

    def give_back(self, size_bytes: int) -> None:
        """Ends the reservation of so many bytes."""
        with self._mutex:
            self._reserved_bytes -= size_bytes


class Reservation:
    """Sizes one artifact was admitted with, by file."""

    def __init__(self, quota: Quota) -> None:
        self._quota = quota
        self._sizes: dict[str, int] = {}

    def admit(self, size_bytes: int, name: str) -> None:
        """See `Quota.admit`. A file that comes again takes the place of what came of it."""
        self._quota.give_back(self._sizes.pop(name, 0))
        self._quota.admit(size_bytes, name)
        self._sizes[name] = size_bytes

    def check_disk(self, left_bytes: int, name: str) -> None:
        """See `Quota.check_disk`."""
        self._quota.check_disk(left_bytes, name)

    def end(self) -> None:
        """Gives all of it back: the files are in the store now, or gone."""
        self._quota.give_back(sum(self._sizes.values()))
        self._sizes.clear()
