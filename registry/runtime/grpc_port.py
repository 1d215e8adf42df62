"""A gRPC port of a long-running process, with TLS or without.

The certificate is read again for each handshake, so that rotating it needs no restart. gRPC is given it only once it
has changed: it replaces what other handshakes are using at that moment, and may end by that (ssl_security_connector.cc,
1.85). Between two replacements sessions are taken up again, see `Shown.check_resumed`.
"""

from __future__ import annotations

import grpc
import structlog

from registry.etcd3.options import TlsFiles
from registry.etcd3.tls import Pem, TlsReader, TlsUnusable
from registry.runtime.http import CannotListen, listen_as_told
from registry.runtime.settings import Address

_log = structlog.get_logger()


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """With an authority given, clients must show a certificate of it.

    Raises:
        TlsUnusable: the files cannot be read, or do not fit each other.
    """
    reader = TlsReader(
        files, lambda error: _log.warning("certificate_unreadable", file=str(error.file), reason=str(error))
    )
    taken = reader.newest()

    def replacement() -> grpc.ServerCertificateConfiguration | None:
        nonlocal taken
        before, taken = taken, reader.newest()
        return _configuration(taken) if taken != before else None

    must_show = files.ca is not None
    return grpc.dynamic_ssl_server_credentials(
        _configuration(taken),
        replacement,  # type: ignore[arg-type] # None: none, which its types lack
        require_client_authentication=must_show,
    )


def _configuration(pem: Pem) -> grpc.ServerCertificateConfiguration:
    pair = (pem.key or b"", pem.certificate or b"")  # both are there: the settings see to it
    return grpc.ssl_server_certificate_configuration([pair], root_certificates=pem.ca)


def bind_port(server: grpc.aio.Server, flag: str, address: Address, files: TlsFiles | None) -> int:
    """Binds the port that a flag names; returns its number. Raises CannotListen."""
    try:
        if files is None:
            return server.add_insecure_port(str(address))
        return server.add_secure_port(str(address), server_credentials(files))
    except RuntimeError as error:
        listen_as_told(flag, address).close()  # says why, which gRPC does not
        raise CannotListen(f"{flag} {address}: {error}") from error
    except TlsUnusable as error:
        flags = {files and files.ca: "--tls-ca", files and files.certificate: "--tls-cert"}
        raise CannotListen(f"{flags.get(error.file, '--tls-key')}: {error}") from error
