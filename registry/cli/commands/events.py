"""The command events: what happened, from audit trail, statuses and rings."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated

import click

from registry.cli import options
from registry.cli.client import AdminClient
from registry.cli.failure import CliError, Exit, not_found, usage
from registry.cli.session import READ_SECONDS, pool_or_only, session_of
from registry.cli.sidecars import SidecarAccess, ask_sidecar, sidecar_address
from registry.cli.views.events import EVENTS, ShownEvent, change_event, replica_events, ring_events
from registry.cli.views.get import note, replicas_of
from registry.cli.views.output import Printer
from registry.client import admin_api as api
from registry.model.errors import Reason
from registry.v1 import registry_pb2 as pb

# Of more, the newest are shown.
MAX_SHOWN = 10_000
_POLL_SECONDS = 2.0
# Admin services write times of their own clocks, and one change may be stored after a later one.
_OVERLAP = timedelta(seconds=60)
_SPAN = re.compile(r"([0-9]{1,6})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
# Longer than anything is kept.
_LONGEST = timedelta(days=366)
Look = Callable[[datetime], Iterable[ShownEvent]]


def events(
    context: click.Context,
    name: Annotated[str | None, options.naming(metavar="[NAME]", help="Only of the adapter of this name.")] = None,
    *,
    pool: options.Pool = None,
    replica: Annotated[str | None, options.flag("--replica", metavar="NAME", help="Only on this replica.")] = None,
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
    sidecar, which --sidecar reads.
    """
    session, start = session_of(context), datetime.now(UTC) - _span(since)
    seconds, chosen = timeout or READ_SECONDS, _Chosen(name, replica)
    if sidecar is not None:
        where, shown = sidecar_address(sidecar), SidecarAccess(session.shown_tls, sidecar_token_file)

        def ring(at: datetime) -> Iterator[ShownEvent]:
            return chosen.of(ring_events(ask_sidecar(where, "/events", seconds, shown)), at)

        _show(session.printer(), ring, start, watch=watch)
        return
    with session.client(seconds) as client:
        known = pool_or_only(client, pool)
        chosen.check(client, known)
        _show(session.printer(), lambda at: chosen.of(_of_pool(client, known, at, chosen), at), start, watch=watch)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Of which adapter, and on which replica; None: of any."""

    name: str | None
    replica: str | None

    def of(self, found: Iterable[ShownEvent], start: datetime) -> Iterator[ShownEvent]:
        """Those of them that are no older than that."""
        return (one for one in found if one.is_about(self.name, self.replica) and _is_since(one, start))

    def check(self, client: AdminClient, pool: str) -> None:
        """Raises CliError if there is no such replica, or never was such an adapter."""
        if self.replica is not None and all(one.name != self.replica for one in replicas_of(client, pool)):
            raise not_found(Reason.REPLICA_NOT_FOUND, f"there is no replica {self.replica!r} in pool {pool!r}")
        if self.name is not None:
            client.history(pool, self.name)


def _show(printer: Printer, look: Look, start: datetime, *, watch: bool) -> None:
    found = _newest(look(start))
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
            found = _newest(look(start))
        except CliError as error:
            if error.failure.exit is not Exit.UNAVAILABLE:
                raise


def _newest(found: Iterable[ShownEvent]) -> list[ShownEvent]:
    kept = deque(found, maxlen=MAX_SHOWN + 1)
    if len(kept) > MAX_SHOWN:
        note(f"there are more than the {MAX_SHOWN} that are shown; a shorter --since shows the newest")
        kept.popleft()
    return sorted(kept, key=lambda one: one.at)


def _of_pool(client: AdminClient, pool: str, since: datetime, chosen: _Chosen) -> Iterator[ShownEvent]:
    with_pending = chosen.name is not None or chosen.replica is not None
    request = pb.ListChangesRequest(pool=pool, since=since.isoformat().replace("+00:00", "Z"))
    for page in client.pages(api.LIST_CHANGES, request):
        yield from map(change_event, page.changes)
        if page.unreadable:
            note(f"{len(page.unreadable)} audit records cannot be read, and are left out: {page.unreadable[0]}, …")
    for replica in replicas_of(client, pool):
        yield from replica_events(replica, with_pending=with_pending)


def _span(text: str) -> timedelta:
    match = _SPAN.fullmatch(text)
    if match is None:
        raise usage(f"--since {text}: write a number and s, m, h or d, such as 30m")
    return min(timedelta(**{_UNITS[match[2]]: int(match[1])}), _LONGEST)


def _is_since(one: ShownEvent, start: datetime) -> bool:
    at = _time(one.at)
    return one.current or at is None or at >= start


def _time(text: str) -> datetime | None:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo is not None else None
