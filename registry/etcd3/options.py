"""Options for reaching an etcd cluster. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

# Of gRPC, for whoever has a call on its connection. A host that loses its power closes nothing.
KEEPALIVE = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),  # the one that is enforced
)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. They are read again for each new connection, so that rotating them needs no restart; while they
    cannot be read, or do not fit each other, what fitted last is used.

    `ca` None means the roots that gRPC brings along; `certificate` and `key` are given both or not at all.
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("a client certificate needs its key, and a key its certificate")


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Addresses of etcd and the credentials for it.

    Args:
        endpoints: ``host:port`` of each member.
        tls: None speaks plain text.
        user: None sends no login.
        password: asked at each login, so that a rotated password is found; never shown.
        call_timeout_seconds: for a call as a whole, repetitions included.
    """

    endpoints: tuple[str, ...]
    tls: TlsFiles | None = None
    user: str | None = None
    password: Callable[[], str] | None = field(default=None, repr=False)
    call_timeout_seconds: float = 5.0

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise ValueError("at least one endpoint is needed")
        if (self.user is None) != (self.password is None):
            raise ValueError("a user needs a password, and a password its user")
