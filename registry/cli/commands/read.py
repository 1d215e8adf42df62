"""Commands that show: get, describe, why, history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, TypeVar

import click

from registry.cli import options
from registry.cli.failure import not_found, usage
from registry.cli.session import READ_SECONDS, pool_or_only, session_of
from registry.cli.views.columns import GENERATIONS
from registry.cli.views.describe import describe_adapter, describe_pool, describe_replica
from registry.cli.views.differences import generation_rows
from registry.cli.views.get import (
    VIEWS,
    Kind,
    Query,
    cell_filter,
    find,
    kind_of,
    labels_of,
    note,
    replicas_of,
    sorted_by,
)
from registry.cli.views.output import Format, OutputView, Printer
from registry.cli.views.why import WHY, explanations
from registry.cli.watching import watch as watch_changes
from registry.client import admin_api as api
from registry.model.errors import Reason
from registry.v1 import registry_pb2 as pb

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Choice:
    """Which of them `get` shows, and in which order."""

    selector: options.Selector = None
    field_selector: Annotated[
        list[str] | None,
        options.flag(
            "--field-selector", metavar="COLUMN=VALUE", help="Only rows with this value in a column; may be repeated."
        ),
    ] = None
    sort_by: Annotated[
        str | None, options.flag("--sort-by", metavar="COLUMN", help="Order by a column; -COLUMN: the highest first.")
    ] = None

    def of(self, view: OutputView[Item], found: Sequence[Item]) -> Sequence[Item]:
        """Those that are shown."""
        shown = list(filter(cell_filter(view, self.field_selector or []), found))
        return sorted_by(view, shown, self.sort_by) if self.sort_by else shown


def get(
    context: click.Context,
    kind: Annotated[str, options.naming(help="adapters, replicas, pools or tenants.")],
    names: Annotated[
        list[str] | None, options.naming(metavar="[NAME]...", help="Only the ones of these names.")
    ] = None,
    *,
    pool: options.OnlyPool = None,
    given: Choice,
    watch: options.Watch = False,
    timeout: options.Timeout = None,
) -> None:
    """List adapters, replicas, pools or tenants.

    With --watch, -l and --field-selector apply to each change: a row that begins to match is printed, one that ceases
    to match is printed as unmatched, and only one that was deleted as deleted.
    """
    session, printer = session_of(context), session_of(context).printer()
    name = names[0] if names and len(names) == 1 else None
    if watch and (given.sort_by or len(names or ()) > 1):
        raise usage("--watch shows each change as it comes, of one name or of all: leave out --sort-by and other names")
    query = Query(kind_of(kind), pool, name, _detail(printer, given, watch=watch), labels_of(given.selector or []))
    with session.client(timeout or READ_SECONDS) as client:
        if watch:
            watch_changes(client, query, given.field_selector or [], printer)
            return
        wanted = [replace(query, name=one) for one in names] if names else [query]
        found = [item for one in wanted for item in find(client, one, note)]
    view = VIEWS[query.kind]
    shown = given.of(view, found)
    if name is None:
        printer.items(view, shown)
    else:
        for item in shown:
            printer.item(view, item)


def _detail(printer: Printer, given: Choice, *, watch: bool) -> pb.WatchResidencyRequest.Detail | None:
    """What is to be known of where adapters are; changes of programs are those of records."""
    if printer.is_wide:
        return pb.WatchResidencyRequest.REPLICAS_AND_COUNTS
    is_shown = printer.is_table or printer.form is Format.CUSTOM_COLUMNS or (printer.is_plain and not watch)
    return pb.WatchResidencyRequest.COUNTS if is_shown or given.field_selector or given.sort_by else None


def describe(
    context: click.Context,
    kind: Annotated[str, options.naming(help="adapter, replica or pool.")],
    name: Annotated[str, options.naming(help="Name of the adapter, replica or pool.")],
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


def why(
    context: click.Context,
    name: options.AdapterName,
    *,
    replica: Annotated[str | None, options.flag("--replica", metavar="REPLICA", help="Only of this replica.")] = None,
    pool: options.Pool = None,
    timeout: options.Timeout = None,
) -> None:
    """Say of each replica why it serves an adapter, or does not.

    Exit code 0 also where one does not serve it that should; rollout tells that.
    """
    session = session_of(context)
    with session.client(timeout or READ_SECONDS) as client:
        chosen = pool_or_only(client, pool)
        record = client.unary(api.GET_ADAPTER, pb.GetAdapterRequest(pool=chosen, name=name))
        where = client.residency(chosen, record.name, pb.WatchResidencyRequest.REPLICAS)
        replicas = replicas_of(client, chosen)
    residency = where[0] if where else pb.AdapterResidency()
    told = explanations(record, residency, replicas, datetime.now(UTC))
    printer = session.printer()
    if replica is None:
        printer.items(WHY, told)
        if residency.note and printer.is_table:
            printer.lines(["", residency.note])
        return
    one = next((one for one in told if one.replica == replica), None)
    if one is None:
        message = f"pool {chosen} has no replica {replica!r}; see loraplane get replicas --pool {chosen}"
        raise not_found(Reason.REPLICA_NOT_FOUND, message)
    if printer.is_table:
        printer.lines([f"{replica}: {one.sentence}"])
    else:
        printer.item(WHY, one)


def history(
    context: click.Context, name: options.AdapterName, *, pool: options.Pool = None, timeout: options.Timeout = None
) -> None:
    """List an adapter's generations, the newest first.

    Of each it tells what it changed from old to new value, who made it, and by which request; with -o wide also source
    and digest. To compare any two: loraplane diff NAME OLD NEW.
    """
    session = session_of(context)
    with session.client(timeout or READ_SECONDS) as client:
        found = client.history(pool_or_only(client, pool), name)
    session.printer().items(GENERATIONS, generation_rows([*found.generations]))
    if found.unreadable:
        note(f"generations that cannot be read, and are left out: {', '.join(map(str, found.unreadable))}")
