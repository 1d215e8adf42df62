"""Commands that change adapters: apply, add, delete, diff, rollback."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from registry.cli import options
from registry.cli.carry_out import Order, carry_out, carry_out_one, send
from registry.cli.change_set import Applied, Change, Outcome
from registry.cli.client import Client
from registry.cli.diff import differences
from registry.cli.failure import usage
from registry.cli.foresight import LOOK_SECONDS, Looking, foreseen
from registry.cli.manifest import API_VERSION
from registry.cli.output import Format, Printer
from registry.cli.report import check_applied
from registry.cli.session import Session, is_typed, pool_or_only, request_id_or_new, session_of
from registry.cli.sources import deletions, source_uri, upsert_of, upserts
from registry.cli.wire import Plain, adapter_dict, outcome_name
from registry.v1 import registry_pb2 as pb

_UNCONDITIONAL = ""
SourceUri = Annotated[str, options.flag("--source", metavar="URI", help="Where its files are: a URI or a folder.")]
Digest = Annotated[str | None, options.flag("--digest", metavar="D", help="Manifest digest to pin, sha256:….")]
Signature = Annotated[str | None, options.flag("--signature", metavar="S", help="What loraplane sign printed.")]
Lazy = Annotated[bool, options.flag("--lazy", help="Load it at the first request, not at once.")]
Priority = Annotated[int, options.flag("--priority", help="Higher is loaded first.")]
Replicas = Annotated[int, options.flag("--replicas", min=0, help="On how many replicas it is served; 0: on all.")]
Labels = Annotated[list[str] | None, options.flag("--label", metavar="K=V", help="May be repeated.")]
Credential = Annotated[
    str | None, options.flag("--credential", metavar="NAME", help="The credential that sidecars use.")
]


def apply(
    context: typer.Context,
    *,
    file: options.Files,
    dry_run: options.DryRun = False,
    wait: options.Wait = False,
    timeout: options.Timeout = None,
    request_id: options.RequestId = None,
    no_atomic: options.NoAtomic = False,
    credentials: options.Credentials = None,
    hf_endpoint: options.HfEndpoint = None,
    look_seconds: options.LookSeconds = LOOK_SECONDS,
) -> None:
    """Create or change adapters as manifests say, all in one transaction."""
    order = Order(request_id, timeout, dry_run, no_atomic, wait)
    session = session_of(context)
    looking = Looking(credentials, hf_endpoint, look_seconds, order.read_seconds)
    carry_out(session, foreseen(session, upserts(file), looking), order)


def add(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the adapter.")],
    *,
    source: SourceUri,
    pool: options.Pool = None,
    digest: Digest = None,
    signature: Signature = None,
    lazy: Lazy = False,
    priority: Priority = 0,
    replicas: Replicas = 0,
    label: Labels = None,
    dry_run: options.DryRun = False,
    wait: options.Wait = False,
    timeout: options.Timeout = None,
    request_id: options.RequestId = None,
    credential: Credential = None,
    credentials: options.Credentials = None,
    hf_endpoint: options.HfEndpoint = None,
    look_seconds: options.LookSeconds = LOOK_SECONDS,
) -> None:
    """Create one adapter, or change it to exactly this, without a file."""
    session, order = session_of(context), Order(request_id, timeout, dry_run, wait=wait)
    with session.client(order.read_seconds) as client:
        where = pool_or_only(client, pool)
    content: Plain = {
        "apiVersion": API_VERSION,
        "kind": "Adapter",
        "metadata": {"name": name, "pool": where, "labels": _labels(label or [])},
        "spec": {
            "source": {"uri": source_uri(source), "digest": digest, "signature": signature},
            "load": "lazy" if lazy else "eager",
            "priority": priority,
            "placement": {"replicas": replicas or "all"},
            "credentials": credential,
        },
    }
    looking = Looking(credentials, hf_endpoint, look_seconds, order.read_seconds)
    carry_out(session, foreseen(session, [upsert_of(content, "add")], looking), order)


def _labels(pairs: list[str]) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair:
            raise usage(f"--label {pair}: write KEY=VALUE")
    return dict(pair.split("=", 1) for pair in pairs)


def delete(
    context: typer.Context,
    kind: Annotated[str | None, typer.Argument(help="The word adapter.")] = None,
    name: Annotated[str | None, typer.Argument(help="Name of the adapter.")] = None,
    *,
    file: options.OptionalFiles = None,
    pool: options.Pool = None,
    etag: options.Etag = _UNCONDITIONAL,
    dry_run: options.DryRun = False,
    timeout: options.Timeout = None,
    request_id: options.RequestId = None,
    no_atomic: options.NoAtomic = False,
) -> None:
    """Delete one adapter by its name, or all that manifests name."""
    session, order = session_of(context), Order(request_id, timeout, dry_run, no_atomic)
    if bool(file) == bool(kind):
        raise usage("say what to delete: adapter NAME, or -f FILE, not both")
    for parameter in ("etag", "pool"):
        if file and is_typed(context, parameter):
            raise usage(f"--{parameter} goes with adapter NAME; documents name their pools, and no etags")
    changes = deletions(file) if file else [_deletion(session, order, (kind, name), pool, etag)]
    carry_out(session, changes, order)


def _deletion(
    session: Session, order: Order, what: tuple[str | None, str | None], pool: str | None, etag: str
) -> Change:
    kind, name = what
    if kind not in {"adapter", "adapters"} or not name:
        raise usage("say which: loraplane delete adapter NAME (pools: loraplane pool delete NAME)")
    with session.client(order.read_seconds) as client:
        where = pool_or_only(client, pool)
    return Change(where, pb.AdapterChange(delete=name, etag=etag), name)


def rollback(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the adapter.")],
    *,
    pool: options.Pool = None,
    to: Annotated[
        int,
        options.flag(
            "--to",
            metavar="GENERATION",
            min=0,
            max=options.MOST_INT64,
            help="Generation to go back to; 0: the one before that was not for canaries alone.",
        ),
    ] = 0,
    etag: options.Etag = _UNCONDITIONAL,
    dry_run: options.DryRun = False,
    wait: options.Wait = False,
    timeout: options.Timeout = None,
    request_id: options.RequestId = None,
) -> None:
    """Make a new generation that equals an earlier one."""
    request = pb.RollbackAdapterRequest(name=name, to_generation=to, etag=etag)
    carry_out_one(session_of(context), request, pool, Order(request_id, timeout, dry_run, wait=wait))


def diff(
    context: typer.Context,
    *,
    file: options.Files,
    timeout: options.Timeout = None,
    credentials: options.Credentials = None,
    hf_endpoint: options.HfEndpoint = None,
    look_seconds: options.LookSeconds = LOOK_SECONDS,
) -> None:
    """Show what apply would change, checked as apply would check it."""
    session, order = session_of(context), Order(None, timeout, dry_run=True, no_atomic=True)
    changes = foreseen(session, upserts(file), Looking(credentials, hf_endpoint, look_seconds, order.read_seconds))
    with session.client(order.write_seconds) as client:
        outcomes = send(client, changes, request_id_or_new(None), order)
        check_applied(outcomes)
        _print_differences(client, session.printer(), outcomes)


def _print_differences(client: Client, printer: Printer, outcomes: Sequence[Outcome]) -> None:
    pairs = [
        (result, _before(client, result))
        for one in outcomes
        if isinstance(one, Applied)
        for result in one.response.results
    ]
    match printer.form:
        case Format.TABLE:
            for result, before in pairs:
                printer.lines(differences(before, result.adapter))
        case Format.NAME:
            printer.lines(one.adapter.name for one, _ in pairs if one.outcome != pb.AdapterResult.UNCHANGED)
        case _:
            printer.plain({"changes": [_difference(result, before) for result, before in pairs]})


def _before(client: Client, result: pb.AdapterResult) -> pb.Adapter | None:
    """The adapter as it is now, where that differs from what the result says."""
    match result.outcome:
        case pb.AdapterResult.CREATED:
            return None
        case pb.AdapterResult.UPDATED:
            return client.get_adapter(result.adapter.pool, result.adapter.name)
        case _:
            return result.adapter


def _difference(result: pb.AdapterResult, before: pb.Adapter | None) -> Plain:
    return {
        "outcome": outcome_name(result),
        "before": adapter_dict(before) if before else None,
        "after": adapter_dict(result.adapter),
    }
