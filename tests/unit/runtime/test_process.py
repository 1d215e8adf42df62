"""The life of a daemon: what it says as it ends, and how its logs look; in this process."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import logging
import re
import resource
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from importlib import metadata
from unittest.mock import Mock

import pytest
import structlog
import structlog.testing

from registry.runtime import process, program
from registry.runtime.process import Repeats, configure_logging, on_stop_signal, supervise
from registry.runtime.program import (
    most_connections,
    raise_descriptor_limit,
    spare_collector,
    variable_of,
    version_line,
)


class Usage(Exception):
    """Of an operator's making."""


class Special(Usage):
    """A kind of it."""


EXITS = {LookupError: 5, Usage: 2}


async def work(error: BaseException | None) -> None:
    """Works, and fails."""
    await asyncio.sleep(0)
    if error is not None:
        raise error


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (Usage("no such\nport\x1b[2J"), 2, r"program: no such\nport\x1b[2J"),
        (Special("a kind"), 2, "program: a kind"),
        (IndexError("none"), 5, "program: none"),
        (ExceptionGroup("", [ExceptionGroup("", [Usage("within")]), Usage("later")]), 2, "program: within"),
        (ExceptionGroup("", [IndexError("first")]), 5, "program: first"),
    ],
)
def test_what_an_operator_can_mend_is_one_line_with_a_code_of_its_own(capsys, error, code, line):
    """X2: words of others do not end it."""
    with pytest.raises(SystemExit) as ended:
        supervise("program", work(error), EXITS)
    assert ended.value.code == code
    assert capsys.readouterr().err == f"{line}\n"


def test_a_fault_of_ours_ends_the_process_with_its_traceback_and_an_end_ends_nothing(capsys):
    """R12 crash-only: the one place that catches everything."""
    with structlog.testing.capture_logs() as logged, pytest.raises(SystemExit) as ended:
        supervise("program", work(ZeroDivisionError("of ours")), EXITS)
    assert (ended.value.code, process.EXIT_INTERNAL, process.EXIT_USAGE) == (1, 1, 2)
    assert [(line["event"], line["exc_info"]) for line in logged] == [("internal_error", True)]
    supervise("program", work(None), EXITS)
    assert capsys.readouterr().err == ""


async def test_both_signals_stop_a_daemon(monkeypatch):
    handlers: dict[int, object] = {}
    monkeypatch.setattr(asyncio.get_running_loop(), "add_signal_handler", handlers.__setitem__)

    def stop() -> None:
        """Stops."""

    on_stop_signal(stop)
    assert handlers == {signal.SIGTERM: stop, signal.SIGINT: stop}


class Terminal(io.StringIO):
    """Where a daemon writes its log to; a terminal or not."""

    def __init__(self, *, is_one: bool) -> None:
        super().__init__()
        self._is_one = is_one

    def isatty(self) -> bool:
        return self._is_one


@pytest.fixture
def configured(monkeypatch) -> Iterator[Callable[[Terminal], Terminal]]:
    """Sets logs up as of a process that writes there, and returns it.

    Python's logs and ours are set up again as they were.
    """
    handlers, level, ours = [*logging.root.handlers], logging.root.level, structlog.get_config()
    was_configured = structlog.is_configured()
    logging.root.handlers.clear()

    def configure(written: Terminal) -> Terminal:
        monkeypatch.setattr(sys, "stderr", written)
        logging.root.addHandler(logging.NullHandler())  # of a library that was there first
        configure_logging()
        return written

    yield configure
    logging.captureWarnings(capture=False)
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)
    structlog.reset_defaults()
    if was_configured:
        structlog.configure(**ours)


HOSTILE = "a\nb\x1b[2J\x7f\x9b31m\u202egnp\u2028"


def sending(token: str) -> None:
    """Breaks with somebody's token in its hands."""
    raise ValueError(f"it broke with {len(token)}")


def test_a_line_of_a_log_is_json_with_its_time_in_utc_and_written_with_its_end(configured, monkeypatch):
    """X1, X2: no variable of a broken function, no end of a line in the words of others; R12 crash-only: where nothing
    is buffered, a kill between the two would put the next process's line behind it.
    """
    written, pieces = configured(Terminal(is_one=False)), list[str]()
    monkeypatch.setattr(written, "write", pieces.append)
    log = structlog.get_logger()
    with structlog.contextvars.bound_contextvars(replica="r1"):
        log.warning("engine_call", name=HOSTILE, inside=[HOSTILE])
    try:
        sending("secret" + "CANARY")
    except ValueError:
        log.exception("internal_error")
    assert all(piece.endswith("}\n") and piece[:-1].isprintable() for piece in pieces)
    told, broke = map(json.loads, pieces)
    assert (told["event"], told["level"], told["replica"]) == ("engine_call", "warning", "r1")
    assert (told["name"], told["inside"], told["timestamp"][-1]) == (HOSTILE, [HOSTILE], "Z")
    assert abs(datetime.now().astimezone() - datetime.fromisoformat(told["timestamp"])) < timedelta(hours=1)
    assert (broke["event"], broke["level"]) == ("internal_error", "error")
    assert [one in str(broke) for one in ("sending", "it broke with 12", "secretCANARY")] == [True, True, False]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EPIPE, errno.EAGAIN])
