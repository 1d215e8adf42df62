"""``loraplane-sidecar``: reads its flags, puts the parts together, and says why it stops."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import structlog
import typer
from pydantic import ValidationError

from registry.errors import RegistryError
from registry.keys import DEFAULT_PREFIX
from registry.model.base import first_error
from sidecar.app import StoreUnusable, run
from sidecar.artifacts.sources.allowed import DEFAULT_HUB
from sidecar.logs import configure_logging
from sidecar.ownership import ReplicaTaken
from sidecar.retention import GRACE_SECONDS
from sidecar.settings import Settings, bytes_of, split_address, split_labels

_log = structlog.get_logger()
GC_THRESHOLDS = (10_000, 20, 50)
EXIT_INTERNAL, EXIT_USAGE, EXIT_REPLICA_TAKEN = 1, 2, 3


def _option(name: str, help_text: str, *variables: str) -> Any:  # noqa: ANN401 - typer types its parameters as Any
    """An option with the environment variable that its name implies, and others that are known elsewhere."""
    variable = "LORAPLANE_" + name.removeprefix("--").replace("-", "_").upper()
    return typer.Option(name, envvar=[variable, *variables], help=help_text)


def sidecar(
    etcd: Annotated[str, _option("--etcd", "etcd's members, HOST:PORT[,HOST:PORT…]")],
    pool: Annotated[str, _option("--pool", "Pool whose adapters the engine is to serve")],
    replica: Annotated[str, _option("--replica", "Name of this replica, unique in its pool")],
    engine: Annotated[str, _option("--engine", "URL of the engine, e.g. http://127.0.0.1:8000")],
    store: Annotated[Path, _option("--store", "Directory for artifacts, seen by the engine at the same path")],
    http: Annotated[str, _option("--http", "HOST:PORT for /livez /readyz /metrics /status")] = "127.0.0.1:7602",
    allow_source: Annotated[
        list[str] | None,
        _option("--allow-source", "URI prefix that artifacts may come from; repeatable"),
    ] = None,
    base_model: Annotated[
        Path | None,
        _option("--base-model", "Directory of the base model, which adapters are compared with; without: the pool's"),
    ] = None,
    engine_max_rank: Annotated[
        int | None, _option("--engine-max-rank", "The --max-lora-rank that the engine was started with")
    ] = None,
    engine_target_modules: Annotated[
        str | None, _option("--engine-target-modules", "The --lora-target-modules of the engine, a,b,c; without: all")
    ] = None,
    credentials: Annotated[
        Path | None, _option("--credentials", "YAML file with the credentials that records may name, and their URIs")
    ] = None,
    hf_endpoint: Annotated[str, _option("--hf-endpoint", "Hub behind hf:// sources", "HF_ENDPOINT")] = DEFAULT_HUB,
    store_budget: Annotated[
        str | None, _option("--store-budget", "Bytes for all artifacts of the store, e.g. 200G; without: the disk")
    ] = None,
    unload_grace: Annotated[
        float, _option("--unload-grace", "Seconds for which files are kept after the engine was last seen to list them")
    ] = GRACE_SECONDS,
    prefix: Annotated[str, _option("--prefix", "Prefix of all keys in etcd")] = DEFAULT_PREFIX,
    labels: Annotated[str, _option("--labels", "Labels of this replica, k=v,k=v")] = "",
    engine_api_key_file: Annotated[
        Path | None, _option("--engine-api-key-file", "File with the key that the engine was started with")
    ] = None,
    etcd_user: Annotated[str | None, _option("--etcd-user", "User for etcd")] = None,
    etcd_password_file: Annotated[Path | None, _option("--etcd-password-file", "File with its password")] = None,
    etcd_tls_ca: Annotated[Path | None, _option("--etcd-tls-ca", "PEM file of etcd's authority")] = None,
    etcd_tls_cert: Annotated[Path | None, _option("--etcd-tls-cert", "PEM file of our certificate for etcd")] = None,
    etcd_tls_key: Annotated[Path | None, _option("--etcd-tls-key", "PEM file of its key")] = None,
) -> None:
    """Makes one engine serve what the registry says, and reports what it serves."""
    spare_collector()
    configure_logging()
    try:
        host, port = split_address(http, flag="--http")
        settings = Settings(
            etcd=tuple(part for part in etcd.split(",") if part),
            pool=pool,
            replica=replica,
            engine=engine,
            store=store,
            http_host=host,
            http_port=port,
            allow_source=tuple(allow_source or ()),
            base_model=base_model,
            engine_max_rank=engine_max_rank,
            engine_target_modules=tuple(engine_target_modules.split(",")) if engine_target_modules else None,
            credentials=credentials,
            hf_endpoint=hf_endpoint,
            store_budget=bytes_of(store_budget, flag="--store-budget") if store_budget else None,
            unload_grace=unload_grace,
            prefix=prefix,
            labels=split_labels(labels),
            engine_api_key_file=engine_api_key_file,
            etcd_user=etcd_user,
            etcd_password_file=etcd_password_file,
            etcd_tls_ca=etcd_tls_ca,
            etcd_tls_cert=etcd_tls_cert,
            etcd_tls_key=etcd_tls_key,
        )
    except ValidationError as error:
        _stop(EXIT_USAGE, first_error(error))
    except (RegistryError, ValueError) as error:
        _stop(EXIT_USAGE, str(error))
    _supervise(settings)


def spare_collector() -> None:
    """Makes Python look for cyclic garbage less often: a catalogue has many objects that live long, and no cycles."""
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def _supervise(settings: Settings) -> None:
    """Runs until a signal; the one place that catches everything, to say why the process dies (crash-only)."""
    try:
        asyncio.run(_until_signalled(settings))
    except* StoreUnusable as group:
        _stop(EXIT_USAGE, _first_leaf(group))
    except* ReplicaTaken as group:
        _stop(EXIT_REPLICA_TAKEN, _first_leaf(group))
    except* Exception:  # noqa: BLE001 - the supervisor: a broken invariant ends the process, with its traceback
        _log.exception("internal_error")
        sys.exit(EXIT_INTERNAL)


async def _until_signalled(settings: Settings) -> None:
    work = asyncio.create_task(run(settings))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, work.cancel)
    try:
        await work
    except asyncio.CancelledError:
        _log.info("stopped")


def _first_leaf(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)


def _stop(code: int, message: str) -> NoReturn:
    sys.stderr.write(f"loraplane-sidecar: {message}\n")
    sys.exit(code)


def main() -> None:
    """Entry point of the console script."""
    typer.run(sidecar)


if __name__ == "__main__":
    main()
