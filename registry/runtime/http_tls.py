"""TLS of an HTTP port, whose files may be replaced while it serves.

Clients may show a certificate, and need not. A connection has its place from the moment it is made, and a time for its
handshake: who connects and says nothing is nobody else's trouble here either. The files are looked at for each
handshake, so that rotating them needs no restart.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import structlog

from registry.etcd3.options import TlsFiles
from registry.etcd3.tls import Pem, TlsReader

HANDSHAKE_SECONDS = 10
_SHUTDOWN_SECONDS = 5
# Of what a peer sends, so much is read at a time.
READ_BYTES = 2048
_log = structlog.get_logger()


class HttpTls:
    """Contexts of the handshakes of one port.

    Args:
        files: certificate and key of the port; with an authority, clients may show a certificate of it.

    Raises (on construction):
        TlsUnusable: they cannot be used.
    """

    def __init__(self, files: TlsFiles) -> None:
        self._reader = TlsReader(
            files, lambda error: _log.warning("certificate_unreadable", file=str(error.file), reason=str(error))
        )
        self._pem = self._reader.newest()
        self._newest = _context_of(self._pem)

    def context(self) -> ssl.SSLContext:
        """One for a single connection, with which what OpenSSL keeps of its session goes.

        A session that is taken up again would show a certificate whose authority may have been taken away.
        """
        made = _bare_context()
        made.verify_mode = self._newest.verify_mode
        made.sni_callback = self._renew
        return made

    def _renew(self, handshake: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """Takes what the files hold now; OpenSSL asks at each handshake, also of a client that names no host."""
        pem = self._reader.newest()
        if pem != self._pem:
            self._newest, self._pem = _context_of(pem), pem
        handshake.context = self._newest


def _bare_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_TICKET  # of TLS 1.2; those of 1.3 have a number
    context.num_tickets = 0
    return context


def _context_of(pem: Pem) -> ssl.SSLContext:
    context = _bare_context()
    _with_file((pem.certificate or b"") + b"\n" + (pem.key or b""), context.load_cert_chain)
    if pem.ca is not None:
        _with_file(pem.ca, context.load_verify_locations)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def _with_file(content: bytes, load: Callable[[Path], None]) -> None:
    """Loads from memory what OpenSSL reads of files alone; so nobody replaces it in between."""
    descriptor = os.memfd_create("loraplane-tls", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(content)
        load(Path(f"/proc/self/fd/{descriptor}"))
    finally:
        os.close(descriptor)


def shown_certificate(transport: asyncio.BaseTransport) -> dict[object, Any] | None:
    """The verified certificate that a client showed, as `ssl` tells it, with ``pem`` for the whole; None: none."""
    told = transport.get_extra_info("peercert")
    if not told:
        return None
    whole = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
    return {**told, "pem": ssl.DER_cert_to_PEM_cert(whole)}


class PlacedProtocol(Protocol):
    """Protocol of a connection that takes its place before anything is said."""

    def take_place(self, transport: asyncio.Transport) -> bool: ...
    def lose_place(self, error: BaseException | None) -> None: ...


class TlsConnection(SSLProtocol):
    """A connection over TLS, whose place is that of the protocol inside."""

    max_size = READ_BYTES

    def __init__(self, inner: Any, tls: HttpTls) -> None:  # noqa: ANN401 - uvicorn's, and `PlacedProtocol`
        self._inner: PlacedProtocol = inner
        super().__init__(
            asyncio.get_running_loop(),
            inner,
            tls.context(),
            None,  # type: ignore[arg-type] # nobody waits: the protocol inside is told
            server_side=True,
            ssl_handshake_timeout=HANDSHAKE_SECONDS,
            ssl_shutdown_timeout=_SHUTDOWN_SECONDS,
        )

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as asyncio has it
        """Begins the handshake, if there is a place."""
        if self._inner.take_place(transport):
            super().connection_made(transport)
        else:
            transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Gives the place back, also of a connection that never came to speak."""
        self._inner.lose_place(exc)
        super().connection_lost(exc)
