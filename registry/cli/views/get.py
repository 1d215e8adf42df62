"""Finding what `get` shows."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from registry.cli.client import AdminClient
from registry.cli.failure import CliError, Exit, not_found, usage
from registry.cli.views.columns import ADAPTERS, POOLS, REPLICAS, TENANTS
from registry.cli.views.output import OutputView
from registry.cli.views.replica_view import ReplicaView, missing_view, replica_view
from registry.cli.views.residency_view import RESIDENCY, ResidencyRow, residency_rows
from registry.lora.text import printable
from registry.model.errors import Reason
from registry.model.names import matches
from registry.v1 import registry_pb2 as pb

Item = TypeVar("Item")
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
    """What is asked for. `pool` None: all pools; `name` None: all names. `wide`: where adapters are, not what.

    `labels`: only what has all of them.
    """

    kind: Kind
    pool: str | None
    name: str | None
    wide: bool = False
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
    if title not in view.columns:
        raise usage(f"--sort-by {column}: there is no such column; choose one of {', '.join(view.columns)}")
    return sorted(items, key=lambda one: _natural(view.columns[title](one)), reverse=column.startswith("-"))


def filtered_by(view: OutputView[Item], items: Sequence[Item], words: Sequence[str]) -> list[Item]:
    """The items whose cells are as ``COLUMN=VALUE`` or ``COLUMN=VALUE,…`` say, in any case of letters.

    Raises:
        CliError: a word is not of that form, or there is no such column.
    """
    for pair in [one for word in words for one in word.split(",")]:
        title, equals, value = pair.partition("=")
        if not equals:
            raise usage(f"--field-selector {pair}: write COLUMN=VALUE")
        if title.upper() not in view.columns:
            raise usage(f"--field-selector {title}=…: choose one of {', '.join(view.columns)}")
        shown = view.columns[title.upper()]
        items = [one for one in items if shown(one).lower() == value.lower()]
    return list(items)


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
    Kind.POOLS: POOLS,
    Kind.TENANTS: TENANTS,
}


def view_of(query: Query) -> OutputView[Any]:
    """How what is asked for is shown."""
    return RESIDENCY if query.wide and query.kind is Kind.ADAPTERS else VIEWS[query.kind]


def note(text: str) -> None:
    """Tells people something; standard output stays what programs read."""
    sys.stderr.write(f"note: {printable(text)}\n")


def find(client: AdminClient, query: Query, note: Note) -> list[Any]:
    """The items asked for, each of the type that its view takes; `note` is told of those that cannot be read.

    Raises:
        CliError: one was asked for by its name, and there is none.
    """
    if query.labels and query.kind not in {Kind.ADAPTERS, Kind.REPLICAS}:
        raise usage("--selector is for adapters and replicas: nothing else has labels")
    match query.kind:
        case Kind.ADAPTERS if query.wide:
            return _labelled(client, query, _residency(client, query, note))
        case Kind.ADAPTERS:
            return [one for one in _adapters(client, query, note) if matches(query.labels, one.spec.labels)]
        case Kind.REPLICAS:
            return [one for one in _replicas(client, query, note) if matches(query.labels, one.labels)]
        case Kind.POOLS:
            return [client.get_pool(query.name)] if query.name else _all_pools(client, note)
        case Kind.TENANTS:
            return _tenants(client, query, note)


def _adapters(client: AdminClient, query: Query, note: Note) -> list[pb.Adapter]:
    pools = _pools(client, query, note)
    name = query.name
    if name is None:
        return [adapter for pool in pools for adapter in _adapters_of(client, pool, note)]
    return _in_some_pool(
        pools, lambda pool: client.get_adapter(pool, name), Reason.ADAPTER_NOT_FOUND, f"adapter {name!r}"
    )


def _adapters_of(client: AdminClient, pool: str, note: Note) -> list[pb.Adapter]:
    pages = list(client.adapter_pages(pool))
    _note_unreadable(pages, f"adapters of pool {pool}", note)
    return [adapter for page in pages for adapter in page.adapters]


def _all_pools(client: AdminClient, note: Note) -> list[pb.Pool]:
    pages = list(client.pool_pages())
    _note_unreadable(pages, "pools", note)
    return [pool for page in pages for pool in page.pools]


def _note_unreadable(pages: Sequence[Page], what: str, note: Note) -> None:
    """Says what is left out; whoever asks for one of them by its name is told why."""
    if names := [name for page in pages for name in page.unreadable]:
        told = ", ".join(names[:_NAMED_AT_MOST]) + (", …" if len(names) > _NAMED_AT_MOST else "")
        note(f"{len(names)} {what} cannot be read, and are left out: {told}; see loraplane doctor")


def _residency(client: AdminClient, query: Query, note: Note) -> list[ResidencyRow]:
    pools, name = _pools(client, query, note), query.name
    if name is None:
        return [row for pool in pools for row in residency_rows(client, pool, "")]
    found = _in_some_pool(
        pools, lambda pool: residency_rows(client, pool, name), Reason.ADAPTER_NOT_FOUND, f"adapter {name!r}"
    )
    return [row for one in found for row in one]


def _labelled(client: AdminClient, query: Query, found: list[ResidencyRow]) -> list[ResidencyRow]:
    """Those whose records have the labels; residency does not tell these."""
    if not query.labels:
        return found
    pools = {one.pool for one in found}
    records = [(pool, one) for pool in pools for one in client.list_adapters(pool)]
    names = {(pool, one.name) for pool, one in records if matches(query.labels, one.spec.labels)}
    return [one for one in found if (one.pool, one.residency.name) in names]


def _replicas(client: AdminClient, query: Query, note: Note) -> list[ReplicaView]:
    pools = _pools(client, query, note)
    name = query.name
    if name is None:
        return [replica for pool in pools for replica in replicas_of(client, pool)]
    return _in_some_pool(
        pools, lambda pool: _replica(client, pool, name), Reason.REPLICA_NOT_FOUND, f"replica {name!r}"
    )


def replicas_of(client: AdminClient, pool: str) -> list[ReplicaView]:
    """The live replicas of a pool, and after them those that are expected and do not live."""
    live, missing = client.all_replicas(pool)
    return [*map(replica_view, live), *(missing_view(pool, one) for one in missing)]


def _replica(client: AdminClient, pool: str, name: str) -> ReplicaView:
    """One of them."""
    try:
        return replica_view(client.get_replica(pool, name))
    except CliError as error:
        if error.failure.exit is not Exit.NOT_FOUND:
            raise
        absent = [one for one in client.all_replicas(pool)[1] if one.name == name]
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
    pages = list(client.tenant_pages())
    _note_unreadable(pages, "tenants", note)
    tenants = [one for page in pages for one in page.tenants]
    if query.name is None:
        return tenants
    found = [one for one in tenants if one.name == query.name.lower()]
    if not found:
        raise not_found(Reason.TENANT_NOT_FOUND, f"there is no tenant {query.name!r}; see loraplane get tenants")
    return found
