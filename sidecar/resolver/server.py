"""Unix socket server of the resolver.

The socket is made where the operator says, and never taken from a process that lives. Each question has a connection
of its own. Whoever may open the socket may open it as often as they like: who says nothing gives way to who asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import stat
import struct
from functools import partial
from pathlib import Path
from typing import Protocol

import structlog

from registry.runtime.connection_table import ConnectionTable, NoPlace
from registry.runtime.process import Repeats
from registry.runtime.program import most_connections
from sidecar.metrics import CONNECTIONS_CLOSED, LAZY_QUESTIONS
from sidecar.resolver.resolver import Resolver
from sidecar.vllm_plugin.protocol import (
    MAX_QUESTION_BYTES,
    MAX_SOCKET_PATH_BYTES,
    Answer,
    Resolved,
    Unresolved,
    read_question,
    write_answer,
)

# The engine may run as another user of the same group (see docs/operations.md).
MODE = 0o660
BACKLOG = 1024


class SocketUnusable(Exception):
    """The socket cannot be made; the message says why and what to do."""


def check_socket_path(path: Path) -> None:
    """Raises ValueError if no socket can be at `path`, wherever it is."""
    size = len(os.fsencode(path))
    if size > MAX_SOCKET_PATH_BYTES:
        raise ValueError(
            f"{path} has {size} bytes, a socket's path has at most {MAX_SOCKET_PATH_BYTES}: use a shorter one"
        )
    if not path.is_absolute():
        raise ValueError(f"{path} is not absolute: engine and sidecar must mean the same file")


def check_directory(path: Path) -> None:
    """Raises SocketUnusable if there is no directory for a socket at `path`."""
    if not path.parent.is_dir():
        raise SocketUnusable(f"--resolver-socket: there is no directory {path.parent}; make it, for the engine too")


class SocketFile:
    """A listening socket; `close` removes its file."""

    def __init__(self, path: Path) -> None:
        """Makes the socket, in place of one that a dead process left.

        Raises:
            SocketUnusable: its directory is missing, something else has the path, or a living process listens there.
        """
        check_directory(path)
        self._path = path
        try:
            _clear(path)
            self.listener = _listen(path)
        except OSError as error:
            raise SocketUnusable(f"--resolver-socket: {path} cannot be made: {error.strerror}") from error

    def close(self) -> None:
        """Takes no more connections."""
        with contextlib.suppress(OSError):  # the next process clears it away
            self._path.unlink()
        self.listener.close()


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.settimeout(0)  # asyncio waits
        listener.bind(os.fspath(path))
        path.chmod(MODE)  # before anybody can connect
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _clear(path: Path) -> None:
    """Removes the socket of a dead process. Raises SocketUnusable, OSError."""
    if not path.exists():
        return
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise SocketUnusable(f"--resolver-socket: {path} is no socket; move it away or choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise SocketUnusable(f"--resolver-socket: another process listens at {path}; give each replica its own")


_log = structlog.get_logger()
# A question comes in one piece right after the connection, and its answer is taken at once.
TRANSFER_SECONDS = 2.0
# Of these one process has no more than the second. All of another container are one where its processes are not seen,
# so an engine of three that serve, each with as many questions as it may have, has enough.
MAX_CONNECTIONS, MAX_OF_PROCESS = 256, 192
ACCEPT_AGAIN_SECONDS = 0.5
TAKEN_AT_ONCE = 8


class Answers(Protocol):
    """Resolver, as the server asks it."""

    async def ask(self, name: str) -> Answer:
        """Answers a question about a name, within a time of its own."""
        ...


class ResolverServer:
    """Serves one listening socket."""

    def __init__(self, listener: socket.socket, answers: Answers) -> None:
        self._listener = listener
        self._answers = answers
        self._table = ConnectionTable[socket.socket](most_connections(MAX_CONNECTIONS), MAX_OF_PROCESS)
        self._serving: dict[socket.socket, asyncio.Task[None]] = {}
        self._repeats = Repeats()
        self._unread = 0

    async def run(self) -> None:
        """Runs until it is cancelled."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            while True:
                try:
                    connection, _ = await loop.sock_accept(self._listener)
                except OSError as error:  # no descriptor is left: some will be
                    if times := self._repeats.count("question_not_accepted"):
                        _log.warning("question_not_accepted", error=str(error), times=times)
                    await asyncio.sleep(ACCEPT_AGAIN_SECONDS)
                    continue
                self._take(connection, tasks)
                self._unread += 1
                if self._unread >= TAKEN_AT_ONCE:
                    await asyncio.sleep(0)  # to read what they say before others come
                    self._unread = 0

    def _take(self, connection: socket.socket, tasks: asyncio.TaskGroup) -> None:
        """Has a connection served, or refuses it."""
        try:
            replaced = self._table.enter(connection, _process_of(connection))
        except NoPlace as full:
            self._note("process_limit" if full.of == "peer" else "port_limit")
            connection.close()
            return
        if replaced is not None:
            self._note("replaced")
            self._serving[replaced].cancel()
        task = self._serving[connection] = tasks.create_task(self._serve(connection), name="question")
        task.add_done_callback(partial(self._end, connection))

    def _end(self, connection: socket.socket, _task: asyncio.Task[None]) -> None:
        del self._serving[connection]
        self._table.leave(connection)
        connection.close()

    def _note(self, reason: str) -> None:
        CONNECTIONS_CLOSED.labels("resolver", reason).inc()
        if times := self._repeats.count(reason):
            _log.warning("connections_closed", port="resolver", reason=reason, times=times)

    async def _serve(self, connection: socket.socket) -> None:
        try:
            answer = await self._answer(connection, await self._question(connection))
            LAZY_QUESTIONS.labels("path" if isinstance(answer, Resolved) else answer.reason).inc()
            async with asyncio.timeout(TRANSFER_SECONDS):
                await asyncio.get_running_loop().sock_sendall(connection, write_answer(answer))
        except OSError as error:  # a TimeoutError is one too
            if times := self._repeats.count("broken_off"):
                _log.debug("question_broken_off", error=repr(error), times=times)

    async def _question(self, connection: socket.socket) -> bytes:
        self._unread = 0
        try:
            line = await _line(connection)
        except TimeoutError:
            self._note("no_request")
            raise
        self._table.answer(connection)
        return line

    async def _answer(self, connection: socket.socket, line: bytes) -> Answer:
        """The answer to a line, which counts as given once it is found.

        Raises:
            ConnectionAbortedError: nobody is there any more to take it.
        """
        name = read_question(line)
        if name is None:
            return Unresolved("bad_question")
        asking, leaving = asyncio.create_task(self._answers.ask(name)), asyncio.create_task(_left(connection))
        try:
            await asyncio.wait((asking, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                raise ConnectionAbortedError
            return asking.result()
        finally:
            asking.cancel()
            leaving.cancel()
            await asyncio.gather(asking, leaving, return_exceptions=True)


async def _left(connection: socket.socket) -> None:
    """Returns once the other end is closed. Of one that closes half of it, or says more, nothing is known."""
    with contextlib.suppress(OSError):
        await asyncio.get_running_loop().sock_recv(connection, 1)
    poll = select.poll()
    poll.register(connection, 0)  # only that it was hung up, which is told unasked
    if not poll.poll(0):
        await asyncio.Event().wait()


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


def _process_of(connection: socket.socket) -> str:
    """Process at the other end, as far as the system tells."""
    if not hasattr(socket, "SO_PEERCRED"):
        return ""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    process, user, _ = struct.unpack("3i", credentials)
    return f"{process} of {user}"


async def answer_questions(path: Path, resolver: Resolver) -> None:
    """Answers questions on the socket at `path` until it is cancelled.

    Raises:
        SocketUnusable: see `SocketFile`.
    """
    socket_file = SocketFile(path)
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(resolver.run(), name="resolver")
            tasks.create_task(ResolverServer(socket_file.listener, resolver).run(), name="questions")
    finally:
        socket_file.close()
