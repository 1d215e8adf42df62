"""Takes engines' questions from a unix socket: one connection each, of which nothing is left when it is answered."""

from __future__ import annotations

import asyncio
import socket
from typing import Protocol

import structlog

from sidecar.lazy.wire import MAX_QUESTION_BYTES, Answer, Found, No, read_question, write_answer
from sidecar.metrics import LAZY_QUESTIONS

_log = structlog.get_logger()
# A question comes in one piece right after the connection, and its answer is taken at once.
TRANSFER_SECONDS = 2.0
MAX_CONNECTIONS = 256
ACCEPT_AGAIN_SECONDS = 0.5


class Answers(Protocol):
    """Who answers."""

    async def ask(self, name: str) -> Answer:
        """Answers a question about a name, within a time of its own."""
        ...


class ResolverServer:
    """Serves one listening socket."""

    def __init__(self, listener: socket.socket, answers: Answers) -> None:
        self._listener = listener
        self._answers = answers
        self._connections = 0

    async def run(self) -> None:
        """Runs until it is cancelled."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            while True:
                try:
                    connection, _ = await loop.sock_accept(self._listener)
                except OSError as error:  # no descriptor is left: some will be
                    _log.warning("question_not_accepted", error=str(error))
                    await asyncio.sleep(ACCEPT_AGAIN_SECONDS)
                    continue
                if self._connections >= MAX_CONNECTIONS:
                    connection.close()
                    continue
                self._connections += 1
                tasks.create_task(self._serve(connection), name="question")

    async def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                answer = await self._answer(await _line(connection))
                LAZY_QUESTIONS.labels("path" if isinstance(answer, Found) else answer.reason).inc()
                async with asyncio.timeout(TRANSFER_SECONDS):
                    await asyncio.get_running_loop().sock_sendall(connection, write_answer(answer))
        except OSError as error:  # a TimeoutError is one too
            _log.debug("question_broken_off", error=repr(error))
        finally:
            self._connections -= 1

    async def _answer(self, line: bytes) -> Answer:
        name = read_question(line)
        return No("bad_question") if name is None else await self._answers.ask(name)


async def _line(connection: socket.socket) -> bytes:
    """The first line, or as much of it as shows that it is too long. Raises OSError."""
    loop, line = asyncio.get_running_loop(), b""
    async with asyncio.timeout(TRANSFER_SECONDS):
        while b"\n" not in line and len(line) <= MAX_QUESTION_BYTES:
            piece = await loop.sock_recv(connection, MAX_QUESTION_BYTES + 1)
            if not piece:
                break
            line += piece
    return line.partition(b"\n")[0]
