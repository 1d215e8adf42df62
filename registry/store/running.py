"""The rollouts that canaries began and that are not over, of all pools, folded from etcd's records. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from registry.etcd3.ops import Event, KeyValue

# A record without it has no rollout; one with it is read as a whole by those who look.
_MARK = b'"stable_generation"'


class Running:
    """Records with a rollout, by pool; of all other records nothing is kept.

    Args:
        prefix: of the adapters of all pools.
    """

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._records: dict[str, dict[bytes, KeyValue]] = {}

    @property
    def pools(self) -> frozenset[str]:
        """Pools with a rollout."""
        return frozenset(self._records)

    def of(self, pool: str) -> Mapping[bytes, KeyValue]:
        """The records of a pool by their keys."""
        return self._records.get(pool, {})

    def listed(self, kvs: Iterable[KeyValue]) -> frozenset[str]:
        """Takes a whole list; returns the pools that may have changed."""
        before = self.pools
        self._records = {}
        for kv in kvs:
            self._put(kv.key, kv)
        return before | self.pools

    def changed(self, events: Iterable[Event]) -> frozenset[str]:
        """Takes all changes of one revision; returns the pools that have changed."""
        return frozenset(pool for event in events for pool in self._put(event.key, event.kv))

    def _put(self, key: bytes, kv: KeyValue | None) -> tuple[str, ...]:
        """Returns the pool, if anything of it changed."""
        pool = key.removeprefix(self._prefix).partition(b"/")[0].decode(errors="backslashreplace")
        if kv is not None and _MARK in kv.value:
            self._records.setdefault(pool, {})[key] = kv
            return (pool,)
        if self._records.get(pool, {}).pop(key, None) is None:
            return ()
        if not self._records[pool]:
            del self._records[pool]
        return (pool,)
