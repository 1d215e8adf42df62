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
import os
import socket
from pathlib import Path
from typing import Protocol

import structlog

from registry.runtime.local_files import make_folder, make_way

_log = structlog.get_logger()
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
