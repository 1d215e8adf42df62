"""Digest and check of a source before its change is sent."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote

from registry.cli.change_set import Change, with_pool_field
from registry.cli.client import AdminClient
from registry.cli.failure import CliError, CommandFailure, Exit
from registry.cli.local_adapters import base_of_pool, digest_here, folder_of, is_here, limits_of_pool, look, unfit
from registry.cli.session import Session
from registry.cli.source_reader import SourceReader, stopped_after
from registry.lora.digest import FILES
from registry.lora.policy import Policy, policy_of
from registry.lora.text import printable
from registry.model.errors import Reason
from registry.sources.base import ArtifactError, Stop
from registry.v1 import registry_pb2 as pb

LOOK_SECONDS = 30.0
_AT_ONCE = 4
# What a source sends is the same for everybody; whether it sends anything is not.
_SAME_FOR_ALL = {"bad_archive", "weights_not_safetensors"}


@dataclass(frozen=True, slots=True)
class Looking:
    """How sources of other hosts are looked at: all of them within `seconds`; 0: not at all.

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
    seen = [one for one in changes if _readable(one) or (looking.seconds and _is_remote(one))]
    if not seen:
        return list(changes)
    with session.client(looking.read_seconds) as client:
        pools = {name: _pool(client, change) for name, change in {one.pool: one for one in reversed(seen)}.items()}
    reader = SourceReader(looking.credentials, looking.hub)
    # In this order: an interrupt, or what is wrong with one, ends the looks at all others before they are waited for.
    with ThreadPoolExecutor(_AT_ONCE) as workers, stopped_after(looking.seconds) as stop:
        found = list(workers.map(partial(_foreseen, pools, reader, stop, force=looking.force), seen))
    by_place = {id(before): after for before, after in zip(seen, found, strict=True)}
    return [by_place.get(id(one), one) for one in changes]


def _pool(client: AdminClient, change: Change) -> pb.Pool:
    try:
        return client.get_pool(change.pool)
    except CliError as error:
        is_about_it = error.failure.field is not None
        raise CliError(with_pool_field(error.failure, change) if is_about_it else error.failure) from error


def _is_remote(change: Change) -> bool:
    if change.wire.WhichOneof("change") != "upsert":
        return False
    source = change.wire.upsert.spec.source
    return not source.digest and "://" in source.uri and not source.uri.startswith("file:")


def _readable(change: Change) -> Path | None:
    """The folder of an upsert's adapter, if its files can be read here."""
    if change.wire.WhichOneof("change") != "upsert":
        return None
    folder = folder_of(change.wire.upsert.spec.source.uri)
    if folder is None or not is_here(folder):
        return None
    return folder if any(os.access(folder / name, os.R_OK) for name in FILES) else None


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


def _doubtful(change: Change, reason: Reason, message: str) -> CliError:
    told = f"{message}, or give --force to go on"
    return CliError(CommandFailure(Exit.REFUSED, reason, told, f"{change.place}: spec.source.uri"))


def _foreseen(pools: Mapping[str, pb.Pool], reader: SourceReader, stop: Stop, change: Change, *, force: bool) -> Change:
    folder, pool = _readable(change), pools[change.pool]
    if folder is not None:
        return _seen_here(change, folder, pool, force=force)
    return _seen_there(change, pool, reader, stop)


def _seen_here(change: Change, folder: Path, pool: pb.Pool, *, force: bool) -> Change:
    digest, asked = _digest(folder), change.wire.upsert.spec.source.digest
    if asked not in {"", digest}:
        found = f"the files here have {digest}" if digest else "what lies here is not whole"
        if digest and not force:
            message = f"{asked} is pinned, and {found}: pin that, or give another source, or give --force to go on"
            raise CliError(
                CommandFailure(Exit.REFUSED, Reason.DIGEST_MISMATCH, message, f"{change.place}: spec.source.digest")
            )
        return _noted(change, f"digest is left to the replicas, which serve what has {asked}: {found}")
    is_whole = _is_whole(change, folder, pool)
    return _pinned(change, digest) if is_whole and digest is not None else change


def _seen_there(change: Change, pool: pb.Pool, reader: SourceReader, stop: Stop) -> Change:
    spec = change.wire.upsert.spec
    with TemporaryDirectory(prefix="loraplane-look-") as folder:
        try:
            digest = reader.fetch(spec.source.uri, spec.credentials or None, Path(folder), stop)
        except ArtifactError as error:
            return _unseen(change, error)
        except OSError as error:
            return _unpinned(change, f"it cannot be kept here: {error.strerror}; see TMPDIR")
        return _pinned(change, digest) if _is_whole(change, Path(folder), pool) else change


def _unseen(change: Change, error: ArtifactError) -> Change:
    if error.reason in _SAME_FOR_ALL:
        message, place = f"{error.reason}: {error.message}", f"{change.place}: spec.source.uri"
        metadata = {"finding": error.reason, "findings": "1"}
        raise CliError(CommandFailure(Exit.REFUSED, Reason.ADAPTER_UNFIT, message, place, metadata)) from error
    if error.reason == "staging_stopped":
        return _unpinned(change, "there was no time to read it; see --look-seconds")
    return _unpinned(change, f"{error.reason}: {error.message}")


def _unpinned(change: Change, why: str) -> Change:
    return _noted(change, f"digest is not pinned: {why}")


def _noted(change: Change, what: str) -> Change:
    """The change as it is; standard error says what of it could not be foreseen."""
    sys.stderr.write(printable(" ".join(f"note: {change.place}: its {what}".split())) + "\n")
    return change


def _is_whole(change: Change, folder: Path, pool: pb.Pool) -> bool:
    """False if the files are still being written.

    Raises:
        CliError: they are wrong for good.
    """
    policy = _policy(change.wire.upsert.spec.prepare)
    looked = look(folder, base_of_pool(pool), limits_of_pool(pool), policy)
    for_good = [finding for finding in looked.findings if finding.permanent]
    if for_good:
        raise unfit(f"{change.place}: spec.source.uri", for_good)
    return not looked.findings


def _pinned(change: Change, digest: str) -> Change:
    wire = pb.AdapterChange()
    wire.CopyFrom(change.wire)
    wire.upsert.spec.source.digest = digest
    return replace(change, wire=wire)


def _digest(folder: Path) -> str | None:
    try:
        return digest_here(folder)
    except CliError:
        return None  # the replicas say what is wrong with it, once they look


def _policy(prepare: pb.Prepare) -> Policy:
    named = {"remap": prepare.remap, "vision": prepare.vision, "dora": prepare.dora}
    return policy_of({name: value for name, value in named.items() if value} | {"drop": list(prepare.drop)})
