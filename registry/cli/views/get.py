"""Finding what `get` shows."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from registry.cli.client import AdminClient
from registry.cli.failure import CliError, Exit, not_found, usage
from registry.cli.views.columns import ADAPTERS, POOL_ROWS, REPLICAS, TENANTS
from registry.cli.views.output import OutputView, write_error
from registry.cli.views.replica_view import (
    ReplicaView,
    counted_views,
    groups_told,
    missing_view,
    replica_view,
    replica_views,
)
from registry.cli.views.residency_view import PoolRow, PoolStatus, pool_status
from registry.client import admin_api as api
from registry.lora.text import printable
from registry.model.errors import Reason
from registry.model.names import matches
from registry.residency.health import AdapterRow
from registry.residency.standing import counts_by_replica
from registry.v1 import registry_pb2 as pb

Item = TypeVar("Item")
Read = TypeVar("Read")
Note = Callable[[str], None]
Page = pb.ListAdaptersResponse | pb.ListPoolsResponse | pb.ListTenantsResponse
_NAMED_AT_MOST = 10
# No longer than what is read as a number at once.
_DIGITS = re.compile(r"([0-9]{1,18})")


class Kind(StrEnum):
    """Kinds of things that can be shown."""

    ADAPTERS = "adapters"
    REPLICAS = "replicas"
    POOLS = "pools"
    TENANTS = "tenants"


@dataclass(frozen=True, slots=True)
class Query:
    """Question. `pool` None: all pools; `name` None: all names. `labels`: only what has all of them.

    `detail`: what is to be known of where adapters are, and of how pools are; None: nothing.
    """

    kind: Kind
    pool: str | None
    name: str | None
    detail: pb.WatchResidencyRequest.Detail | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


def labels_of(terms: Sequence[str]) -> dict[str, str]:
    """The labels that ``K=V`` and ``K=V,K=V`` ask for.

    Raises:
        CliError: one is none, or one label is to have two values.
    """
    wanted: dict[str, str] = {}
    for term in (one for several in terms for one in several.split(",")):
        key, equals, value = term.partition("=")
        if not key or not equals:
            raise usage(f"-l {term}: write KEY=VALUE")
        if wanted.setdefault(key, value) != value:
            raise usage(f"-l {key} is to be {wanted[key]!r} and {value!r}; nothing has both")
    return wanted


def sorted_by(view: OutputView[Item], items: Sequence[Item], column: str) -> list[Item]:
    """The items by the cells of a column, numbers by their value; with ``-`` before it the highest first.

    Raises:
        CliError: there is no such column.
    """
    title = column.removeprefix("-").upper()
    columns = view.all_columns
    if title not in columns:
        raise usage(f"--sort-by {column}: there is no such column; choose one of {', '.join(columns)}")
    shown = view.order.get(title, columns[title])
    return sorted(items, key=lambda one: _natural(shown(one)), reverse=column.startswith("-"))


def cell_filter(view: OutputView[Item], words: Sequence[str]) -> Callable[[Item], bool]:
    """True if an item's cells are as ``COLUMN=VALUE`` or ``COLUMN=VALUE,…`` say, in any case of letters.

    Raises:
        CliError: a word is not of that form, or there is no such column.
    """
    columns = view.all_columns
    wanted: list[tuple[Callable[[Item], str], str]] = []
    for pair in [one for word in words for one in word.split(",")]:
        title, equals, value = pair.partition("=")
        if not equals:
            raise usage(f"--field-selector {pair}: write COLUMN=VALUE")
        if title.upper() not in columns:
            raise usage(f"--field-selector {title}=…: choose one of {', '.join(columns)}")
        wanted.append((columns[title.upper()], value.lower()))
    return lambda item: all(shown(item).lower() == value for shown, value in wanted)


def label_filter(query: Query) -> Callable[[Any], bool]:
    """True if an item has the labels that are asked for.

    Raises:
        CliError: items of that kind have no labels.
    """
    match query.kind:
        case Kind.ADAPTERS:
            return lambda row: matches(query.labels, row.record.spec.labels)
        case Kind.REPLICAS:
            return lambda replica: matches(query.labels, replica.labels)
        case _ if query.labels:
            raise usage("--selector is for adapters and replicas: nothing else has labels")
        case _:
            return lambda _item: True


def _natural(text: str) -> list[tuple[int, int, str]]:
    """Numbers in a text compare as numbers: ``r2`` is before ``r10``."""
    parts = _DIGITS.split(text)
    return [(0, int(part), "") if place % 2 else (1, 0, part.lower()) for place, part in enumerate(parts)]


def kind_of(word: str) -> Kind:
    """The kind that a word names, in singular or plural.

    Raises:
        CliError: it names none.
    """
    for kind in Kind:
        if word.lower() in {kind.value, kind.value.removesuffix("s")}:
            return kind
    close = difflib.get_close_matches(word.lower(), Kind, n=1)
    hint = f"did you mean {close[0]}?" if close else f"choose one of {', '.join(Kind)}"
    raise usage(f"{word!r} is no kind; {hint}")


VIEWS: Mapping[Kind, OutputView[Any]] = {
    Kind.ADAPTERS: ADAPTERS,
    Kind.REPLICAS: REPLICAS,
    Kind.POOLS: POOL_ROWS,
    Kind.TENANTS: TENANTS,
}


def note(text: str) -> None:
    """Tells people something; standard output stays what programs read."""
    write_error(f"note: {printable(text)}\n")


def find(client: AdminClient, query: Query, note: Note) -> list[Any]:
    """The items asked for, each of the type that its view takes; `note` is told of those that cannot be read.

    Raises:
        CliError: one was asked for by its name, and there is none.
    """
    has_labels = label_filter(query)
    return [one for one in _found(client, query, note) if has_labels(one)]


def _found(client: AdminClient, query: Query, note: Note) -> Sequence[Any]:
    """Those asked for, whatever their labels."""
    match query.kind:
        case Kind.ADAPTERS:
            return _adapters(client, query, note)
        case Kind.REPLICAS:
            return _replicas(client, query, note)
        case Kind.POOLS:
            named = pb.GetPoolRequest(name=query.name or "")
            pools = [client.unary(api.GET_POOL, named)] if query.name else _all_pools(client, note)
            has_status = query.detail is not None
            return [PoolRow(pool, status_of_pool(client, pool.name) if has_status else None) for pool in pools]
        case Kind.TENANTS:
            return _tenants(client, query, note)


def _adapters(client: AdminClient, query: Query, note: Note) -> list[AdapterRow]:
    pools = _pools(client, query, note)
    name = query.name
    if name is None:
        return [row for pool in pools for row in _adapters_of(client, query, pool, note)]
    return _in_some_pool(
        pools, lambda pool: _adapter(client, query, pool, name), Reason.ADAPTER_NOT_FOUND, f"adapter {name!r}"
    )


def _adapter(client: AdminClient, query: Query, pool: str, name: str) -> AdapterRow:
    record = client.unary(api.GET_ADAPTER, pb.GetAdapterRequest(pool=pool, name=name))
    where = [] if query.detail is None else client.residency(pool, name, query.detail)
    return AdapterRow(record, where[0] if where else None)


def _adapters_of(client: AdminClient, query: Query, pool: str, note: Note) -> list[AdapterRow]:
    found = client.whole(api.LIST_ADAPTERS, pb.ListAdaptersRequest(pool=pool))
    _note_unreadable(found, f"adapters of pool {pool}", note)
    where = [] if query.detail is None else client.residency(pool, "", query.detail)
    by_name = {one.name: one for one in where}
    return [AdapterRow(adapter, by_name.get(adapter.name)) for adapter in found.adapters]


def _all_pools(client: AdminClient, note: Note) -> list[pb.Pool]:
    found = client.whole(api.LIST_POOLS)
    _note_unreadable(found, "pools", note)
    return [*found.pools]


def unless_refused(read: Callable[[], Read]) -> Read | None:
    """Result of a read; None: it is not the caller's to know, as where adapters are for who has only the pools."""
    try:
        return read()
    except CliError as error:
        if error.failure.exit is not Exit.REFUSED:
            raise
        return None


