"""What a process says of a failure that nobody foresaw."""

from __future__ import annotations

import json
import subprocess
import sys

_BREAKS = """
import structlog
from registry.daemon.logs import configure_logging

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
