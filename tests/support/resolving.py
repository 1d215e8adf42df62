"""A sidecar that is played: it answers the engine's questions for names as a test orders."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self


def found(path: str, **more: bool) -> bytes:
    """The answer that names a directory."""
    return json.dumps({"schema": 1, "path": path, **more}).encode() + b"\n"


def missing(reason: str) -> bytes:
    """The answer that there is none."""
    return json.dumps({"schema": 1, "path": None, "reason": reason}).encode() + b"\n"


@dataclass
class PlayedSidecar:
    """A socket that answers within ``async with``.

    Attributes:
        path: of the socket; by default one of its own, short enough for a socket.
        answers: what a question for a name gets; None: what `held` is set to, or nothing. Other names are unknown.
        asked: the questions, in order.
    """

    path: str = ""
    answers: dict[str, bytes | None] = field(default_factory=dict)
    asked: list[dict[str, Any]] = field(default_factory=list)
    held: dict[str, asyncio.Future[bytes]] = field(default_factory=dict)
    _folder: str = ""
    _server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        if not self.path:
            self._folder = tempfile.mkdtemp(prefix="lp-")
            self.path = f"{self._folder}/s"
        self._server = await asyncio.start_unix_server(self._answer, self.path)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await asyncio.to_thread(Path(self.path).unlink, missing_ok=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            question = json.loads(await reader.readline())
            self.asked.append(question)
            answer = self.answers.get(question["name"], missing("unknown_adapter"))
            writer.write(await self._held(question["name"], reader) if answer is None else answer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def _held(self, name: str, reader: asyncio.StreamReader) -> bytes:
        """What a test says at last; nothing, if whoever asks gives up before."""
        answer = self.held[name] = asyncio.get_running_loop().create_future()
        gone = asyncio.create_task(reader.read())
        await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        return answer.result() if answer.done() else b""
