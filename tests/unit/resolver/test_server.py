"""The server of questions: bounded in everything, whoever connects."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sidecar.metrics import LAZY_QUESTIONS
from sidecar.resolver import server as module
from sidecar.resolver.server import ResolverServer, SocketFile
from sidecar.vllm_plugin.protocol import Answer, Resolved, Unresolved
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


async def test_who_says_nothing_is_cut_off_and_holds_nobody_up(asker, monkeypatch):
    patient = [await asyncio.open_unix_connection(asker.path) for _ in range(20)]
    assert await asker.ask(QUESTION) == {"schema": 1, "path": "/store/a"}
    for _, writer in patient:
        writer.close()
    monkeypatch.setattr(module, "TRANSFER_SECONDS", 0.05)
    silent = [await asyncio.open_unix_connection(asker.path) for _ in range(20)]
    for reader, writer in silent:
        assert await reader.read() == b""
        writer.close()


async def test_more_connections_than_there_are_places_for_are_closed_at_once(asker, monkeypatch):
    """R16 bounded."""
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 2)
    asker.answers.gate.clear()
    waiting = [asyncio.create_task(asker.ask(QUESTION)) for _ in range(2)]
    await asyncio.sleep(0)
    while await asker.ask(QUESTION) is not None:
        raise AssertionError("it took a third one")
    asker.answers.gate.set()
    assert await asyncio.gather(*waiting) == [{"schema": 1, "path": "/store/a"}] * 2


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
