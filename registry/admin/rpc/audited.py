"""Handlers for readers of the audit, and its records on the wire."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from registry.admin.rpc import encode
from registry.admin.rpc.calls import CallContext
from registry.admin.rpc.encode_changes import denied_entry, done_entry, first_id
from registry.admin.rpc.interceptor import Stream, Unary
from registry.admin.rpc.streams import not_negative
from registry.admin.rpc.visible import AuditSight, seen_pools
from registry.etcd3.ops import KeyValue
from registry.model.errors import FailedPrecondition
from registry.model.keys import Keys, last_part
from registry.store.audits import AuditQuery, AuditReader
from registry.store.pages import check_page_size, decode_token
from registry.v1 import registry_pb2 as pb

_ENTRIES_AT_MOST = 100


class AuditHandlers:
    """Handlers: each takes a request and its call, and raises RegistryError where it refuses."""

    def __init__(self, reader: AuditReader, keys: Keys) -> None:
        self._reader = reader
        self._keys = keys

    def by_method(self) -> Mapping[str, Unary[Any, Any]]:
        """Each handler of one answer by the name of its method."""
        return {"ListAudit": self._list}

    def streams(self) -> Mapping[str, Stream[Any, Any]]:
        """Each handler of a stream by the name of its method."""
        return {"WatchAudit": self._watch}

    async def _list(self, request: pb.ListAuditRequest, call: CallContext) -> pb.ListAuditResponse:
        pool, since = request.pool or None, first_id(request.since)
        listing = "\0".join(("audit", request.pool, request.since, request.about, request.principal))
        size, token = check_page_size(request.page_size), decode_token(request.page_token, listing)
        query, sieve = AuditQuery(pool, since, seen_pools(call)), _Sieve(self._keys, request, call)
        page = await self._reader.page(query, sieve.read, min(size, _ENTRIES_AT_MOST), token, call.deadline)
        return pb.ListAuditResponse(
            entries=page.entries,
            next_page_token=encode.token(page.token, listing),
            unreadable=sieve.unreadable,
            revision=page.revision,
        )

    async def _watch(
        self, request: pb.WatchAuditRequest, call: CallContext
    ) -> AsyncGenerator[pb.WatchAuditResponse, None]:
        start = not_negative(request.start_revision, "start_revision")
        async with aclosing(self._reader.news(start, call.deadline)) as news:
            async for one in news:
                sieve = _Sieve(self._keys, request, call)
                entries = [entry for kv in one.kvs if (entry := sieve.read(kv)) is not None]
                yield pb.WatchAuditResponse(entries=entries, revision=one.revision, unreadable=sieve.unreadable)


class _Sieve:
    """Reads the records that are asked for, as far as the caller sees them. `unreadable`: ids of others."""

    def __init__(self, keys: Keys, asked: pb.ListAuditRequest | pb.WatchAuditRequest, call: CallContext) -> None:
        self._keys = keys
        self._asked = asked
        self._sight = AuditSight(call)
        self.unreadable: list[str] = []

    def read(self, kv: KeyValue) -> pb.AuditEntry | None:
        """The entry of a record, with those of its changes that are asked for; None: there is none."""
        pool, is_denied = self._keys.audited_pool(kv.key), kv.key.startswith(self._keys.denied())
        if not is_denied and self._asked.pool not in {"", pool}:
            return None
        try:
            entry = denied_entry(kv) if is_denied else done_entry(kv, pool)
        except FailedPrecondition:
            if self._sight.whole(pool):
                self.unreadable.append(last_part(kv.key))
            return None
        if self._asked.principal not in {"", entry.principal}:
            return None
        return self._refused(entry) if is_denied else self._done(entry)

    def _done(self, entry: pb.AuditEntry) -> pb.AuditEntry | None:
        seen = [one for one in entry.changes if self._is_named(one.name) and self._sight.change(entry.pool, one)]
        if len(seen) < len(entry.changes):
            del entry.changes[:]
            entry.changes.extend(seen)
        return entry if seen else None

    def _refused(self, entry: pb.AuditEntry) -> pb.AuditEntry | None:
        names = {entry.pool, entry.denial.tenant}
        is_asked = self._asked.pool in {"", entry.pool} and any(map(self._is_named, names))
        return entry if is_asked and self._sight.whole(entry.pool, entry.denial.tenant) else None

    def _is_named(self, name: str) -> bool:
        return self._asked.about.lower() in {"", name.lower()}
