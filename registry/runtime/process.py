"""Logs and life of a daemon: until a signal, or an end with a reason.

Logs are one JSON object a line on stderr, or for people if that is a terminal.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping, MutableMapping
from typing import Any

import structlog
import structlog.tracebacks

from registry.lora.text import escaped, printable

# With the places alone: what the variables of a broken function hold may be somebody's token.
_TRACEBACKS = structlog.processors.ExceptionRenderer(
    structlog.tracebacks.ExceptionDictTransformer(show_locals=False, use_rich=False)
)


class _Libraries(logging.Handler):
    """Passes on what libraries log in Python's own way, which would stand between the lines of JSON otherwise."""

    def emit(self, record: logging.LogRecord) -> None:
        """Tells it as an event of ours; of the levels only those that Python shows by itself come here."""
        log = structlog.get_logger()
        tell = log.error if record.levelno >= logging.ERROR else log.warning
        tell("library_log", logger=record.name, message=_message(record), exc_info=record.exc_info)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError, LookupError):
        return str(record.msg)  # its arguments do not fit


def _printable_values(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """For people. What is within lists and the like is shown by its repr."""
    return {key: printable(value) if isinstance(value, str) else value for key, value in event.items()}


def _json(event: object, **options: Any) -> str:  # noqa: ANN401 - what structlog asks json for
    return escaped(json.dumps(event, **options))


def configure_logging() -> None:
    """Sets structlog up for this process. Event names are constant, everything else is a key."""
    logging.basicConfig(handlers=[_Libraries(logging.WARNING)], force=True)
    logging.captureWarnings(capture=True)
    on_terminal = sys.stderr.isatty()
    as_json = structlog.processors.JSONRenderer(serializer=_json)
    renderers = [_printable_values, structlog.dev.ConsoleRenderer()] if on_terminal else [as_json]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _TRACEBACKS,
            *renderers,
        ],
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )


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
        sys.stderr.write(printable(f"{program}: {error}") + "\n")
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
