"""Watch of what `get` shows: a line for each change, or a table drawn anew."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from registry.cli.client import AdminClient, WatchAnswer
from registry.cli.failure import CliError
from registry.cli.session import pool_or_only
from registry.cli.views.get import VIEWS, Kind, Query, cell_filter, find, label_filter
from registry.cli.views.output import OutputView, Printer
from registry.cli.views.replica_view import ReplicaView
from registry.model.errors import Reason
from registry.residency.health import AdapterRow
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
    """The record under this name cannot be read."""

    name: str


@dataclass(frozen=True, slots=True)
class AdapterUnmatched:
    """The item of this name is there, and no longer what a selector asks for."""

    name: str


Told = AdapterPut | AdapterGone | AdapterUnreadable
Shown = Told | AdapterUnmatched
_NO_ETAG = ""


class AdapterFeed:
    """State told of a pool's adapters, or of one of them.

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
        """News in a response."""
        if response.snapshot and self._listed is None:
            self._listed = set()
        for event in response.events:
            yield from self._event(event)
        if response.more:
            return
        if self._listed is not None:
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


class RowFeed:
    """Joins what is told of a pool's adapters with where they are. Without `detail` only the former is told."""

    def __init__(self, query: Query) -> None:
        self.changes = AdapterFeed(query.name)
        self._is_known = query.detail is None
        self._records: dict[str, pb.Adapter] = {}
        self._where: dict[str, pb.AdapterResidency] = {}
        self._listed: set[str] | None = None
        self._told: dict[str, AdapterRow | None] = {}  # None: that it cannot be read

    def begin(self) -> None:
        """New streams begin."""
        self.changes.begin()
        self._listed = None

    def take(self, answer: WatchAnswer) -> Iterator[Told]:
        """News in an answer."""
        if isinstance(answer, pb.WatchResidencyResponse):
            for key in self._places(answer):
                yield from self._row(key)
            return
        for told in self.changes.take(answer):
            if isinstance(told, AdapterPut):
                key = told.item.name.lower()
                self._records[key] = told.item
                yield from self._row(key)
            else:
                yield from self._fate(told)

    def _fate(self, told: AdapterGone | AdapterUnreadable) -> Iterator[Told]:
        key = told.name.lower()
        self._records.pop(key, None)
        if isinstance(told, AdapterUnreadable):
            self._told[key] = None
            yield told
        elif key in self._told:  # who waited for its state until it went was never shown
            del self._told[key]
            yield told

    def _places(self, answer: pb.WatchResidencyResponse) -> Iterable[str]:
        """The name keys of which something else may be known now, in the order in which they came."""
        if answer.snapshot and self._listed is None:
            self._listed = set()
        new = {one.name.lower(): one for one in answer.adapters}
        self._where |= new
        touched, gone = dict.fromkeys(new), dict.fromkeys(answer.gone)
        if self._listed is not None:
            self._listed |= new.keys()
            if not answer.more:
                gone = {key: None for key in self._where if key not in self._listed}
                self._listed, self._is_known = None, True
                touched = dict.fromkeys(self._records)  # nothing was told of those that came before
        for key in gone:
            self._where.pop(key, None)
        return touched | gone

    def _row(self, key: str) -> Iterator[Told]:
        record = self._records.get(key)
        if record is None or not self._is_known:
            return
        row = AdapterRow(record, self._where.get(key))
        if self._told.get(key) != row:
            self._told[key] = row
            yield AdapterPut(row)


_POLL_SECONDS = 1.0
_DRAW_SECONDS = 0.5
# How old what a terminal shows may get, such as an age.
_STALE_SECONDS = 10.0


class LiveTable:
    """Shows on a terminal what there is, drawn anew as it changes."""

    def __init__(self, view: OutputView[Any], name: Callable[[Any], str], printer: Printer) -> None:
        self._view = view
        self._name = name
        self._printer = printer
        self._rows: dict[str, Any] = {}
        self._unreadable: set[str] = set()
        self._is_drawn = False
        self._drawn_at = -math.inf

    def take(self, batch: Sequence[Shown], now: float) -> None:
        """Takes changes over; they are shown at once, or after a moment where others were just shown."""
        for told in batch:
            self._change(told)
            self._is_drawn = False
        waited = now - self._drawn_at
        if waited >= (_STALE_SECONDS if self._is_drawn else _DRAW_SECONDS):
            self._draw()
            self._is_drawn, self._drawn_at = True, now

    def _change(self, told: Shown) -> None:
        match told:
            case AdapterPut(item):
                name = self._name(item)
                self._rows[name.lower()] = item
                self._unreadable.discard(name.lower())
            case AdapterGone(name) | AdapterUnmatched(name):
                self._rows.pop(name.lower(), None)
                self._unreadable.discard(name.lower())
            case AdapterUnreadable(name):
                self._rows.pop(name.lower(), None)
                self._unreadable.add(name.lower())

    def _draw(self) -> None:
        rows = [self._rows[name] for name in sorted(self._rows)]
        unreadable = ", ".join(sorted(self._unreadable))
        self._printer.redraw(self._view, rows, f"cannot be read: {unreadable}" if unreadable else "")


