"""Printing changes as they happen, until the user has seen enough."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from registry.cli.client import Client
from registry.cli.failure import CliError
from registry.cli.feed import Feed, Gone, Put, Told, Unreadable
from registry.cli.get import Kind, Query, find, view_of
from registry.cli.lodging import Lodging
from registry.cli.output import Printer
from registry.cli.rpc_errors import rpc_failure
from registry.cli.session import pool_or_only
from registry.client.refusals import details_of, worth_repeating
from registry.errors import Reason

_POLL_SECONDS = 1.0


def watch(client: Client, query: Query, printer: Printer) -> None:
    """Prints what there is, then every change; ends only by an error or an interrupt."""
    changes = _streamed(client, query) if query.kind is Kind.ADAPTERS else _polled(client, query)
    view = view_of(query)
    if printer.is_table:
        printer.lines(["  ".join(view.columns)])
    for change in changes:
        match change:
            case Put(item):
                printer.row(view, item)
            case Gone(name):
                printer.fate(name, "deleted")
            case Unreadable(name):
                printer.fate(name, "unreadable")


def _streamed(client: Client, query: Query) -> Iterator[Told]:
    """Changes of a pool's adapters, none lost while the connection is."""
    pool = pool_or_only(client, query.pool)
    changes = _residency_changes(client, pool, query.name) if query.wide else _adapter_changes(client, pool, query.name)
    while True:
        try:
            yield from changes()
        except grpc.RpcError as error:
            if not worth_repeating(error):
                raise CliError(rpc_failure(error, client.address)) from error
        time.sleep(_POLL_SECONDS)


def _adapter_changes(client: Client, pool: str, name: str | None) -> Callable[[], Iterator[Told]]:
    feed = Feed(name)

    def changes() -> Iterator[Told]:
        feed.begin()
        try:
            for response in client.watch_adapters(pool, feed.start):
                yield from feed.take(response)
        except grpc.RpcError as error:
            if details_of(error).reason != Reason.REVISION_COMPACTED or not feed.start:
                raise
            feed.start = 0  # what happened meanwhile is found by comparing what there is now

    return changes


def _residency_changes(client: Client, pool: str, name: str | None) -> Callable[[], Iterator[Told]]:
    def changes() -> Iterator[Told]:
        for response in client.watch_residency(pool, name or ""):
            yield from (Put(Lodging(pool, one)) for one in response.adapters)
            yield from map(Gone, response.gone)

    return changes


def _polled(client: Client, query: Query, pause: Callable[[float], None] = time.sleep) -> Iterator[Told]:
    view = view_of(query)
    known: dict[str, Any] = {}
    while True:
        now = {view.name(item): item for item in find(client, query, _unnoted)}
        yield from (Put(item) for name, item in now.items() if known.get(name) != item)
        yield from (Gone(name) for name in known if name not in now)
        known = now
        pause(_POLL_SECONDS)


def _unnoted(_text: str) -> None:
    """Once a second would be too often."""
