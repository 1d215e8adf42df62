"""Settings of the admin service, validated once at its start."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from registry.runtime.flags import Flag
from registry.runtime.settings import Address, DaemonSettings, Listen, OptionalFile, go_together, is_loopback

# etcd takes no longer leases than 9,000,000,000 s, and a record outlives its time by a part of it.
Seconds = Annotated[int, Field(le=315_360_000)]


class AdminSettings(DaemonSettings):
    """Everything the admin service needs to know.

    Raises (on construction):
        pydantic.ValidationError: a value is not of the form that its field asks for.
    """

    listen: Annotated[Listen, Flag("HOST:PORT", "Address of the gRPC API")] = Address(host="127.0.0.1", port=7600)
    http: Annotated[Listen, Flag("HOST:PORT", "Address of /livez, /readyz and /metrics")] = Address(
        host="127.0.0.1", port=7601
    )
    max_txn_ops: Annotated[
        int, Field(ge=8, le=100_000), Flag("N", "The --max-txn-ops that etcd was started with; bounds a change set")
    ] = 128
    request_retention: Annotated[
        Seconds, Field(ge=3600), Flag("SECONDS", "For at least so long a repeated request_id gets the first reply")
    ] = 86_400
    audit_retention: Annotated[
        Seconds, Field(ge=86_400), Flag("SECONDS", "Audit records are kept for at least so long")
    ] = 2_592_000
    tls_ca: Annotated[OptionalFile, Flag("FILE", "PEM file of the authority that signs clients' certificates")] = None
    tls_cert: Annotated[OptionalFile, Flag("FILE", "PEM file of the API's certificate")] = None
    tls_key: Annotated[OptionalFile, Flag("FILE", "PEM file of its key")] = None

    @model_validator(mode="after")
    def _tls(self) -> Self:
        go_together("--tls-cert", self.tls_cert, "--tls-key", self.tls_key)
        if self.tls_ca and not self.tls_cert:
            raise ValueError("--tls-ca checks clients' certificates, so it needs --tls-cert and --tls-key as well")
        return self

    def own_names(self) -> tuple[str, ...]:
        """The names by which --http is asked, as far as the settings tell."""
        return (self.listen.host, self.http.host, *self.http_names)

    def unprotected(self) -> tuple[str, ...]:
        """See `DaemonSettings`."""
        found = super().unprotected()
        if is_loopback(self.listen.host) or self.tls_ca:
            return found
        if self.tls_cert:
            return (*found, f"--listen {self.listen}: anybody may change everything there: give --tls-ca as well")
        remedy = "give --tls-cert, --tls-key and --tls-ca"
        return (*found, f"--listen {self.listen}: anybody may read and change everything there: {remedy}")
