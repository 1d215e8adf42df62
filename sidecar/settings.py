"""What a sidecar is told at its start, checked once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, ByteSize, Field, field_validator, model_validator

from registry.daemon.flags import Flag
from registry.daemon.settings import Address, DaemonSettings, List, Listen, OptionalFile
from registry.errors import InvalidArgument
from registry.model.names import check_segment
from registry.model.records import EngineKind
from registry.sources.allowed import DEFAULT_HUB
from sidecar.lazy.demand import IDLE_SECONDS
from sidecar.lazy.socket_file import check_socket_path
from sidecar.observed import EngineLimits
from sidecar.retention import GRACE_SECONDS

TELL_NO_BASE: frozenset[EngineKind] = frozenset({"dynamo"})
# They tell no limit either, and end at a request for which they cannot read what they were told of.
END_OF_HIGH_RANKS: frozenset[EngineKind] = frozenset({"axolotl"})


def _split_labels(values: object) -> object:
    """``k=v,k=v`` as a dict."""
    if not isinstance(values, str):
        return values
    pairs = [part.partition("=") for part in values.split(",") if part]
    if any(not equals or not key for key, equals, _ in pairs):
        raise ValueError(f"{values!r} is not k=v,k=v")
    return {key: value for key, _, value in pairs}


class Settings(DaemonSettings):
    """Everything a sidecar needs to know.

    Raises (on construction):
        pydantic.ValidationError: a value is not of the form that its field asks for.
    """

    pool: Annotated[str, Flag("POOL", "Pool whose adapters the engine is to serve")]
    replica: Annotated[str, Flag("ID", "Name of this replica, unique in its pool")]
    engine: Annotated[str, Flag("URL", "URL of the engine, e.g. http://127.0.0.1:8000")]
    engine_kind: Annotated[
        EngineKind, Flag("KIND", "Kind of the engine: vllm, sglang, pegainfer, dynamo or axolotl")
    ] = "vllm"
    engine_base_model: Annotated[
        Annotated[List, Field(min_length=1)] | None,
        Flag("A,B,C", "Names of the engine's base model, for the kinds that do not tell: dynamo"),
    ] = None
    store: Annotated[Path, Flag("DIR", "Directory for artifacts, seen by the engine at the same path")]
    http: Annotated[Listen, Flag("HOST:PORT", "Where /livez /readyz /metrics /status are")] = Address(
        host="127.0.0.1", port=7602
    )
    allow_source: Annotated[
        tuple[str, ...], Flag("URI-PREFIX", "Where artifacts may come from; repeatable", repeatable=True)
    ] = ()
    base_model: Annotated[
        OptionalFile,
        Flag("DIR", "Directory of the base model, which adapters are compared with; without: the pool's"),
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
    hf_endpoint: Annotated[str, Flag("URL", "Hub behind hf:// sources", also="HF_ENDPOINT")] = DEFAULT_HUB
    store_budget: Annotated[
        Annotated[ByteSize, Field(ge=1)] | None,
        Flag("SIZE", "For all artifacts of the store, e.g. 200GB; without: what the disk has"),
    ] = None
    unload_grace: Annotated[
        Annotated[float, Field(ge=0, allow_inf_nan=False)],
        Flag("SECONDS", "How long files are kept after the engine was last seen to list them, at least"),
    ] = GRACE_SECONDS
    resolver_socket: Annotated[
        OptionalFile, Flag("PATH", "Unix socket on which the engine asks for lazy adapters; without: it cannot")
    ] = None
    lazy_idle: Annotated[
        Annotated[float, Field(ge=0, allow_inf_nan=False)],
        Flag("SECONDS", "A lazy adapter that is not used for longer is unloaded"),
    ] = IDLE_SECONDS
    labels: Annotated[dict[str, str], BeforeValidator(_split_labels), Flag("K=V,K=V", "Labels of this replica")] = {}
    engine_api_key_file: Annotated[OptionalFile, Flag("FILE", "File with the key that the engine was started with")] = (
        None
    )

    @field_validator("engine")
    @classmethod
    def _engine_url(cls, value: str) -> str:
        url = urlsplit(value)
        if url.scheme not in {"http", "https"} or not url.hostname:
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
    def _base_names(self) -> Self:
        if self.engine_kind in TELL_NO_BASE and not self.engine_base_model:
            raise ValueError(f"{self.engine_kind} does not tell its base model: name it with --engine-base-model")
        if self.engine_kind not in TELL_NO_BASE and self.engine_base_model:
            raise ValueError(f"{self.engine_kind} tells its base model itself: leave --engine-base-model out")
        return self

    @model_validator(mode="after")
    def _max_rank(self) -> Self:
        if self.engine_kind in END_OF_HIGH_RANKS and self.engine_max_rank is None:
            message = "does not tell its --max-lora-rank, and would end at an adapter above it: give --engine-max-rank"
            raise ValueError(f"{self.engine_kind} {message}")
        return self

    def engine_limits(self) -> EngineLimits:
        """What the engine was started with, as far as it is said here."""
        return EngineLimits(
            max_cpu_loras=self.engine_max_cpu_loras,
            max_lora_rank=self.engine_max_rank,
            target_modules=self.engine_target_modules,
        )
