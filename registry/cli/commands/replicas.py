"""Commands on replicas: drain, undrain, forget."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Annotated

import click

from registry.cli import options
from registry.cli.client import AdminClient
from registry.cli.commands.top import activity_of
from registry.cli.failure import CliError, CommandFailure, Exit
from registry.cli.session import (
    READ_SECONDS,
    ROLLOUT_SECONDS,
    WRITE_SECONDS,
    Session,
    pool_or_only,
    request_id_or_new,
    session_of,
)
from registry.cli.sidecars import SidecarAccess
from registry.cli.views.replica_view import ReplicaView, replica_view
from registry.cli.views.report import request_line
from registry.client import admin_api as api
from registry.model.errors import Reason
from registry.v1 import registry_pb2 as pb

_POLL_SECONDS = 1.0
ReplicaName = Annotated[str, options.naming(help="Name of the replica.")]


def forget_replica(
    context: click.Context,
    name: ReplicaName,
    *,
    pool: options.Pool = None,
    dry_run: options.DryRun = False,
    timeout: options.Timeout = None,
) -> None:
    """Stop expecting a replica that is gone for good."""
    session = session_of(context)
    with session.client(timeout or WRITE_SECONDS) as client:
        request = pb.ForgetReplicaRequest(pool=pool_or_only(client, pool), name=name, validate_only=dry_run)
        client.unary(api.FORGET_REPLICA, request)
    printer = session.printer()
    if printer.is_plain:
        printer.plain({"replica": request.name, "pool": request.pool, "forgotten": not dry_run})
    else:
        printer.lines([f"{request.name} would be forgotten" if dry_run else f"{request.name} forgotten"])


def drain(
    context: click.Context,
    name: ReplicaName,
    *,
    pool: options.Pool = None,
    dry_run: options.DryRun = False,
    wait: Annotated[
        bool,
        options.flag(
            "--wait", help="Wait until other replicas serve what this one is needed for (exit 7 if none can)."
        ),
    ] = False,
    sidecar_token_file: options.SidecarToken = None,
    timeout: options.Timeout = None,
    request_id: options.RequestId = None,
) -> None:
    """Take a replica out: others take over its share, and routers leave it.

    It goes on serving what it has loaded. The order lasts until loraplane undrain, or until the replica is gone.
    --wait asks its sidecar, which has to be reachable from here, as for loraplane top.
    """
    session = session_of(context)
    request = pb.DrainReplicaRequest(name=name, request_id=request_id_or_new(request_id), validate_only=dry_run)
    _order(session, request, pool, timeout)
    if wait and not dry_run:
        shown = SidecarAccess(session.shown_tls, sidecar_token_file)
        with session.client(READ_SECONDS) as client:
            told = _wait_for_end(client, request, timeout or ROLLOUT_SECONDS, shown)
        if session.printer().is_table:
            session.printer().lines([told])


def _wait_for_end(client: AdminClient, order: pb.DrainReplicaRequest, seconds: float, shown: SidecarAccess) -> str:
    """Outcome of a drain, in one sentence.

    Raises:
        CliError: exit 6 if others do not serve in time what it serves, or its sidecar is not reached; 7 if none can.
    """
    name, end = order.name, time.monotonic() + seconds
    while True:
        try:
            replica = replica_view(client.unary(api.GET_REPLICA, pb.GetReplicaRequest(pool=order.pool, name=name)))
        except CliError as error:
            if error.failure.reason != Reason.REPLICA_NOT_FOUND:
                raise
            return f"replica {name} is gone"
        reason, needed = _need(replica, shown)
        if reason == "nothing":
            return f"replica {name}: {needed}"
        if time.monotonic() >= end:
            failed = Exit.ROLLOUT_FAILED, Reason.ROLLOUT_FAILED
            code, why = failed if reason == "nobody" else (Exit.UNAVAILABLE, Reason.DEADLINE_EXCEEDED)
            message = f"replica {name} drains, and after {seconds:g} s: {needed}; see loraplane get adapters -o wide"
            raise CliError(CommandFailure(code, why, message))
        time.sleep(_POLL_SECONDS)


def _need(replica: ReplicaView, shown: SidecarAccess) -> tuple[str, str]:
    """What a draining replica is needed for, as its sidecar says: ``nothing``, ``takeover`` or ``nobody``; and a text.

    Raises:
        CliError: its sidecar is not reached.
    """
    try:
        said = activity_of(replica, READ_SECONDS, shown)
    except CliError as error:
        remedy = (
            "it drains; what it is needed for says, on its own host and with the port of its sidecar's --http, "
            "curl -H 'x-loraplane-control: 1' 'http://127.0.0.1:7602/drain?wait=600' (or the control token)"
        )
        raise CliError(replace(error.failure, message=f"{error.failure.message}; {remedy}")) from error
    match said.get("drain"):
        case {"reason": str(reason), "needed": str(needed)}:
            return reason, needed
        case _:
            return "", "its sidecar has not received that yet"


def undrain(
    context: click.Context,
    name: ReplicaName,
    *,
    pool: options.Pool = None,
    dry_run: options.DryRun = False,
    timeout: options.Timeout = None,
    request_id: options.RequestId = None,
) -> None:
    """End the drain of a replica.

    Works for drains that began with /drain too; not once the sidecar is about to end.
    """
    session = session_of(context)
    order = request_id_or_new(request_id)
    request = pb.DrainReplicaRequest(name=name, undrain=True, request_id=order, validate_only=dry_run)
    _order(session, request, pool, timeout)


def _order(session: Session, request: pb.DrainReplicaRequest, pool: str | None, timeout: float | None) -> None:
    printer, name = session.printer(), request.name
    with session.client(timeout or WRITE_SECONDS) as client:
        request.pool = pool_or_only(client, pool)
        reply = client.unary(api.DRAIN_REPLICA, request)
    if request.undrain:
        told = f"replica {name} is to serve again" if reply.changed else f"replica {name} does not drain"
    else:
        told = f"replica {name} is to drain" if reply.changed else f"replica {name} drains already"
    if printer.is_plain:
        values = {"name": name, "pool": request.pool, "drain": not request.undrain, "changed": reply.changed}
        asked = {"request_id": request.request_id, "dry_run": request.validate_only}
        printer.plain({**values, "revision": reply.revision, **asked})
    elif printer.is_table:
        printer.lines([told, request_line(request.request_id, reply.revision, dry_run=request.validate_only)])
    else:
        printer.lines([name])
