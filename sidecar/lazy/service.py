"""Runs what answers an engine's questions: the socket, its server and the desk behind it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sidecar.lazy.desk import Desk
from sidecar.lazy.server import ResolverServer
from sidecar.lazy.socket_file import SocketFile


async def answer_questions(path: Path, desk: Desk) -> None:
    """Answers questions on the socket at `path` until it is cancelled.

    Raises:
        SocketUnusable: see `SocketFile`.
    """
    socket_file = SocketFile(path)
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(desk.run(), name="desk")
            tasks.create_task(ResolverServer(socket_file.listener, desk).run(), name="questions")
    finally:
        socket_file.close()
