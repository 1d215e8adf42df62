"""Pages of keys, and the records that are taken out of them. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic

from registry.errors import RegistryError
from registry.etcd3.ops import KeyValue
from registry.keys import last_part
from registry.model.names import name_of_key
from registry.store.paging import PageToken
from registry.transactions.stored import Present, RecordT


@dataclass(frozen=True, slots=True)
class Page:
    """Some keys of a listing at one revision. `token` None: these were the last."""

    revision: int
    kvs: tuple[KeyValue, ...]
    token: PageToken | None


@dataclass(frozen=True, slots=True)
class RecordPage(Generic[RecordT]):
    """Some records of a listing. `unreadable` are names, as the keys have them, whose records cannot be read."""

    revision: int
    records: tuple[Present[RecordT], ...]
    unreadable: tuple[str, ...]
    token: PageToken | None


@dataclass(slots=True)
class Sieve(Generic[RecordT]):
    """Takes readable and wanted records out of pages, until it has `size` of them."""

    read: Callable[[KeyValue], RecordT]
    takes: Callable[[RecordT], bool]
    size: int
    records: list[Present[RecordT]] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)

    def is_full(self) -> bool:
        return len(self.records) >= self.size

    def pass_through(self, page: Page) -> RecordPage[RecordT]:
        """What has been taken so far; its token follows the last record that was looked at."""
        token = page.token
        for kv in page.kvs:
            if self.is_full():
                break
            self._look_at(kv)
            token = page.token if kv is page.kvs[-1] else PageToken(page.revision, kv.key)
        return RecordPage(page.revision, tuple(self.records), tuple(self.unreadable), token)

    def _look_at(self, kv: KeyValue) -> None:
        try:
            record = self.read(kv)
        except RegistryError:
            self.unreadable.append(name_of_key(last_part(kv.key)))
            return
        if self.takes(record):
            self.records.append(Present(record, kv.mod_revision))
