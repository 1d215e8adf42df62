"""A process that stages one artifact, and dies or waits at a step. Started by the tests beside it.

Arguments: store, allowed root, URI, digest or "-", what to do ("run", "die" or "wait"), at which step, which time.
Prints each step and, at the end, the path.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from sidecar.artifacts.steps import Step
from sidecar.artifacts.store import LocalStore
from sidecar.artifacts.types import ArtifactRef


class Script:
    """Does what it was told at the n-th time that a step is reached."""

    def __init__(self, action: str, step: str, times: int) -> None:
        self._action, self._step, self._times = action, step, times

    def on_step(self, step: Step) -> None:
        print(step, flush=True)
        if step != self._step:
            return
        self._times -= 1
        if self._times == 0 and self._action == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._times == 0 and self._action == "wait":
            sys.stdin.readline()


def main() -> None:
    root, allowed, uri, digest, action, step, times = sys.argv[1:]
    script = Script(action, step, int(times))
    store = LocalStore(Path(root), f"p{os.getpid()}", [Path(allowed).as_uri()], on_step=script.on_step)
    ref = ArtifactRef(uri, None if digest == "-" else digest, pin_key="pool/a@1")
    print(asyncio.run(store.ensure(ref)).path, flush=True)


if __name__ == "__main__":
    main()
