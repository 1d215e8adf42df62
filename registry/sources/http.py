"""Adapters on a web server or a hub: two files of a directory, or one archive.

Redirects are judged, credentials bound, files that broke off resumed.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import httpx

from registry.lora.digest import FILES
from registry.lora.signing.statement import SIGNATURE_FILE
from registry.model.source_uri import SourcePrefix, SourceUri
from registry.sources.archive import bundle_in_archive, receive_archive
from registry.sources.base import (
    ArtifactError,
    Receive,
    Source,
    SourceLimits,
    Stop,
    TrustedAuthorities,
    beginning,
    explained,
    joined_versions,
)
from registry.sources.connections import ConnectionPool, SourceRequests
from registry.sources.credentials import HeldCredential
from registry.sources.failures import (
    MISSING_STATUSES,
    Passing,
    StartOver,
    no_authorities,
    retries,
    retries_from_start,
    status_error,
)
from registry.sources.getter import Getter, Headers, SourceResponse
from registry.sources.origins import Origins, OriginVisits
from registry.sources.urls import WebUrl, parse_url

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


def receive_file(getter: Getter, url: WebUrl, name: str, receive: Receive, stop: Stop) -> None:
    """Hands over one file, from its start again where it cannot be continued.

    Raises:
        ArtifactError: it cannot be had.
    """

    def once() -> None:
        size_bytes, chunks = Download(getter, url, stop).content()
        receive(name, size_bytes, chunks)

    retries_from_start(stop)(once)


class Download:
    """Content of a URL, once."""

    def __init__(self, getter: Getter, url: WebUrl, stop: Stop) -> None:
        self._getter = getter
        self._url = url
        self._stop = stop

    def content(self) -> tuple[int, Iterator[bytes]]:
        """Its size in bytes and its content; the connection is made here, and again where it breaks.

        Raises:
            ArtifactError: here, or from the iterator.
        """
        answer = retries(self._stop)(self._first)
        transfer = _Transfer(self._getter, self._url, answer, _length(answer))
        return transfer.size_bytes, transfer.chunks(self._stop)

    def _first(self) -> SourceResponse:
        answer = self._getter.get(self._url)
        if answer.status != 200:
            answer.close()
            raise status_error(answer.status, answer.url.place, self._url.name)
        return answer


class _Transfer:
    """A body as it arrives, in one part or, where it breaks off, in several."""

    def __init__(self, getter: Getter, url: WebUrl, first: SourceResponse, size_bytes: int) -> None:
        self._getter = getter
        self._url = url
        self._first = first
        self._got_bytes = 0
        self._failure: Passing | None = None
        self.size_bytes = size_bytes

    def chunks(self, stop: Stop) -> Iterator[bytes]:
        """The content, exactly as long as it was said to be. Raises ArtifactError: it did not arrive."""
        for attempt in retries(stop):
            with attempt:
                yield from self._part()

    def _part(self) -> Iterator[bytes]:
        answer = self._first if self._failure is None else self._rest(self._failure)
        try:
            for chunk in answer.chunks():
                self._got_bytes += len(chunk)
                self._check_not_longer(answer)
                yield chunk
        except Passing as error:
            self._failure = error
            raise

    def _check_not_longer(self, answer: SourceResponse) -> None:
        if self._got_bytes > self.size_bytes:
            raise StartOver("source_changed", f"{answer.url.place} sends more than it said; it is tried again")

    def _rest(self, failure: Passing) -> SourceResponse:
        """The answer that goes on after what was got."""
        tag = self._first.header("etag")
        if not tag.startswith('"'):  # none, or a weak one, which says little of bytes
            raise StartOver(failure.reason, failure.message)
        answer = self._getter.get(self._url, (("Range", f"bytes={self._got_bytes}-"), ("If-Range", tag)))
        if answer.status == 206 and self._goes_on(answer, tag):
            return answer
        answer.close()
        if answer.status in {200, 206, 416}:
            raise StartOver(failure.reason, failure.message)
        raise status_error(answer.status, answer.url.place)

    def _goes_on(self, answer: SourceResponse, tag: str) -> bool:
        """True if the answer is of the same file, and begins where the last one ended."""
        found = _CONTENT_RANGE.fullmatch(answer.header("content-range"))
        expected = (str(self._got_bytes), str(self.size_bytes - 1), str(self.size_bytes))
        left_bytes = str(self.size_bytes - self._got_bytes)
        is_said = found is not None and found.groups() == expected and answer.header("content-length") == left_bytes
        return is_said and answer.header("etag") in {"", tag}


def _length(answer: SourceResponse) -> int:
    """Length that the server promises; without a promise nothing could be said of a body that ends or never ends."""
    place = answer.url.place
    if answer.header("content-encoding").lower() not in {"", "identity"}:
        raise _unusable(f"{place} sends it compressed, though that was not asked for")
    if answer.header("content-type").lower().startswith("text/html"):
        message = f"{place} sends a page of HTML, expected a file; perhaps it wants a login. It is tried again"
        raise ArtifactError("source_is_html", message)
    length = answer.header("content-length")
    if not length.isascii() or not length.isdigit() or len(length) > 18:
        raise _unusable(f"{place} does not say how long it is (Content-Length)")
    return int(length)


def _unusable(found: str) -> ArtifactError:
    message = f"{found}; serve the file as it is, statically. It is tried again"
    return ArtifactError("source_io", message)


# A HEAD request would say the same, but an address that was signed for a GET takes none.
_BEGINNING: Headers = (("Range", "bytes=0-0"),)
_THERE = frozenset({200, 206})


def _looked_at(getter: Getter, url: WebUrl) -> SourceResponse:
    """Answer that tells of a file, which is not read. Raises ArtifactError: it tells nothing."""
    answer = getter.get(url, _BEGINNING)
    answer.close()
    if answer.status not in _THERE | MISSING_STATUSES:
        raise status_error(answer.status, url.place)
    return answer


def _version(getter: Getter, url: WebUrl) -> str:
    """Version of a file, as a server's headers say; empty: they do not say."""
    answer = _looked_at(getter, url)
    if answer.status in MISSING_STATUSES:
        return "missing"
    tag = answer.header("etag") or answer.header("last-modified")
    size = answer.header("content-range").rpartition("/")[2] or answer.header("content-length")
    return f"{tag} {size}" if tag else ""


