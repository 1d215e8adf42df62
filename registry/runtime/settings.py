"""Settings that every daemon has, validated once at its start."""

from __future__ import annotations

import re
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from registry.etcd3.errors import EtcdUnauthenticated
from registry.etcd3.options import ClientOptions, TlsFiles
from registry.model.keys import DEFAULT_PREFIX
from registry.runtime.flags import Flag
from registry.runtime.local_files import MAX_SECRET_BYTES, read_followed

_HOST_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


class Address(BaseModel):
    """A host and a port to listen on."""

    model_config = ConfigDict(frozen=True)

    host: str
    port: Annotated[int, Field(ge=0, le=65535)]

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def _split_address(value: object) -> object:
    """HOST:PORT; brackets around an IPv6 address are taken off."""
    if not isinstance(value, str):
        return value
    host, _, port = value.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{value!r} is not HOST:PORT")
    return Address(host=host.strip("[]"), port=int(port))


def split_list(value: object) -> object:
    """``a,b,c`` as its parts, without empty ones; what is no text is left as it is."""
    return tuple(part for part in value.split(",") if part) if isinstance(value, str) else value


Listen = Annotated[Address, BeforeValidator(_split_address)]
List = Annotated[tuple[str, ...], BeforeValidator(split_list)]
OptionalFile = Path | None


class PortSettings(BaseModel):
    """Settings of a process with an HTTP port. A field is a flag and an environment variable of its name (`flags`).

    Raises (on construction):
        pydantic.ValidationError: a value is not of the form that its field asks for.
    """

    model_config = ConfigDict(frozen=True)

    http_names: Annotated[List, Flag("NAME[,…]", "More names by which clients reach --http, such as a proxy's")] = ()
    http_tls_ca: Annotated[
        OptionalFile, Flag("FILE", "PEM file of the authority behind certificates that clients of --http may show")
    ] = None
    http_tls_cert: Annotated[OptionalFile, Flag("FILE", "PEM file of the certificate of --http, for TLS there")] = None
    http_tls_key: Annotated[OptionalFile, Flag("FILE", "PEM file of its key")] = None
    insecure: Annotated[bool, Flag("", "Allow unprotected connections; by default they are refused", switch=True)] = (
        False
    )

    @field_validator("http_names")
    @classmethod
    def _http_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not _HOST_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no host name: leave scheme, port and path out, such as lora.example.com")
        return value

    @model_validator(mode="after")
    def _fits(self) -> Self:
        self.check_pairs()
        found = self.unprotected()
        if found and not self.insecure:
            raise ValueError(f"{found[0]}, or --insecure where the network may be trusted")
        return self

    def check_pairs(self) -> None:
        """Raises ValueError: of flags that go together one is missing."""
        go_together("--http-tls-cert", self.http_tls_cert, "--http-tls-key", self.http_tls_key)
        if self.http_tls_ca and not self.http_tls_cert:
            raise ValueError(
                "--http-tls-ca checks clients' certificates, so it needs --http-tls-cert and --http-tls-key as well"
            )

    def unprotected(self) -> tuple[str, ...]:
        """Credentials that leave this host unencrypted, and ports that anybody may use: each with the remedy."""
        return ()

    def certificates(self) -> dict[str, Path]:
        """Files of certificates and authorities, by the flags that name them."""
        fields = [name for name in type(self).model_fields if name.endswith(("tls_cert", "tls_ca"))]
        return {"--" + name.replace("_", "-"): file for name in fields if (file := getattr(self, name)) is not None}

    def http_tls(self) -> TlsFiles | None:
        """Files of the certificate of --http, and of the authority of its clients; None: without TLS."""
        if self.http_tls_cert is None:
            return None
        return TlsFiles(self.http_tls_ca, self.http_tls_cert, self.http_tls_key)


class DaemonSettings(PortSettings):
    """Settings for reaching etcd.

    Raises (on construction):
        pydantic.ValidationError: a value is not of the form that its field asks for.
    """

    etcd: Annotated[List, Field(min_length=1), Flag("HOST:PORT[,…]", "etcd's members")]
    prefix: Annotated[str, Flag("PATH", "Prefix of all keys in etcd")] = DEFAULT_PREFIX
    etcd_user: Annotated[str | None, Flag("NAME", "User for etcd")] = None
    etcd_password_file: Annotated[OptionalFile, Flag("FILE", "File with its password, read at each login")] = None
    etcd_tls_ca: Annotated[OptionalFile, Flag("FILE", "PEM file of the authority behind etcd's certificate")] = None
    etcd_tls_cert: Annotated[OptionalFile, Flag("FILE", "PEM file of our certificate for etcd")] = None
    etcd_tls_key: Annotated[OptionalFile, Flag("FILE", "PEM file of its key")] = None

    @field_validator("etcd")
    @classmethod
    def _etcd(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for member in value:
            if "://" in member:
                raise ValueError(f"{member!r} is not HOST:PORT: leave the scheme out; --etcd-tls-ca asks for TLS")
            _split_address(member)
        return value

    @field_validator("prefix")
    @classmethod
    def _prefix(cls, value: str) -> str:
        if not value.startswith("/") or value.endswith("/"):
            raise ValueError("a prefix starts with / and does not end with it, such as /loraplane/v1")
        return value

    def check_pairs(self) -> None:
        super().check_pairs()
        go_together("--etcd-tls-cert", self.etcd_tls_cert, "--etcd-tls-key", self.etcd_tls_key)
        go_together("--etcd-user", self.etcd_user, "--etcd-password-file", self.etcd_password_file)

    def unprotected(self) -> tuple[str, ...]:
        remote = [member for member in self.etcd if not is_loopback(member.rpartition(":")[0])]
        if not remote or not self.etcd_user or self.etcd_tls_ca or self.etcd_tls_cert:
            return ()
        return (f"--etcd-password-file: the password would go unencrypted to {remote[0]}: give --etcd-tls-ca",)

    def client_options(self) -> ClientOptions:
        """Options for reaching etcd. The password is read from its file at each login."""
        tls = None
        if self.etcd_tls_ca or self.etcd_tls_cert:
            tls = TlsFiles(ca=self.etcd_tls_ca, certificate=self.etcd_tls_cert, key=self.etcd_tls_key)
        password = partial(_read_password, self.etcd_password_file) if self.etcd_password_file else None
        return ClientOptions(self.etcd, tls=tls, user=self.etcd_user, password=password)


def _read_password(file: Path) -> str:
    try:
        return read_followed(file, max_bytes=MAX_SECRET_BYTES).decode().strip()
    except OSError as error:
        raise EtcdUnauthenticated(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise EtcdUnauthenticated(
            f"{file} is not UTF-8; write the password alone into it, as a line of text"
        ) from error


def is_loopback(host: str) -> bool:
    """True for what surely is this host; a name that has to be looked up is none."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def go_together(one: str, value: object, other: str, other_value: object) -> None:
    """Refuses one of two flags without the other.

    Raises:
        ValueError: only one of them is given.
    """
    if (value is None) != (other_value is None):
        raise ValueError(f"{one} and {other} go together; give both")
