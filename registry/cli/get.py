"""Finding what `get` shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from registry.cli.client import Client
from registry.cli.failure import CliError, Exit, not_found, usage
from registry.cli.lodging import LODGINGS, Lodging, lodgings
from registry.cli.output import View
from registry.cli.replica_view import ReplicaView, replica_view
from registry.cli.views import ADAPTERS, POOLS, REPLICAS, TENANTS
from registry.errors import Reason
from registry.v1 import registry_pb2 as pb

Item = TypeVar("Item")
Note = Callable[[str], None]
Page = pb.ListAdaptersResponse | pb.ListPoolsResponse | pb.ListTenantsResponse
_NAMED_AT_MOST = 10


class Kind(StrEnum):
    """Kinds of things that can be shown."""

    ADAPTERS = "adapters"
    REPLICAS = "replicas"
    POOLS = "pools"
    TENANTS = "tenants"


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked for. `pool` None: all pools; `name` None: all names. `wide`: where adapters are, not what."""

    kind: Kind
    pool: str | None
    name: str | None
    wide: bool = False


def kind_of(word: str) -> Kind:
    """The kind that a word names, in singular or plural.

    Raises:
        CliError: it names none.
    """
    for kind in Kind:
        if word.lower() in {kind.value, kind.value.removesuffix("s")}:
            return kind
    raise usage(f"{word!r} is no kind; choose one of {', '.join(Kind)}")


VIEWS: Mapping[Kind, View[Any]] = {
    Kind.ADAPTERS: ADAPTERS,
    Kind.REPLICAS: REPLICAS,
    Kind.POOLS: POOLS,
    Kind.TENANTS: TENANTS,
}


def view_of(query: Query) -> View[Any]:
    """How what is asked for is shown."""
    return LODGINGS if query.wide and query.kind is Kind.ADAPTERS else VIEWS[query.kind]


def find(client: Client, query: Query, note: Note) -> list[Any]:
    """The items asked for, each of the type that its view takes; `note` is told of those that cannot be read.

    Raises:
        CliError: one was asked for by its name, and there is none.
    """
    match query.kind:
        case Kind.ADAPTERS if query.wide:
            return _lodgings(client, query, note)
        case Kind.ADAPTERS:
            return _adapters(client, query, note)
        case Kind.REPLICAS:
            return _replicas(client, query, note)
        case Kind.POOLS:
            return [client.get_pool(query.name)] if query.name else _all_pools(client, note)
        case Kind.TENANTS:
            return _tenants(client, query, note)


def _adapters(client: Client, query: Query, note: Note) -> list[pb.Adapter]:
    pools = _pools(client, query, note)
    name = query.name
    if name is None:
        return [adapter for pool in pools for adapter in _adapters_of(client, pool, note)]
    return _in_some_pool(
        pools, lambda pool: client.get_adapter(pool, name), Reason.ADAPTER_NOT_FOUND, f"adapter {name!r}"
    )


def _adapters_of(client: Client, pool: str, note: Note) -> list[pb.Adapter]:
    pages = list(client.adapter_pages(pool))
    _note_unreadable(pages, f"adapters of pool {pool}", note)
    return [adapter for page in pages for adapter in page.adapters]


def _all_pools(client: Client, note: Note) -> list[pb.Pool]:
    pages = list(client.pool_pages())
    _note_unreadable(pages, "pools", note)
    return [pool for page in pages for pool in page.pools]


def _note_unreadable(pages: Sequence[Page], what: str, note: Note) -> None:
    """Says what is left out; whoever asks for one of them by its name is told why."""
    if names := [name for page in pages for name in page.unreadable]:
        told = ", ".join(names[:_NAMED_AT_MOST]) + (", …" if len(names) > _NAMED_AT_MOST else "")
        note(f"{len(names)} {what} cannot be read, and are left out: {told}; see loraplane doctor")


def _lodgings(client: Client, query: Query, note: Note) -> list[Lodging]:
    pools, name = _pools(client, query, note), query.name
    if name is None:
        return [lodging for pool in pools for lodging in lodgings(client, pool, "")]
    found = _in_some_pool(
        pools, lambda pool: lodgings(client, pool, name), Reason.ADAPTER_NOT_FOUND, f"adapter {name!r}"
    )
    return [lodging for one in found for lodging in one]


def _replicas(client: Client, query: Query, note: Note) -> list[ReplicaView]:
    pools = _pools(client, query, note)
    name = query.name
    if name is None:
        return [replica_view(replica) for pool in pools for replica in client.list_replicas(pool)]
    found = _in_some_pool(
        pools, lambda pool: client.get_replica(pool, name), Reason.REPLICA_NOT_FOUND, f"replica {name!r}"
    )
    return [replica_view(replica) for replica in found]


def _pools(client: Client, query: Query, note: Note) -> list[str]:
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


def _tenants(client: Client, query: Query, note: Note) -> list[pb.Tenant]:
    pages = list(client.tenant_pages())
    _note_unreadable(pages, "tenants", note)
    tenants = [one for page in pages for one in page.tenants]
    if query.name is None:
        return tenants
    found = [one for one in tenants if one.name == query.name.lower()]
    if not found:
        raise not_found(Reason.TENANT_NOT_FOUND, f"there is no tenant {query.name!r}; see loraplane get tenants")
    return found