def status_of_pool(client: AdminClient, pool: str) -> PoolStatus | None:
    """State of a pool, from one list of its replicas and one of its adapters, which the admin service has counted.

    None: the caller may not see where adapters are.
    """
    found = client.all_replicas(pool)
    where = unless_refused(lambda: client.residency(pool, "", pb.WatchResidencyRequest.COUNTS))
    return None if where is None else pool_status(found, where)


def _note_unreadable(found: Page, what: str, note: Note) -> None:
    """Says what is left out; whoever asks for one of them by its name is told why."""
    if names := [*found.unreadable]:
        told = ", ".join(names[:_NAMED_AT_MOST]) + (", …" if len(names) > _NAMED_AT_MOST else "")
        note(f"{len(names)} {what} cannot be read, and are left out: {told}; see loraplane doctor")


def _replicas(client: AdminClient, query: Query, note: Note) -> list[ReplicaView]:
    pools = _pools(client, query, note)
    name = query.name
    if name is None:
        found = {pool: _replicas_of(client, pool, note) for pool in pools}
    else:
        named = _in_some_pool(
            pools, lambda pool: replica_of(client, pool, name), Reason.REPLICA_NOT_FOUND, f"replica {name!r}"
        )
        found = {one.pool: [one] for one in named}
    is_counted = query.detail is not None
    return [one for pool, those in found.items() for one in (counted(client, pool, those) if is_counted else those)]


