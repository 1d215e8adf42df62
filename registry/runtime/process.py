"""Logs and life of a daemon and its parts: until a signal, or a reason to end.

Logs are one JSON object a line on stderr, or for people if that is a terminal.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from threading import Timer
from typing import Any, TextIO, cast

import structlog
import structlog.tracebacks

from registry.etcd3.backoff import Backoff
from registry.etcd3.cancellation import is_cancelled
from registry.lora.text import escaped, printable

# With the places alone: what the variables of a broken function hold may be somebody's token.
_TRACEBACKS = structlog.processors.ExceptionRenderer(
    structlog.tracebacks.ExceptionDictTransformer(show_locals=False, use_rich=False)
)


# What comes again is worth no line before.
QUIET_SECONDS = 60.0
# Of more causes at once than this all others are one, whatever makes them differ.
_MAX_CAUSES = 100


@dataclass(slots=True)
class _Cause:
    told_at: float = -math.inf
    untold: int = 0
    last: Any = None


class Repeats:
    """Filter of events that come again and again, by what is worth a line: the first of each cause in a minute."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._causes: dict[Hashable, _Cause] = {}

    def count(self, cause: Hashable, event: object = None) -> int:
        """Number of times it came since its last line, this time included; 0: that line is less than a minute old."""
        if cause not in self._causes and len(self._causes) >= _MAX_CAUSES:
            self._causes = {kept: one for kept, one in self._causes.items() if one.untold or not self._is_over(one)}
            cause = cause if len(self._causes) < _MAX_CAUSES else None
        found = self._causes.setdefault(cause, _Cause())
        found.untold, found.last = found.untold + 1, event
        return self._take(found)

    def rest(self) -> Iterator[tuple[Any, int]]:
        """The last event of each cause whose last line is a minute old, and how often it came since."""
        for one in self._causes.values():
            if one.untold and (times := self._take(one)):
                yield one.last, times

    @property
    def is_behind(self) -> bool:
        """True while something came of which no line tells."""
        return any(one.untold for one in self._causes.values())

    def _is_over(self, one: _Cause) -> bool:
        return self._now() - one.told_at >= QUIET_SECONDS

    def _take(self, one: _Cause) -> int:
        if not self._is_over(one):
            return 0
        times, one.told_at, one.untold = one.untold, self._now(), 0
        return times


class _Libraries(logging.Handler):
    """Passes on what libraries log in Python's own way, which would stand between the lines of JSON otherwise.

    What callers can bring about many times a second, as that no descriptor is left, is a line a minute.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._repeats = Repeats()
        self._is_waiting = False

    def emit(self, record: logging.LogRecord) -> None:
        """Tells it as an event of ours; of the levels only those that Python shows by itself come here."""
        told = record.levelno, record.name, _message(record)  # and no traceback: it holds what was called
        if times := self._repeats.count(_cause(record), told):
            _tell(*told, times, record.exc_info)
        else:
            self._tell_later()

    def _tell_later(self) -> None:
        if not self._is_waiting:
            self._is_waiting = True
            timer = Timer(QUIET_SECONDS, self._tell_rest)
            timer.daemon = True
            timer.start()

    def _tell_rest(self) -> None:
        self.acquire()
        try:
            self._is_waiting = False
            for (level, name, message), times in self._repeats.rest():
                _tell(level, name, message, times)
            if self._repeats.is_behind:
                self._tell_later()
        finally:
            self.release()


def _tell(level: int, logger: str, message: str, times: int, exc_info: object = None) -> None:
    log = structlog.get_logger()
    tell = log.error if level >= logging.ERROR else log.warning
    tell("library_log", logger=logger, message=message, times=times, exc_info=exc_info)


def _cause(record: logging.LogRecord) -> Hashable:
    """Part of a record that others which say no more share: its words without values, and where an error began."""
    words = _message(record) if record.msg == "%s" else str(record.msg)
    kind, _, trace = record.exc_info or (None, None, None)
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = None if trace is None else (trace.tb_frame.f_code, trace.tb_lineno)
    return record.name, words.partition("\n")[0], kind, place


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


class _StandardError:
    """File of a log whose lines may be lost: on a full disk, or with a reader that is gone, a daemon works on."""

    def __init__(self) -> None:
        self._file = sys.stderr

    def write(self, line: str) -> None:
        with suppress(OSError):
            self._file.write(line)

    def flush(self) -> None:
        with suppress(OSError):
            self._file.flush()


def configure_logging() -> None:
    """Sets structlog up for this process. Event names are constant, everything else is a key."""
    logging.basicConfig(handlers=[_Libraries()], force=True)
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
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", _StandardError())),
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
        _StandardError().write(printable(f"{program}: {error}") + "\n")
        sys.exit(next(code for kind, code in exits.items() if isinstance(error, kind)))
    except* Exception:  # noqa: BLE001 - the supervisor: a broken invariant ends the process, with its traceback
        _log.exception("internal_error")
        sys.exit(EXIT_INTERNAL)


def on_stop_signal(stop: Callable[[], object]) -> None:
    """Calls it at SIGTERM and SIGINT, in the running loop."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)


