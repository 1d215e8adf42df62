"""Pages and a stream of the audit, of one pool or of all there is.

Records sort by time within a pool alone, so that a page of all pools goes from one to the next; what is too old, or of
a pool that the reader does not see, is jumped over and not read.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic, TypeVar

from registry.etcd3.client import Client
from registry.etcd3.ops import KeyValue, Range, prefix_end
from registry.etcd3.reflector import Reflector
from registry.etcd3.stream import Changed, Listed, Progressed, Resume
from registry.model.keys import Keys
from registry.runtime.clock import Deadline
from registry.store.failures import compacted
from registry.store.pages import PageToken, everything
from registry.store.reader import Reader

Entry = TypeVar("Entry")
_PIECE = 100
# Of one page. Records may be as large as a transaction, so that more would hold up other calls.
_PAGE_BYTES = 4 << 20
_SCANNED_BYTES = 16 << 20
_RANGES_AT_MOST = 50


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """Choice of records.

    Attributes:
        pool: of this pool, and refusals; None: all.
        since_id: from this id on, in each pool; empty: the first.
        sees: tells by its name whether a pool may be known of.
    """

    pool: str | None = None
    since_id: str = ""
    sees: Callable[[str], bool] = everything


@dataclass(frozen=True, slots=True)
class AuditPage(Generic[Entry]):
    """Some entries at one revision. `token` None: these were the last."""

    revision: int
    entries: tuple[Entry, ...]
    token: PageToken | None


@dataclass(frozen=True, slots=True)
class AuditNews:
    """Records that were written at a revision; none: there was nothing else up to it."""

    revision: int
    kvs: tuple[KeyValue, ...] = ()


class AuditReader:
    """Reads the audit. `read` of its methods makes an entry of a record, None of one that is not asked for."""

    def __init__(self, client: Client, keys: Keys, reader: Reader, *, rng: random.Random) -> None:
        self._client = client
        self._keys = keys
        self._reader = reader
        self._rng = rng

    async def page(
        self,
        query: AuditQuery,
        read: Callable[[KeyValue], Entry | None],
        size: int,
        token: PageToken | None,
        deadline: Deadline,
    ) -> AuditPage[Entry]:
        """A page of records; it may hold fewer than `size`, and still not be the last.

        Raises:
            FailedPrecondition: etcd no longer keeps the revision that the first page was of.
        """
        scan = _Scan(self._spans(query.pool), token)
        entries: list[Entry] = []
        while not scan.is_long() and (wanted := scan.next_range(min(size, _PIECE))) is not None:
            found = await self._reader.some(wanted, deadline)
            scan.begin(found.revision)
            for kv in found.kvs:
                if (jump := self._jump(kv.key, query)) is not None:
                    scan.jump(jump)
                    break
                entry = read(kv)
                scan.pass_by(kv, is_taken=entry is not None)
                entries += [entry] if entry is not None else []
                if len(entries) >= size or scan.is_long():
                    return AuditPage(scan.revision, tuple(entries), scan.token())
                await asyncio.sleep(0)  # each may have a megabyte
            else:
                scan.reach(found.kvs[-1].key if found.more else wanted.range_end)
        return AuditPage(scan.revision, tuple(entries), scan.token())

    def _spans(self, pool: str | None) -> list[tuple[bytes, bytes]]:
        prefixes = [self._keys.audits()] if pool is None else [self._keys.audit(pool, ""), self._keys.denied()]
        return [(one, prefix_end(one)) for one in sorted(prefixes)]

    def _jump(self, key: bytes, query: AuditQuery) -> _Jump | None:
        """Jump over a record and those like it; None: it may be read."""
        scope, _, audit_id = key.rpartition(b"/")
        pool = self._keys.audited_pool(key)
        if pool and not query.sees(pool):
            return _Jump(prefix_end(scope + b"/"), is_seen=False)
        since = query.since_id.encode()
        return _Jump(scope + b"/" + since, is_seen=True) if audit_id < since else None

    async def news(self, start_revision: int, deadline: Deadline) -> AsyncGenerator[AuditNews, None]:
        """Records from a revision on, as they are written; 0: from now on. The first item comes at once.

        Raises:
            FailedPrecondition: etcd does not keep the revisions from there on.
        """
        prefix = self._keys.audits()
        if not start_revision:
            now = await self._reader.some(Range(prefix, prefix_end(prefix), limit=1, keys_only=True), deadline)
            start_revision = now.revision + 1
        yield AuditNews(start_revision - 1)
        resume = Resume(start_revision - 1, 0)
        reflector = Reflector(self._client, prefix, prefix_end(prefix), resume=resume, rng=self._rng)
        async with aclosing(reflector.stream()) as reflections:
            async for reflection in reflections:
                match reflection:
                    case Listed(revision=revision):
                        raise compacted(start_revision, revision, "list what is kept, and watch from there")
                    case Changed(revision, events):
                        start_revision = revision + 1
                        yield AuditNews(revision, tuple(event.kv for event in events if event.kv is not None))
                    case Progressed(revision):
                        start_revision = revision + 1
                        yield AuditNews(revision)
                    case _:
                        pass


@dataclass(frozen=True, slots=True)
class _Jump:
    """Key to go on behind. `is_seen`: it names no pool that the reader does not see."""

    key: bytes
    is_seen: bool


class _Scan:
    """Place in a listing over several spans of keys, and how much of it was read."""

    def __init__(self, spans: list[tuple[bytes, bytes]], token: PageToken | None) -> None:
        self._spans = spans
        self._after = token.after if token else b""
        self.revision = token.revision if token else 0
        self._taken_bytes = self._scanned_bytes = self._ranges = 0
        self._jumped: _Jump | None = None

    def is_long(self) -> bool:
        """True if that is enough for one page. A token names no pool that the reader does not see."""
        much = self._taken_bytes >= _PAGE_BYTES or self._scanned_bytes >= _SCANNED_BYTES
        return (much or self._ranges >= _RANGES_AT_MOST) and (self._jumped is None or self._jumped.is_seen)

    def next_range(self, limit: int) -> Range | None:
        """Range to read next; None: everything was read. Behind a jump another may follow, so one record is read."""
        limit = limit if self._jumped is None else 1
        for start, end in self._spans:
            if self._after < end:
                return Range(max(start, self._after + b"\0"), end, limit=limit, revision=self.revision)
        return None

    def begin(self, revision: int) -> None:
        """Notes a range that was read."""
        self.revision = self.revision or revision
        self._ranges += 1
        self._jumped = None

    def pass_by(self, kv: KeyValue, *, is_taken: bool) -> None:
        """Notes a record that was looked at."""
        self._after = kv.key
        self._scanned_bytes += len(kv.value)
        self._taken_bytes += len(kv.value) if is_taken else 0

    def reach(self, key: bytes) -> None:
        """Goes on behind a key."""
        self._after = key

    def jump(self, jump: _Jump) -> None:
        """Goes on behind a jump."""
        self._after, self._jumped = jump.key, jump

    def token(self) -> PageToken | None:
        """Token of the next page; None: this was the last."""
        return PageToken(self.revision, self._after) if self.next_range(1) is not None else None
