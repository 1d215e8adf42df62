"""Settings of the admin service, validated once at its start."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Self

from pydantic import Field, model_validator

from registry.etcd3.options import TlsFiles
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
    http: Annotated[Listen, Flag("HOST:PORT", "Address of the page and of /livez, /readyz and /metrics")] = Address(
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

    access: Annotated[
        OptionalFile, Flag("FILE", "Who may do what, see docs/security.md; without it only this host is served")
    ] = None
    token_listen: Annotated[
        Listen | None, Flag("HOST:PORT", "Where callers with tokens are served, who show no certificate")
    ] = None
    socket: Annotated[
        OptionalFile, Flag("FILE", "Unix socket for our own user and root of this host, who may do everything")
    ] = None

    reflection: Annotated[bool, Flag("", "Tell callers without a name the API's methods, for tools", switch=True)] = (
        False
    )

    @model_validator(mode="after")
    def _access(self) -> Self:
        for flag, value in (("--token-listen", self.token_listen), ("--socket", self.socket)):
            if value is not None and self.access is None:
                raise ValueError(f"{flag} needs --access, by which callers are known")
        if self.token_listen and not self.tls_cert and not is_loopback(self.token_listen.host):
            raise ValueError("--token-listen needs --tls-cert and --tls-key, since others could read the tokens")
        return self

    @model_validator(mode="after")
    def _tls(self) -> Self:
        go_together("--tls-cert", self.tls_cert, "--tls-key", self.tls_key)
        if self.tls_ca and not self.tls_cert:
            raise ValueError("--tls-ca checks clients' certificates, so it needs --tls-cert and --tls-key as well")
        return self

    def tls(self) -> TlsFiles | None:
        """Files of the API's certificate, and of the authority that clients must be of; None: without TLS."""
        if self.tls_cert is None or self.tls_key is None:
            return None
        return TlsFiles(self.tls_ca, self.tls_cert, self.tls_key)

    def token_tls(self) -> TlsFiles | None:
        """The same for --token-listen, where clients show no certificate."""
        files = self.tls()
        return replace(files, ca=None) if files else None

    def own_names(self) -> tuple[str, ...]:
        """The names by which --http is asked, as far as the settings tell."""
        return (self.listen.host, self.http.host, *self.http_names)

    def unprotected(self) -> tuple[str, ...]:
        found = super().unprotected()
        if is_loopback(self.listen.host):
            return found
        if not self.tls_cert:
            remedy = "give --tls-cert, --tls-key and --access"
            return (*found, f"--listen {self.listen}: anybody may read and change everything there: {remedy}")
        if not self.access:
            who = "anybody with a certificate of --tls-ca" if self.tls_ca else "anybody"
            return (*found, f"--listen {self.listen}: {who} may change everything there: give --access")
        return found