# What is to be sent yet, as traces, is sent within this time.
LINGER_SECONDS = 5.0


def end_soon() -> None:
    """Ends this process with 0 in a few seconds, whatever its threads wait for, as a mount that hangs."""
    timer = Timer(LINGER_SECONDS, os._exit, (0,))
    timer.daemon = True
    timer.start()


def _first_leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


_RETRY = Backoff(base_seconds=1.0, cap_seconds=15.0)
# A part that has run for so long since it failed is well again; a round that succeeds is at once.
WELL_SECONDS = 30.0
# Runs a part of this name for as long as it has to run: see `Supervisor.keep`.
Keep = Callable[[str, Callable[[], Awaitable[None]]], Coroutine[Any, Any, None]]


async def keep_once(_part: str, work: Callable[[], Awaitable[None]]) -> None:
    """A `Keep` for parts that nobody supervises: what they raise is raised."""
    await work()


@dataclass(slots=True)
class Trouble:
    """A part that fails: the kind of its last error, since when (monotonic seconds), and how often in a row."""

    error: str
    since: float
    failures: int = 0


class Supervisor:
    """Keeps parts of one process running: tells what failed, and runs it again.

    A broken invariant of ours, or a value that nobody foresaw, is a fault of one part. The others have a lease to keep
    and an engine to serve, and a process that ended over it would end again at each start.

    Args:
        count: is told the name of a part at each failure, for a metric.
        rng: for jitter.
        fatal: errors that end the process, as their messages say.
    """

    def __init__(
        self, count: Callable[[str], None], rng: random.Random, *, fatal: tuple[type[Exception], ...] = ()
    ) -> None:
        self._count = count
        self._rng = rng
        self._fatal = fatal
        self._on_change: Callable[[], None] = lambda: None
        self._troubles: dict[str, Trouble] = {}

    def heed(self, on_change: Callable[[], None]) -> None:
        """Has this called when a part fails or is well again: whoever tells of `troubles`, so it is made later."""
        self._on_change = on_change

    @property
    def troubles(self) -> Mapping[str, Trouble]:
        """The parts that fail at present; always the same mapping, which changes."""
        return self._troubles

    async def keep(self, part: str, work: Callable[[], Awaitable[None]]) -> None:
        """Runs `work` until it returns. Whenever it fails, it is run again after a pause. Raises `fatal` errors.

        Each run is a task of its own: a group of tasks that fails tells nothing of a cancellation, or leaves the traces
        of one that never was (see `registry.etcd3.cancellation`).
        """
        while True:
            well = asyncio.get_running_loop().call_later(WELL_SECONDS, self._mend, part)
            try:
                return await asyncio.create_task(keep_once(part, work), name=part)
            except self._fatal:
                raise
            except Exception as error:  # whatever it was, the other parts go on
                pause = self._fail(part, error)
                if is_cancelled():
                    raise asyncio.CancelledError from error
            finally:
                well.cancel()
            await asyncio.sleep(pause)

    async def paced(self, part: str, work: Callable[[], Awaitable[float]]) -> float:
        """Runs one round, and gives the seconds until the next: as the round says, or a back-off if it failed."""
        try:
            pause = await work()
        except self._fatal:
            raise
        except Exception as error:  # as above
            pause = self._fail(part, error)
            if is_cancelled():
                raise asyncio.CancelledError from error
            return pause
        self._mend(part)
        return pause

    def survives(self, part: str, work: Callable[[], None]) -> bool:
        """Runs something once that is done without if it fails; False: it did. Raises `fatal` errors."""
        try:
            work()
        except self._fatal:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(part, error)
            return False
        return True

    def _fail(self, part: str, error: Exception) -> float:
        trouble = self._troubles.setdefault(part, Trouble("", asyncio.get_running_loop().time()))
        trouble.error, trouble.failures = type(error).__name__, trouble.failures + 1
        pause = _RETRY.delay(trouble.failures, self._rng.uniform)
        _log.error("part_failed", part=part, failures=trouble.failures, again_in_seconds=pause, exc_info=error)
        self._count(part)
        self._on_change()
        return pause

    def _mend(self, part: str) -> None:
        if self._troubles.pop(part, None) is not None:
            _log.info("part_well", part=part)
            self._on_change()
