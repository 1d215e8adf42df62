"""A program that connects again and again, each time with a wait that times out."""

from __future__ import annotations

import subprocess
import sys

from registry.v1 import registry_pb2 as pb
from tests.support.fake_admin import Hold, served

_PROGRAM = """
import sys

from loraplane import Registry, Unavailable
from registry.client.adapters import Published

for turn in range(60):
    with Registry(sys.argv[1]) as registry:
        try:
            registry.wait(Published("acme/a", "p", 1, "s3://a/", "", 1, "mine"), timeout_seconds=0.02)
        except Unavailable:
            continue
        raise SystemExit("it was served")
"""


def test_it_writes_nothing_that_the_program_did_not(admin):
    """Streams that are given up end before their loop does; grpc.aio told of each that was closed by then."""
    admin.answers["WatchRollout"] = [[pb.Rollout(name="acme/a", generation=1), Hold()]]
    with served(admin) as address:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, address], capture_output=True, text=True, timeout=120, check=False
        )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
