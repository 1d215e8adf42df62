"""Settings of a sidecar, validated once at its start."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field, field_validator, model_validator

from registry.model.engine_kinds import traits_of
from registry.model.errors import InvalidArgument
from registry.model.names import check_segment, deployment_of
from registry.model.records import EngineKind
from registry.runtime.engine_drivers import check_kind
from registry.runtime.flags import Flag
from registry.runtime.settings import Address, DaemonSettings, List, Listen, OptionalFile, is_loopback
from registry.sources.allowed import DEFAULT_HUB
from sidecar.artifacts.types import GRACE_SECONDS
from sidecar.engines.observed import EngineLimits
from sidecar.plan.readiness import DEGRADED_SHARE, ReadyWhen
from sidecar.ports import GIVE_UP_SECONDS
from sidecar.resolver.demand import IDLE_SECONDS
from sidecar.resolver.server import check_socket_path

# Kubernetes kills a pod 30 seconds after the signal, unless it is told otherwise.
DRAIN_SECONDS = 20.0
_SIZE = re.compile(r"\d*\.?\d+\s*[A-Za-z]*")


def _split_labels(values: object) -> object:
    """``k=v,k=v`` as a dict."""
    if not isinstance(values, str):
        return values
    pairs = [part.partition("=") for part in values.split(",") if part]
    if any(not equals or not key for key, equals, _ in pairs):
        raise ValueError(f"{values!r} is not k=v,k=v")
    return {key: value for key, _, value in pairs}


def _whole_size(value: object) -> object:
    """A size as pydantic takes it: of ``1,500GB`` it would take the 1, and of Kubernetes' ``50Gi`` nothing."""
    if not isinstance(value, str):
        return value
    if not _SIZE.fullmatch(value.strip()):
        raise ValueError(f"{value!r} is not a size, such as 200GB or 1.5TiB")
    return re.sub("i$", "iB", value.strip())


