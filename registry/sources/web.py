"""Adapters on a web server or on a hub: two files of a directory, or one archive."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property

import httpx

from registry.lora.manifest import FILES
from registry.model.source_uri import SourcePrefix, SourceUri
from registry.sources.archive import receive_archive
from registry.sources.connections import Connections, Requests
from registry.sources.credentials import Held
from registry.sources.download import Download, receive_file
from registry.sources.failures import no_authorities, retries_from_start
from registry.sources.getter import Getter
from registry.sources.limits import Limits
from registry.sources.source import Receive
from registry.sources.stop import Stop
from registry.sources.urls import WebUrl, parse_url

GZIPPED = (".tar.gz", ".tgz")


class Web:
    """How this host goes to web servers. Close it at the end."""

    def __init__(self, limits: Limits) -> None:
        self.connections = Connections(lambda: self.tls, limits)

    def close(self) -> None:
        """Closes the connections that no staging has."""
        self.connections.close()

    @cached_property
    def tls(self) -> ssl.SSLContext:
        """The authorities that are trusted; read when they are first needed, for it takes a while.

        Raises:
            ArtifactError: ``source_untrusted``: they cannot be read.
        """
        try:
            context = httpx.create_ssl_context()
        except OSError as error:
            raise no_authorities(error) from None
        context.set_alpn_protocols(["http/1.1"])
        return context


@dataclass(frozen=True, slots=True)
class WebSource:
    """What a URL names.

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
    held: Held | None
    may_see: tuple[SourcePrefix, ...]

    def fetch(self, receive: Receive, stop: Stop) -> None:
        """See `Source.fetch`."""
        with _getter(self.web, stop, self.named, self.held, self.may_see) as getter:
            if self.is_directory:
                for name in FILES:
                    receive_file(getter, parse_url(f"{self.url}{name}"), name, receive, stop)
            else:
                retries_from_start(stop)(self._unpack, getter, receive, stop)

    def _unpack(self, getter: Getter, receive: Receive, stop: Stop) -> None:
        _, chunks = Download(getter, self.url, stop).content()
        receive_archive(chunks, receive, is_gzipped=self.url.target.endswith(GZIPPED))


def web_source(web: Web, uri: SourceUri, named: Sequence[SourcePrefix], held: Held | None) -> WebSource:
    """The source at an http(s):// URI."""
    path = "".join(f"/{name}" for name in uri.path) + ("/" if uri.is_directory else "")
    url = parse_url(f"{uri.scheme}://{uri.authority}{path}")
    return WebSource(web, url, uri.is_directory, tuple(named), held, held.prefixes if held else ())


def hub_source(web: Web, hub: WebUrl, uri: SourceUri, named: Sequence[SourcePrefix], held: Held | None) -> WebSource:
    """The source at an hf:// URI. The hub's own address was configured, so it may be anywhere."""
    repository, *folders = uri.path
    below = "".join(f"{name}/" for name in folders)
    url = parse_url(f"{hub.place}{hub.target.rstrip('/')}/{uri.authority}/{repository}/resolve/{uri.commit}/{below}")
    itself = hub_prefix(hub)
    return WebSource(web, url, True, (*named, itself), held, (itself,))  # noqa: FBT003 - a directory


def hub_prefix(hub: WebUrl) -> SourcePrefix:
    """All that is on the hub."""
    return SourcePrefix("https" if hub.scheme == "https" else "http", hub.authority, ())


@contextmanager
def _getter(
    web: Web, stop: Stop, named: Sequence[SourcePrefix], held: Held | None, may_see: Sequence[SourcePrefix]
) -> Iterator[Getter]:
    with closing(Requests(web.connections, stop)) as requests:
        yield Getter(requests, named, held, may_see)
