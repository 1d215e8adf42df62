"""Adapters in an object store: S3, Google Cloud Storage, Azure. Two known names are read; nothing is listed.

Each file is read in ranges of one and the same version (If-Match), so a broken connection costs one range, and no
more than one range is ever in memory. The client takes no credential from its surroundings: a record that names none
is read without a signature. Its own errors are never shown, since they repeat addresses and signatures.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import (
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from registry.lora.manifest import FILES
from registry.model.source_uri import SourceUri
from registry.sources.credentials import Held
from registry.sources.errors import ArtifactError
from registry.sources.failures import Passing, StartOver, denied, retries, retries_from_start
from registry.sources.kept_stores import Stores
from registry.sources.source import Receive
from registry.sources.stop import Stop

if TYPE_CHECKING:
    from obstore import GetOptions

RANGE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class ObjectSource:
    """A prefix in a bucket."""

    stores: Stores
    uri: SourceUri
    held: Held | None
    range_bytes: int = RANGE_BYTES

    def fetch(self, receive: Receive, stop: Stop) -> None:
        """See `Source.fetch`."""
        bucket = _Bucket(self.stores, self.uri, self.held, stop)
        for name in FILES:
            key = "/".join((*self.uri.path, name))
            retries_from_start(stop)(_receive, bucket, key, name, receive, self.range_bytes)


def object_source(stores: Stores, uri: SourceUri, held: Held | None) -> ObjectSource:
    """The source at an s3://, gs:// or az:// URI."""
    return ObjectSource(stores, uri, held)


@dataclass(frozen=True, slots=True)
class _Range:
    """A range of an object, with what it said of the whole."""

    content: bytes
    size_bytes: int
    tag: str | None


class _Bucket:
    """Reads ranges; opens the store again where its credential is refused."""

    def __init__(self, stores: Stores, uri: SourceUri, held: Held | None, stop: Stop) -> None:
        self._stores = stores
        self._uri = uri
        self._held = held
        self._stop = stop
        self._store = stores.store(uri, held)

    def read(self, key: str, start: int, end: int, tag: str | None) -> _Range:
        """Bytes from `start` to before `end`, of the version with that tag.

        Raises:
            ArtifactError: they cannot be had.
        """
        self._stop.check()
        try:
            return retries(self._stop)(self._get, key, start, end, tag)
        except (PermissionDeniedError, UnauthenticatedError):
            if self._held is None or not self._held.renew():
                raise denied(f"{self._shown(key)} may not be read") from None
        self._store = self._stores.reopened(self._uri, self._held)
        try:
            return retries(self._stop)(self._get, key, start, end, tag)
        except (PermissionDeniedError, UnauthenticatedError):
            raise denied(f"{self._shown(key)} may not be read, not with a new secret either") from None

    def _get(self, key: str, start: int, end: int, tag: str | None) -> _Range:
        options: GetOptions = {"range": (start, end)}
        if tag is not None:
            options["if_match"] = tag
        try:
            result = obstore.get(self._store, key, options=options)
            return _Range(bytes(result.bytes()), result.meta["size"], result.meta["e_tag"])
        except (PermissionDeniedError, UnauthenticatedError):
            raise
        except FileNotFoundError:  # as the client says it
            message = f"{self._shown(key)} is not there; it is tried again"
            raise ArtifactError("source_missing", message, permanent=False) from None
        except PreconditionError:
            message = f"{self._shown(key)} changed while it was read; it is tried again"
            raise StartOver("source_changed", message) from None
        except (BaseError, OSError):
            raise Passing("source_io", f"{self._shown(key)} cannot be read; it is tried again") from None

    def _shown(self, key: str) -> str:
        return f"{self._uri.scheme}://{self._uri.authority}/{key}"


def _receive(bucket: _Bucket, key: str, name: str, receive: Receive, range_bytes: int) -> None:
    first = bucket.read(key, 0, range_bytes, None)
    receive(name, first.size_bytes, _content(bucket, key, first, range_bytes))


def _content(bucket: _Bucket, key: str, first: _Range, range_bytes: int) -> Iterator[bytes]:
    part, got_bytes = first, 0
    while True:
        got_bytes += len(part.content)
        if part.size_bytes != first.size_bytes or not part.content:
            raise StartOver("source_changed", "an object changed while it was read; it is tried again")
        yield part.content
        if got_bytes == first.size_bytes:
            return
        part = bucket.read(key, got_bytes, got_bytes + range_bytes, first.tag)