class SidecarSettings(DaemonSettings):
    """Everything a sidecar needs to know.

    Raises (on construction):
        pydantic.ValidationError: a value is not of the form that its field asks for.
    """

    pool: Annotated[str, Flag("POOL", "Pool whose adapters the engine is to serve")]
    replica: Annotated[str, Flag("ID", "Name of this replica, unique in its pool")]
    engine: Annotated[str, Flag("URL", "URL of the engine, e.g. http://127.0.0.1:8000")]
    engine_kind: Annotated[
        Annotated[EngineKind, AfterValidator(check_kind)],
        Flag("KIND", "Kind of the engine: vllm, sglang, pegainfer, axolotl, or of another driver that is installed"),
    ] = "vllm"
    store: Annotated[Path, Flag("DIR", "Directory for artifacts, seen by the engine at the same path")]
    http: Annotated[Listen, Flag("HOST:PORT", "Address of /livez, /readyz, /metrics and /status")] = Address(
        host="127.0.0.1", port=7602
    )
    allow_source: Annotated[
        tuple[str, ...], Flag("URI-PREFIX", "URI prefix that artifacts may come from; repeatable", repeatable=True)
    ] = ()
    base_model: Annotated[
        OptionalFile, Flag("DIR", "Directory of the base model, which adapters are compared with; without: the pool's")
    ] = None
    engine_max_rank: Annotated[
        Annotated[int, Field(ge=1)] | None, Flag("N", "The --max-lora-rank that the engine was started with")
    ] = None
    engine_max_cpu_loras: Annotated[
        Annotated[int, Field(ge=1)] | None, Flag("N", "The --max-cpu-loras that the engine was started with")
    ] = None
    engine_target_modules: Annotated[
        Annotated[List, Field(min_length=1)] | None,
        Flag("A,B,C", "The --lora-target-modules of the engine; without: all"),
    ] = None
    credentials: Annotated[
        OptionalFile, Flag("FILE", "YAML file with the credentials that records may name, and their URIs")
    ] = None
    signature_keys: Annotated[
        OptionalFile, Flag("FILE", "YAML file with the public keys, by name, that adapters may be signed with")
    ] = None
    signature_policy: Annotated[
        OptionalFile, Flag("FILE", "YAML file that says by tenant whose bundles (model.sig) count, and what they bind")
    ] = None
    hf_endpoint: Annotated[str, Flag("URL", "Hub behind hf:// sources", also="HF_ENDPOINT")] = DEFAULT_HUB
    fetcher: Annotated[
        tuple[str, ...],
        Flag("SCHEME=COMMAND", "Program that fetches sources of a scheme with a hyphen; repeatable", repeatable=True),
    ] = ()
    store_budget: Annotated[
        Annotated[ByteSize, Field(ge=1), BeforeValidator(_whole_size)] | None,
        Flag("SIZE", "Largest size of all artifacts in the store, e.g. 200GB; without: the disk's"),
    ] = None
    unload_grace: Annotated[
        Annotated[float, Field(ge=0, allow_inf_nan=False)],
        Flag("SECONDS", "Files are kept for at least so long after the engine last listed them"),
    ] = GRACE_SECONDS
    resolver_socket: Annotated[
        OptionalFile, Flag("PATH", "Unix socket on which the engine asks for lazy adapters; without: none are served")
    ] = None
    lazy_idle: Annotated[
        Annotated[float, Field(ge=0, allow_inf_nan=False)],
        Flag("SECONDS", "A lazy adapter is unloaded after so long without use"),
    ] = IDLE_SECONDS
    ready_when: Annotated[
        ReadyWhen,
        Flag("any|served", "Stay ready while any adapter is served, or only while not degraded (--degraded-share)"),
    ] = "any"
    degraded_share: Annotated[
        Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)],
        Flag("SHARE", "Share of refused adapters above which the replica is degraded"),
    ] = DEGRADED_SHARE
    give_up_share: Annotated[
        Annotated[float, Field(ge=0)],
        Flag("SECONDS", "After so long without the engine, others take over what it serves; inf: never"),
    ] = GIVE_UP_SECONDS
    drain_timeout: Annotated[
        Annotated[float, Field(ge=0, allow_inf_nan=False)],
        Flag("SECONDS", "Longest wait after SIGTERM for others to serve what this replica hands over"),
    ] = DRAIN_SECONDS
    advertise_url: Annotated[
        str | None, Flag("URL", "The engine's address for routers, as residency gives it; without: --engine")
    ] = None
    labels: Annotated[dict[str, str], BeforeValidator(_split_labels), Flag("K=V,K=V", "Labels of this replica")] = {}
    ephemeral: Annotated[
        bool | None,
        Flag(
            "",
            "The name of this replica is not to come back: once it is gone, a new one with its labels takes its place; "
            "without: if it looks like that of a Deployment's pod",
            switch=True,
        ),
    ] = None
    engine_api_key_file: Annotated[OptionalFile, Flag("FILE", "File with the key that the engine was started with")] = (
        None
    )

    control_token_file: Annotated[
        OptionalFile,
        Flag("FILE", "File with the token that the plugin inside vLLM asks for; without: it asks for none"),
    ] = None

    http_token_file: Annotated[
        OptionalFile, Flag("FILE", "File with the token that callers of --http from other hosts may show, over TLS")
    ] = None

    @field_validator("engine", "advertise_url")
    @classmethod
    def _engine_url(cls, value: str | None) -> str | None:
        if value is None:
            return None
        url = urlsplit(value)
        if "@" in url.netloc:
            raise ValueError(
                "leave user and password out of the URL, which logs and statuses tell; a key stands in a file: "
                "--engine-api-key-file"
            )
        if url.scheme not in {"http", "https"} or not url.hostname or url.port == 0:  # raises ValueError: it is none
            raise ValueError(f"{value!r} is not a URL of an engine, such as http://127.0.0.1:8000")
        return value.rstrip("/")

    @field_validator("resolver_socket")
    @classmethod
    def _socket(cls, value: Path | None) -> Path | None:
        if value is not None:
            check_socket_path(value)
        return value

    @model_validator(mode="after")
    def _names(self) -> Self:
        try:
            check_segment(self.pool, field="--pool")
            check_segment(self.replica, field="--replica")
        except InvalidArgument as error:
            raise ValueError(str(error)) from error
        return self

    @model_validator(mode="after")
    def _max_rank(self) -> Self:
        if traits_of(self.engine_kind).is_single_slot and self.engine_max_rank is None:
            message = "does not tell its --max-lora-rank, and would end at an adapter above it: give --engine-max-rank"
            raise ValueError(f"{self.engine_kind} {message}")
        return self

    @model_validator(mode="after")
    def _http_token(self) -> Self:
        if self.http_token_file and not self.http_tls_cert and not is_loopback(self.http.host):
            raise ValueError(
                "--http-token-file needs --http-tls-cert and --http-tls-key, since others could read the token"
            )
        return self

    def is_open(self) -> bool:
        """True if callers from other hosts may read all pages: --insecure, and nothing by which they are known."""
        return self.insecure and self.http_token_file is None and self.http_tls_ca is None

    def unprotected(self) -> tuple[str, ...]:
        url, found = urlsplit(self.engine), super().unprotected()
        if self.is_open() and not is_loopback(self.http.host):
            remedy = "give --http-tls-ca or --http-token-file"
            found = (*found, f"--http {self.http}: anybody may read what is served and asked for there: {remedy}")
        if self.engine_api_key_file is None or url.scheme == "https" or is_loopback(url.hostname or ""):
            return found
        return (*found, f"--engine-api-key-file: the key would go unencrypted to {url.netloc}: give an https --engine")

    def reached_at(self) -> str:
        """HOST:PORT under which others reach --http, with https:// before it where it has TLS.

        Empty: it is any host's, and there is no --advertise-url.
        """
        host = self.http.host
        if host in {"0.0.0.0", "::"}:  # noqa: S104 - compared with, not listened on
            host = urlsplit(self.advertise_url or "").hostname or ""
        scheme = "https://" if self.http_tls_cert else ""
        return f"{scheme}{Address(host=host, port=self.http.port)}" if host and self.http.port else ""

    def own_names(self) -> tuple[str, ...]:
        """The names by which --http is asked, as far as the settings tell."""
        return (self.replica, self.http.host, urlsplit(self.advertise_url or "").hostname or "", *self.http_names)

    def is_ephemeral(self) -> bool:
        """True if nobody is to wait for a replica of this name once it is gone."""
        return bool(deployment_of(self.replica)) if self.ephemeral is None else self.ephemeral

    def engine_limits(self) -> EngineLimits:
        """Limits that the engine was started with, as far as flags give them."""
        return EngineLimits(
            max_cpu_loras=self.engine_max_cpu_loras,
            max_lora_rank=self.engine_max_rank,
            target_modules=self.engine_target_modules,
        )
