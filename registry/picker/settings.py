"""Settings of the picker, validated once at its start."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from registry.client.address import Tls
from registry.client.contexts import token_of
from registry.client.credentials import TokenSource
from registry.etcd3.options import TlsFiles
from registry.model.errors import InvalidArgument
from registry.picker.stream import PickRules
from registry.runtime.flags import Flag
from registry.runtime.settings import Address, List, Listen, OptionalFile, PortSettings, go_together, is_loopback


class PickerSettings(PortSettings):
    """Everything a picker needs to know.

    Raises (on construction):
        pydantic.ValidationError: a value is not of the form that its field asks for.
    """

    admin: Annotated[str, Flag("HOST:PORT", "The admin service")] = "127.0.0.1:7600"
    pool: Annotated[
        List,
        Field(min_length=1),
        Flag("POOL[,…]", "Pools whose adapters are asked for; names are looked up in this order"),
    ]
    listen: Annotated[Listen, Flag("HOST:PORT", "Address of the gRPC service for gateways")] = Address(
        host="127.0.0.1", port=7603
    )
    http: Annotated[Listen, Flag("HOST:PORT", "Address of /livez, /readyz and /metrics")] = Address(
        host="127.0.0.1", port=7604
    )
    admin_tls_ca: Annotated[OptionalFile, Flag("FILE", "PEM file of the authority of the admin service")] = None
    admin_tls_cert: Annotated[OptionalFile, Flag("FILE", "PEM file of our certificate for it")] = None
    admin_tls_key: Annotated[OptionalFile, Flag("FILE", "PEM file of its key")] = None
    token_file: Annotated[OptionalFile, Flag("FILE", "File with the token that is shown to the admin service")] = None
    token_command: Annotated[
        str, Flag("COMMAND", "Program, with arguments, that prints that token as kubectl's credential plugins do")
    ] = ""
    tls_ca: Annotated[OptionalFile, Flag("FILE", "PEM file of the authority that signs gateways' certificates")] = None
    tls_cert: Annotated[OptionalFile, Flag("FILE", "PEM file of the certificate of --listen")] = None
    tls_key: Annotated[OptionalFile, Flag("FILE", "PEM file of its key")] = None
    max_body_bytes: Annotated[
        int, Field(ge=1024, le=64 << 20), Flag("BYTES", "A request with a larger body is refused (413)")
    ] = 8 << 20
    alias_separators: Annotated[
        str, Field(max_length=8), Flag("CHARS", "Between base model and adapter in names such as BASE:NAME; none: -")
    ] = ":|"
    refuse_after: Annotated[
        float, Field(ge=0), Flag("SECONDS", "Refuse (503) once the registry was out of reach for so long; 0: never")
    ] = 0.0
    fail_open: Annotated[
        bool, Flag("", "Until the registry answers, let requests go where the gateway's subset says", switch=True)
    ] = False
    revision_wait: Annotated[
        float, Field(ge=0, le=60), Flag("SECONDS", "Wait so long for a revision that a request asks for")
    ] = 1.0
    scores: Annotated[bool, Flag("", "Tell the gateway the scores of all endpoints", switch=True)] = False
    queue_metric: Annotated[
        str, Flag("NAME", "Gauge of engines' /metrics that counts as load, e.g. vllm:num_requests_waiting")
    ] = ""
    queue_seconds: Annotated[float, Field(ge=0.1, le=60), Flag("SECONDS", "Between two looks at it")] = 1.0
    drain: Annotated[
        float, Field(ge=0, le=600), Flag("SECONDS", "At its end the picker says so, and answers on for so long")
    ] = 2.0

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        go_together("--tls-cert", self.tls_cert, "--tls-key", self.tls_key)
        go_together("--admin-tls-cert", self.admin_tls_cert, "--admin-tls-key", self.admin_tls_key)
        if self.tls_ca and not self.tls_cert:
            raise ValueError("--tls-ca checks gateways' certificates, so it needs --tls-cert and --tls-key as well")
        if self.alias_separators.strip(":|-/@.,;+~#") != "":
            raise ValueError("--alias-separators takes characters of : | / @ . , ; + ~ #, or - for none")
        try:
            self.token()
        except InvalidArgument as error:
            raise ValueError(str(error)) from error
        return self

    def unprotected(self) -> tuple[str, ...]:
        found = list[str]()
        if not self.tls_cert and not is_loopback(self.listen.host):
            remedy = "give --tls-cert and --tls-key"
            found.append(f"--listen {self.listen}: others could read requests there: {remedy}")
        if not self.http_tls_cert and not is_loopback(self.http.host):
            remedy = "give --http-tls-cert, --http-tls-key and --http-tls-ca"
            found.append(f"--http {self.http}: others could read what is asked for there: {remedy}")
        return tuple(found)

    def admin_tls(self) -> Tls:
        """Files for the connection to the admin service."""
        return Tls(self.admin_tls_ca, self.admin_tls_cert, self.admin_tls_key)

    def token(self) -> TokenSource | None:
        """Source of the token that is shown to the admin service; None: none is.

        Raises:
            InvalidArgument: see `registry.client.contexts.token_of`.
        """
        return token_of(str(self.token_file or ""), self.token_command)

    def tls(self) -> TlsFiles | None:
        """Files of the service for gateways; None: without TLS."""
        if self.tls_cert is None or self.tls_key is None:
            return None
        return TlsFiles(self.tls_ca, self.tls_cert, self.tls_key)

    def rules(self) -> PickRules:
        """The settings that decide about requests."""
        return PickRules(
            max_body_bytes=self.max_body_bytes,
            separators=self.alias_separators.replace("-", ""),
            fail_open=self.fail_open,
            refuse_after_seconds=self.refuse_after,
            revision_wait_seconds=self.revision_wait,
            scores=self.scores,
        )