def counted(client: AdminClient, pool: str, replicas: Sequence[ReplicaView]) -> Sequence[ReplicaView]:
    """The replicas with how many adapters they serve by residency; without where the caller may not see any."""
    request = pb.WatchResidencyRequest(pool=pool, detail=pb.WatchResidencyRequest.COUNTS_BY_REPLICA)
    where = unless_refused(lambda: client.residency_told(request)) if replicas else None
    return replicas if where is None else counted_views(replicas, counts_by_replica(where))


def replicas_of(client: AdminClient, pool: str) -> list[ReplicaView]:
    """The live replicas of a pool, and after them those that are expected and do not live."""
    return replica_views(pool, client.all_replicas(pool))


def _replicas_of(client: AdminClient, pool: str, note: Note) -> list[ReplicaView]:
    """The same; `note` is told of what is expected and has no row of its own."""
    found = client.all_replicas(pool)
    groups = groups_told(found.groups, lacking=True)
    if groups or found.lacking > len(found.missing):
        told = f"pool {pool} expects {found.lacking} more replicas than live"
        note(f"{told}: {groups}" if groups else told)
    return replica_views(pool, found)


def replica_of(client: AdminClient, pool: str, name: str) -> ReplicaView:
    """A live replica of a pool, or one that is expected and does not live.

    Raises:
        CliError: there is none of that name.
    """
    try:
        return replica_view(client.unary(api.GET_REPLICA, pb.GetReplicaRequest(pool=pool, name=name)))
    except CliError as error:
        if error.failure.exit is not Exit.NOT_FOUND:
            raise
        absent = [one for one in client.all_replicas(pool).missing if one.name == name]
        if not absent:
            raise
        return missing_view(pool, absent[0])


def _pools(client: AdminClient, query: Query, note: Note) -> list[str]:
    return [query.pool] if query.pool is not None else [pool.name for pool in _all_pools(client, note)]


def _in_some_pool(pools: list[str], get: Callable[[str], Item], reason: Reason, what: str) -> list[Item]:
    if len(pools) == 1:
        return [get(pools[0])]
    found = list(_present(pools, get))
    if not found:
        raise not_found(reason, f"there is no {what} in any pool ({', '.join(pools) or 'there is no pool either'})")
    return found


def _present(pools: list[str], get: Callable[[str], Item]) -> Iterator[Item]:
    for pool in pools:
        try:
            yield get(pool)
        except CliError as error:
            if error.failure.exit is not Exit.NOT_FOUND:
                raise


def _tenants(client: AdminClient, query: Query, note: Note) -> list[pb.Tenant]:
    listed = client.whole(api.LIST_TENANTS)
    _note_unreadable(listed, "tenants", note)
    if query.name is None:
        return [*listed.tenants]
    found = [one for one in listed.tenants if one.name == query.name.lower()]
    if not found:
        raise not_found(Reason.TENANT_NOT_FOUND, f"there is no tenant {query.name!r}; see loraplane get tenants")
    return found
