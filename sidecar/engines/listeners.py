"""Who an engine is that does not say so itself: the socket that listens on its port, as the kernel numbers it.

Another process listens with another socket, whose number is not given again while the host runs. It is seen only from
the engine's own network namespace, as in its pod.
"""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

PROC = Path("/proc")
_TABLES = ("net/tcp", "net/tcp6")
_LISTENING = "0A"


def listener_identity(url: str, proc: Path = PROC) -> str:
    """Identity of the process that listens where `url` points; empty: none is to be seen from here."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    sockets = _sockets(proc, port) if _is_loopback(parts.hostname or "") else set()
    boot = _text(proc / "sys/kernel/random/boot_id").strip()
    return f"{boot}:{'+'.join(sorted(sockets))}" if sockets else ""


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _sockets(proc: Path, port: int) -> set[str]:
    rows = [line.split() for table in _TABLES for line in _text(proc / table).splitlines()[1:]]
    return {row[9] for row in rows if row[3] == _LISTENING and int(row[1].rpartition(":")[2], 16) == port}


def _text(path: Path) -> str:
    """A file of the kernel's; empty if it has none, as without IPv6."""
    try:
        return path.read_text()
    except OSError:
        return ""
