"""A sidecar that is played: it answers the engine's questions for names as a test orders."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self


def found(path: str) -> bytes:
    """The answer that names a directory."""
    return json.dumps({"schema": 1, "path": path}).encode() + b"\n"


def missing(reason: str) -> bytes:
    """The answer that there is none."""
    return json.dumps({"schema": 1, "path": None, "reason": reason}).encode() + b"\n"


@dataclass
class PlayedSidecar:
    """A socket that answers within ``async with``.

    Attributes:
        path: of the socket; by default one of its own, short enough for a socket.
        answers: what a question for a name gets; None: no answer at all. Other names are unknown.
        asked: the questions, in order.
    """

    path: str = ""
    answers: dict[str, bytes | None] = field(default_factory=dict)
    asked: list[dict[str, Any]] = field(default_factory=list)
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
            if answer is None:
                await reader.read()  # until whoever asks gives up
            else:
                writer.write(answer)
        except ConnectionError:
            pass
        finally:
            writer.close()
