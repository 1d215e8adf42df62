"""What a sidecar is told at its start, checked once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from registry.etcd3.options import ClientOptions, TlsFiles
from registry.keys import DEFAULT_PREFIX
from registry.model.names import check_segment
from sidecar.artifacts.sources.allowed import DEFAULT_HUB
from sidecar.observed import EngineLimits
from sidecar.retention import GRACE_SECONDS

_UNITS = {"K": 10, "M": 20, "G": 30, "T": 40}


class Settings(BaseModel):
    """Everything a sidecar needs to know; flags and environment variables carry the same names.

    Raises (on construction):
        pydantic.ValidationError: a value is not of the form that its field asks for.
        registry.errors.InvalidArgument: the pool or the replica has no valid name.
    """

    model_config = ConfigDict(frozen=True)

    etcd: Annotated[tuple[str, ...], Field(min_length=1)]
    pool: str
    replica: str
    engine: str
    store: Path
    http_host: str
    http_port: Annotated[int, Field(ge=0, le=65535)]
    allow_source: tuple[str, ...] = ()
    base_model: Path | None = None
    engine_max_rank: Annotated[int, Field(ge=1)] | None = None
    engine_target_modules: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    credentials: Path | None = None
    hf_endpoint: str = DEFAULT_HUB
    store_budget: Annotated[int, Field(ge=1)] | None = None
    unload_grace: Annotated[float, Field(ge=0, allow_inf_nan=False)] = GRACE_SECONDS
    prefix: str = DEFAULT_PREFIX
    labels: dict[str, str] = {}
    engine_api_key_file: Path | None = None
    etcd_user: str | None = None
    etcd_password_file: Path | None = None
    etcd_tls_ca: Path | None = None
    etcd_tls_cert: Path | None = None
    etcd_tls_key: Path | None = None

    @field_validator("engine")
    @classmethod
    def _engine_url(cls, value: str) -> str:
        url = urlsplit(value)
        if url.scheme not in {"http", "https"} or not url.hostname:
            raise ValueError(f"{value!r} is not a URL of an engine, such as http://127.0.0.1:8000")
        return value.rstrip("/")

    @field_validator("prefix")
    @classmethod
    def _prefix(cls, value: str) -> str:
        if not value.startswith("/") or value.endswith("/"):
            raise ValueError("a prefix starts with / and does not end with it, such as /loraplane/v1")
        return value

    @model_validator(mode="after")
    def _names(self) -> Self:
        check_segment(self.pool, field="--pool")
        check_segment(self.replica, field="--replica")
        if (self.etcd_user is None) != (self.etcd_password_file is None):
            raise ValueError("--etcd-user and --etcd-password-file go together")
        return self

    def engine_limits(self) -> EngineLimits:
        """What the engine was started with, as far as it is said here."""
        return EngineLimits(max_lora_rank=self.engine_max_rank, target_modules=self.engine_target_modules)

    def client_options(self) -> ClientOptions:
        """How to reach etcd. The password is read from its file at each login."""
        tls = None
        if self.etcd_tls_ca or self.etcd_tls_cert or self.etcd_tls_key:
            tls = TlsFiles(self.etcd_tls_ca, self.etcd_tls_cert, self.etcd_tls_key)
        file = self.etcd_password_file
        password = (lambda: file.read_text().strip()) if file else None
        return ClientOptions(self.etcd, tls=tls, user=self.etcd_user, password=password)


def split_address(value: str, *, flag: str) -> tuple[str, int]:
    """HOST:PORT as its parts; brackets around an IPv6 address are taken off.

    Raises:
        ValueError: it is not of that form.
    """
    host, colon, port = value.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{flag}: {value!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def bytes_of(value: str, *, flag: str) -> int:
    """A number of bytes: a whole number, with K, M, G or T for powers of 1024 behind it if need be.

    Raises:
        ValueError: it is not of that form.
    """
    digits, unit = (value[:-1], value[-1]) if value[-1:] in _UNITS else (value, "")
    if not digits.isdecimal() or not int(digits):
        raise ValueError(f"{flag}: {value!r} is no number of bytes, such as 200G or 500M")
    return int(digits) << _UNITS.get(unit, 0)


def split_labels(values: str) -> dict[str, str]:
    """``k=v,k=v`` as a dict.

    Raises:
        ValueError: a part has no "=".
    """
    pairs = [part.partition("=") for part in values.split(",") if part]
    if any(not equals or not key for key, equals, _ in pairs):
        raise ValueError(f"--labels: {values!r} is not k=v,k=v")
    return {key: value for key, _, value in pairs}
