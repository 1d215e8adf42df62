"""How clients of the admin API connect: addresses, certificates, and gRPC's settings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import grpc
from google.protobuf.message import Message

from registry.errors import InvalidArgument, Reason

SERVICE = "/registry.v1.AdapterRegistry"
# One try may not use up the whole time: a connection may hang that another would not.
TRY_SECONDS = 10.0
_MAX_MESSAGE_BYTES = 64 * 1024 * 1024
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
    # A proxy from the environment would be asked for 127.0.0.1.
    ("grpc.enable_http_proxy", 0),
)


_ADDRESS = re.compile(r"[^/\s]+:[0-9]{1,5}")
# Ways to name a server that gRPC knows besides.
_RESOLVED = ("dns:", "unix:", "ipv4:", "ipv6:", "xds:")


def check_address(address: str) -> None:
    """Refuses at once what gRPC would look for until the time is up.

    Raises:
        InvalidArgument: it is not HOST:PORT.
    """
    if not _ADDRESS.fullmatch(address) and not address.startswith(_RESOLVED):
        message = f"{address!r} is not HOST:PORT, such as 127.0.0.1:7600"
        raise InvalidArgument(Reason.INVALID_FIELD, message, field="address")


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files. `ca` None: the system's; `cert` and `key` belong together."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def __bool__(self) -> bool:
        return any((self.ca, self.cert, self.key))

    def credentials(self) -> grpc.ChannelCredentials:
        """What a secured channel is opened with.

        Raises:
            InvalidArgument: a certificate is without its key, or a file cannot be read.
        """
        if bool(self.cert) != bool(self.key):
            message = "a certificate and its key belong together; give both"
            raise InvalidArgument(Reason.INVALID_FIELD, message, field="tls")
        return grpc.ssl_channel_credentials(_pem(self.ca), _pem(self.key), _pem(self.cert))


def serialized(message: Message) -> bytes:
    """A request as bytes."""
    return message.SerializeToString()


def _pem(file: Path | None) -> bytes | None:
    try:
        return file.read_bytes() if file else None
    except OSError as error:
        message = f"cannot read {file}: {error.strerror}"
        raise InvalidArgument(Reason.INVALID_FIELD, message, field="tls") from error
