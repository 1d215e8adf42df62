"""How much of a disk the store takes, and whether an adapter that is about to arrive has room there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from registry.sources.errors import ArtifactError
from sidecar.artifacts.inventory import Inventory

# What downloads leave free, for whatever else writes to that disk: so much, or on a small disk this share of it.
MAX_RESERVE_BYTES = 64 << 20
RESERVE_DIVISOR = 50
# While files arrive it is looked again this often, in bytes.
CHECK_BYTES = 32 << 20
# Where less than this share of the budget would be left, the store is listed before anything is let in or refused.
NEAR_DIVISOR = 10

# Tries to remove so many bytes of what nobody leases.
Collect = Callable[[int], object]


class Room:
    """Admits what is about to arrive, within the budget and the disk. Safe for threads."""

    def __init__(self, root: Path, inventory: Inventory, budget_bytes: int | None, collect: Collect) -> None:
        """`budget_bytes` is for all artifacts of the store; None: as much as the disk has."""
        self._root = root
        self._inventory = inventory
        self._budget_bytes = budget_bytes
        self._collect = collect
        self._mutex = Lock()
        self._reserved_bytes = 0

    def excess_bytes(self) -> int:
        """How much has to go: over the budget, or of what should stay free on the disk; 0: nothing.

        Raises:
            OSError: the store cannot be read.
        """
        return max(self._over_budget_anew(), self._short_of_disk(0), 0)

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
                f"{name} has {size_bytes} bytes, the store's {self._inventory.used_bytes()} are in use and its "
                f"budget is {self._budget_bytes}; raise --store-budget, or serve fewer adapters",
                permanent=False,
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
                permanent=False,
            )

    def _over_budget(self) -> int:
        """Negative: so much would be left. The store is listed anew only where that is not much."""
        if self._budget_bytes is None:
            return 0
        over_bytes = self._inventory.used_bytes() + self._reserved_bytes - self._budget_bytes
        return over_bytes if over_bytes < -(self._budget_bytes // NEAR_DIVISOR) else self._over_budget_anew()

    def _over_budget_anew(self) -> int:
        if self._budget_bytes is None:
            return 0
        return sum(self._inventory.sizes().values()) + self._reserved_bytes - self._budget_bytes

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
    """What one artifact was admitted with, by file."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._sizes: dict[str, int] = {}

    def admit(self, size_bytes: int, name: str) -> None:
        """See `Room.admit`. A file that comes again takes the place of what came of it."""
        self._room.give_back(self._sizes.pop(name, 0))
        self._room.admit(size_bytes, name)
        self._sizes[name] = size_bytes

    def check_disk(self, left_bytes: int, name: str) -> None:
        """See `Room.check_disk`."""
        self._room.check_disk(left_bytes, name)

    def end(self) -> None:
        """Gives all of it back: the files are in the store now, or gone."""
        self._room.give_back(sum(self._sizes.values()))
        self._sizes.clear()
