"""End of a daemon that is its container's first process, while it begins.

The kernel gives such a process no signal that it has no handler for. Without one a SIGTERM of the first seconds would
be lost: the daemon would start, serve, and be killed at the end of the time that it is given, without handing over.
"""

from __future__ import annotations

import os
import signal


def _end(_number: int, _frame: object) -> None:
    """Ends a process that has begun nothing; `registry.runtime.process.on_stop_signal` takes over."""
    os._exit(0)


if os.getpid() == 1:
    signal.signal(signal.SIGTERM, _end)
