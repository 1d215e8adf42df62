"""Watches a pool's adapters and prints each change once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from registry.cli.client import AdminClient
from registry.cli.failure import CliError, Exit
from registry.cli.session import pool_or_only
from registry.cli.views.get import Kind, Query, find, view_of
from registry.cli.views.output import Printer
from registry.cli.views.residency_view import ResidencyRow
from registry.model.errors import Reason
from registry.v1 import registry_pb2 as pb


@dataclass(frozen=True, slots=True)
class AdapterPut:
    """An item is new or changed."""

    item: Any


@dataclass(frozen=True, slots=True)
class AdapterGone:
    """The item of this name is no more."""

    name: str


@dataclass(frozen=True, slots=True)
class AdapterUnreadable:
    """What stands under this name cannot be read."""

    name: str


Told = AdapterPut | AdapterGone | AdapterUnreadable
_NO_ETAG = ""


class AdapterFeed:
    """What was told of a pool's adapters, or of one of them.

    Attributes:
        start: the revision to watch from; 0: the present state first.
    """

    def __init__(self, name: str | None) -> None:
        self.start = 0
        self._name = name.lower() if name is not None else None
        self._etags: dict[str, str] = {}
        self._listed: set[str] | None = None

    def begin(self) -> None:
        """A new stream begins: what was listed of a state that never came to its end is not all of it."""
        self._listed = None

    def take(self, response: pb.WatchAdaptersResponse) -> Iterator[Told]:
        """What a response tells that was not told yet."""
        if response.snapshot and self._listed is None:
            self._listed = set()
        for event in response.events:
            yield from self._event(event)
        if response.more:
            return
        if response.snapshot and self._listed is not None:
            yield from [self._gone(key) for key in sorted(self._etags.keys() - self._listed)]
            self._listed = None
        self.start = response.revision + 1

    def _event(self, event: pb.AdapterEvent) -> Iterator[Told]:
        match event.WhichOneof("event"):
            case "put":
                yield from self._stands(event.put.name, event.put.etag, AdapterPut(event.put))
            case "unreadable":
                yield from self._stands(event.unreadable, _NO_ETAG, AdapterUnreadable(event.unreadable))
            case "deleted" if event.deleted in self._etags:
                yield self._gone(event.deleted)
            case _:
                pass

    def _stands(self, name: str, etag: str, told: Told) -> Iterator[Told]:
        key = name.lower()
        if self._name not in {None, key}:
            return
        if self._listed is not None:
            self._listed.add(key)
        if self._etags.get(key) != etag:
            self._etags[key] = etag
            yield told

    def _gone(self, key: str) -> AdapterGone:
        del self._etags[key]
        return AdapterGone(key)


_POLL_SECONDS = 1.0


def watch(client: AdminClient, query: Query, printer: Printer) -> None:
    """Prints what there is, then every change; ends only by an error or an interrupt."""
    changes = _streamed(client, query) if query.kind is Kind.ADAPTERS else _polled(client, query)
    view = view_of(query)
    if printer.is_table:
        printer.lines(["  ".join(view.columns)])
    for change in changes:
        match change:
            case AdapterPut(item):
                printer.row(view, item)
            case AdapterGone(name):
                printer.fate(name, "deleted")
            case AdapterUnreadable(name):
                printer.fate(name, "unreadable")


def _streamed(client: AdminClient, query: Query) -> Iterator[Told]:
    """Changes of a pool's adapters, none lost while the connection is."""
    pool = pool_or_only(client, query.pool)
    changes = _residency_changes(client, pool, query.name) if query.wide else _adapter_changes(client, pool, query.name)
    while True:
        try:
            yield from changes()
        except CliError as error:
            if error.failure.exit is not Exit.UNAVAILABLE:
                raise
        time.sleep(_POLL_SECONDS)


def _adapter_changes(client: AdminClient, pool: str, name: str | None) -> Callable[[], Iterator[Told]]:
    feed = AdapterFeed(name)

    def changes() -> Iterator[Told]:
        feed.begin()
        try:
            for response in client.watch_adapters(pool, feed.start):
                yield from feed.take(response)
        except CliError as error:
            if error.failure.reason != Reason.REVISION_COMPACTED or not feed.start:
                raise
            feed.start = 0  # what happened meanwhile is found by comparing what there is now

    return changes


def _residency_changes(client: AdminClient, pool: str, name: str | None) -> Callable[[], Iterator[Told]]:
    def changes() -> Iterator[Told]:
        for response in client.watch_residency(pool, name or ""):
            yield from (AdapterPut(ResidencyRow(pool, one)) for one in response.adapters)
            yield from map(AdapterGone, response.gone)

    return changes


def _polled(client: AdminClient, query: Query, pause: Callable[[float], None] = time.sleep) -> Iterator[Told]:
    view = view_of(query)
    known: dict[str, Any] = {}
    while True:
        now = {view.name(item): item for item in find(client, query, _unnoted)}
        yield from (AdapterPut(item) for name, item in now.items() if known.get(name) != item)
        yield from (AdapterGone(name) for name in known if name not in now)
        known = now
        pause(_POLL_SECONDS)


def _unnoted(_text: str) -> None:
    """Once a second would be too often."""
