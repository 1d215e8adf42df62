"""Index of the adapters that one part of ours looks after, by pool. Pure.

Nearly no record is of concern to such a part. A mark in its bytes tells which may be: only these are read, and of all
others nothing is kept.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Generic, Protocol, TypeVar

from registry.etcd3.ops import Event, KeyValue
from registry.model.errors import RegistryError
from registry.model.records import AdapterRecord
from registry.transactions.decode import read_adapter


class Indexed(Protocol):
    """An entry: of this record, as it stands."""

    @property
    def kv(self) -> KeyValue:
        """The record's key and value."""


Entry = TypeVar("Entry", bound=Indexed)


class AdapterIndex(ABC, Generic[Entry]):
    """Entries of the adapters of all pools. All times are monotonic seconds.

    Args:
        prefix: of the adapters of all pools.
    """

    _mark: re.Pattern[bytes]

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._entries: dict[str, dict[bytes, Entry]] = {}

    @abstractmethod
    def _entry(self, kv: KeyValue, record: AdapterRecord, before: Entry | None, now: float) -> Entry | None:
        """The entry of a record that has the mark; `before`: that of the revision before; None: it has none."""

    @property
    def pools(self) -> frozenset[str]:
        """Pools with an entry."""
        return frozenset(self._entries)

    @property
    def all(self) -> dict[bytes, Entry]:
        """The entries of all pools by their keys."""
        return {key: one for of_pool in self._entries.values() for key, one in of_pool.items()}

    def of(self, pool: str) -> Mapping[bytes, Entry]:
        """The entries of a pool by their keys."""
        return self._entries.get(pool, {})

    def listed(self, kvs: Iterable[KeyValue], now: float) -> frozenset[str]:
        """Takes a whole list, before which changes may have passed unseen; returns the pools that may have changed.

        The entry of a record that stands as it stood stays as it is.
        """
        before, self._entries = self._entries, {}
        for kv in kvs:
            pool = self._pool(kv.key)
            known = before.get(pool, {}).get(kv.key)
            if known is not None and known.kv == kv:
                self._entries.setdefault(pool, {})[kv.key] = known
            else:
                self._put(pool, kv, None, now)
        return frozenset(before) | self.pools

    def changed(self, events: Iterable[Event], now: float) -> frozenset[str]:
        """Takes all changes of one revision; returns the pools that have changed."""
        found = set()
        for event in events:
            pool, known = self._pool(event.key), self.forget(event.key)
            if event.kv is not None:
                self._put(pool, event.kv, known, now)
            if known is not None or event.key in self.of(pool):
                found.add(pool)
        return frozenset(found)

    def forget(self, key: bytes) -> Entry | None:
        """Forgets an entry, and returns it."""
        pool = self._pool(key)
        known = self._entries.get(pool, {}).pop(key, None)
        if not self._entries.get(pool, True):
            del self._entries[pool]
        return known

    def _pool(self, key: bytes) -> str:
        return key.removeprefix(self._prefix).partition(b"/")[0].decode(errors="backslashreplace")

    def _put(self, pool: str, kv: KeyValue, before: Entry | None, now: float) -> None:
        if not self._mark.search(kv.value):
            return
        try:
            found = self._entry(kv, read_adapter(pool, kv), before, now)
        except RegistryError:
            return
        if found is not None:
            self._entries.setdefault(pool, {})[kv.key] = found
