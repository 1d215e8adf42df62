"""Adapters in an object store: S3, Google Cloud Storage, Azure.

Two known names are read; nothing is listed. Stores are opened once and kept, each with one credential.

Each file is read in ranges of one and the same version (If-Match), so a broken connection costs one range, and no
more than one range is ever in memory. The client takes no credential from its surroundings: a record that names none
is read without a signature. Its own errors are never shown, since they repeat addresses and signatures. It would
follow redirects anywhere, with what it has signed: so an endpoint that the operator wrote is all that it reaches.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, PreconditionError, UnauthenticatedError
from obstore.store import AzureStore, GCSStore, ObjectStore, S3Store

from registry.lora.digest import FILES
from registry.lora.signing.statement import SIGNATURE_FILE
from registry.model.source_uri import SourceUri
from registry.sources.base import (
    BUNDLE_BYTES,
    ArtifactError,
    Receive,
    Source,
    SourceLimits,
    Stop,
    explained,
    joined_versions,
)
from registry.sources.connections import Forwarder, check_leads
from registry.sources.credentials import HeldCredential
from registry.sources.credentials_file import Secret, SecretError, StoreOptions, as_header
from registry.sources.failures import Passing, StartOver, denied, retries, retries_from_start
from registry.sources.origins import Origins, OriginVisits
from registry.sources.urls import parse_url

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult
    from obstore.store import AzureConfig, ClientConfig, GCSConfig, RetryConfig, S3Config, S3Credential

RANGE_BYTES = 8 << 20
CHUNK_BYTES = 1 << 20
CONNECT_TIMEOUT = "10s"
IDLE_TIMEOUT = "30s"
KEPT_TIMEOUT = "5s"  # of a connection without a request
# Of one range: a store that is slower than this is as good as not there.
RANGE_TIMEOUT = "60s"
DEFAULT_REGION = "us-east-1"
_Fields = dict[str, str] | None  # of a secret; None: nothing is to be sent
_NOWHERE = "http://127.0.0.1:0"
_RETRY: RetryConfig = {"max_retries": 0}  # ours are the only retries, so that their caps hold


def open_store(
    uri: SourceUri, held: HeldCredential | None, timeout: str = RANGE_TIMEOUT, proxy: str | None = None
) -> ObjectStore:
    """The store behind a URI. Nothing is sent yet.

    Args:
        uri: of something in it.
        held: the credential.
        timeout: of one request, with its unit.
        proxy: URL of the one to use; None: none but what the environment names.

    Raises:
        ArtifactError: ``credential_unavailable``, also where its secret is not of the form that the store takes;
            ``unknown_credential``: the store needs one, and there is none.
    """
    options = held.store if held is not None else StoreOptions()
    secret = held.secret() if held is not None else None
    client = _client(options, timeout)
    client |= _there_alone(options.endpoint or "") if proxy is None else {"proxy_url": proxy}
    if held is None or secret is None:
        return _open(uri, options, "", None, client)
    try:
        return _open(uri, options, secret.text, secret.fields(), client)
    except SecretError as error:
        raise held.unavailable(str(error)) from None
    except BaseError:  # whose text may repeat the secret
        raise held.unavailable(f"it is not of a form that {uri.scheme}:// takes") from None


def _open(uri: SourceUri, options: StoreOptions, text: str, fields: _Fields, client: ClientConfig) -> ObjectStore:
    match uri.scheme:
        case "s3":
            return _s3(uri.authority, options, fields, client)
        case "gs":
            return _gcs(uri.authority, options, text, fields, client)
        case _:
            return _azure(uri.authority, options, fields, client)


def _client(options: StoreOptions, timeout: str) -> ClientConfig:
    return {
        "connect_timeout": CONNECT_TIMEOUT,
        "read_timeout": IDLE_TIMEOUT,
        "timeout": timeout,
        "pool_idle_timeout": KEPT_TIMEOUT,
        "allow_http": (options.endpoint or "").startswith("http://"),
        "user_agent": "loraplane",
    }


def _there_alone(endpoint: str) -> ClientConfig:
    """Sends whatever is not for the endpoint's host to a proxy that there is not; one of the environment stays."""
    url, named = urlsplit(endpoint), getproxies()
    is_proxied = not {url.scheme, "all"}.isdisjoint(named) and not proxy_bypass(url.netloc)
    return {} if url.hostname is None or is_proxied else {"proxy_url": _NOWHERE, "proxy_excludes": url.hostname}


