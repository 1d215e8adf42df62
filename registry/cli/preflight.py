"""Digest and check of a source before its change is sent."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from registry.cli.change.addresses import folder_of, is_here
from registry.cli.change.sets import Change, with_pool_field
from registry.cli.client import AdminClient
from registry.cli.failure import CliError, refused
from registry.cli.session import Session
from registry.cli.views.get import Note
from registry.client import admin_api as api
from registry.lora.digest import FILES
from registry.model.errors import Reason
from registry.model.source_uri import without_secrets
from registry.v1 import registry_pb2 as pb

LOOK_SECONDS = 30.0
GONE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Looking:
    """Way to look at sources of other hosts: all of them within `seconds`; 0: not at all.

    `read_seconds`: until the admin service must have said what the pools are. `force`: what lies here, or does not, is
    no reason to refuse a source of this machine.
    """

    credentials: Path | None
    hub: str | None
    seconds: float
    read_seconds: float
    force: bool = False


def preflight(session: Session, changes: Sequence[Change], looking: Looking) -> list[Change]:
    """The changes with the digests of those sources that can be read here.

    A source that cannot be read here is left to the replicas. One of another host is read if it is not pinned. What was
    left is noted.

    Raises:
        CliError: an adapter is not right for its pool; or the pool cannot be read; or, unless it is forced, a path has
            ``..`` in it, a path of this machine is not there, or the files here have another digest than the pinned.
    """
    if not looking.force:
        for change in changes:
            _check_path(change)
    seen = [(one, folder) for one in changes if (folder := _readable(one)) or (looking.seconds and _is_remote(one))]
    if not seen:
        return list(changes)
    from registry.cli.source_reader import SourceReader, look_at_all  # noqa: PLC0415 - with all that reads adapters

    first = {one.pool: one for one, _ in reversed(seen)}
    with session.client(looking.read_seconds) as client:
        pools = {name: _pool(client, change) for name, change in first.items()}
    reader = SourceReader(looking.credentials, looking.hub)
    found = look_at_all(seen, pools, reader, looking.seconds, force=looking.force)
    by_place = {id(before): after for (before, _), after in zip(seen, found, strict=True)}
    return [by_place.get(id(one), one) for one in changes]


def _pool(client: AdminClient, change: Change) -> pb.Pool:
    try:
        return client.unary(api.GET_POOL, pb.GetPoolRequest(name=change.pool))
    except CliError as error:
        is_about_it = error.failure.field is not None
        raise CliError(with_pool_field(error.failure, change) if is_about_it else error.failure) from error


def _is_remote(change: Change) -> bool:
    source = change.wire.upsert.spec.source
    return not source.digest and "://" in source.uri and not source.uri.startswith("file:")


def _readable(change: Change) -> Path | None:
    """The folder of an upsert's adapter, if its files can be read here; or if it is here, and has none."""
    if change.wire.WhichOneof("change") != "upsert":
        return None
    folder = folder_of(change.wire.upsert.spec.source.uri)
    if folder is None or not is_here(folder):
        return None
    there = [folder / name for name in FILES if os.path.lexists(folder / name)]
    return folder if not there or any(os.access(file, os.R_OK) for file in there) else None


def _check_path(change: Change) -> None:
    """Raises CliError for a path that is certainly not what is meant."""
    if change.wire.WhichOneof("change") != "upsert":
        return
    uri = change.wire.upsert.spec.source.uri
    if ".." in unquote(uri).split("/"):
        raise _doubtful(change, Reason.SOURCE_REFUSED, f"the path of {uri} has .. in it: write it without")
    folder = folder_of(uri)
    if folder is not None and not is_here(folder) and (change.is_local or _is_place_here(folder.parent)):
        raise _doubtful(change, Reason.SOURCE_UNREADABLE, f"there is no folder {folder} here: give one that is there")


def _is_place_here(parent: Path) -> bool:
    """True if a URI's folder would lie in one of this machine; of a place that is not here the replicas know more."""
    return parent != parent.parent and is_here(parent)


def warn_if_gone(adapter: pb.Adapter, note: Note) -> None:
    """Notes that the source of a generation that is gone back to has the files no more, as far as it is seen here.

    It is no reason to refuse it: stores of replicas may have them yet, and nobody else knows.
    """
    spec = adapter.spec
    if _is_gone(spec.source.uri, spec.credentials or None):
        note(
            f"{without_secrets(spec.source.uri)} has not the files any more, as seen from here: replicas serve "
            f"generation {adapter.generation} only where their stores still have them; "
            f"loraplane describe adapter {adapter.name} --pool {adapter.pool} tells"
        )


def _is_gone(uri: str, credential: str | None) -> bool:
    folder = folder_of(uri)
    if folder is not None:
        return _is_place_here(folder.parent) and not all(os.path.lexists(folder / name) for name in FILES)
    from registry.cli.source_reader import SourceReader, stopped_after  # noqa: PLC0415 - with all that reads adapters

    with stopped_after(GONE_SECONDS) as stop:
        return SourceReader(None).is_gone(uri, credential, stop)


def _doubtful(change: Change, reason: Reason, message: str) -> CliError:
    return refused(reason, f"{message}, or give --force to go on", field=f"{change.place}: spec.source.uri")
