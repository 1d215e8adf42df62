"""The one-slot mailbox between the feed and the reconciler: the newest whole state, and a wake-up."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping

from registry.model.records import PoolSpec
from sidecar.desired import DesiredState
from sidecar.leaving import Leaving, Verdict
from sidecar.placings import Members
from sidecar.raw_records import AnyRecord

_DELETIONS_KEPT = 1024


class Inputs:
    """What etcd says now. Writers set the fields and call `wake`; the reader takes whatever is newest.

    Attributes:
        desired: None until there is something that may be acted upon.
        pool: the pool's record, None where it has none.
        pool_read: whether there is one is known. Before that nothing is served: adapters are compared with its base.
        pool_refusal: why the pool's newest record cannot be followed; empty: it can, or there is none.
        connected: etcd answers at present.
        held: why the newest list is not followed; empty: it is.
        last_request_id: request of the newest change folded in.
        record: gives the raw record under a name key. It may already be newer than what `desired` says of it.
        members: the live replicas by name; None: not known, or nobody has to know them.
        handed: what those who are to take adapters over say of it.
    """

    def __init__(self) -> None:
        self.desired: DesiredState | None = None
        self.pool: PoolSpec | None = None
        self.pool_read = False
        self.pool_refusal = ""
        self.connected = False
        self.held = ""
        self.last_request_id = ""
        self.record: Callable[[str], AnyRecord | None] = lambda _key: None
        self.members: Members | None = None
        self.handed: Mapping[Leaving, Verdict] = {}
        self._deletions: OrderedDict[str, str] = OrderedDict()
        self._wake = asyncio.Event()

    def record_of(self, key: str) -> AnyRecord | None:
        """The raw record under a name key, from whoever follows etcd."""
        return self.record(key)

    def wake(self) -> None:
        """Makes the reconciler look again."""
        self._wake.set()

    async def wait(self, timeout_seconds: float | None) -> None:
        """Returns at the next wake-up, or after the time."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._wake.wait()
        except TimeoutError:
            return
        finally:
            self._wake.clear()

    def note_deletion(self, key: str, request_id: str) -> None:
        """Remembers which request deleted an adapter, so that its unload can be traced to it."""
        self._deletions[key] = request_id
        if len(self._deletions) > _DELETIONS_KEPT:
            self._deletions.popitem(last=False)

    def deleted_by(self, key: str) -> str:
        """Request that an unload is traced to: the one that deleted the adapter, empty where that was not found out.

        What no event deleted goes with the newest change.
        """
        return self._deletions.get(key, self.last_request_id)
