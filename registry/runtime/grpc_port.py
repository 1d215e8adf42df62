"""A gRPC port of a long-running process, with TLS or without.

The certificate is read again for each handshake, so that rotating it needs no restart.
"""

from __future__ import annotations

import grpc
import structlog

from registry.etcd3.options import TlsFiles
from registry.etcd3.tls import TlsReader, TlsUnusable
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

    def newest() -> grpc.ServerCertificateConfiguration:
        pem = reader.newest()
        pair = (pem.key or b"", pem.certificate or b"")  # both are there: the settings see to it
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=pem.ca)

    return grpc.dynamic_ssl_server_credentials(newest(), newest, require_client_authentication=files.ca is not None)


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
