"""Follower of the audit: a line for each record, once, also over restarts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from contextlib import aclosing

import structlog

from registry.etcd3.client import Client
from registry.etcd3.ops import KeyValue, prefix_end
from registry.etcd3.reflector import Reflector
from registry.etcd3.stream import Changed, Disconnected, ListCause, Listed, Progressed, Reflection, Resume
from registry.model.keys import Keys
from registry.runtime.process import Repeats
from registry.tools.audit.lines import HoleLine, RecordLine, SeenLine, encode_line
from registry.tools.audit.output import LineSink
from registry.tools.verify.history import document

# A line that nothing else was written since, so that a compaction meanwhile is no hole after a restart.
SEEN_SECONDS = 3600.0
_log = structlog.get_logger()


class StoreWentBack(Exception):
    """etcd has not reached the revision that was written already: it is another store, or an earlier state of it."""


class AuditFollower:
    """Follows the audit.

    Args:
        client: of etcd, by a user who may read the audit.
        keys: of the registry in etcd.
        sink: takes the lines, and knows where it was.
        rng: for pauses between tries.
    """

    def __init__(self, client: Client, keys: Keys, sink: LineSink, rng: random.Random) -> None:
        self._keys = keys
        self._sink = sink
        self._revision, self._written = sink.position.revision, sink.position.keys
        self._seen = self._revision
        self._repeats = Repeats()
        prefix = keys.audits()
        # From the last revision on, where a process that was killed may have written only some of it.
        known = self._revision - (self._written is not None)
        resume = Resume(known, 0) if known > 0 else None
        self._reflector = Reflector(client, prefix, prefix_end(prefix), resume=resume, rng=rng)

    async def run(self) -> None:
        """Writes lines until it is cancelled.

        Raises:
            StoreWentBack: what was written is not in this store's past.
            OutputUnusable: lines cannot be written.
        """
        loop = asyncio.get_running_loop()
        due = loop.time() + SEEN_SECONDS
        try:
            async with aclosing(self._reflector.stream()) as reflections:
                async for reflection in reflections:
                    self._take(reflection)
                    if loop.time() >= due:
                        self._tell_seen()
                        due = loop.time() + SEEN_SECONDS
        finally:
            self._tell_seen()

    def _take(self, reflection: Reflection) -> None:
        match reflection:
            case Listed(revision, kvs, cause=cause):
                self._take_list(revision, kvs, cause)
            case Changed(revision, events):
                self._write(revision, (event.kv for event in events if event.kv is not None))
            case Progressed(revision):
                self._seen = max(self._seen, revision)
            case Disconnected(message, denied=denied):
                if times := self._repeats.count(message):
                    _log.warning("etcd_disconnected", error=message, denied=denied, times=times)
            case _:
                pass

    def _take_list(self, revision: int, kvs: Iterable[KeyValue], cause: ListCause) -> None:
        if cause is ListCause.WENT_BACK or revision < self._revision:
            raise StoreWentBack(
                f"etcd is at revision {revision}, and {self._revision} was written already: it is another store, or "
                "was restored from a snapshot; move the file away, and begin a new one"
            )
        begun = self._revision
        if cause is ListCause.COMPACTED and begun:
            _log.warning("audit_hole", after=begun, before=revision)
            self._sink.write([encode_line(HoleLine(begun, revision))], begun)
        self._write(revision, sorted((kv for kv in kvs if kv.mod_revision >= begun), key=lambda kv: kv.mod_revision))
        self._sink.write([encode_line(SeenLine(revision))], revision)

    def _write(self, revision: int, kvs: Iterable[KeyValue]) -> None:
        texts = [encode_line(self._line(kv)) for kv in kvs if not self._is_written(kv)]
        if texts:
            self._sink.write(texts, revision)
        if revision > self._revision:
            self._revision, self._written = revision, None
        self._seen = max(self._seen, revision)

    def _is_written(self, kv: KeyValue) -> bool:
        """True for what the file ends with; nothing earlier is read again."""
        is_known = self._written is None or self._name(kv) in self._written
        return kv.mod_revision == self._revision and is_known

    def _line(self, kv: KeyValue) -> RecordLine:
        return RecordLine(kv.mod_revision, self._name(kv), document(kv.value) or {})

    def _name(self, kv: KeyValue) -> str:
        return kv.key.decode(errors="backslashreplace").removeprefix(f"{self._keys.prefix}/")

    def _tell_seen(self) -> None:
        if self._seen > self._revision:
            self._sink.write([encode_line(SeenLine(self._seen))], self._seen)
            self._revision, self._written = self._seen, None
