"""The server of questions: bounded in everything, whoever connects."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from sidecar.metrics import CONNECTIONS_CLOSED, LAZY_QUESTIONS
from sidecar.resolver import server as module
from sidecar.resolver.server import ResolverServer, SocketFile
from sidecar.vllm_plugin.protocol import Answer, Resolved, Unresolved
from tests.support.silent import silent_connections
from tests.support.waiting import eventually

QUESTION = b'{"schema":1,"name":"a","base_model":"/m"}\n'


class Answers:
    """Answers once `gate` is set."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()

    async def ask(self, name: str) -> Answer:
        await self.gate.wait()
        return Resolved("/store/a") if name == "a" else Unresolved("unknown_adapter")


class Asker:
    def __init__(self, path: Path, answers: Answers) -> None:
        self.path = path
        self.answers = answers

    async def ask(self, line: bytes) -> dict[str, object] | None:
        """The answer to a line; None: the connection was closed without one."""
        reader, writer = await asyncio.open_unix_connection(self.path)
        writer.write(line)
        try:
            answer = await reader.read()
        except ConnectionResetError:
            answer = b""
        writer.close()
        return json.loads(answer) if answer else None


@pytest.fixture
async def asker(monkeypatch) -> AsyncIterator[Asker]:
    monkeypatch.setattr(module, "TRANSFER_SECONDS", 60.0)
    folder = Path(tempfile.mkdtemp(prefix="lp-"))
    socket_file, answers = SocketFile(folder / "s"), Answers()
    task = asyncio.create_task(ResolverServer(socket_file.listener, answers).run())
    yield Asker(folder / "s", answers)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    socket_file.close()
    shutil.rmtree(folder)


async def test_one_question_has_one_answer_and_the_connection_ends(asker):
    before = LAZY_QUESTIONS.labels("path")._value.get()
    assert await asker.ask(QUESTION) == {"schema": 1, "path": "/store/a"}
    assert await asker.ask(QUESTION.replace(b'"a"', b'"b"')) == {
        "schema": 1,
        "path": None,
        "reason": "unknown_adapter",
    }
    assert LAZY_QUESTIONS.labels("path")._value.get() == before + 1


@pytest.mark.parametrize("line", [b"\n", b"nonsense\n", b"x" * 5000, b"x" * 5000 + b"\n"])
async def test_what_is_no_question_is_told_so(asker, line):
    assert await asker.ask(line) in ({"schema": 1, "path": None, "reason": "bad_question"}, None)


async def test_who_says_nothing_is_cut_off_holds_nobody_up_and_is_logged_once_a_minute(asker, monkeypatch):
    patient = [await asyncio.open_unix_connection(asker.path) for _ in range(20)]
    assert await asker.ask(QUESTION) == {"schema": 1, "path": "/store/a"}
    for _, writer in patient:
        writer.close()
    monkeypatch.setattr(module, "TRANSFER_SECONDS", 0.05)
    silent = [await asyncio.open_unix_connection(asker.path) for _ in range(20)]
    with capture_logs() as logged:
        for reader, writer in silent:
            assert await reader.read() == b""
            writer.close()
    assert len(logged) <= 2 * len({line["event"] for line in logged}), "a minute may end in between"


async def test_those_who_come_at_once_are_taken_together_whoever_came_before(asker, monkeypatch):
    """R19 not-held-up."""
    monkeypatch.setattr(module, "TAKEN_AT_ONCE", 2)
    seen, take, line = list[str](), ResolverServer._take, module._line

    def taking(*asked: Any) -> None:
        seen.append("taken")
        take(*asked)

    async def reading(connection: socket.socket) -> bytes:
        seen.append("read")
        return await line(connection)

    monkeypatch.setattr(ResolverServer, "_take", taking)
    monkeypatch.setattr(module, "_line", reading)
    assert await asker.ask(QUESTION)
    seen.clear()
    with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as other:
        for connection in (one, other):
            connection.connect(str(asker.path))
        await eventually(lambda: len(seen) == 4)
    assert seen == ["taken", "taken", "read", "read"]


async def test_those_who_say_nothing_give_way_to_who_asks(asker):
    """X3 given-back: 300 silent connections of the same process, and all questions are answered."""
    before = CONNECTIONS_CLOSED.labels("resolver", "replaced")._value.get()
    async with silent_connections(asker.path, 300):
        for _ in range(20):
            assert await asker.ask(QUESTION) == {"schema": 1, "path": "/store/a"}
    assert CONNECTIONS_CLOSED.labels("resolver", "replaced")._value.get() >= before + 300 - module.MAX_OF_PROCESS


async def test_who_leaves_before_the_answer_leaves_nothing_behind(asker):
    asker.answers.gate.clear()
    _, writer = await asyncio.open_unix_connection(asker.path)
    writer.write(QUESTION)
    writer.transport.abort()
    asker.answers.gate.set()
    assert await asker.ask(QUESTION) == {"schema": 1, "path": "/store/a"}


class Running(Answers):
    """In place of a resolver: answers only while it runs."""

    is_running = False

    async def run(self) -> None:
        self.is_running = True
        await asyncio.Event().wait()

    async def ask(self, name: str) -> Answer:
        assert self.is_running
        return await super().ask(name)


async def test_questions_are_answered_until_it_is_cancelled():
    """Then nothing is left: the engine is told at once that nobody answers."""
    folder = Path(tempfile.mkdtemp(prefix="lp-"))
    asker = Asker(folder / "s", Running())
    answering = asyncio.create_task(module.answer_questions(folder / "s", asker.answers))  # type: ignore[arg-type]
    await eventually((folder / "s").exists)
    assert await asker.ask(QUESTION) == {"schema": 1, "path": "/store/a"}
    answering.cancel()
    await asyncio.gather(answering, return_exceptions=True)
    assert not (folder / "s").exists()
    shutil.rmtree(folder)
