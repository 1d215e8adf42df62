"""One-slot mailbox between the watchers of etcd and the reconciler."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from registry.model.records import PoolSpec
from sidecar.desired.informer import DesiredState
from sidecar.desired.placement import Members


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State of etcd, all of it at one moment.

    Attributes:
        desired: the pool's adapters; None until there is something that may be acted upon.
        pool: the pool's record, None where it has none.
        pool_read: whether there is one is known.
        pool_refusal: why the pool's newest record cannot be followed; empty: it can, or there is none.
        connected: etcd answers at present.
        proxied: that something between us and etcd may lose events, and what to do; empty: nothing is known of it.
        held: why the newest list is not followed; empty: it is.
        last_request_id: request of the newest change folded in; empty: it only deleted, and a watch does not say whose
            a deletion was.
        members: the live replicas by name; None: not known, or nobody has to know them.
    """

    desired: DesiredState | None = None
    pool: PoolSpec | None = None
    pool_read: bool = False
    pool_refusal: str = ""
    connected: bool = False
    held: str = ""
    last_request_id: str = ""
    members: Members | None = None
    proxied: str = ""

    @property
    def actionable(self) -> DesiredState | None:
        """State to plan from; only with the pool's base, which adapters are compared with.

        Where there is no such pool, nor ever was an adapter of it, it says nothing: `--pool` may be mistyped.
        """
        is_told = self.pool is not None or (self.desired is not None and self.desired.changes > 0)
        return self.desired if self.pool_read and is_told else None


class Mailbox:
    """Holds one snapshot, which is replaced whole.

    A writer posts the present snapshot with its own fields replaced, in one step of the event loop. A reader takes the
    snapshot once and looks at nothing else for as long as its parts have to fit together.
    """

    def __init__(self) -> None:
        self._snapshot = Snapshot()
        self._wake = asyncio.Event()

    @property
    def snapshot(self) -> Snapshot:
        """The newest."""
        return self._snapshot

    def post(self, snapshot: Snapshot) -> None:
        """Replaces the snapshot, and makes the reconciler look again."""
        self._snapshot = snapshot
        self.wake()

    def wake(self) -> None:
        """Makes the reconciler look again, although etcd says nothing new."""
        self._wake.set()

    async def wait(self, timeout_seconds: float | None) -> None:
        """Returns at the next wake-up, or after the time."""
        await heard_within(timeout_seconds, self._wake)
        self._wake.clear()


async def heard_within(seconds: float | None, news: asyncio.Event) -> bool:
    """True once there are news, False after so long without any; None: it waits for them."""
    try:
        async with asyncio.timeout(seconds):
            return await news.wait()
    except TimeoutError:
        return False
