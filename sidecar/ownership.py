"""Ownership of a replica id (R10): a lock on the host, presence in etcd.

The lock tells a dead predecessor from a living twin at once, without waiting for a lease. A twin on another host,
such as a cloned machine, is told by the presence key. The lock stands in the store. For a sidecar that comes back
without its store there is a seat: a name that the kernel keeps for one process of a network namespace, and drops with
it. A pod keeps its namespace when one of its containers starts again.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import math
import os
import socket
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import structlog

from registry.runtime.clock import Clock, rfc3339
from registry.runtime.local_files import make_folder, make_way

_log = structlog.get_logger()
# Of the lease that presence stands under.
LEASE_TTL_SECONDS = 10
# So long after its death a sidecar's lease is over, with what etcd takes to notice.
DEAD_SECONDS = LEASE_TTL_SECONDS + 2.0
LOSSES_UNTIL_STOP = 2
LOCK_RETRY_SECONDS = 1.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/proc/self/ns/net")


class ReplicaTaken(Exception):
    """Another live sidecar has this replica id. Stopping is right: the race for it was lost twice."""


class Ownership(Protocol):
    """True if this sidecar is the one that may drive its replica."""

    @property
    def refusal(self) -> str:
        """Why it may not; empty: it may."""
        ...


class IdClaim:
    """Claim of this process to a replica id, against whoever else may have it.

    Attributes:
        refusal: see `Ownership`.
    """

    def __init__(self, replica: str, clock: Clock, on_change: Callable[[], None]) -> None:
        """`on_change` is called when the id is lost or won."""
        self._replica = replica
        self._clock = clock
        self._on_change = on_change
        self._losses = 0
        self._known_at, self._end = math.inf, ""
        self.refusal = ""

    def win(self) -> None:
        """Notes that the id is ours."""
        self._become("")

    def lose(self, holder: str) -> None:
        """Notes that another sidecar has it. It may be dead, as where one comes back without its store.

        Its lease tells that soon. Raises ReplicaTaken: the id was lost twice.
        """
        now = self._clock.monotonic()
        if not self.refusal:
            self._losses += 1
            self._known_at = now + DEAD_SECONDS
            until = rfc3339(self._clock.wall() + timedelta(seconds=DEAD_SECONDS))
            self._end = f"until {until} at the latest if that one has ended; if it lives, give each its own"
            _log.info("replica_id_taken", replica=self._replica, holder=holder, until=until)
        elif now >= self._known_at:
            self._known_at, self._end = math.inf, "which lives; give each its own"
            _log.error("replica_id_taken", replica=self._replica, holder=holder)
        if self._losses >= LOSSES_UNTIL_STOP:
            raise ReplicaTaken(f"replica id {self._replica!r} was lost to another sidecar twice; give each its own")
        self._become(f"replica id {self._replica!r} is held by another sidecar ({holder}) {self._end}")

    def _become(self, refusal: str) -> None:
        if self.refusal != refusal:
            self.refusal = refusal
            self._on_change()


def place_of(stat: os.stat_result) -> str:
    """Names a file or directory of a running host, whatever it is called there, and no other of any host."""
    boot_id = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else "unknown-boot"
    return f"{boot_id}:{stat.st_dev:x}:{stat.st_ino:x}"


class Seat:
    """A name in the network namespace that one process at a time has, without any file.

    Attributes:
        place: equal for all that have this seat one after the other, and for no other process. Empty: this
            process has none, since another does, or since it is not known which host this is.
    """

    def __init__(self, *names: str) -> None:
        """Takes the seat of these names, if it is free."""
        self.place = ""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        seat = hashlib.sha256("\0".join(names).encode()).hexdigest()
        try:
            self._socket.bind(f"\0loraplane-{seat}")
            place = place_of(_NETWORK.stat())
        except OSError:
            return
        if _BOOT_ID.exists():  # a host's own namespace has the same number on all hosts
            self.place = f"{place}:{socket.gethostname()}"

    def close(self) -> None:
        """Gives the seat up."""
        self._socket.close()


class HostLock:
    """A lock that the kernel drops with the process that holds it."""

    def __init__(self, path: Path) -> None:
        """Opens the lock file.

        Raises:
            OSError: the directory cannot be made or written.
        """
        make_folder(path.parent)
        make_way(path)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # Equal for every process that contends for the same file of the same running host, and for no other.
        self.owner = place_of(os.fstat(self._descriptor))

    def try_acquire(self) -> bool:
        """True if this process holds the lock now."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    async def acquire(self, replica: str) -> None:
        """Waits until no other process on this host runs the same replica."""
        said = False
        while not self.try_acquire():
            if not said:
                holder = "another process with the same store on this host"
                _log.error("replica_id_taken", replica=replica, holder=holder)
            said = True
            await asyncio.sleep(LOCK_RETRY_SECONDS)

    def close(self) -> None:
        """Gives the lock up."""
        os.close(self._descriptor)
