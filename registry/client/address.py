"""Addresses and certificates of the admin service, checked without a connection."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from registry.etcd3.options import TlsFiles
from registry.model.errors import InvalidArgument, Reason

_ADDRESS = re.compile(r"[^/\s]+:[0-9]{1,5}")
# Ways to name a server that gRPC knows besides.
RESOLVED = ("dns:", "unix:", "ipv4:", "ipv6:", "xds:")


def check_address(address: str) -> None:
    """Refuses at once what gRPC would look for until the time is up.

    Raises:
        InvalidArgument: it is not HOST:PORT.
    """
    if not _ADDRESS.fullmatch(address) and not address.startswith(RESOLVED):
        message = f"{address!r} is not HOST:PORT, such as 127.0.0.1:7600"
        raise InvalidArgument(Reason.INVALID_FIELD, message, field="address")


def is_of_this_host(address: str) -> bool:
    """True where what is sent to an address does not leave the host, so that nobody else reads it."""
    if address.startswith("unix:"):
        return True
    host = re.sub(r"^(?:dns|ipv4|ipv6):/*", "", address).rpartition(":")[0].strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


Named = str | os.PathLike[str] | None


@dataclass(frozen=True, slots=True, init=False)
class Tls:
    """Files in PEM for a connection with TLS.

    Attributes:
        ca: authorities that the service's certificate is checked with; None: the system's.
        cert: our certificate, where the service asks for one; None: none.
        key: its private key; given if and only if `cert` is.
    """

    ca: Path | None
    cert: Path | None
    key: Path | None

    def __init__(self, ca: Named = None, cert: Named = None, key: Named = None) -> None:
        for name, file in (("ca", ca), ("cert", cert), ("key", key)):
            object.__setattr__(self, name, Path(file) if file else None)

    def __bool__(self) -> bool:
        return any((self.ca, self.cert, self.key))

    def files(self) -> TlsFiles:
        """The files, which nobody has looked at yet.

        Raises:
            InvalidArgument: a certificate is without its key.
        """
        if bool(self.cert) != bool(self.key):
            message = "a certificate and its key belong together; give both"
            raise InvalidArgument(Reason.INVALID_FIELD, message, field="tls")
        return TlsFiles(self.ca, self.cert, self.key)
