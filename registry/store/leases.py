"""Leases that many records share, so that old ones go by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from registry.etcd3.client import Client

HOUR_SECONDS = 3600
DAY_SECONDS = 24 * HOUR_SECONDS


class SharedLease:
    """A lease that is granted at its first use and replaced by a new one regularly.

    It is never kept alive: a record put under it lives between `ttl_seconds - renew_seconds` and `ttl_seconds`.
    `monotonic` None: the clock of the running event loop.
    """

    def __init__(
        self,
        client: Client,
        *,
        ttl_seconds: int,
        renew_seconds: float,
        monotonic: Callable[[], float] | None = None,
    ) -> None:
        self._client = client
        self._ttl_seconds = ttl_seconds
        self._renew_seconds = renew_seconds
        self._monotonic = monotonic or asyncio.get_running_loop().time
        self._lock = asyncio.Lock()
        self._lease = 0
        self._renew_at = 0.0

    async def current(self, timeout_seconds: float) -> int:
        """The lease to put a record under.

        Raises:
            EtcdError: none could be granted.
        """
        if not self._is_fresh():
            async with self._lock:
                if not self._is_fresh():
                    self._lease = await self._client.lease_grant(self._ttl_seconds, timeout_seconds=timeout_seconds)
                    self._renew_at = self._monotonic() + self._renew_seconds
        return self._lease

    def forget(self, lease: int) -> None:
        """Notes that etcd does not know a lease any more."""
        if lease == self._lease:
            self._lease = 0

    def _is_fresh(self) -> bool:
        return self._lease != 0 and self._monotonic() < self._renew_at


def request_lease(client: Client) -> SharedLease:
    """For request records, which live at least 24 hours."""
    return SharedLease(client, ttl_seconds=25 * HOUR_SECONDS, renew_seconds=HOUR_SECONDS)


def audit_lease(client: Client) -> SharedLease:
    """For audit records, which live at least 30 days."""
    return SharedLease(client, ttl_seconds=31 * DAY_SECONDS, renew_seconds=DAY_SECONDS)
