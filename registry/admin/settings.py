"""What the admin service is told at its start, checked once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from registry.etcd3.errors import Unauthenticated
from registry.etcd3.options import ClientOptions, TlsFiles
from registry.keys import DEFAULT_PREFIX


class Address(BaseModel):
    """A host and a port to listen on."""

    model_config = ConfigDict(frozen=True)

    host: str
    port: Annotated[int, Field(ge=0, le=65535)]


class Settings(BaseModel):
    """Everything the admin service needs to know; flags and environment variables carry the same names.

    Raises (on construction):
        pydantic.ValidationError: a value is not of the form that its field asks for.
    """

    model_config = ConfigDict(frozen=True)

    etcd: Annotated[tuple[str, ...], Field(min_length=1)]
    listen: Address
    http: Address
    prefix: str = DEFAULT_PREFIX
    max_txn_ops: Annotated[int, Field(ge=8, le=100_000)] = 128
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    etcd_user: str | None = None
    etcd_password_file: Path | None = None
    etcd_tls_ca: Path | None = None
    etcd_tls_cert: Path | None = None
    etcd_tls_key: Path | None = None

    @field_validator("prefix")
    @classmethod
    def _prefix(cls, value: str) -> str:
        if not value.startswith("/") or value.endswith("/"):
            raise ValueError("a prefix starts with / and does not end with it, such as /loraplane/v1")
        return value

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        _together("--tls-cert", self.tls_cert, "--tls-key", self.tls_key)
        _together("--etcd-tls-cert", self.etcd_tls_cert, "--etcd-tls-key", self.etcd_tls_key)
        _together("--etcd-user", self.etcd_user, "--etcd-password-file", self.etcd_password_file)
        if self.tls_ca and not self.tls_cert:
            raise ValueError("--tls-ca checks clients' certificates, so it needs --tls-cert and --tls-key as well")
        return self

    def client_options(self) -> ClientOptions:
        """How to reach etcd. The password is read from its file at each login."""
        tls = None
        if self.etcd_tls_ca or self.etcd_tls_cert:
            tls = TlsFiles(ca=self.etcd_tls_ca, certificate=self.etcd_tls_cert, key=self.etcd_tls_key)
        return ClientOptions(self.etcd, tls=tls, user=self.etcd_user, password=self._password())

    def _password(self) -> Callable[[], str] | None:
        file = self.etcd_password_file
        return (lambda: _read_password(file)) if file else None


def _read_password(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError as error:
        raise Unauthenticated(f"cannot read {file}: {error.strerror}") from error


def _together(one: str, value: object, other: str, other_value: object) -> None:
    if (value is None) != (other_value is None):
        raise ValueError(f"{one} and {other} go together; give both")


def parse_address(value: str, *, flag: str) -> Address:
    """HOST:PORT; brackets around an IPv6 address are taken off.

    Raises:
        ValueError: it is not of that form.
    """
    host, colon, port = value.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{flag}: {value!r} is not HOST:PORT")
    return Address(host=host.strip("[]"), port=int(port))
