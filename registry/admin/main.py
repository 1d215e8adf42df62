"""``loraplane-admin``: reads its flags, serves until a signal, and says why it stops."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import structlog
import typer
from pydantic import ValidationError

from registry.admin.logs import configure_logging
from registry.admin.server import CannotListen, running
from registry.admin.settings import Settings, parse_address
from registry.etcd3.errors import TlsFailed, Unauthenticated
from registry.keys import DEFAULT_PREFIX
from registry.model.base import first_error

_log = structlog.get_logger()
EXIT_INTERNAL, EXIT_USAGE = 1, 2


def _option(name: str, help_text: str) -> Any:  # noqa: ANN401 - typer types its parameters as Any
    """An option with the environment variable that its name implies."""
    variable = "LORAPLANE_" + name.removeprefix("--").replace("-", "_").upper()
    return typer.Option(name, envvar=variable, help=help_text)


def admin(
    *,
    etcd: Annotated[str, _option("--etcd", "etcd's members, HOST:PORT[,HOST:PORT…]")],
    listen: Annotated[str, _option("--listen", "HOST:PORT of the gRPC API")] = "127.0.0.1:7600",
    http: Annotated[str, _option("--http", "HOST:PORT of /livez /readyz /metrics")] = "127.0.0.1:7601",
    prefix: Annotated[str, _option("--prefix", "Prefix of all keys in etcd")] = DEFAULT_PREFIX,
    max_txn_ops: Annotated[int, _option("--max-txn-ops", "What etcd was started with; bounds a change set")] = 128,
    tls_ca: Annotated[Path | None, _option("--tls-ca", "PEM file of the authority that clients must be of")] = None,
    tls_cert: Annotated[Path | None, _option("--tls-cert", "PEM file of the API's certificate")] = None,
    tls_key: Annotated[Path | None, _option("--tls-key", "PEM file of its key")] = None,
    etcd_user: Annotated[str | None, _option("--etcd-user", "User for etcd")] = None,
    etcd_password_file: Annotated[Path | None, _option("--etcd-password-file", "File with its password")] = None,
    etcd_tls_ca: Annotated[Path | None, _option("--etcd-tls-ca", "PEM file of etcd's authority")] = None,
    etcd_tls_cert: Annotated[Path | None, _option("--etcd-tls-cert", "PEM file of our certificate for etcd")] = None,
    etcd_tls_key: Annotated[Path | None, _option("--etcd-tls-key", "PEM file of its key")] = None,
) -> None:
    """Serves the registry's API: the only writer of desired state. Stateless, any number may run."""
    configure_logging()
    try:
        settings = Settings(
            etcd=tuple(part for part in etcd.split(",") if part),
            listen=parse_address(listen, flag="--listen"),
            http=parse_address(http, flag="--http"),
            prefix=prefix,
            max_txn_ops=max_txn_ops,
            tls_ca=tls_ca,
            tls_cert=tls_cert,
            tls_key=tls_key,
            etcd_user=etcd_user,
            etcd_password_file=etcd_password_file,
            etcd_tls_ca=etcd_tls_ca,
            etcd_tls_cert=etcd_tls_cert,
            etcd_tls_key=etcd_tls_key,
        )
    except ValidationError as error:
        _stop(EXIT_USAGE, first_error(error))
    except ValueError as error:
        _stop(EXIT_USAGE, str(error))
    _supervise(settings)


def _supervise(settings: Settings) -> None:
    """Runs until a signal; the one place that catches everything, to say why the process dies (crash-only)."""
    try:
        asyncio.run(_until_signalled(settings))
    except* (CannotListen, TlsFailed, Unauthenticated) as group:
        _stop(EXIT_USAGE, _first_leaf(group))
    except* Exception:  # noqa: BLE001 - the supervisor: a broken invariant ends the process, with its traceback
        _log.exception("internal_error")
        sys.exit(EXIT_INTERNAL)


async def _until_signalled(settings: Settings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with running(settings):
        await stop.wait()
        _log.info("stopping")
    _log.info("stopped")


def _first_leaf(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)


def _stop(code: int, message: str) -> NoReturn:
    sys.stderr.write(f"loraplane-admin: {message}\n")
    sys.exit(code)


def main() -> None:
    """Entry point of the console script."""
    typer.run(admin)


if __name__ == "__main__":
    main()