def _s3(bucket: str, options: StoreOptions, fields: _Fields, client: ClientConfig) -> S3Store:
    config: S3Config = {"region": options.region or DEFAULT_REGION, "skip_signature": fields is None}
    if options.endpoint is not None:
        config["endpoint"] = options.endpoint
    if fields is None:
        return S3Store(bucket, config=config, client_options=client, retry_config=_RETRY)
    credential: S3Credential = {
        "access_key_id": _in_header(fields, "accesskeyid", "access_key_id"),
        "secret_access_key": _needed(fields, "secretaccesskey", "secret_access_key"),
        "token": _in_header(fields, "sessiontoken", "session_token") if fields.get("sessiontoken") else None,
        "expires_at": None,
    }
    return S3Store(
        bucket, config=config, client_options=client, retry_config=_RETRY, credential_provider=lambda: credential
    )


def _gcs(bucket: str, options: StoreOptions, text: str, fields: _Fields, client: ClientConfig) -> GCSStore:
    config: GCSConfig = {"skip_signature": fields is None}
    if options.endpoint is not None:
        config["base_url"] = options.endpoint
    if fields is not None and fields.get("type") == "service_account":
        _check_base_url(fields.get("gcsbaseurl", ""))
        config["service_account_key"] = text
    elif fields is not None:
        config["bearer_token"] = _in_header(fields, "token", "token", "token, nor a service account's key")
    return GCSStore(bucket, config=config, client_options=client, retry_config=_RETRY)


def _check_base_url(url: str) -> None:
    """A service account's key may say where its store is; what is no URL would break off the whole process."""
    try:
        if url:
            parse_url(url)
    except ValueError as error:
        raise SecretError(f"its gcs_base_url cannot be used: {error}") from None


def _azure(container: str, options: StoreOptions, fields: _Fields, client: ClientConfig) -> AzureStore:
    if options.account is None:
        message = "az:// needs a credential (of kind none, if it is public) whose store names the account"
        raise ArtifactError("unknown_credential", message)
    config: AzureConfig = {"account_name": options.account, "skip_signature": fields is None}
    if options.endpoint is not None:
        config["endpoint"] = options.endpoint
    if fields is not None and "accountkey" in fields:
        config["account_key"] = fields["accountkey"]
    elif fields is not None and "sastoken" in fields:
        config["sas_key"] = fields["sastoken"]
    elif fields is not None:
        config["token"] = _in_header(fields, "token", "token", "account_key, sas_token or token")
    return AzureStore(container, config=config, client_options=client, retry_config=_RETRY)


def _needed(fields: dict[str, str], name: str, shown: str) -> str:
    if name not in fields:
        raise SecretError(f"it has no {shown}")
    return fields[name]


def _in_header(fields: dict[str, str], name: str, shown: str, missing: str | None = None) -> str:
    return as_header(_needed(fields, name, missing or shown), shown)


MAX_OPEN = 16
_Key = tuple[str, str, str | None]  # scheme, bucket, name of the credential
_Opening = tuple[Secret | None, StoreOptions]


