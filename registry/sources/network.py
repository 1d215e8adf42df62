"""Connections that go only where they may, and that give up on a source which keeps them waiting.

A name is resolved once, its addresses are judged, and the connection is made to an address that was judged: nobody
resolves the name a second time, so a name server that answers differently then gains nothing. TLS and the Host header
still carry the name, so certificates are checked as ever. No proxy is used and no environment variable but
SSL_CERT_FILE and SSL_CERT_DIR is read.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from time import perf_counter
from typing import Any

import httpcore

from registry.sources.addresses import Reach, is_literal
from registry.sources.errors import ArtifactError
from registry.sources.limits import Limits
from registry.sources.stop import Stop

MAX_ADDRESSES = 4
_TCP = httpcore.SyncBackend()


class Watch:
    """How one staging waits for bytes, on whichever connection: until it is stopped, or the other end is too slow."""

    def __init__(self, limits: Limits, stop: Stop) -> None:
        self.limits = limits
        self.stop = stop
        self.has_answer = False  # a byte has come since somebody last set this to False
        self._waited_seconds = 0.0
        self._got_bytes = 0

    def read(self, read: Callable[[], bytes]) -> bytes:
        """What `read` waits for.

        Raises:
            ArtifactError: the staging was stopped.
            httpcore.ReadTimeout: too little has come in the time.
        """
        self.stop.check()
        started = perf_counter()
        content = read()
        self._waited_seconds += perf_counter() - started
        self._got_bytes += len(content)
        self.has_answer = self.has_answer or bool(content)
        if self._waited_seconds >= self.limits.pace_seconds:
            self._check_pace()
        return content

    def _check_pace(self) -> None:
        """Counts only the time in which we waited, so that a slow disk of ours is no fault of the source."""
        if self._got_bytes < self._waited_seconds * self.limits.min_bytes_per_second:
            raise httpcore.ReadTimeout("the source is too slow")
        self._waited_seconds, self._got_bytes = 0.0, 0


class WatchedStream(httpcore.NetworkStream):
    """The bytes of a connection, under the watch of the staging that has it at the moment."""

    def __init__(self, stream: httpcore.NetworkStream, watch: Watch) -> None:
        self._stream = stream
        self.watch = watch

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self.watch.read(lambda: self._stream.read(max_bytes, timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, timeout)

    def close(self) -> None:
        self._stream.close()

    def get_extra_info(self, info: str) -> Any:  # noqa: ANN401 - as httpcore has it
        return self._stream.get_extra_info(info)


def connect(origin: httpcore.Origin, reach: Reach, tls: ssl.SSLContext | None, watch: Watch) -> WatchedStream:
    """A new connection to an address that was judged for it, with TLS if that is given.

    Raises:
        ArtifactError: ``address_not_allowed``, or the staging was stopped.
        httpcore.ConnectError, httpcore.ConnectTimeout: it failed.
    """
    host, timeout = origin.host.decode("ascii"), watch.limits.connect_seconds
    stream = _connect_tcp(host, origin.port, reach, watch)
    if tls is not None:
        stream = stream.start_tls(tls, host, timeout)
    return WatchedStream(stream, watch)


def _connect_tcp(host: str, port: int, reach: Reach, watch: Watch) -> httpcore.NetworkStream:
    failure: Exception | None = None
    for address in _addresses(host, port, reach):
        watch.stop.check()
        try:
            return _TCP.connect_tcp(address, port, watch.limits.connect_seconds)
        except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
            failure = error
    raise failure or httpcore.ConnectError("the name has no address")


def _addresses(host: str, port: int, reach: Reach) -> list[str]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise httpcore.ConnectError("the name cannot be resolved") from error
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    allowed = [address for address in addresses if reach.allows(address)]
    if addresses and not allowed:
        raise _not_allowed(host, addresses[0])
    return allowed[:MAX_ADDRESSES]


def _not_allowed(host: str, address: str) -> ArtifactError:
    """A name may lead elsewhere tomorrow, an address never does."""
    message = (
        f"{host[:200]} leads to {address}, which is not a public address; "
        "--allow-source must name a host of one's own network itself"
    )
    return ArtifactError("address_not_allowed", message, permanent=is_literal(host))
