"""Puts a finished adapter where replicas can read it, never over another.

Whoever has created the weights alone goes on to the configuration, so two publications never become a mixture.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import ObjectStore

from registry.lora.digest import CONFIG_FILE, FILES, WEIGHTS_FILE
from registry.lora.directory import check_files, digest_of
from registry.lora.findings import CannotPublish, UnfitAdapter
from registry.lora.signing.statement import SIGNATURE_FILE
from registry.model.source_uri import SCHEMES, SourceUri, parse_source, without_secrets
from registry.runtime.local_files import sync_directory
from registry.sources.credentials import HeldCredential
from registry.sources.file import path_of
from registry.sources.object_stores import open_store

# One request may carry several gigabytes.
UPLOAD_TIMEOUT = "3600s"
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
    try:
        return _put_objects(folder, there.place, held)
    except (PermissionDeniedError, UnauthenticatedError):
        remedy = "check the secret, and what it may do" if held is not None else "name a --credential"
        raise CannotPublish(f"{_shown(there)} may not be written, or not read again; {remedy}") from None
    except BaseError:  # whose text repeats addresses and signatures
        remedy = "repeat it, and it goes on; if it stays so, look at the endpoint in the file of --credentials"
        raise Unfinished(f"{_shown(there)} was not reached, or broke off; {remedy}") from None


def _shown(there: Destination) -> str:
    return without_secrets(there.uri)


def _put_folder(folder: Path, target: Path) -> bool:
    if target.exists():
        _check_same(folder, target)
        _put_bundle(folder, target)
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    arriving = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        arriving.mkdir()
        for name in (*FILES, *_bundle_of(folder)):
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


def _bundle_of(folder: Path) -> tuple[str, ...]:
    """The name of the bundle, if there is one."""
    return (SIGNATURE_FILE,) if (folder / SIGNATURE_FILE).is_file() else ()


def _put_bundle(folder: Path, target: Path) -> None:
    for name in _bundle_of(folder):
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


def _put_objects(folder: Path, place: SourceUri, held: HeldCredential | None) -> bool:
    store = open_store(place, held, UPLOAD_TIMEOUT)
    keys = {name: "/".join((*place.path, name)) for name in FILES}
    missing = [name for name in FILES if not _is_there(store, keys[name], folder / name)]
    for name in _bundle_of(folder):  # before the last file, without which nobody takes it for an adapter
        obstore.put(store, "/".join((*place.path, name)), folder / name, use_multipart=False)
    for name in (WEIGHTS_FILE, CONFIG_FILE):
        if name in missing:
            _create(store, keys[name], folder / name)
    for name in FILES:
        if not _is_there(store, keys[name], folder / name):
            raise CannotPublish(f"{keys[name]} is gone since it was written; look at who else writes there")
    return bool(missing)


def _is_there(store: ObjectStore, key: str, path: Path) -> bool:
    """True if just this file is there, to the last byte; False if nothing is."""
    try:
        found = obstore.get(store, key)
    except FileNotFoundError:
        return False
    if found.meta["size"] != path.stat().st_size or _sha256(found) != _sha256_of(path):
        raise DestinationTaken(key)
    return True


def _sha256(found: obstore.GetResult) -> str:
    digest = hashlib.sha256()
    for chunk in found.stream():
        digest.update(chunk)
    return digest.hexdigest()


def _sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _create(store: ObjectStore, key: str, path: Path) -> None:
    """Writes an object that is not there yet; the store itself sees to it that nobody's is replaced."""
    try:
        obstore.put(store, key, path, mode="create", use_multipart=False)
    except AlreadyExistsError:
        _is_there(store, key, path)  # somebody was quicker; the same is as good
    except FileNotFoundError:
        raise CannotPublish("the bucket is not there; make it, or look at the credential's endpoint") from None