class Stores:
    """The stores that stagings used last, for the next one that comes with the same secret and options.

    Each has connections of its own, and the token that it made with a service account's key. The client resolves names
    itself. With https a certificate proves where it came to; for http:// a `Forwarder` judges where a host leads, and
    bounds what it answers.
    """

    def __init__(self, origins: Origins) -> None:
        """`origins`: those that are paused, as others know them too."""
        self.origins = origins
        self._forwarders: dict[tuple[str, int], Forwarder] = {}
        self._open: OrderedDict[_Key, tuple[_Opening, ObjectStore]] = OrderedDict()
        self._mutex = Lock()

    def store(self, uri: SourceUri, held: HeldCredential | None) -> ObjectStore:
        """The store behind a URI, opened with secret and options as they are now. Raises as `open_store` does.

        Raises:
            ArtifactError: ``address_not_allowed`` too.
        """
        endpoint = _plain_endpoint(held)
        if endpoint is not None:
            check_leads(*endpoint)
        key, opening = _key(uri, held), _opening(held)
        with self._mutex:
            found = self._open.get(key)
            if found is not None and found[0] == opening:
                self._open.move_to_end(key)
                return found[1]
        return self.reopened(uri, held)

    def reopened(self, uri: SourceUri, held: HeldCredential | None) -> ObjectStore:
        """The store behind a URI, instead of the one that was kept. Raises as `open_store` does."""
        key, opened = _key(uri, held), open_store(uri, held, proxy=self._proxy(_plain_endpoint(held)))
        with self._mutex:
            self._open[key] = (_opening(held), opened)
            self._open.move_to_end(key)
            if len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)
        return opened

    def close(self) -> None:
        """Lets go of all of them; their connections close when the last staging that uses them ends."""
        with self._mutex:
            self._open.clear()
            forwarders, self._forwarders = self._forwarders, {}
        for one in forwarders.values():
            one.close()

    def _proxy(self, endpoint: tuple[str, int] | None) -> str | None:
        """The way to an endpoint without TLS."""
        if endpoint is None:
            return None
        with self._mutex:
            if endpoint not in self._forwarders:
                self._forwarders[endpoint] = Forwarder(*endpoint, SourceLimits(), RANGE_BYTES)
            return self._forwarders[endpoint].url


def _plain_endpoint(held: HeldCredential | None) -> tuple[str, int] | None:
    """Host and port of an endpoint without TLS."""
    url = urlsplit((held.store.endpoint if held is not None else None) or "")
    return (url.hostname or "", url.port or 80) if url.scheme == "http" else None


def _opening(held: HeldCredential | None) -> _Opening:
    """Secret and options that a store is opened with."""
    return (held.secret(), held.store) if held is not None else (None, StoreOptions())


def _key(uri: SourceUri, held: HeldCredential | None) -> _Key:
    """One credential has one secret at a time, so that a new one takes the place of the old."""
    return uri.scheme, uri.authority, held.name if held is not None else None


@dataclass(frozen=True, slots=True)
class ObjectSource(Source):
    """A prefix in a bucket."""

    stores: Stores
    uri: SourceUri
    held: HeldCredential | None
    range_bytes: int = RANGE_BYTES

    def fetch(self, receive: Receive, stop: Stop) -> None:
        """See `Source.fetch`."""
        bucket = _Bucket(self.stores, self.uri, self.held, stop)
        for name in FILES:
            key = "/".join((*self.uri.path, name))
            try:
                retries_from_start(stop)(_receive, bucket, key, name, receive, self.range_bytes)
            except ArtifactError as error:
                place = bucket.shown("/".join(self.uri.path))
                raise explained(error, name, place, partial(self._has, bucket)) from None

    def is_gone(self, stop: Stop) -> bool:
        """See `Source.is_gone`. Who may not list a bucket is refused, rather than told that an object is not there."""
        bucket = _Bucket(self.stores, self.uri, self.held, stop)
        return not all(self._has(bucket, name) for name in FILES)

    def _has(self, bucket: _Bucket, name: str) -> bool:
        return _version(bucket, "/".join((*self.uri.path, name))) != "missing"

    def signature(self, stop: Stop) -> bytes | None:
        """See `Source.signature`."""
        bucket = _Bucket(self.stores, self.uri, self.held, stop)
        try:
            return bucket.read("/".join((*self.uri.path, SIGNATURE_FILE)), 0, BUNDLE_BYTES, None).content
        except ArtifactError as error:
            if error.reason != "source_missing":
                raise
            return None

    def version(self, stop: Stop) -> str:
        """See `Source.version`."""
        bucket = _Bucket(self.stores, self.uri, self.held, stop)
        return joined_versions([_version(bucket, "/".join((*self.uri.path, name))) for name in FILES])


