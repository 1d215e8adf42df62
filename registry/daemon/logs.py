"""How a long-running process logs: one JSON object a line on stderr, or for people if that is a terminal."""

from __future__ import annotations

import logging
import sys

import structlog
import structlog.tracebacks

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


def configure_logging() -> None:
    """Sets structlog up for this process. Event names are constant, everything else is a key."""
    logging.basicConfig(handlers=[_Libraries(logging.WARNING)], force=True)
    logging.captureWarnings(capture=True)
    on_terminal = sys.stderr.isatty()
    renderer = structlog.dev.ConsoleRenderer() if on_terminal else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _TRACEBACKS,
            renderer,
        ],
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
