"""``loraplane-sidecar``: reads its flags, runs until a signal, and says why it stops."""

from __future__ import annotations

import asyncio
import gc
import os
import sys

import structlog

from registry.daemon.flags import read_settings
from registry.daemon.http import CannotListen
from registry.daemon.logs import configure_logging
from registry.daemon.process import EXIT_USAGE, on_stop_signal, supervise
from sidecar.app import StoreUnusable, run
from sidecar.lazy.socket_file import SocketUnusable
from sidecar.ownership import ReplicaTaken
from sidecar.settings import Settings

_log = structlog.get_logger()
PROGRAM = "loraplane-sidecar"
SUMMARY = "Makes one engine serve what the registry says, and reports what it serves."
GC_THRESHOLDS = (10_000, 20, 50)
EXIT_REPLICA_TAKEN = 3
EXITS = {
    StoreUnusable: EXIT_USAGE,
    CannotListen: EXIT_USAGE,
    SocketUnusable: EXIT_USAGE,
    ReplicaTaken: EXIT_REPLICA_TAKEN,
}


def spare_collector() -> None:
    """Makes Python look for cyclic garbage less often: a catalogue has many objects that live long, and no cycles."""
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


async def _until_signalled(settings: Settings) -> None:
    work = asyncio.create_task(run(settings))
    on_stop_signal(work.cancel)
    try:
        await work
    except asyncio.CancelledError:
        _log.info("stopped")


def main() -> None:
    """Entry point of the console script."""
    settings = read_settings(Settings, program=PROGRAM, summary=SUMMARY, arguments=sys.argv[1:], environment=os.environ)
    spare_collector()
    configure_logging()
    supervise(PROGRAM, _until_signalled(settings), EXITS)


if __name__ == "__main__":
    main()