# A hub answers so of a repository that it does not show to this credential, be it there or not.
_HIDDEN = "RepoNotFound"


def _is_gone(getter: Getter, url: WebUrl) -> bool:
    """True if a server says that a file is not there."""
    answer = _looked_at(getter, url)
    return answer.status in MISSING_STATUSES and answer.header("x-error-code") != _HIDDEN


GZIPPED = (".tar.gz", ".tgz")


class Web:
    """Connections of this host to web servers, and what is known of them. Close it at the end."""

    def __init__(self, limits: SourceLimits, origins: Origins | None = None) -> None:
        """`origins`: those that are paused, as others know them too; None: nobody else does."""
        self.origins = origins or Origins()
        self.connections = ConnectionPool(self._newest_tls, limits)

    def close(self) -> None:
        """Closes the connections that no staging has."""
        self.connections.close()

    def _newest_tls(self) -> ssl.SSLContext:
        return self.tls.newest()

    @cached_property
    def tls(self) -> TrustedAuthorities:
        """The authorities that are trusted; read when they are first needed, for it takes a while.

        Raises:
            ArtifactError: ``source_untrusted``: they cannot be read.
        """
        try:
            file = os.environ.get("SSL_CERT_FILE")  # without it, the authorities are those of a package
            return TrustedAuthorities(Path(file) if file else None, _make_context)
        except OSError as error:
            raise no_authorities(error) from None


def _make_context() -> ssl.SSLContext:
    context = httpx.create_ssl_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


