"""What a process says of a failure that nobody foresaw."""

from __future__ import annotations

import json
import re
import subprocess
import sys

_BREAKS = """
import structlog
from registry.runtime.process import configure_logging

def sending(token):
    headers = {"authorization": token}
    raise ValueError("it broke")

configure_logging()
try:
    sending("secret" + "CANARY")
except ValueError as error:
    structlog.get_logger().exception("internal_error", method="m")
"""


def test_a_traceback_names_places_and_no_values():
    """X1: a function that breaks off may have a token in its hands."""
    ran = subprocess.run([sys.executable, "-c", _BREAKS], capture_output=True, text=True, check=True)
    told = json.loads(ran.stderr)
    assert told["event"] == "internal_error"
    assert "sending" in str(told["exception"])
    assert "it broke" in str(told["exception"])
    assert "secretCANARY" not in ran.stderr


_LIBRARIES = """
import logging, warnings
from registry.runtime.process import configure_logging

configure_logging()
logging.getLogger("uvicorn.error").warning("Invalid %s received.", "HTTP request")
logging.getLogger("uvicorn.error").info("not worth a line")
logging.getLogger("grpc").warning("%s of %s", "one")
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("asyncio").exception("Task exception was never retrieved")
warnings.warn("an old way", stacklevel=1)
"""


def test_what_libraries_log_is_json_too():
    ran = subprocess.run([sys.executable, "-c", _LIBRARIES], capture_output=True, text=True, check=True)
    request, odd, task, warning = map(json.loads, ran.stderr.splitlines())
    assert (request["event"], request["level"]) == ("library_log", "warning")
    assert (request["logger"], request["message"]) == ("uvicorn.error", "Invalid HTTP request received.")
    assert odd["message"] == "%s of %s"
    assert (task["level"], task["logger"]) == ("error", "asyncio")
    assert "division by zero" in str(task["exception"])
    assert "an old way" in warning["message"]


_HOSTILE = """
import sys
from unittest import mock
import structlog
from registry.runtime.process import configure_logging

hostile = "a\\nb\\x1b[2J\\x7f\\x9b31m\\u202egnp\\u2028"
with mock.patch.object(sys.stderr, "isatty", lambda: len(sys.argv) > 1):
    configure_logging()
structlog.get_logger().warning("engine_call", name=hostile, inside=[hostile], outcome=repr(hostile))
"""


def test_words_of_others_end_no_line_of_a_log():
    """X2: as JSON, and for people, where colours are ours alone."""
    as_json = subprocess.run([sys.executable, "-c", _HOSTILE], capture_output=True, text=True, check=True).stderr
    assert json.loads(as_json)["name"] == "a\nb\x1b[2J\x7f\x9b31m\u202egnp\u2028"
    command = [sys.executable, "-c", _HOSTILE, "terminal"]
    for_people = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert r"a\nb\x1b[2J\x7f\x9b31m\u202egnp\u2028" in for_people
    plain = re.sub(r"\x1b\[[0-9;]*m", "", for_people)
    for told in (as_json, plain):
        assert told.count("\n") == 1
        assert told.rstrip("\n").isprintable()
