"""Commands for when etcd is out of space and refuses every change."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from google.protobuf.json_format import MessageToDict

from registry.cli import options, receipts
from registry.cli.client import Client
from registry.cli.failure import CliError, Exit, usage, with_remedy
from registry.cli.session import READ_SECONDS, WRITE_SECONDS, pool_or_only, request_id_or_new, session_of
from registry.model.names import name_key
from registry.v1 import registry_pb2 as pb

# Refusals that the admin service makes before it deletes.
_NOTHING_DELETED = frozenset({Exit.NOT_FOUND, Exit.REFUSED, Exit.CONFLICT})
Receipt = Annotated[
    Path | None,
    options.flag("--receipt", metavar="FILE", help="Where to write the receipt (default: a new file here)."),
]


def delete(
    context: typer.Context,
    kind: Annotated[str, typer.Argument(help="The word adapter.")],
    name: Annotated[str, typer.Argument(help="Name of the adapter.")],
    *,
    pool: options.Pool = None,
    yes: Annotated[bool, options.flag("--yes", help="Say that you mean it.")] = False,
    etag: options.Etag = "",
    receipt: Receipt = None,
    timeout: options.Timeout = None,
    request_id: options.RequestId = None,
) -> None:
    """Delete an adapter while etcd is out of space; what cannot be written meanwhile stands in a receipt."""
    if kind != "adapter":
        raise usage("say which: loraplane break-glass delete adapter NAME")
    if not yes:
        raise usage("this deletes without history and audit record until it is settled; if you mean it, add --yes")
    session, printer = session_of(context), session_of(context).printer()
    request = pb.BreakGlassDeleteRequest(name=name, etag=etag, request_id=request_id_or_new(request_id))
    with session.client(timeout or READ_SECONDS) as client:
        request.pool = pool_or_only(client, pool)
        path = receipt or Path(f"removal-{request.pool}-{name_key(name)}-{request.request_id}.json")
        # Before anything is deleted: afterwards nobody could tell how the record stood.
        is_repeated = receipts.is_begun(path, request.pool, name)
        if not is_repeated:
            receipts.begin(path, client.get_adapter(request.pool, name))
    with session.client(timeout or WRITE_SECONDS) as client:
        removal = _delete(client, request, path, is_repeated=is_repeated)
    receipts.complete(path, removal)
    if printer.is_plain:
        shown = MessageToDict(removal, preserving_proto_field_name=True)
        printer.plain({**shown, "receipt": str(path), "request_id": request.request_id})
        return
    printer.lines([f"deleted {removal.name} of pool {removal.pool} at revision {removal.revision}"])
    printer.lines([f"not done: {one}" for one in removal.left_undone])
    printer.lines([f"receipt in {path}; once etcd has space again: loraplane break-glass settle {path}"])


def _delete(client: Client, request: pb.BreakGlassDeleteRequest, path: Path, *, is_repeated: bool) -> pb.Removal:
    """Deletes the record. What was begun of the receipt goes only if nothing can have been deleted."""
    try:
        return client.break_glass_delete(request)
    except CliError as error:
        if error.failure.exit in _NOTHING_DELETED and not is_repeated:
            path.unlink()
            raise
        remedy = (
            f"{path} keeps how the record stood; whether it was deleted, the same command says with --receipt {path} "
            f"--request-id {request.request_id}, asked of the same admin service"
        )
        raise CliError(with_remedy(error.failure, remedy)) from error


def settle(
    context: typer.Context,
    receipt: Annotated[list[Path], typer.Argument(help="Receipts that break-glass delete wrote.")],
    *,
    dry_run: options.DryRun = False,
    timeout: options.Timeout = None,
) -> None:
    """Write what could not be written when adapters were deleted without space: history, counter, audit record."""
    session, printer = session_of(context), session_of(context).printer()
    removals = [receipts.read(path) for path in receipt]
    with session.client(timeout or WRITE_SECONDS) as client:
        for removal in removals:
            request = pb.SettleRemovalRequest(
                removal=removal, request_id=request_id_or_new(None), validate_only=dry_run
            )
            settled = client.settle_removal(request)
            told = {"name": removal.name, "pool": removal.pool, "revision": settled.revision}
            if printer.is_plain:
                printer.plain({**told, "request_id": settled.request_id})
            else:
                printer.lines([f"settled {removal.name} of pool {removal.pool}; revision {settled.revision}"])
