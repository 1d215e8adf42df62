"""Commands that show: get, describe, history."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from registry.cli import options
from registry.cli.describe import describe_adapter, describe_pool, describe_replica
from registry.cli.failure import usage
from registry.cli.get import Kind, Query, find, kind_of, view_of
from registry.cli.session import READ_SECONDS, pool_or_only, session_of
from registry.cli.views import GENERATIONS
from registry.cli.watching import watch as watch_changes
from registry.lora.findings import printable


def get(
    context: typer.Context,
    kind: Annotated[str, typer.Argument(help="adapters, replicas, pools or tenants.")],
    name: Annotated[str | None, typer.Argument(help="Only the one of this name.")] = None,
    *,
    pool: Annotated[str | None, options.flag("--pool", metavar="POOL", help="Only this pool.")] = None,
    watch: options.Watch = False,
    timeout: options.Timeout = None,
) -> None:
    """List adapters, replicas, pools or tenants."""
    session, printer = session_of(context), session_of(context).printer()
    query = Query(kind_of(kind), pool, name, printer.is_wide)
    with session.client(timeout or READ_SECONDS) as client:
        if watch:
            watch_changes(client, query, printer)
        elif name is None:
            printer.items(view_of(query), find(client, query, _note))
        else:
            for item in find(client, query, _note):
                printer.item(view_of(query), item)


def _note(text: str) -> None:
    """Standard output stays what programs read."""
    sys.stderr.write(f"note: {printable(text)}\n")


def describe(
    context: typer.Context,
    kind: Annotated[str, typer.Argument(help="adapter, replica or pool.")],
    name: Annotated[str, typer.Argument(help="Which one.")],
    *,
    pool: options.Pool = None,
    timeout: options.Timeout = None,
) -> None:
    """Show everything about one adapter, replica or pool."""
    session = session_of(context)
    with session.client(timeout or READ_SECONDS) as client:
        match kind_of(kind):
            case Kind.ADAPTERS:
                describe_adapter(client, session.printer(), pool_or_only(client, pool), name)
            case Kind.REPLICAS:
                describe_replica(client, session.printer(), pool_or_only(client, pool), name)
            case Kind.POOLS:
                describe_pool(client, session.printer(), name)
            case Kind.TENANTS:
                raise usage("a tenant has no more to show than: loraplane get tenants NAME")


def history(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the adapter.")],
    *,
    pool: options.Pool = None,
    timeout: options.Timeout = None,
) -> None:
    """List an adapter's generations, the newest first."""
    session = session_of(context)
    with session.client(timeout or READ_SECONDS) as client:
        found = client.history(pool_or_only(client, pool), name)
    session.printer().items(GENERATIONS, found.generations)
    if found.unreadable:
        _note(f"generations that cannot be read, and are left out: {', '.join(map(str, found.unreadable))}")
