"""The certificate of our own port, read again for each handshake, so that rotating it needs no restart."""

from __future__ import annotations

from pathlib import Path

import grpc
import structlog

_log = structlog.get_logger()


def server_credentials(ca: Path | None, cert: Path, key: Path) -> grpc.ServerCredentials:
    """With an authority given, clients must show a certificate of it.

    Raises:
        OSError: a file cannot be read.
    """

    last = _read(ca, cert, key)

    def newest() -> grpc.ServerCertificateConfiguration:
        nonlocal last
        try:
            last = _read(ca, cert, key)
        except OSError as error:
            # The one that was read last goes on serving.
            _log.warning("certificate_unreadable", file=str(error.filename), reason=error.strerror)
        return last

    return grpc.dynamic_ssl_server_credentials(
        _read(ca, cert, key), newest, require_client_authentication=ca is not None
    )


def _read(ca: Path | None, cert: Path, key: Path) -> grpc.ServerCertificateConfiguration:
    roots = ca.read_bytes() if ca else None
    chain = cert.read_bytes()
    return grpc.ssl_server_certificate_configuration([(key.read_bytes(), chain)], root_certificates=roots)
