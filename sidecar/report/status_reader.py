"""Reader of other replicas' statuses: single keys, whenever one has to be known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import structlog

from registry.etcd3.client import Client
from registry.etcd3.ops import KeyValue, Range, RangeResult, Txn
from registry.model.keys import Keys, last_part
from registry.model.replica_state import StatusReading, StatusUnreadable, parse_status, status_of
from registry.model.status import presence_of

_log = structlog.get_logger()


class StatusReader:
    """Reads what the replicas of one pool say of themselves."""

    def __init__(self, client: Client, keys: Keys, pool: str) -> None:
        self._client = client
        self._keys = keys
        self._pool = pool

    async def labels(self) -> dict[str, Mapping[str, str]]:
        """The labels of the live replicas that do not leave; of one whose presence cannot be read: none.

        Raises:
            EtcdError: they cannot be read.
        """
        found: dict[str, Mapping[str, str]] = {}
        for kv in (await self._client.list_prefix(self._keys.replicas(self._pool))).kvs:
            presence = presence_of(kv.value)  # None: the watch on members tells of it
            if presence is not None and not presence.leaving:
                found[last_part(kv.key)] = presence.labels
        return found

    async def statuses(self, replicas: Iterable[str]) -> dict[str, StatusReading]:
        """The statuses that count, read one by one, since each may be large. Raises EtcdError."""
        return {replica: await self.status(replica) for replica in sorted(replicas)}

    async def status(self, replica: str) -> StatusReading:
        """One replica's. Raises EtcdError."""
        keys = self._keys.replica(self._pool, replica), self._keys.status(self._pool, replica)
        reads = await self._client.txn(Txn((), tuple(map(Range, keys))))
        presence, status = (_first(one) for one in reads.responses)
        reading = parse_status(status_of(presence, status))
        if isinstance(reading, StatusUnreadable):
            _log.warning("status_unreadable", replica=replica, error=reading.message)
        return reading


def _first(response: object) -> KeyValue | None:
    return next(iter(response.kvs), None) if isinstance(response, RangeResult) else None
