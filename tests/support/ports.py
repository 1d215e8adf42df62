"""Free ports for what tests start: no port twice in a process, and none that another worker may be given."""

from __future__ import annotations

import os

from registry.dev import ports

_given: set[int] = set()


def free_ports(count: int) -> list[int]:
    """See `registry.dev.ports.free_ports`: between its look and a server that listens others might take the port."""
    found = ports.free_ports(count, taken=_given | _others())
    _given.update(found)
    return found


def _others() -> set[int]:
    """Those of the other workers of this run, by turns."""
    mine = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    return {port for port in range(ports.FIRST, ports.LAST + 1) if port % workers != mine % workers}
