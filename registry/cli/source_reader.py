"""Reads sources with the user's own credentials, and looks at those of changes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer
from urllib.parse import urlsplit

from registry.cli.change.sets import Change
from registry.cli.failure import CliError, CommandFailure, Exit, refused, usage
from registry.cli.local_adapters import base_of_pool, digest_here, limits_of_pool, look, unfit
from registry.cli.views.output import write_error
from registry.lora.config import MAX_CONFIG_BYTES
from registry.lora.digest import CONFIG_FILE, FileEntry, manifest_digest
from registry.lora.findings import summary
from registry.lora.policy import Policy, policy_of
from registry.lora.signing.statement import SIGNATURE_FILE
from registry.lora.text import printable
from registry.model.errors import Reason
from registry.model.source_uri import SourceUri, SourceUriError, is_movable, parse_source, settled_uri, without_secrets
from registry.sources.allowed import DEFAULT_HUB, AllowedSources, RemoteOptions
from registry.sources.base import ArtifactError, Source, SourceLimits, Stop, StoreError, fetch_unproven
from registry.sources.credentials import Credentials
from registry.sources.credentials_file import read_credentials
from registry.sources.urls import Reach, is_literal
from registry.v1 import registry_pb2 as pb

# Somebody waits for it; a fleet waits longer.
_LIMITS = SourceLimits(connect_seconds=5, idle_seconds=10)
MAX_WEIGHTS_BYTES = 16 << 30
FETCH_SECONDS = 600.0
_AT_ONCE = 4
# What a source sends is the same for everybody; whether it sends anything is not.
_SAME_FOR_ALL = {"bad_archive", "not_an_adapter", "other_format", "weights_not_safetensors"}


class Arrival:
    """An adapter as it arrives: hashed, and written where a folder is given."""

    def __init__(self, stop: Stop, folder: Path | None) -> None:
        self._stop = stop
        self._folder = folder
        self._entries: dict[str, FileEntry] = {}

    @property
    def digest(self) -> str:
        """The manifest digest of what arrived."""
        return manifest_digest(self._entries.values())

    def take(self, name: str, size_bytes: int, chunks: Iterator[bytes]) -> None:
        """Takes one file, whose size its source has promised; see `Receive`.

        Raises:
            ArtifactError: ``source_incomplete``, ``too_large``, or what the source raises.
        """
        _check_size(name, size_bytes)
        digest, got_bytes = hashlib.sha256(), 0
        with (self._folder / name if self._folder else Path(os.devnull)).open("wb") as file:
            for chunk in chunks:
                self._stop.check()
                digest.update(chunk)
                got_bytes += file.write(chunk)
        self._entries[name] = FileEntry(name, got_bytes, digest.hexdigest())


def _check_size(name: str, size_bytes: int) -> None:
    if size_bytes == 0:
        raise ArtifactError("source_incomplete", f"{name} is empty; publish it again")
    most = MAX_CONFIG_BYTES if name == CONFIG_FILE else MAX_WEIGHTS_BYTES
    if size_bytes > most:
        message = f"{name} has {size_bytes} bytes, at most {most} are taken; publish less"
        raise ArtifactError("too_large", message)


class SourceReader:
    """Reads what the user of this machine names, with the credentials that they have."""

    def __init__(self, credentials: Path | None, hub: str | None = None) -> None:
        """Reads the credentials; `hub` None: the one that the environment names, as for the hub's own tools.

        Raises:
            CliError: they cannot be read, or the hub's URL is none.
        """
        self._remote = RemoteOptions(
            known_credentials(credentials), hub or os.environ.get("HF_ENDPOINT") or DEFAULT_HUB, _LIMITS
        )

    def fetch(
        self, uri: str, credential: str | None, folder: Path | None, stop: Stop, *, with_bundle: bool = False
    ) -> str:
        """Reads a source, into the folder if one is given, with its bundle if asked for; returns its manifest digest.

        Raises:
            ArtifactError: it cannot be had.
            OSError: the folder cannot be written.
        """
        arrival = Arrival(stop, folder)
        with closing(self._allowed(uri)) as allowed:
            source = allowed.source(uri, credential)
            fetch_unproven(source, arrival.take, stop)
            if with_bundle and folder is not None:
                write_bundle_of(source, folder, stop)
        return arrival.digest

    def settled(self, uri: str, credential: str | None, stop: Stop) -> str:
        """The URI itself; where a tag of a registry is what it names, that of the artifact that the tag names now.

        Raises:
            ArtifactError: it cannot be had.
        """
        with closing(self._allowed(uri)) as allowed:
            parsed = parse_source(uri)  # as `_allowed` could
            if not is_movable(parsed):
                return uri
            return settled_uri(parsed, allowed.source(uri, credential).version(stop))

    def is_gone(self, uri: str, credential: str | None, stop: Stop) -> bool:
        """True if a source elsewhere says that it has the files no more; False also where nobody here can tell."""
        try:
            with closing(self._allowed(uri)) as allowed:
                return allowed.source(uri, credential).is_gone(stop)
        except (ArtifactError, CliError):
            return False

    @contextmanager
    def fetched(self, uri: str, credential: str | None, seconds: float) -> Iterator[Path]:
        """A source in a folder of this machine, for as long as it is looked at.

        Raises:
            CliError: it cannot be had within that time.
        """
        with TemporaryDirectory(prefix="loraplane-look-") as folder:
            with stopped_after(seconds) as stop, _told(uri):
                self.fetch(uri, credential, Path(folder), stop, with_bundle=True)
            yield Path(folder)

    def digest(self, uri: str, credential: str | None, seconds: float) -> str:
        """The manifest digest of a source; nothing is kept.

        Raises:
            CliError: it cannot be had within that time.
        """
        with stopped_after(seconds) as stop, _told(uri):
            return self.fetch(uri, credential, None, stop)

    def _allowed(self, uri: str) -> AllowedSources:
        """A source that a user names on their own machine is allowed by that."""
        try:
            return AllowedSources([_prefix(uri)], self._remote)
        except StoreError as error:
            raise refused(Reason.INVALID_FIELD, str(error)) from error


def write_bundle_of(source: Source, folder: Path, stop: Stop) -> None:
    """Puts the bundle of a source into a folder, if there is one.

    Of what is not there, some stores say that it may not be read.

    Raises:
        ArtifactError: the source cannot be asked.
        OSError: the folder cannot be written.
    """
    try:
        bundle = source.signature(stop)
    except ArtifactError as error:
        if error.reason != "source_denied":
            raise
        return
    if bundle is not None:
        (folder / SIGNATURE_FILE).write_bytes(bundle)


def _prefix(uri: str) -> str:
    try:
        parsed = parse_source(uri)
    except SourceUriError as error:
        message = f"{without_secrets(uri)!r} names no source: {error}"
        raise ArtifactError("invalid_source", message) from None
    _check_address(parsed)
    return f"{parsed.scheme}://" + "/".join((parsed.authority, *parsed.path))


def _check_address(parsed: SourceUri) -> None:
    """A sidecar's operator may allow any address; a manifest that somebody sent in must not lead to any."""
    host = f"//{parsed.authority}" if parsed.kind in {"web", "registry"} else ""
    name = urlsplit(host).hostname or ""
    if is_literal(name) and not (Reach.NAMED.allows(name) or Reach.LOCALHOST.allows(name)):
        message = f"{name} is an address that only this machine itself should ask; name another host"
        raise ArtifactError("address_not_allowed", message)