def test_a_log_that_nobody_takes_ends_no_daemon_and_goes_on_where_it_is_taken(configured, monkeypatch, number):
    """R13 static-stable: the disk of the log is full, or its reader is gone, for a while; the exit code says why."""
    written, log = configured(Terminal(is_one=False)), structlog.get_logger()
    failing = Mock(side_effect=OSError(number, "not taken"))
    monkeypatch.setattr("registry.runtime.process._log", structlog.get_logger())  # its own keeps its first settings
    with monkeypatch.context() as lost:
        lost.setattr(written, "write", failing)
        log.info("ready")
        logging.getLogger("a.library").error("said so")
        with pytest.raises(SystemExit) as ended:
            supervise("program", work(Usage("no such port")), EXITS)
        with pytest.raises(SystemExit) as broken:
            supervise("program", work(ZeroDivisionError("of ours")), EXITS)
        lost.setattr(written, "write", Terminal.write.__get__(written))
        lost.setattr(written, "flush", failing)
        log.info("unflushed")
    log.info("not_ready")
    assert (ended.value.code, broken.value.code, failing.call_count >= 4) == (2, 1, True)
    assert [json.loads(line)["event"] for line in written.getvalue().splitlines()] == ["unflushed", "not_ready"]


def test_a_log_on_a_terminal_is_for_people(configured):
    written = configured(Terminal(is_one=True))
    structlog.get_logger().warning("engine_call", name=HOSTILE, count=3)
    [line] = written.getvalue().splitlines()
    assert ("engine_call" in line, r"a\nb\x1b[2J\x7f\x9b31m\u202egnp\u2028" in line, line[0] == "{") == (
        True,
        True,
        False,
    )
    assert re.sub(r"\x1b\[[0-9;]*m", "", line).isprintable()


def test_what_libraries_say_is_a_line_of_ours(configured):
    """Instead of one between ours; what is not worth it is left out."""
    written = configured(Terminal(is_one=False))
    for level in (logging.INFO, logging.WARNING, logging.ERROR - 1, logging.ERROR, logging.CRITICAL):
        message = f"said {level} %s"
        logging.getLogger("a.library").log(level, message, "so")
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    told = {30: "warning", 39: "warning", 40: "error", 50: "error"}
    assert [(one["event"], one["logger"], one["message"], one["level"]) for one in lines] == [
        ("library_log", "a.library", f"said {level} so", name) for level, name in told.items()
    ]


def test_what_a_library_says_again_is_a_line_a_minute_with_how_often_it_came(configured, monkeypatch):
    """X3: a thousand callers, or descriptors that are gone, fill no disk; what differs is told all the same."""
    started: list[float] = []
    monkeypatch.setattr(process.Timer, "start", lambda timer: started.append(timer.interval))
    now = 1000.0
    written, library = configured(Terminal(is_one=False)), logging.getLogger("a.library")
    handler = logging.root.handlers[0]
    assert isinstance(handler, process._Libraries)
    handler._repeats = Repeats(lambda: now)

    def flood() -> None:
        for number in range(1150):
            library.error("socket.accept() out of system resource\nsocket: %s", number)
        try:
            sending("x")
        except ValueError:
            library.exception("socket.accept() out of system resource")

    flood()
    flood()
    assert started == [60.0]
    handler._tell_rest()
    assert started == [60.0] * 2, "no minute is over: it is told later"
    now += 60
    library.error("socket.accept() out of system resource")
    handler._tell_rest()
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    assert [(one["times"], "exception" in one) for one in lines] == [
        *((1, False), (1, True)),  # the two causes at once, and a minute later
        *((2300, False), (1, False)),
    ]
    assert started == [60.0] * 2


def test_lines_that_a_library_words_itself_are_told_apart(configured, monkeypatch):
    """R8: one that has no form but its text would hide all the others of its library for a minute."""
    monkeypatch.setattr(process.Timer, "start", lambda _: None)
    written, library = configured(Terminal(is_one=False)), logging.getLogger("a.library")
    for text in ("one", "two", "one\nand more"):
        library.warning("%s", text)
        library.warning("%s of 3", text)
    assert [json.loads(line)["message"] for line in written.getvalue().splitlines()] == ["one", "one of 3", "two"]
    written.truncate(0)
    for wrong in (lambda: sending("x"), lambda: sending("y"), lambda: int("y")):
        try:
            wrong()
        except ValueError:
            library.exception("it broke")
    assert written.getvalue().count('"message": "it broke"') == 2, "by where they began"


