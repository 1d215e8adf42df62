"""Entry point of ``loraplane-sidecar``.

It reads its flags, runs until a signal, and says why it stops.
"""

from __future__ import annotations

from registry.runtime import first_process  # noqa: F401 - before what takes long to import

# isort: split
import asyncio
import os
import sys

import structlog

from registry.runtime import tracing
from registry.runtime.engine_drivers import NoDriver
from registry.runtime.flags import read_settings
from registry.runtime.process import EXIT_INTERNAL, EXIT_USAGE, configure_logging, end_soon, on_stop_signal, supervise
from registry.runtime.program import needs_extra, open_standard_streams, raise_descriptor_limit, spare_collector

with needs_extra("loraplane-sidecar", "sidecar"):
    from registry.runtime.http import CannotListen
    from sidecar.daemon import StoreUnusable, run
    from sidecar.desired.journal import SnapshotUnread
    from sidecar.ownership import ReplicaTaken
    from sidecar.resolver.server import SocketUnusable
    from sidecar.settings import SidecarSettings

_log = structlog.get_logger()
PROGRAM = "loraplane-sidecar"
SUMMARY = "Makes one engine serve what the registry says, and reports what it serves."
EXIT_REPLICA_TAKEN = 3
EXITS = {
    StoreUnusable: EXIT_USAGE,
    CannotListen: EXIT_USAGE,
    NoDriver: EXIT_USAGE,
    SocketUnusable: EXIT_USAGE,
    ReplicaTaken: EXIT_REPLICA_TAKEN,
    SnapshotUnread: EXIT_INTERNAL,
}


async def _until_signalled(settings: SidecarSettings) -> None:
    """Hands over at the first signal, and ends at once at the second."""
    stop = asyncio.Event()
    work = asyncio.create_task(run(settings, stop))
    on_stop_signal(lambda: work.cancel() if stop.is_set() else stop.set())
    try:
        await work
    except asyncio.CancelledError:
        _log.info("stopped")
    end_soon()


def main() -> None:
    """Entry point of the console script."""
    open_standard_streams()
    settings = read_settings(
        SidecarSettings, program=PROGRAM, summary=SUMMARY, arguments=sys.argv[1:], environment=os.environ
    )
    spare_collector()
    raise_descriptor_limit()
    configure_logging()
    tracing.start(
        PROGRAM,
        os.environ,
        lambda why: _log.warning("tracing_unavailable", message=why),
        pool=settings.pool,
        replica=settings.replica,
    )
    try:
        supervise(PROGRAM, _until_signalled(settings), EXITS)
    finally:
        tracing.stop()


if __name__ == "__main__":
    main()