def known_credentials(file: Path | None) -> Credentials:
    """The credentials of a file as the sidecar's.

    Raises:
        CliError: it cannot be read.
    """
    try:
        return Credentials(read_credentials(file) if file is not None else None)
    except StoreError as error:
        raise refused(Reason.INVALID_FIELD, str(error)) from error


@contextmanager
def stopped_after(seconds: float) -> Iterator[Stop]:
    """A word to stop that is given after so many seconds, and at the end of the context."""
    stop = Stop()
    timer = Timer(seconds, stop.set)
    timer.daemon = True
    timer.start()
    try:
        yield stop
    finally:
        timer.cancel()
        stop.set()


@contextmanager
def _told(uri: str) -> Iterator[None]:
    """Tells what a source did as a command does."""
    try:
        yield
    except ArtifactError as error:
        raise unreadable(uri, error) from error
    except OSError as error:
        raise usage(f"cannot write what {without_secrets(uri)} sends: {error.strerror}; see TMPDIR") from error


def unreadable(uri: str, error: ArtifactError) -> CliError:
    """A source that cannot be read on this machine."""
    message, shown = f"{error.reason}: {error.message}", without_secrets(uri)
    metadata = {"finding": error.reason}
    if error.permanent:
        return CliError(CommandFailure(Exit.REFUSED, Reason.SOURCE_REFUSED, message, shown, metadata))
    return CliError(CommandFailure(Exit.UNAVAILABLE, Reason.SOURCE_UNREADABLE, message, shown, metadata))


