"""Entry point of ``loraplane-admin``.

It reads its flags, serves until a signal, and says why it stops.
"""

from __future__ import annotations

from registry.runtime import first_process  # noqa: F401 - before what takes long to import

# isort: split
import asyncio
import os
import sys

import structlog

from registry.etcd3.errors import EtcdUnauthenticated, TlsFailed
from registry.runtime import tracing
from registry.runtime.flags import read_settings
from registry.runtime.process import EXIT_USAGE, configure_logging, on_stop_signal, supervise
from registry.runtime.program import needs_extra, open_standard_streams, raise_descriptor_limit, spare_collector

with needs_extra("loraplane-admin", "server"):
    from registry.admin.server import running
    from registry.admin.settings import AdminSettings
    from registry.runtime.http import CannotListen

_log = structlog.get_logger()
PROGRAM = "loraplane-admin"
SUMMARY = "Serves the registry's API: the only writer of desired state. Stateless, any number may run."
EXITS = {CannotListen: EXIT_USAGE, TlsFailed: EXIT_USAGE, EtcdUnauthenticated: EXIT_USAGE}


async def _serve(settings: AdminSettings) -> None:
    stop = asyncio.Event()
    on_stop_signal(stop.set)
    async with running(settings):
        await stop.wait()
        _log.info("stopping")
    _log.info("stopped")


def main() -> None:
    """Entry point of the console script."""
    open_standard_streams()
    settings = read_settings(
        AdminSettings, program=PROGRAM, summary=SUMMARY, arguments=sys.argv[1:], environment=os.environ
    )
    spare_collector()
    raise_descriptor_limit()
    configure_logging()
    tracing.start(PROGRAM, os.environ, lambda why: _log.warning("tracing_unavailable", message=why))
    try:
        supervise(PROGRAM, _serve(settings), EXITS)
    finally:
        tracing.stop()


if __name__ == "__main__":
    main()