def _version(bucket: _Bucket, key: str) -> str:
    """Version of an object, as its store says; empty: it does not say. Raises ArtifactError: it cannot be asked."""
    try:
        found = bucket.read(key, 0, 1, None)
    except ArtifactError as error:
        if error.reason != "source_missing":
            raise
        return "missing"
    return f"{found.tag} {found.size_bytes}" if found.tag else ""


def object_source(stores: Stores, uri: SourceUri, held: HeldCredential | None) -> ObjectSource:
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

    def __init__(self, stores: Stores, uri: SourceUri, held: HeldCredential | None, stop: Stop) -> None:
        self._stores = stores
        self._uri = uri
        self._held = held
        self._stop = stop
        self._visits = OriginVisits(stores.origins)
        self._store = stores.store(uri, held)

    def read(self, key: str, start: int, end: int, tag: str | None) -> _Range:
        """Bytes from `start` to before `end`, of the version with that tag. Raises ArtifactError: there are none."""
        self._stop.check()
        try:
            return retries(self._stop)(self._visit, key, start, end, tag)
        except (PermissionDeniedError, UnauthenticatedError):
            if self._held is None or not self._held.renew():
                raise denied(f"{self.shown(key)} may not be read") from None
        self._store = self._stores.reopened(self._uri, self._held)
        try:
            return retries(self._stop)(self._visit, key, start, end, tag)
        except (PermissionDeniedError, UnauthenticatedError):
            raise denied(f"{self.shown(key)} may not be read, not with a new secret either") from None

    def _visit(self, key: str, start: int, end: int, tag: str | None) -> _Range:
        endpoint = self._held.store.endpoint if self._held is not None else None
        with self._visits.visiting(endpoint or f"{self._uri.scheme}://{self._uri.authority}"):
            return self._get(key, start, end, tag)

    def _get(self, key: str, start: int, end: int, tag: str | None) -> _Range:
        options: GetOptions = {"range": (start, end)}
        if tag is not None:
            options["if_match"] = tag
        try:
            result = obstore.get(self._store, key, options=options)
            return _Range(self._bytes(result, key), result.meta["size"], result.meta["e_tag"])
        except (PermissionDeniedError, UnauthenticatedError):
            raise
        except FileNotFoundError:  # as the client says it
            message = f"{self.shown(key)} is not there; it is tried again"
            raise ArtifactError("source_missing", message) from None
        except PreconditionError:
            message = f"{self.shown(key)} changed while it was read; it is tried again"
            raise StartOver("source_changed", message) from None
        except (BaseError, OSError):
            remedy = "look at the store's endpoint in the file of --credentials if it stays so; it is tried again"
            raise Passing("source_io", f"{self.shown(key)} cannot be read; {remedy}") from None

    def _bytes(self, result: GetResult, key: str) -> bytes:
        """The bytes of the range that was announced, of which no more are kept."""
        (start, end), chunks, got_bytes = result.range, [], 0
        for chunk in result.stream(CHUNK_BYTES):
            self._stop.check()
            chunks.append(chunk)
            got_bytes += len(chunk)
            if got_bytes > end - start:
                break
        if got_bytes != end - start:
            message = f"of {self.shown(key)} came another number of bytes than was announced; it is tried again"
            raise Passing("source_incomplete", message)
        return b"".join(chunks)

    def shown(self, key: str) -> str:
        return f"{self._uri.scheme}://{self._uri.authority}/{key}"


def _receive(bucket: _Bucket, key: str, name: str, receive: Receive, range_bytes: int) -> None:
    first = bucket.read(key, 0, range_bytes, None)
    receive(name, first.size_bytes, _content(bucket, key, first, range_bytes))


def _content(bucket: _Bucket, key: str, first: _Range, range_bytes: int) -> Iterator[bytes]:
    part, got_bytes = first, 0
    while True:
        got_bytes += len(part.content)
        if (part.size_bytes, part.tag) != (first.size_bytes, first.tag) or not part.content:
            raise StartOver("source_changed", "an object changed while it was read; it is tried again")
        yield part.content
        if got_bytes == first.size_bytes:
            return
        part = bucket.read(key, got_bytes, got_bytes + range_bytes, first.tag)