@dataclass(frozen=True, slots=True)
class WebSource(Source):
    """File that a URL names.

    Attributes:
        web: how to get there.
        url: a directory, or an archive.
        is_directory: which of them.
        named: URLs that the operator allowed, which may lead into his own network.
        held: the credential of the record.
        may_see: URLs that the credential may be sent to.
    """

    web: Web
    url: WebUrl
    is_directory: bool
    named: tuple[SourcePrefix, ...]
    held: HeldCredential | None
    may_see: tuple[SourcePrefix, ...]

    def fetch(self, receive: Receive, stop: Stop) -> None:
        """See `Source.fetch`."""
        with self._getter(stop) as getter:
            if self.is_directory:
                for name in FILES:
                    self._receive(getter, name, receive, stop)
            else:
                retries_from_start(stop)(self._unpack, getter, receive, stop)

    def _receive(self, getter: Getter, name: str, receive: Receive, stop: Stop) -> None:
        try:
            receive_file(getter, parse_url(f"{self.url}{name}"), name, receive, stop)
        except ArtifactError as error:
            raise explained(error, name, self.url.place, partial(self._has, getter)) from None

    def _has(self, getter: Getter, name: str) -> bool:
        answer = getter.get(parse_url(f"{self.url}{name}"), _BEGINNING)
        answer.close()
        return answer.status in _THERE

    def signature(self, stop: Stop) -> bytes | None:
        """See `Source.signature`. An archive is read as far as it takes."""
        url = parse_url(f"{self.url}{SIGNATURE_FILE}") if self.is_directory else self.url
        with self._getter(stop) as getter:
            try:
                return retries_from_start(stop)(self._bundle_at, getter, url, stop)
            except ArtifactError as error:
                if error.reason != "source_missing" or not self.is_directory:
                    raise
                return None

    def _bundle_at(self, getter: Getter, url: WebUrl, stop: Stop) -> bytes | None:
        _, chunks = Download(getter, url, stop).content()
        if self.is_directory:
            return beginning(chunks)
        return bundle_in_archive(chunks, is_gzipped=self.url.target.endswith(GZIPPED))

    def version(self, stop: Stop) -> str:
        """See `Source.version`."""
        with self._getter(stop) as getter:
            return joined_versions([_version(getter, url) for url in self._urls])

    def is_gone(self, stop: Stop) -> bool:
        """See `Source.is_gone`."""
        with self._getter(stop) as getter:
            return any(_is_gone(getter, url) for url in self._urls)

    @contextmanager
    def _getter(self, stop: Stop) -> Iterator[Getter]:
        with closing(SourceRequests(self.web.connections, stop)) as requests:
            yield Getter(requests, self.named, self.held, self.may_see, OriginVisits(self.web.origins))

    @property
    def _urls(self) -> list[WebUrl]:
        return [parse_url(f"{self.url}{name}") for name in FILES] if self.is_directory else [self.url]

    def _unpack(self, getter: Getter, receive: Receive, stop: Stop) -> None:
        _, chunks = Download(getter, self.url, stop).content()
        receive_archive(chunks, receive, is_gzipped=self.url.target.endswith(GZIPPED))


def web_source(web: Web, uri: SourceUri, named: Sequence[SourcePrefix], held: HeldCredential | None) -> WebSource:
    """The source at an http(s):// URI."""
    path = "".join(f"/{name}" for name in uri.path) + ("/" if uri.is_directory else "")
    url = parse_url(f"{uri.scheme}://{uri.authority}{path}")
    return WebSource(web, url, uri.is_directory, tuple(named), held, held.prefixes if held else ())


def hub_source(
    web: Web, hub: WebUrl, uri: SourceUri, named: Sequence[SourcePrefix], held: HeldCredential | None
) -> WebSource:
    """The source at an hf:// URI. The hub's own address was configured, so it may be anywhere."""
    repository, *folders = uri.path
    below = "".join(f"{name}/" for name in folders)
    url = parse_url(f"{hub.place}{hub.target.rstrip('/')}/{uri.authority}/{repository}/resolve/{uri.commit}/{below}")
    itself = hub_prefix(hub)
    return WebSource(web, url, True, (*named, itself), held, (itself,))  # noqa: FBT003 - a directory


def hub_prefix(hub: WebUrl) -> SourcePrefix:
    """All that is on the hub."""
    return SourcePrefix(hub.scheme, hub.authority, ())
