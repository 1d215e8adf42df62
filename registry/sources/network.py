"""Connections that go only where they may, and that give up on a source which keeps them waiting.

A name is resolved once, its addresses are judged, and the connection is made to an address that was judged: nobody
resolves the name a second time, so a name server that answers differently then gains nothing. TLS and the Host header
still carry the name, so certificates are checked as ever. No proxy is used and no environment variable but
SSL_CERT_FILE and SSL_CERT_DIR is read.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any

import httpcore

from registry.sources.addresses import Reach, is_literal
from registry.sources.errors import ArtifactError
from registry.sources.limits import Limits
from registry.sources.stop import Stop

MAX_ADDRESSES = 4


class Connections:
    """The connections of one staging, kept open from one file to the next. Close it at the end."""

    def __init__(self, tls: Callable[[], ssl.SSLContext], limits: Limits, stop: Stop) -> None:
        self._tls = tls
        self._limits = limits
        self._stop = stop
        self._pools: dict[tuple[Reach, bool], httpcore.ConnectionPool] = {}

    def get(self, url: str, reach: Reach, headers: Iterable[tuple[str, str]]) -> httpcore.Response:
        """Sends a GET; the answer's body has not been read yet.

        Raises:
            ArtifactError: ``address_not_allowed``, or the staging was stopped.
            httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError: it failed.
        """
        is_secure = url.startswith("https:")
        pool = self._pools.get((reach, is_secure))
        if pool is None:
            pool = self._pools[reach, is_secure] = httpcore.ConnectionPool(
                ssl_context=self._tls() if is_secure else None,
                network_backend=_Backend(reach, self._limits, self._stop),
            )
        fields = [(name.encode(), value.encode()) for name, value in headers]
        return pool.handle_request(
            httpcore.Request("GET", url, headers=fields, extensions={"timeout": self._limits.timeouts()})
        )

    def close(self) -> None:
        """Closes all connections."""
        for pool in self._pools.values():
            pool.close()


class _Backend(httpcore.SyncBackend):
    """Resolves, judges, and connects to what was judged."""

    def __init__(self, reach: Reach, limits: Limits, stop: Stop) -> None:
        self._reach = reach
        self._limits = limits
        self._stop = stop

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        failure: Exception | None = None
        for address in self._addresses(host, port):
            self._stop.check()
            try:
                stream = super().connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
            else:
                return _Watched(stream, self._limits, self._stop)
        raise failure or httpcore.ConnectError("the name has no address")

    def _addresses(self, host: str, port: int) -> list[str]:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise httpcore.ConnectError("the name cannot be resolved") from error
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        allowed = [address for address in addresses if self._reach.allows(address)]
        if addresses and not allowed:
            raise _not_allowed(host, addresses[0])
        return allowed[:MAX_ADDRESSES]


class _Watched(httpcore.NetworkStream):
    """A connection that ends when the staging is stopped, or when its other end is too slow."""

    def __init__(self, stream: httpcore.NetworkStream, limits: Limits, stop: Stop) -> None:
        self._stream = stream
        self._limits = limits
        self._stop = stop
        self._waited_seconds = 0.0
        self._got_bytes = 0

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        self._stop.check()
        started = perf_counter()
        content = self._stream.read(max_bytes, timeout)
        self._waited_seconds += perf_counter() - started
        self._got_bytes += len(content)
        if self._waited_seconds >= self._limits.pace_seconds:
            self._check_pace()
        return content

    def _check_pace(self) -> None:
        """Counts only the time in which we waited, so that a slow disk of ours is no fault of the source."""
        if self._got_bytes < self._waited_seconds * self._limits.min_bytes_per_second:
            raise httpcore.ReadTimeout("the source is too slow")
        self._waited_seconds, self._got_bytes = 0.0, 0

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, timeout)

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Watched(self._stream.start_tls(ssl_context, server_hostname, timeout), self._limits, self._stop)

    def get_extra_info(self, info: str) -> Any:  # noqa: ANN401 - as httpcore has it
        return self._stream.get_extra_info(info)


def _not_allowed(host: str, address: str) -> ArtifactError:
    """A name may lead elsewhere tomorrow, an address never does."""
    message = (
        f"{host[:200]} leads to {address}, which is not a public address; "
        "--allow-source must name a host of one's own network itself"
    )
    return ArtifactError("address_not_allowed", message, permanent=is_literal(host))
