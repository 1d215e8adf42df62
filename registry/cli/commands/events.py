"""The commands events and audit: what happened, and who did or tried what."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated

import click

from registry.cli import options
from registry.cli.client import AdminClient
from registry.cli.failure import CliError, not_found
from registry.cli.session import READ_SECONDS, pool_or_only, session_of
from registry.cli.sidecars import SidecarAccess, ask_sidecar, sidecar_address
from registry.cli.views.events import (
    AUDIT,
    EVENTS,
    ShownEvent,
    change_event,
    folded,
    replica_events,
    ring_events,
    rows_of,
)
from registry.cli.views.get import Note, note, replicas_of
from registry.cli.views.output import Printer
from registry.client import admin_api as api
from registry.client.audit import AuditEntry, entry_of
from registry.model.errors import Reason
from registry.v1 import registry_pb2 as pb

# Of more, the newest are shown.
MAX_SHOWN = 10_000
_POLL_SECONDS = 2.0
# Admin services write times of their own clocks, and one change may be stored after a later one.
_OVERLAP = timedelta(seconds=60)
Look = Callable[[datetime], Iterable[ShownEvent]]


@dataclass(frozen=True, slots=True)
class EventChoice:
    """Flags that choose events; None: of any."""

    name: Annotated[str | None, options.naming(metavar="[NAME]", help="Only of the adapter of this name.")] = None
    replica: Annotated[str | None, options.flag("--replica", metavar="NAME", help="Only on this replica.")] = None
    every: Annotated[
        bool, options.flag("--all", help="A row for each adapter, also where one request changed many alike.")
    ] = False
    request: Annotated[
        str | None, options.flag("--request", metavar="ID", help="Only what this request did, a row for each.")
    ] = None

    def of(self, found: Iterable[ShownEvent], start: datetime, *, for_people: bool) -> Iterator[ShownEvent]:
        """Those of them that are no older than that; `for_people`: folded, unless each was asked for."""
        chosen = (
            one
            for one in found
            if one.is_about(self.name, self.replica)
            and self.request in {None, one.request_id}
            and _is_since(one, start)
        )
        return folded(chosen) if for_people and not (self.every or self.name or self.request) else chosen

    def check(self, client: AdminClient, pool: str) -> None:
        """Raises CliError if there is no such replica, or never was such an adapter."""
        if self.replica is not None and all(one.name != self.replica for one in replicas_of(client, pool)):
            raise not_found(Reason.REPLICA_NOT_FOUND, f"there is no replica {self.replica!r} in pool {pool!r}")
        if self.name is not None:
            client.history(pool, self.name)


def events(
    context: click.Context,
    *,
    chosen: EventChoice,
    pool: options.Pool = None,
    since: Annotated[str, options.flag("--since", metavar="SPAN", help="No older than this: 90s, 30m, 1h, 7d.")] = "1h",
    sidecar: Annotated[
        str | None,
        options.flag(
            "--sidecar", metavar="HOST:PORT", help="Only events that the sidecar at this address (its --http) keeps."
        ),
    ] = None,
    sidecar_token_file: options.SidecarToken = None,
    watch: options.Watch = False,
    timeout: options.Timeout = None,
) -> None:
    """Show what happened: changes and who made them, halts, drains, restarts, and what replicas fail to serve.

    Changes come from the audit trail, which goes back 30 days. What replicas cannot serve now is always shown, with
    the time at which they last said so. Loads, swaps, evictions and restarts of an engine are in the ring of its
    sidecar, which --sidecar reads. A change has old and new values of what somebody set, and its request. What one
    request did alike to many adapters is one row of a table, which says what opens it.
    """
    session, start = session_of(context), datetime.now(UTC) - options.span_of(since)
    seconds, printer = timeout or READ_SECONDS, session.printer()
    choose, say = partial(chosen.of, for_people=printer.is_table), _once()
    if sidecar is not None:
        where, shown = sidecar_address(sidecar), SidecarAccess(session.shown_tls, sidecar_token_file)

        def ring(at: datetime) -> Iterator[ShownEvent]:
            return choose(ring_events(ask_sidecar(where, "/events", seconds, shown)), at)

        _show(printer, ring, start, say, watch=watch)
        return
    with session.client(seconds) as client:
        known = pool_or_only(client, pool)
        chosen.check(client, known)
        _show(printer, lambda at: choose(_of_pool(client, known, at, chosen, say), at), start, say, watch=watch)


def _once() -> Note:
    """Way to tell notes, each once: a watch finds the same at each look."""
    told: set[str] = set()

    def say(text: str) -> None:
        if text not in told:
            told.add(text)
            note(text)

    return say


def _show(printer: Printer, look: Look, start: datetime, say: Note, *, watch: bool) -> None:
    found = _newest(look(start), say)
    if not watch:
        printer.items(EVENTS, found)
        return
    printer.header(EVENTS)
    known: set[ShownEvent] = set()
    while True:
        for one in found:
            if one.key not in known:
                printer.row(EVENTS, one)
        known = {one.key for one in found}
        changed = [at for one in found if one.by and (at := _time(one.at)) is not None and at > start]
        start = max(start, max(changed, default=start) - _OVERLAP)
        time.sleep(_POLL_SECONDS)
        try:
            found = _newest(look(start), say)
        except CliError as error:
            if not error.failure.passes:
                raise


def _newest(found: Iterable[ShownEvent], say: Note) -> list[ShownEvent]:
    kept = deque(found, maxlen=MAX_SHOWN + 1)
    if len(kept) > MAX_SHOWN:
        say(f"there are more than the {MAX_SHOWN} that are shown; a shorter --since shows the newest")
        kept.popleft()
    return sorted(kept, key=lambda one: one.at)


def _of_pool(client: AdminClient, pool: str, since: datetime, chosen: EventChoice, say: Note) -> Iterator[ShownEvent]:
    with_pending = chosen.name is not None or chosen.replica is not None
    request = pb.ListChangesRequest(pool=pool, since=since.isoformat().replace("+00:00", "Z"))
    for page in client.pages(api.LIST_CHANGES, request):
        yield from map(change_event, page.changes)
        if page.unreadable:
            say(f"{len(page.unreadable)} audit records cannot be read, and are left out: {page.unreadable[0]}, …")
    for replica in replicas_of(client, pool):
        yield from replica_events(replica, with_pending=with_pending)


def _is_since(one: ShownEvent, start: datetime) -> bool:
    at = _time(one.at)
    return one.current or at is None or at >= start


def _time(text: str) -> datetime | None:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo is not None else None


# A connection is made anew after it, so that one that died in silence is noticed.
_STREAM_SECONDS = 3600.0


def audit(
    context: click.Context,
    name: Annotated[
        str | None, options.naming(metavar="[NAME]", help="Only of the adapter, pool, replica or tenant of this name.")
    ] = None,
    *,
    pool: options.OnlyPool = None,
    since: Annotated[str, options.flag("--since", metavar="SPAN", help="No older than this: 90s, 30m, 1h, 7d.")] = "1d",
    principal: Annotated[
        str | None, options.flag("--principal", metavar="WHO", help="Only by this principal, as a binding names it.")
    ] = None,
    watch: options.Watch = False,
    timeout: options.Timeout = None,
) -> None:
    """Show the audit: who did what, from old to new value, and which calls were refused.

    It needs the role auditor, and shows what the binding of that is about. With -o wide it also tells by which
    credential, from which address and with which program; -o json and -o yaml have the whole values before and after.
    Records are kept 30 days, and of refusals, of which many alike are one record, 7.
    """
    printer = session_of(context).printer()
    begun = datetime.now(UTC) - options.span_of(since)
    asked = pb.ListAuditRequest(since=begun.isoformat().replace("+00:00", "Z"))
    options.set_given(asked, pool=pool, about=name, principal=principal)
    with session_of(context).client(timeout or READ_SECONDS) as client:
        found, revision = _listed(client, asked)
        rows = found if printer.is_plain else [row for entry in found for row in rows_of(entry)]
        if not watch:
            printer.items(AUDIT, rows)
            return
        printer.header(AUDIT)
        _print(printer, rows)
        start = pb.WatchAuditRequest(start_revision=revision + 1)
        options.set_given(start, pool=pool, about=name, principal=principal)
        for entries in _watched(client, start):
            _print(printer, entries if printer.is_plain else (row for entry in entries for row in rows_of(entry)))


def _print(printer: Printer, rows: Iterable[AuditEntry]) -> None:
    for row in rows:
        printer.row(AUDIT, row)


def _listed(client: AdminClient, asked: pb.ListAuditRequest) -> tuple[list[AuditEntry], int]:
    """The newest entries in the order in which they were made, and the revision of the list."""
    kept: deque[AuditEntry] = deque()
    revision = 0
    for page in client.pages(api.LIST_AUDIT, asked):
        revision = page.revision
        kept.extend(map(entry_of, page.entries))
        _note_unreadable(page.unreadable)
        if len(kept) > 2 * MAX_SHOWN:
            kept = _latest(kept)
    if len(kept) > MAX_SHOWN:
        note(f"there are more than the {MAX_SHOWN} that are shown; a shorter --since shows the newest")
    return list(_latest(kept)), revision


def _latest(kept: Iterable[AuditEntry]) -> deque[AuditEntry]:
    return deque(sorted(kept, key=lambda one: one.revision), maxlen=MAX_SHOWN + 1)


def _watched(client: AdminClient, asked: pb.WatchAuditRequest) -> Iterator[list[AuditEntry]]:
    """Entries as they are made, each once, also over connections that break."""
    while True:
        try:
            for answer in client.stream(api.WATCH_AUDIT, asked, _STREAM_SECONDS):
                asked.start_revision = answer.revision + 1
                _note_unreadable(answer.unreadable)
                yield [entry_of(one) for one in answer.entries]
        except CliError as error:
            if not error.failure.passes:
                raise
        time.sleep(_POLL_SECONDS)


def _note_unreadable(ids: Iterable[str]) -> None:
    for one in ids:
        note(f"the audit record {one} cannot be read, and is left out")