def test_of_very_many_causes_the_rest_is_one():
    """R16 bounded: whoever words each line in another way has a line a minute, too."""
    now = 0.0
    repeats = Repeats(lambda: now)
    assert sum(repeats.count(number) for number in range(1000)) == 101
    assert not any(repeats.count("one more") for _ in range(9))
    now = 60.0
    assert (repeats.count("another"), repeats.is_behind) == (1, True)
    assert [times for _, times in repeats.rest()] == [899 + 9]
    assert not repeats.is_behind


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        *(("%s of %s", ("one",)), ("%d", ("one",)), ("%y", ("one",)), ("%(name)s", ({"other": 1},))),
        *(("%s", (Mock(__str__=Mock(side_effect=error)),)) for error in (ValueError, LookupError)),
    ],
)
def test_a_library_s_line_whose_arguments_do_not_fit_is_told_without_them(configured, monkeypatch, message, arguments):
    """X2: a mistake of a library ends nothing."""
    written = configured(Terminal(is_one=False))
    monkeypatch.setattr(logging, "raiseExceptions", False)
    logging.getLogger("a.library").warning(message, *arguments)
    assert json.loads(written.getvalue())["message"] == message


def test_warnings_of_python_are_lines_of_ours_and_nothing_stands_twice(configured):
    written = configured(Terminal(is_one=False))
    assert len(logging.root.handlers) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=True)
        assert "an old way" not in written.getvalue()
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning("an old way", UserWarning, "file.py", 1)
    [line] = map(json.loads, written.getvalue().splitlines())
    assert (line["logger"], "an old way" in line["message"]) == ("py.warnings", True)


def test_a_program_says_its_version_or_that_it_is_not_installed(monkeypatch):
    """A fault of ours is not taken for that. The names of variables follow their flags."""
    found = Mock(side_effect=["1.2.3", metadata.PackageNotFoundError, KeyError("of ours")])
    monkeypatch.setattr(metadata, "version", found)
    monkeypatch.setattr(program, "release_version", program.release_version.__wrapped__)
    assert [version_line("program") for _ in range(2)] == ["program 1.2.3", "program not installed"]
    with pytest.raises(KeyError):
        version_line("program")
    assert [variable_of(flag) for flag in ("--tls-ca", "--etcd")] == ["LORAPLANE_TLS_CA", "LORAPLANE_ETCD"]


def test_garbage_is_looked_for_less_often_than_python_does_and_a_process_may_open_what_it_is_allowed_to(monkeypatch):
    """What stands at the start is left out of it; what has survived once is looked at again within minutes (X3). Of
    descriptors a shell's 1024 are for programs of another time; and a system that grants less ends nothing.
    """
    told: list[object] = []
    monkeypatch.setattr(program.gc, "freeze", lambda: told.append("frozen"))
    monkeypatch.setattr(program.gc, "set_threshold", lambda *thresholds: told.append(thresholds))
    spare_collector()
    frozen, (young, older, all_of_them) = told  # type: ignore[misc] # thresholds
    assert (frozen, young > 10 * 700, young * older < 50_000) == ("frozen", True, True)
    assert young * older * all_of_them < 500_000
    monkeypatch.setattr(program.resource, "getrlimit", lambda _: (1024, 524288))
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(program.resource, "setrlimit", lambda _, these: limits.append(these))
    raise_descriptor_limit()
    assert limits == [(524288, 524288)]
    for error in (ValueError, OSError):
        monkeypatch.setattr(program.resource, "setrlimit", Mock(side_effect=error))
        raise_descriptor_limit()


@pytest.mark.parametrize(
    ("limit", "a_third", "two"),
    [(resource.RLIM_INFINITY, 900, 900), (65536, 900, 900), (1024, 256, 512), (300, 50, 100)],
)
def test_descriptors_are_kept_back_for_our_own_work(monkeypatch, limit, a_third, two):
    """X3: etcd, engine and files have 256, or half of what there is, whatever the ports have."""
    monkeypatch.setattr(program.resource, "getrlimit", lambda _: (limit, limit))
    assert (most_connections(900), most_connections(900, thirds=2)) == (a_third, two)


def test_a_line_that_cannot_be_told_holds_up_nobody_elses(monkeypatch):
    """X3 given-back."""
    handler, taken = process._Libraries(), list[bool]()
    monkeypatch.setattr(handler, "_repeats", Mock(rest=lambda: [((30, "", ""), 1)]))
    monkeypatch.setattr(process, "_tell", Mock(side_effect=BrokenPipeError))
    with pytest.raises(BrokenPipeError):
        handler._tell_rest()
    assert handler.lock is not None
    other = threading.Thread(target=lambda: taken.append(handler.lock.acquire(blocking=False)))
    other.start()
    other.join()
    assert taken == [True]
