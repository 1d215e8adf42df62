"""How a long-running process runs until a signal, and says why it ends otherwise."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import structlog

EXIT_INTERNAL, EXIT_USAGE = 1, 2
_log = structlog.get_logger()


def supervise(program: str, work: Coroutine[Any, Any, None], exits: Mapping[type[Exception], int]) -> None:
    """Runs the work to its end; the one place that catches everything, to say why the process dies (crash-only).

    Args:
        program: stands before the line on stderr.
        work: ends by itself after a signal (`on_stop_signal`).
        exits: exit codes of the errors whose message is all that an operator needs; any other is logged with its
            traceback and ends the process with 1.

    Raises:
        SystemExit: the work failed.
    """
    try:
        asyncio.run(work)
    except* tuple(exits) as group:
        error = _first_leaf(group)
        sys.stderr.write(f"{program}: {error}\n")
        sys.exit(next(code for kind, code in exits.items() if isinstance(error, kind)))
    except* Exception:  # noqa: BLE001 - the supervisor: a broken invariant ends the process, with its traceback
        _log.exception("internal_error")
        sys.exit(EXIT_INTERNAL)


def on_stop_signal(stop: Callable[[], object]) -> None:
    """Calls it at SIGTERM and SIGINT, in the running loop."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)


def _first_leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
