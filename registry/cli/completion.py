"""Values that exist for what is being typed: kinds, names, pools, replicas.

Whatever hinders it, a completion says nothing and takes no longer than `SECONDS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import click

from registry.cli.client import AdminClient
from registry.cli.contexts import load_contexts
from registry.cli.failure import CliError
from registry.cli.session import global_options, session_from
from registry.cli.views.get import Kind, kind_of
from registry.cli.views.output import Format
from registry.client import admin_api as api
from registry.client.contexts import context_path
from registry.v1 import registry_pb2 as pb

SECONDS = 1.0


# Commands whose name is that of something new.
_NEW = {"add", "create"}
_REPLICAS = {"drain", "undrain", "forget"}


def complete(context: click.Context, parameter: str, incomplete: str) -> list[str]:
    """Values that an argument or a flag of a command could have, as far as it begins with what was typed."""
    try:
        found = _values(context, parameter, incomplete)
    except CliError:
        return []
    return [one for one in found if one.lower().startswith(incomplete.lower())]


def _values(context: click.Context, parameter: str, incomplete: str) -> Iterable[str]:
    command = context.command.name or ""
    if parameter == "kind":
        return _kinds(command)
    if parameter in {"context_name", "named_context"}:
        return sorted(load_contexts(context_path()).contexts)
    asked = _asked(context, command, parameter)
    if asked is None:
        return ()
    session = replace(session_from(global_options(context.find_root()), command), form=Format.JSON)
    pool = context.params.get("pool") or (session.context.pool if session.context else None)
    with session.client(SECONDS) as client:
        return _names(client, asked, pool, incomplete)


def _kinds(command: str) -> Sequence[str]:
    match command:
        case "get":
            return list(Kind)
        case "describe":
            return ["adapter", "pool", "replica"]
        case _:
            return ["adapter"]


def _asked(context: click.Context, command: str, parameter: str) -> Kind | None:
    """The kind of what stands there; None: nothing that exists, such as a new name."""
    if parameter == "pool":
        return Kind.POOLS
    if parameter in {"replica", "evidence_from"} or command in _REPLICAS:
        return Kind.REPLICAS
    if context.parent is not None and context.parent.command.name == "pool" and command != "create":
        return Kind.POOLS
    if command in _NEW or (command == "diff" and context.params.get(parameter)):  # behind a name, generations
        return None
    word = context.params.get("kind")
    return kind_of(word) if word else Kind.ADAPTERS


def _names(client: AdminClient, kind: Kind, pool: str | None, incomplete: str) -> list[str]:
    match kind:
        case Kind.TENANTS:
            return [one.name for one in client.whole(api.LIST_TENANTS).tenants]
        case Kind.POOLS:
            return _pools(client)
        case Kind.REPLICAS:
            return [one.name for where in _of(client, pool) for one in client.all_replicas(where).replicas]
        case Kind.ADAPTERS:
            return [one.name for where in _of(client, pool) for one in _begun(client, where, incomplete)]


def _begun(client: AdminClient, pool: str, prefix: str) -> Iterable[pb.Adapter]:
    """The first adapters whose names begin so."""
    request = pb.ListAdaptersRequest(pool=pool, filter=f"name={prefix}*")
    return client.unary(api.LIST_ADAPTERS, request).adapters


def _of(client: AdminClient, pool: str | None) -> list[str]:
    return [pool] if pool else _pools(client)


def _pools(client: AdminClient) -> list[str]:
    return [one.name for one in client.whole(api.LIST_POOLS).pools]
