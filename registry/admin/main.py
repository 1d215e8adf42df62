"""``loraplane-admin``: reads its flags, serves until a signal, and says why it stops."""

from __future__ import annotations

import asyncio
import os
import sys

import structlog

from registry.admin.server import running
from registry.admin.settings import Settings
from registry.daemon.flags import read_settings
from registry.daemon.http import CannotListen
from registry.daemon.logs import configure_logging
from registry.daemon.process import EXIT_USAGE, on_stop_signal, supervise
from registry.etcd3.errors import TlsFailed, Unauthenticated

_log = structlog.get_logger()
PROGRAM = "loraplane-admin"
SUMMARY = "Serves the registry's API: the only writer of desired state. Stateless, any number may run."
EXITS = {CannotListen: EXIT_USAGE, TlsFailed: EXIT_USAGE, Unauthenticated: EXIT_USAGE}


async def _serve(settings: Settings) -> None:
    stop = asyncio.Event()
    on_stop_signal(stop.set)
    async with running(settings):
        await stop.wait()
        _log.info("stopping")
    _log.info("stopped")


def main() -> None:
    """Entry point of the console script."""
    settings = read_settings(Settings, program=PROGRAM, summary=SUMMARY, arguments=sys.argv[1:], environment=os.environ)
    configure_logging()
    supervise(PROGRAM, _serve(settings), EXITS)


if __name__ == "__main__":
    main()
