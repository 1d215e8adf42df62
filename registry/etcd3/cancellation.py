"""Cancellation of the task that runs, told from other ends that look alike.

grpc.aio raises CancelledError also when a server, or a closed channel, ended a call. The other way round, a group of
tasks that is cancelled just as one of them fails raises that failure alone. What tells the two apart is whether
somebody cancelled the task; a group that fails leaves no trust in that, so whoever asks awaits it in another task.
"""

from __future__ import annotations

import asyncio


def is_cancelled() -> bool:
    """True if somebody cancelled the task that runs."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