class SelectedFeed:
    """Of what is told, that which a selector asks for, and which of it is that no longer.

    What cannot be read is told, whether or not it was asked for: nobody knows.
    """

    def __init__(self, fits: Callable[[Any], bool], name: Callable[[Any], str]) -> None:
        self._fits = fits
        self._name = name
        self._shown: set[str] = set()

    def take(self, told: Told) -> Iterator[Shown]:
        """Lines to show of one change."""
        match told:
            case AdapterPut(item) if not self._fits(item):
                yield from self._ended(AdapterUnmatched(self._name(item)))
            case AdapterPut(item):
                self._shown.add(self._name(item).lower())
                yield told
            case AdapterUnreadable(name):
                self._shown.add(name.lower())
                yield told
            case _:
                yield from self._ended(told)

    def _ended(self, told: AdapterGone | AdapterUnmatched) -> Iterator[Shown]:
        key = told.name.lower()
        if key in self._shown:
            self._shown.discard(key)
            yield told


def watch(client: AdminClient, query: Query, fields: Sequence[str], printer: Printer) -> None:
    """Prints what there is, then every change; ends only by an error or an interrupt. A terminal is drawn anew.

    Args:
        fields: ``COLUMN=VALUE``, as `registry.cli.views.get.cell_filter` takes them; with the labels of `query` they
            say what is shown.
    """
    view, of_all = VIEWS[query.kind], replace(query, labels={})
    has_labels, has_cells = label_filter(query), cell_filter(view, fields)
    name_of = _in_its_pool if query.kind is Kind.REPLICAS and query.pool is None else view.name
    feed = SelectedFeed(lambda item: has_labels(item) and has_cells(item), name_of)
    every = _streamed(client, of_all) if query.kind is Kind.ADAPTERS else _polled(client, of_all, name_of)
    batches = ([shown for told in batch for shown in feed.take(told)] for batch in every)
    if printer.is_live:
        table = LiveTable(view, name_of, printer)
        for batch in batches:
            table.take(batch, time.monotonic())
    printer.header(view)
    for change in (one for batch in batches for one in batch):
        match change:
            case AdapterPut(item):
                printer.row(view, item)
            case AdapterGone(name):
                printer.fate(name, "deleted")
            case AdapterUnreadable(name):
                printer.fate(name, "unreadable")
            case AdapterUnmatched(name):
                printer.fate(name, "unmatched")


def _streamed(client: AdminClient, query: Query) -> Iterator[Sequence[Told]]:
    """Changes of a pool's adapters, none lost while the connection is."""
    pool, feed = pool_or_only(client, query.pool), RowFeed(query)
    while True:
        try:
            yield from _answers(client, pool, query, feed)
        except CliError as error:
            if not client.may_pass(error) and not _is_compacted(error, feed):
                raise
        yield ()
        time.sleep(_POLL_SECONDS)


def _answers(client: AdminClient, pool: str, query: Query, feed: RowFeed) -> Iterator[Sequence[Told]]:
    """News of one connection."""
    feed.begin()
    start = pb.WatchAdaptersRequest(pool=pool, start_revision=feed.changes.start)
    where = None
    if query.detail is not None:
        # With their replicas, those of all adapters are very many; one that does not exist yet has counts.
        is_whole = query.detail == pb.WatchResidencyRequest.COUNTS
        name = "" if is_whole else query.name or ""
        where = pb.WatchResidencyRequest(pool=pool, name=name, detail=query.detail)
    for answers in client.watch_pool(start, where, _DRAW_SECONDS):
        yield [told for answer in answers for told in feed.take(answer)]


def _is_compacted(error: CliError, feed: RowFeed) -> bool:
    """True if what happened meanwhile is to be found by comparing what there is now; so it is then."""
    if error.failure.reason != Reason.REVISION_COMPACTED or not feed.changes.start:
        return False
    feed.changes.start = 0
    return True


def _in_its_pool(replica: ReplicaView) -> str:
    """Name of a replica where those of all pools are watched, of which several may have one of its name."""
    return f"{replica.pool}/{replica.name}"


def _polled(client: AdminClient, query: Query, name_of: Callable[[Any], str]) -> Iterator[Sequence[Told]]:
    """Changes since the last look; one that fails is made up for by the next, unless it is the first."""
    known: dict[str, Any] | None = None
    while True:
        try:
            now = {name_of(item): item for item in find(client, query, _unnoted)}
        except CliError as error:
            if known is None or not error.failure.passes:
                raise
            now = known
        before, known = known or {}, now
        new = [AdapterPut(item) for name, item in now.items() if before.get(name) != item]
        yield [*new, *(AdapterGone(name) for name in before if name not in now)]
        time.sleep(_POLL_SECONDS)


def _unnoted(_text: str) -> None:
    """Once a second would be too often."""
