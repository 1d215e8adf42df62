"""Reads remote sources with the user's own credentials and a deadline."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer
from urllib.parse import urlsplit

from registry.cli.failure import CliError, CommandFailure, Exit, refused, usage
from registry.lora.config import MAX_CONFIG_BYTES
from registry.lora.digest import CONFIG_FILE, FileEntry, manifest_digest
from registry.model.errors import Reason
from registry.model.source_uri import DEFAULT_PORTS, SourceUri, SourceUriError, parse_source, without_secrets
from registry.sources.allowed import DEFAULT_HUB, AllowedSources, RemoteOptions
from registry.sources.base import ArtifactError, SourceLimits, Stop, StoreError
from registry.sources.credentials import Credentials
from registry.sources.credentials_file import read_credentials
from registry.sources.urls import Reach, is_literal

# Somebody waits for it; a fleet waits longer.
_LIMITS = SourceLimits(connect_seconds=5, idle_seconds=10)
MAX_WEIGHTS_BYTES = 16 << 30
FETCH_SECONDS = 600.0


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
        raise ArtifactError("source_incomplete", f"{name} is empty; publish it again", permanent=False)
    most = MAX_CONFIG_BYTES if name == CONFIG_FILE else MAX_WEIGHTS_BYTES
    if size_bytes > most:
        message = f"{name} has {size_bytes} bytes, at most {most} are taken; publish less"
        raise ArtifactError("too_large", message, permanent=True)


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

    def fetch(self, uri: str, credential: str | None, folder: Path | None, stop: Stop) -> str:
        """Reads a source, into the folder if one is given; returns its manifest digest.

        Raises:
            ArtifactError: it cannot be had.
            OSError: the folder cannot be written.
        """
        arrival = Arrival(stop, folder)
        with closing(self._allowed(uri)) as allowed:
            allowed.source(uri, credential).fetch(arrival.take, stop)
        return arrival.digest

    @contextmanager
    def fetched(self, uri: str, credential: str | None, seconds: float) -> Iterator[Path]:
        """A source in a folder of this machine, for as long as it is looked at.

        Raises:
            CliError: it cannot be had within that time.
        """
        with TemporaryDirectory(prefix="loraplane-look-") as folder:
            with stopped_after(seconds) as stop, _told(uri):
                self.fetch(uri, credential, Path(folder), stop)
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


def _prefix(uri: str) -> str:
    try:
        parsed = parse_source(uri)
    except SourceUriError as error:
        message = f"{without_secrets(uri)!r} names no source: {error}"
        raise ArtifactError("invalid_source", message, permanent=True) from None
    _check_address(parsed)
    return f"{parsed.scheme}://" + "/".join((parsed.authority, *parsed.path))


def _check_address(parsed: SourceUri) -> None:
    """A sidecar's operator may allow any address; a manifest that somebody sent in must not lead to any."""
    host = f"//{parsed.authority}" if parsed.scheme in DEFAULT_PORTS else ""
    name = urlsplit(host).hostname or ""
    if is_literal(name) and not (Reach.NAMED.allows(name) or Reach.LOCALHOST.allows(name)):
        message = f"{name} is an address that only this machine itself should ask; name another host"
        raise ArtifactError("address_not_allowed", message, permanent=True)


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
