"""Puts a finished adapter into a bucket, and never over another one."""

from __future__ import annotations

import hashlib
from pathlib import Path

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import ObjectStore

from registry.client.upload.destination import DestinationTaken, Unfinished, bundle_of
from registry.lora.digest import CONFIG_FILE, FILES, WEIGHTS_FILE
from registry.lora.findings import CannotPublish
from registry.model.source_uri import SourceUri
from registry.sources.credentials import HeldCredential
from registry.sources.object_stores import open_store

# One request may carry several gigabytes.
UPLOAD_TIMEOUT = "3600s"


def put_objects(folder: Path, place: SourceUri, held: HeldCredential | None, shown: str) -> bool:
    """Copies an adapter's files and their bundle, as `destination.put` does; `shown`: its URI, without secrets.

    Raises:
        DestinationTaken: something else is there.
        ArtifactError: ``credential_unavailable``.
        CannotPublish: the store refused it.
        Unfinished: the store did not take all of it, or did not say so.
        OSError: the files cannot be read.
    """
    try:
        return _put(folder, place, held)
    except (PermissionDeniedError, UnauthenticatedError):
        remedy = "check the secret, and what it may do" if held is not None else "name a --credential"
        raise CannotPublish(f"{shown} may not be written, or not read again; {remedy}") from None
    except BaseError:  # whose text repeats addresses and signatures
        remedy = "repeat it, and it goes on; if it stays so, look at the endpoint in the file of --credentials"
        raise Unfinished(f"{shown} was not reached, or broke off; {remedy}") from None


def _put(folder: Path, place: SourceUri, held: HeldCredential | None) -> bool:
    store = open_store(place, held, UPLOAD_TIMEOUT)
    keys = {name: "/".join((*place.path, name)) for name in FILES}
    missing = [name for name in FILES if not _is_there(store, keys[name], folder / name)]
    for name in bundle_of(folder):  # before the last file, without which nobody takes it for an adapter
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
