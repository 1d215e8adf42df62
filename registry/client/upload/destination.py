"""Puts a finished adapter where replicas can read it, never over another.

Whoever has created the weights alone goes on to the configuration, so two publications never become a mixture.
"""

from __future__ import annotations

import os
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path

from registry.lora.digest import FILES
from registry.lora.directory import check_files, digest_of
from registry.lora.findings import CannotPublish, UnfitAdapter
from registry.lora.signing.statement import SIGNATURE_FILE
from registry.model.source_uri import SCHEMES, SourceUri, parse_source, without_secrets
from registry.runtime.local_files import sync_directory
from registry.sources.credentials import HeldCredential
from registry.sources.file import path_of

*_OTHERS, _LAST = (f"{scheme}://" for scheme, kind in SCHEMES.items() if kind in {"folder", "bucket"})
WRITABLE = f"{', '.join(_OTHERS)} or {_LAST}"


class DestinationTaken(Exception):
    """Something else is there already; the message names it."""


class Unfinished(Exception):
    """A store was not reached or broke off. What has arrived stays, and is no adapter before all of it has."""


@dataclass(frozen=True, slots=True)
class Destination:
    """A directory of this machine, or a prefix in a bucket."""

    uri: str
    place: Path | SourceUri


def destination(uri: str) -> Destination:
    """Destination of a URI or a path of this machine.

    Raises:
        CannotPublish: nothing can be written there.
    """
    scheme, separator, _ = uri.partition("://")
    if not separator:
        path = Path(uri).absolute()
        return Destination(path.as_uri(), path)
    kind = SCHEMES.get(scheme)
    try:
        if kind == "folder":
            return Destination(uri, path_of(uri))
        if kind == "bucket":
            return Destination(uri, parse_source(uri))
    except ValueError as error:
        raise CannotPublish(f"{without_secrets(uri)!r} names no destination: {error}") from None
    why = "a hub has commits, which its own tools make" if kind == "hub" else "no protocol to write there is agreed on"
    raise CannotPublish(f"{scheme[:40]}:// cannot be written to: {why}; use {WRITABLE}")


def put(folder: Path, there: Destination, held: HeldCredential | None) -> bool:
    """Copies the two files of `folder`, and their bundle; False if just these files are there already.

    A bundle may take the place of another one: it says for itself that it is over the same files.

    Raises:
        DestinationTaken: something else is there.
        ArtifactError: ``credential_unavailable``.
        CannotPublish: the store refused it.
        Unfinished: the store did not take all of it, or did not say so.
        OSError: the files cannot be read or written.
    """
    if isinstance(there.place, Path):
        return _put_folder(folder, there.place)
    # A client that never writes to a bucket need not have what does.
    from registry.client.upload.objects import put_objects  # noqa: PLC0415

    return put_objects(folder, there.place, held, without_secrets(there.uri))


def _put_folder(folder: Path, target: Path) -> bool:
    if target.exists():
        _check_same(folder, target)
        _put_bundle(folder, target)
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    arriving = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        arriving.mkdir()
        for name in (*FILES, *bundle_of(folder)):
            _copy(folder / name, arriving / name)
        sync_directory(arriving)
        arriving.rename(target)
    except OSError:
        if not target.exists():
            raise
        _check_same(folder, target)
        return False
    finally:
        shutil.rmtree(arriving, ignore_errors=True)
    sync_directory(target.parent)
    return True


def bundle_of(folder: Path) -> tuple[str, ...]:
    """The name of the bundle, if there is one."""
    return (SIGNATURE_FILE,) if (folder / SIGNATURE_FILE).is_file() else ()


def _put_bundle(folder: Path, target: Path) -> None:
    for name in bundle_of(folder):
        arriving = target / f".{name}.{uuid.uuid4().hex}"
        try:
            _copy(folder / name, arriving)
            arriving.rename(target / name)
        finally:
            arriving.unlink(missing_ok=True)
        sync_directory(target)


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as read, target.open("xb") as written:
        shutil.copyfileobj(read, written, 1 << 20)
        written.flush()
        os.fsync(written.fileno())


def _check_same(folder: Path, target: Path) -> None:
    try:
        check_files(target)
        is_same = digest_of(target) == digest_of(folder)
    except UnfitAdapter:
        is_same = False
    if not is_same:
        raise DestinationTaken(str(target))
