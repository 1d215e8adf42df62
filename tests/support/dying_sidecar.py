"""A sidecar that kills itself at a step: ``python -m tests.support.dying_sidecar STEP FLAGS…``."""

from __future__ import annotations

import os
import signal
import sys
from enum import StrEnum
from functools import partial
from unittest import mock

from sidecar.app import run
from sidecar.main import main


def dying(*steps: str) -> mock._patch[object]:
    """Makes the sidecar of this process die when it first reaches one of the steps, as by kill -9."""

    def on_step(step: StrEnum) -> None:
        if step in steps:
            os.kill(os.getpid(), signal.SIGKILL)

    return mock.patch("sidecar.main.run", partial(run, on_step=on_step))


if __name__ == "__main__":
    with dying(sys.argv.pop(1)):
        main()
