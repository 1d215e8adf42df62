"""A process that stages one artifact, and dies or waits at a point. Started by the tests beside it.

Arguments: store, allowed root, URI, digest or "-", what to do ("run", "die" or "wait"), at which point, which time.
Prints each point and, at the end, the path. Who waits does so until SIGCONT.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from registry.runtime.failpoints import Point, handling
from sidecar.artifacts.store import LocalStore
from sidecar.artifacts.types import ArtifactRef
from tests.corpus.in_process import InProcessExaminer


class Script:
    """Does what it was told at the n-th time that a point is passed."""

    def __init__(self, action: str, point: str, times: int) -> None:
        self._action, self._point, self._times = action, point, times

    def play(self, point: Point) -> None:
        print(point, flush=True)
        if point != self._point:
            return
        self._times -= 1
        if self._times == 0 and self._action == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._times == 0 and self._action == "wait":
            os.kill(os.getpid(), signal.SIGSTOP)


def main() -> None:
    root, allowed, uri, digest, action, point, times = sys.argv[1:]
    script = Script(action, point, int(times))
    store = LocalStore(Path(root), f"p{os.getpid()}", [Path(allowed).as_uri()], examiner=InProcessExaminer())
    ref = ArtifactRef(uri, None if digest == "-" else digest, pin_key="pool/a@1")
    with handling(script.play):
        print(asyncio.run(store.ensure(ref)).path, flush=True)


if __name__ == "__main__":
    main()
