"""Which artifacts a replica's engine may be reading, on disk, so that nobody on the host removes them.

A lease belongs to the engine's process: it survives the sidecar, and outlives the adapter's unload until that engine
is known to have let go of it.
"""

from __future__ import annotations

import json
from threading import Lock

import structlog

from sidecar.artifacts.files import Stop, locked, write_atomic
from sidecar.artifacts.layout import Layout
from sidecar.artifacts.manifest import canonical_json

_log = structlog.get_logger()


class Leases:
    """The leases of one replica. Safe for threads, and for two processes that take themselves for that replica."""

    def __init__(self, layout: Layout, replica: str) -> None:
        self._layout = layout
        self._replica = replica
        self._key = f"lease-{replica}"
        self._mutex = Lock()
        self._ids = self._read()

    def __contains__(self, artifact: str) -> bool:
        return artifact in self._ids

    def add(self, artifact: str, stop: Stop) -> None:
        """Returns when the lease is in the file.

        It need not survive a power cut: no engine does. What another process wrote meanwhile is kept.
        """
        if artifact in self._ids:
            return
        with self._mutex, locked(self._layout.lock(self._key), stop):
            ids = self._ids | self._read() | {artifact}
            content = canonical_json({"schema": 1, "ids": sorted(ids)})
            write_atomic(
                self._layout.lease(self._replica), content, temporary=self._layout.temporary(self._key, "json")
            )
            self._ids = ids

    def _read(self) -> frozenset[str]:
        file = self._layout.lease(self._replica)
        try:
            return frozenset(json.loads(file.read_bytes())["ids"])
        except FileNotFoundError:
            return frozenset()
        except (ValueError, TypeError, KeyError) as error:
            # Only delays: what is still wanted is leased anew when it is staged anew.
            _log.warning("leases_damaged", file=str(file), error=str(error))
            return frozenset()
