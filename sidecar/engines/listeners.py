"""Identity of an engine's process by its listening socket (Linux).

Another process listens with another socket, whose number is not given again while the host runs. It is seen only from
the engine's own network namespace, as in its pod.
"""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from registry.runtime.local_files import is_shortage
from sidecar.engines.driver import EngineUnreachable, EngineUnusable

PROC = Path("/proc")
_TABLES = ("net/tcp", "net/tcp6")
_LISTENING = "0A"


def listener_identity(url: str, proc: Path = PROC) -> str:
    """Identity of the process that listens where `url` points; empty: none is to be seen from here."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        sockets = _sockets(proc, port) if _is_loopback(parts.hostname or "") else set()
        boot = _text(proc / "sys/kernel/random/boot_id").strip()
    except OSError:  # a part of it would be the identity of another process
        return ""
    return f"{boot}:{'+'.join(sorted(sockets))}" if sockets else ""


class ListenerProcess:
    """The process that listens where `url` points."""

    def __init__(self, url: str) -> None:
        self._url = url

    def identity(self) -> str:
        """See `listener_identity`."""
        return listener_identity(self._url)

    def known(self, before: str) -> str:
        """The identity of the process that just answered.

        Args:
            before: what it was before it was asked.

        Raises:
            EngineUnreachable: it is another one now.
            EngineUnusable: it is not to be seen from here.
        """
        now = self.identity()
        if not now:
            message = (
                f"{self._url} does not say which process it is, and no socket that listens there is to be seen: run "
                "the sidecar in the engine's network namespace and give --engine http://127.0.0.1:PORT"
            )
            raise EngineUnusable("engine_unsupported", message)
        if now != before:
            raise EngineUnreachable(f"{self._url} restarted while it was looked at")
        return now


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _sockets(proc: Path, port: int) -> set[str]:
    rows = [line.split() for table in _TABLES for line in _text(proc / table).splitlines()[1:]]
    return {row[9] for row in rows if row[3] == _LISTENING and int(row[1].rpartition(":")[2], 16) == port}


def _text(path: Path) -> str:
    """A file of the kernel's; empty if it has none, as without IPv6. Raises OSError: it cannot be read now."""
    try:
        return path.read_text()
    except OSError as error:
        if is_shortage(error):
            raise
        return ""
