"""Commands for when etcd is out of space and refuses every change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated

import typer
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError

from registry.cli import options
from registry.cli.failure import usage
from registry.cli.session import READ_SECONDS, WRITE_SECONDS, pool_or_only, request_id_or_new, session_of
from registry.model.names import name_key
from registry.v1 import registry_pb2 as pb

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
    with session.client(READ_SECONDS) as client:
        request.pool = pool_or_only(client, pool)
    path = receipt or Path(f"removal-{request.pool}-{name_key(name)}-{request.request_id}.json")
    # Made first: nothing may be deleted whose receipt cannot be kept.
    with _new_file(path) as file, session.client(timeout or WRITE_SECONDS) as client:
        removal = client.break_glass_delete(request)
        json.dump(MessageToDict(removal, preserving_proto_field_name=True), file, indent=2)
    if printer.is_plain:
        shown = MessageToDict(removal, preserving_proto_field_name=True)
        printer.plain({**shown, "receipt": str(path), "request_id": request.request_id})
        return
    printer.lines([f"deleted {removal.name} of pool {removal.pool} at revision {removal.revision}"])
    printer.lines([f"not done: {one}" for one in removal.left_undone])
    printer.lines([f"receipt in {path}; once etcd has space again: loraplane break-glass settle {path}"])


@contextmanager
def _new_file(path: Path) -> Iterator[IO[str]]:
    """A file that was not there before; it does not stay if the body fails."""
    try:
        file = path.open("x")
    except OSError as error:
        raise usage(f"cannot write the receipt {path}: {error.strerror}; choose another file with --receipt") from error
    with file:
        try:
            yield file
        except BaseException:
            path.unlink()
            raise


def settle(
    context: typer.Context,
    receipt: Annotated[list[Path], typer.Argument(help="Receipts that break-glass delete wrote.")],
    *,
    dry_run: options.DryRun = False,
    timeout: options.Timeout = None,
) -> None:
    """Write what could not be written when adapters were deleted without space: history, counter, audit record."""
    session, printer = session_of(context), session_of(context).printer()
    removals = [_read(path) for path in receipt]
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


def _read(path: Path) -> pb.Removal:
    try:
        return ParseDict(json.loads(path.read_text()), pb.Removal())
    except OSError as error:
        raise usage(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, ParseError) as error:
        raise usage(f"{path} is no receipt of break-glass delete: {error}") from error
