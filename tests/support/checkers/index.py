"""A history, folded, with what stood at each revision. Pure."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from operator import itemgetter

from registry.etcd3.ops import Event, KeyValue
from registry.model.keys import Keys
from registry.model.names import name_key
from registry.tools.verify.fold import Fold
from registry.tools.verify.history import Document, count_of, document

Story = list[tuple[int, Document | None]]
_HASH_SPACE = 1 << 256


class HistoryIndex(Fold):
    """A fold that remembers.

    Attributes:
        hashes: pool to (revision, hash of its records), a pair for each revision that changed it.
        replaced: (revision, key) to the revision of what was replaced or deleted there.
        adapters: (pool, name key) to (revision, record or None), a pair for each revision that changed it.
        retired: the same names to what stood of them before the history begins, by generation, as far as that is kept.
        pool_stories: the same of pools as `adapters` of names.
        statuses: revision to the status that a replica wrote there.
    """

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.hashes: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self.replaced: dict[tuple[int, str], int] = {}
        self.adapters: dict[tuple[str, str], Story] = defaultdict(list)
        self.retired: dict[tuple[str, str], dict[int, Document]] = defaultdict(dict)
        self.pool_stories: dict[str, Story] = defaultdict(list)
        self.statuses: dict[int, bytes] = {}
        self._names: set[tuple[str, str]] = set()

    def begin(self, revision: int, kvs: Iterable[KeyValue]) -> None:
        """Starts from what stood at a revision, where what came before is no longer kept."""
        kept = list(kvs)
        super().begin(revision, kept)
        for kv in kept:
            kind, rest = self.kind(kv.key)
            if kind in {"adapters", "history"}:
                self._remember(kv.mod_revision, kind, rest, None, kv)
                if record := document(kv.value):
                    self.retired[rest[0], rest[1]][count_of(record, "generation")] = record
            elif kind == "pools":
                self._remember(kv.mod_revision, kind, rest, None, kv)

    def take(self, revision: int, events: Iterable[Event]) -> None:
        """Folds one revision in."""
        told = list(events)
        for event in told:
            kind, rest = self.kind(event.key)
            old = self.stored.get(event.key)
            self.replaced[revision, event.key.decode(errors="backslashreplace")] = old.mod_revision if old else 0
            self._remember(revision, kind, rest, old, event.kv)
        super().take(revision, told)

    def _remember(self, revision: int, kind: str, rest: list[str], old: KeyValue | None, new: KeyValue | None) -> None:
        if kind in {"adapters", "history"}:
            self._names.add((rest[0], rest[1]))
        if kind == "adapters":
            pool, key = rest
            total = self.hashes[pool][-1][1] if self.hashes[pool] else 0
            total += sum(sign * _hash(key, kv) for sign, kv in ((1, new), (-1, old)) if kv is not None)
            self.hashes[pool].append((revision, total % _HASH_SPACE))
            self.adapters[pool, key].append((revision, document(new.value) if new else None))
        elif kind == "pools":
            self.pool_stories[rest[0]].append((revision, document(new.value) if new else None))
        elif kind == "status" and new is not None:
            self.statuses[revision] = new.value

    def hash_at(self, pool: str, revision: int) -> int:
        """The state hash of a pool at a revision: sum of sha256(key, revision, value) over its records."""
        at = bisect_right(self.hashes[pool], revision, key=itemgetter(0))
        return self.hashes[pool][at - 1][1] if at else 0

    def covers(self, revision: int) -> bool:
        """True if it is known what stood at a revision."""
        return self.first_revision <= revision <= self.revision

    def records(self, pool: str, key: str) -> tuple[list[Document], bool]:
        """All records of a name that are known, and whether there was no other in the whole history of the store."""
        retired = self.retired.get((pool, key), {})
        written = [record for _, record in self.adapters.get((pool, key), []) if record]
        known = {*retired, *(count_of(record, "generation") for record in written)}
        return [*retired.values(), *written], not self.first_revision or len(known) >= max(known, default=0)

    def knows(self, pool: str, key: str) -> bool:
        """True if that name was ever in the pool. Of one that went before the history begins, its history tells."""
        return (pool, key) in self._names

    def adapter_at(self, pool: str, key: str, revision: int) -> Document | None:
        """An adapter's record as it stood at a revision."""
        return _at(self.adapters.get((pool, key), []), revision)

    def base_models_at(self, pool: str, revision: int) -> set[str]:
        """Name keys of the base models that a pool had at a revision."""
        names = (_at(self.pool_stories.get(pool, []), revision) or {}).get("base_models") or []
        return {name_key(name) for name in names if isinstance(name, str)}

    def before(self, key: str, revision: int) -> int | None:
        """The etag that a key had when `revision` changed it, 0 if it was absent; None: that did not change it."""
        return self.replaced.get((revision, key))


def _at(story: Story, revision: int) -> Document | None:
    at = bisect_right(story, revision, key=itemgetter(0))
    return story[at - 1][1] if at else None


def _hash(key: str, kv: KeyValue) -> int:
    digest = hashlib.sha256(b"%s\0%d\0%s" % (key.encode(), kv.mod_revision, kv.value)).digest()
    return int.from_bytes(digest, "big")