def look_at_all(
    changes: Sequence[tuple[Change, Path | None]],
    pools: Mapping[str, pb.Pool],
    reader: SourceReader,
    seconds: float,
    *,
    force: bool,
) -> list[Change]:
    """The changes with the digests of their sources; those that cannot be read now are noted, and left as they are.

    Args:
        changes: each with the folder of this machine where its files are; None: they are fetched.
        pools: by name.
        reader: of the others.
        seconds: for all of them.
        force: files here that contradict a pinned digest are no reason to refuse it.

    Raises:
        CliError: an adapter is not right for its pool, or its files have another digest than the pinned.
    """
    # In this order: an interrupt, or what is wrong with one, ends the looks at all others before they are waited for.
    with ThreadPoolExecutor(_AT_ONCE) as workers, stopped_after(seconds) as stop:
        return list(workers.map(partial(_foreseen, pools, reader, stop, force=force), changes))


def _foreseen(
    pools: Mapping[str, pb.Pool], reader: SourceReader, stop: Stop, seen: tuple[Change, Path | None], *, force: bool
) -> Change:
    change, folder = seen
    if folder is not None:
        return _seen_here(change, folder, pools[change.pool], force=force)
    return _seen_there(change, pools[change.pool], reader, stop)


def _seen_here(change: Change, folder: Path, pool: pb.Pool, *, force: bool) -> Change:
    digest, asked = _digest(folder), change.wire.upsert.spec.source.digest
    if asked not in {"", digest}:
        found = f"the files here have {digest}" if digest else "what lies here is not whole"
        if digest and not force:
            message = f"{asked} is pinned, and {found}: pin that, or give another source, or give --force to go on"
            raise refused(Reason.DIGEST_MISMATCH, message, field=f"{change.place}: spec.source.digest")
        return _noted(change, f"digest is left to the replicas, which serve what has {asked}: {found}")
    missing = _missing(change, folder, pool)
    return _unpinned(change, missing) if missing or digest is None else _pinned(change, digest)


def _seen_there(change: Change, pool: pb.Pool, reader: SourceReader, stop: Stop) -> Change:
    spec = change.wire.upsert.spec
    with TemporaryDirectory(prefix="loraplane-look-") as folder:
        try:
            uri = reader.settled(spec.source.uri, spec.credentials or None, stop)
            digest = reader.fetch(uri, spec.credentials or None, Path(folder), stop)
        except ArtifactError as error:
            return _unseen(change, error)
        except OSError as error:
            return _unpinned(change, f"it cannot be kept here: {error.strerror}; see TMPDIR")
        missing = _missing(change, Path(folder), pool)
        return _unpinned(change, missing) if missing else _pinned(change, digest, uri)


def _unseen(change: Change, error: ArtifactError) -> Change:
    if error.reason in _SAME_FOR_ALL:
        message, place = f"{error.reason}: {error.message}", f"{change.place}: spec.source.uri"
        metadata = {"finding": error.reason, "findings": "1"}
        raise CliError(CommandFailure(Exit.REFUSED, Reason.ADAPTER_UNFIT, message, place, metadata)) from error
    if error.reason == "staging_stopped":
        return _unpinned(change, "there was no time to read it; see --look-seconds")
    return _unpinned(change, f"{error.reason}: {error.message}")


def _unpinned(change: Change, why: str) -> Change:
    return _noted(change, f"digest is not pinned: {why or 'its files change while they are read'}")


def _noted(change: Change, what: str) -> Change:
    """The change as it is; standard error says what of it could not be foreseen."""
    write_error(printable(" ".join(f"note: {change.place}: its {what}".split())) + "\n")
    return change


def _missing(change: Change, folder: Path, pool: pb.Pool) -> str:
    """Parts of the files that are missing and may still be written; empty: none.

    Raises:
        CliError: they are wrong for good.
    """
    policy = _policy(change.wire.upsert.spec.prepare)
    looked = look(folder, base_of_pool(pool), limits_of_pool(pool), policy)
    for_good = [finding for finding in looked.findings if finding.permanent]
    if for_good:
        raise unfit(f"{change.place}: spec.source.uri", for_good)
    return f"{looked.findings[0].reason}: {summary(looked.findings)}" if looked.findings else ""


def _pinned(change: Change, digest: str, uri: str | None = None) -> Change:
    wire = pb.AdapterChange()
    wire.CopyFrom(change.wire)
    wire.upsert.spec.source.digest = digest
    if uri is not None:
        wire.upsert.spec.source.uri = uri
    return replace(change, wire=wire)


def _digest(folder: Path) -> str | None:
    try:
        return digest_here(folder)
    except CliError:
        return None  # the replicas say what is wrong with it, once they look


def _policy(prepare: pb.Prepare) -> Policy:
    named = {"remap": prepare.remap, "vision": prepare.vision, "dora": prepare.dora}
    return policy_of({name: value for name, value in named.items() if value} | {"drop": list(prepare.drop)})
