"""The server of questions: bounded in everything, whoever connects."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from structlog.testing import capture_logs

from sidecar.metrics import CONNECTIONS_CLOSED, LAZY_QUESTIONS
from sidecar.resolver import server as module
from sidecar.resolver.server import ResolverServer, SocketFile
from sidecar.vllm_plugin.protocol import Answer, Resolved, Unresolved
from sidecar.vllm_plugin.resolver import ResolverClient
from tests.simulation.loop import VirtualLoop
from tests.support.silent import silent_connections
from tests.support.waiting import eventually
from tests.support.worlds import path_of
from tests.unit.resolver.test_resolver import Scene, told

QUESTION = b'{"schema":1,"name":"a","base_model":"/m"}\n'


class Answers:
    """Knows one adapter, after `seconds` and once `gate` is set; `error`: fails instead."""

    seconds = 0.0
    error: Exception | None = None

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()

    async def ask(self, name: str) -> Answer:
        await self.gate.wait()
        await asyncio.sleep(self.seconds)
        if self.error is not None:
            raise self.error
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
async def asker(folder, monkeypatch) -> AsyncIterator[Asker]:
    monkeypatch.setattr(module, "TRANSFER_SECONDS", 60.0)
    socket_file, answers = SocketFile(folder / "s"), Answers()
    task = asyncio.create_task(ResolverServer(socket_file.listener, answers).run())
    yield Asker(folder / "s", answers)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    socket_file.close()


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    """One whose adapters a and b are still to be fetched, and who asks for them has time."""
    scene = Scene(answer_seconds=3600.0)
    scene.store.gates |= {"of-a": asyncio.Event(), "of-b": asyncio.Event()}
    async with scene.open():
        yield scene


@pytest.fixture
async def engine(folder, scene) -> AsyncIterator[ResolverClient]:
    """The plugin's own client."""
    socket_file = SocketFile(folder / "s")
    task = asyncio.create_task(ResolverServer(socket_file.listener, scene.resolver).run())
    client = ResolverClient(str(folder / "s"))
    with mock.patch.object(client, "_problem_with", return_value=None):
        yield client
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    socket_file.close()


async def ask_and_leave(engine: ResolverClient, scene: Scene, name: str) -> None:
    """A client asks for an adapter that is not there yet, and has no patience; vLLM cancels its request."""
    asking = asyncio.create_task(engine.find(name, "/m"))
    await eventually(lambda: scene.demand.is_asked(name))
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def test_who_has_left_is_told_nothing_that_would_count_as_refused(scene, engine):
    """R9, X3: three who gave up on an adapter while it was fetched, and the engine was said to refuse it."""
    for _ in range(3):
        await ask_and_leave(engine, scene, "a")
        await eventually(lambda: not scene.demand.is_asked("a"))
    asking = asyncio.create_task(engine.find("a", "/m"))
    await eventually(lambda: scene.demand.is_asked("a"))
    scene.store.gates["of-a"].set()
    assert await asking == told("a")
    assert scene.demand.troubles.of("a") is None
    assert scene.told == [("a", path_of("of-a"))]


async def test_who_has_left_waits_no_more_and_his_place_is_anothers(scene, engine, monkeypatch):
    """X3 given-back."""
    monkeypatch.setattr("sidecar.resolver.resolver.MAX_WAITING", 1)
    await ask_and_leave(engine, scene, "a")
    await eventually(lambda: not scene.demand.is_asked("a"))
    asking = asyncio.create_task(engine.find("b", "/m"))
    await eventually(lambda: scene.demand.is_asked("b"))
    scene.store.gates["of-b"].set()
    assert await asking == told("b")


async def test_who_says_no_more_than_his_question_waits_all_the_same(asker):
    """Half of a connection may be closed, and what is said behind a question is nobody's."""
    for end in (b"", b"more"):
        asker.answers.gate.clear()
        reader, writer = await asyncio.open_unix_connection(asker.path)
        writer.write(QUESTION + end)
        if not end:
            writer.write_eof()
        await writer.drain()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(), 0.1)
        asker.answers.gate.set()
        assert await reader.read() == FOUND
        writer.close()


async def test_one_question_has_one_answer_and_the_connection_ends(asker):
    before = LAZY_QUESTIONS.labels("path")._value.get()
    assert await asker.ask(QUESTION) == {"schema": 1, "path": "/store/a"}
    assert await asker.ask(QUESTION.replace(b'"a"', b'"b"')) == {
        "schema": 1,
        "path": None,
        "reason": "unknown_adapter",
    }
    assert LAZY_QUESTIONS.labels("path")._value.get() == before + 1


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


class Running(Answers):
    """In place of a resolver: answers only while it runs."""

    is_running = False

    async def run(self) -> None:
        self.is_running = True
        await asyncio.Event().wait()

    async def ask(self, name: str) -> Answer:
        assert self.is_running
        return await super().ask(name)


async def test_questions_are_answered_until_it_is_cancelled(folder):
    """Then nothing is left: the engine is told at once that nobody answers."""
    asker = Asker(folder / "s", Running())
    answering = asyncio.create_task(module.answer_questions(folder / "s", asker.answers))  # type: ignore[arg-type]
    await eventually((folder / "s").exists)
    assert await asker.ask(QUESTION) == {"schema": 1, "path": "/store/a"}
    answering.cancel()
    await asyncio.gather(answering, return_exceptions=True)
    assert not (folder / "s").exists()


FORM = b'{"schema":1,"name":"a","base_model":"%s"}'
FOUND = b'{"schema":1,"path":"/store/a"}\n'
# The longest that is a question, and one that is too long.
LONGEST, TOO_LONG = (FORM % (b"m" * (size - len(FORM) + 2)) for size in (4096, 4097))


@dataclass(eq=False)
class PlayedConnection:
    """A connection whose other end sends these pieces, and then nothing; `takes`: whether it takes an answer."""

    pieces: list[bytes] = field(default_factory=list)
    takes: bool = True
    process: int = 1
    got: bytes = b""
    closed_at: float | None = None

    def getsockopt(self, *_: int) -> bytes:
        """Who has the other end."""
        return struct.pack("3i", self.process, 1000, 1000)

    def close(self) -> None:
        self.closed_at = asyncio.get_running_loop().time()


class SocketLoop(VirtualLoop):
    """Plays sockets: connections come in this order and errors between them, then none."""

    def __init__(self, coming: list[PlayedConnection | OSError]) -> None:
        super().__init__()
        self.coming = coming
        self.accepted_at: list[float] = []

    async def sock_accept(self, _listener: object) -> tuple[Any, None]:  # type: ignore[override]
        self.accepted_at.append(self.time())
        if not self.coming:
            await asyncio.Event().wait()
        came = self.coming.pop(0)
        if isinstance(came, OSError):
            raise came
        return came, None

    async def sock_recv(self, connection: Any, most_bytes: int) -> bytes:
        if not connection.pieces:
            await asyncio.Event().wait()
        piece = connection.pieces.pop(0)
        assert len(piece) <= most_bytes
        return piece

    async def sock_sendall(self, connection: Any, content: bytes) -> None:  # type: ignore[override]
        if not connection.takes:
            await asyncio.Event().wait()
        connection.got += content


def ask(process: int = 1) -> PlayedConnection:
    """One that sends a question."""
    return PlayedConnection([FORM % b"m" + b"\n"], process=process)


def serve(*coming: PlayedConnection | OSError, seconds: float = 0.0, error: Exception | None = None) -> SocketLoop:
    """Has all that comes served, for a minute, or until it fails."""
    answers = Answers()
    answers.seconds, answers.error = seconds, error

    async def run() -> None:
        server = ResolverServer(None, answers)  # type: ignore[arg-type]
        serving = asyncio.create_task(server.run())
        done, _ = await asyncio.wait([serving], timeout=60)
        assert not server._serving, "R16 bounded: of what has ended nothing is kept"
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=not done)

    with closing(SocketLoop(list(coming))) as loop:
        loop.run_until_complete(run())
        return loop


def test_who_sends_no_question_or_takes_no_answer_is_cut_off_after_two_seconds():
    """R16: each of both."""
    silent, half, deaf = PlayedConnection(), PlayedConnection([FORM % b"m"]), PlayedConnection([b"\n"], takes=False)
    serve(silent, half, deaf)
    assert [one.closed_at for one in (silent, half, deaf)] == [pytest.approx(2.0)] * 3
    assert [one.got for one in (silent, half, deaf)] == [b""] * 3


def test_an_answer_may_take_longer_than_its_transfer():
    """The resolver has a time of its own for it."""
    asker = ask()
    serve(asker, seconds=25.0)
    assert (asker.got, asker.closed_at) == (FOUND, pytest.approx(25.0))


@pytest.mark.parametrize(
    ("pieces", "is_known"),
    [
        ([LONGEST + b"\n"], True),
        ([LONGEST, b"\n"], True),
        ([LONGEST[:9], LONGEST[9:], b"\nmore"], True),
        ([TOO_LONG], False),
        ([LONGEST, b" "], False),
        ([b'{"schema":1', b""], False),
    ],
    ids=["one piece", "end apart", "three pieces", "too long", "too long by a piece", "broken off"],
)
def test_a_question_is_a_line_of_at_most_4096_bytes_in_whatever_pieces(pieces, is_known):
    """R16 bounded: what cannot become one is told so at once."""
    asker = PlayedConnection(pieces)
    serve(asker)
    assert asker.closed_at == pytest.approx(0.0)
    assert (asker.got == FOUND) is is_known
    assert is_known or b"bad_question" in asker.got


def test_a_host_without_descriptors_is_asked_again_in_half_a_second():
    """R16, X2: whoever took them may not end the answers to everybody, nor have them spin."""
    asker = ask()
    with capture_logs() as logged:
        loop = serve(OSError(24, "Too many open files"), OSError(24, "Too many open files"), asker)
    assert [(line["event"], line["error"]) for line in logged] == [
        ("question_not_accepted", "[Errno 24] Too many open files")
    ]
    assert loop.accepted_at == [pytest.approx(at) for at in (0.0, 0.5, 1.0, 1.0)]
    assert asker.got == FOUND


def test_256_are_served_at_once_and_others_again_when_these_have_ended():
    """R16 bounded."""
    askers = [ask(number) for number in range(257)]
    late = [ask(number) for number in range(256)]
    loop_errors = [OSError(24, "Too many open files")] * 4
    serve(*askers, *loop_errors, *late, seconds=1.0)
    assert [one.closed_at for one in askers] == [pytest.approx(1.0)] * 256 + [pytest.approx(0.0)]
    assert [one.got for one in late] == [FOUND] * 256


def test_of_256_that_say_nothing_one_ends_at_once_for_who_asks():
    """X3 given-back."""
    silent, asker = [PlayedConnection(process=number) for number in range(256)], ask(999)
    serve(*silent, asker)
    assert (asker.got, sorted(one.closed_at or 0.0 for one in silent)) == (FOUND, [0.0, *[pytest.approx(2.0)] * 255])


def test_one_process_has_192_questions_and_leaves_the_other_places_to_others():
    """X3 given-back: an engine is answered whatever another process has open; what is refused is counted."""
    before = CONNECTIONS_CLOSED.labels("resolver", "process_limit")._value.get()
    greedy = [ask(7) for _ in range(300)]
    engine = [ask(8) for _ in range(64)]
    serve(*greedy, *engine, seconds=1.0)
    assert [one.got for one in greedy] == [FOUND] * 192 + [b""] * 108
    assert [one.got for one in engine] == [FOUND] * 64
    assert CONNECTIONS_CLOSED.labels("resolver", "process_limit")._value.get() == before + 108


def test_a_fault_of_ours_is_no_broken_connection():
    """R9: it is the supervisor's, which counts it."""
    with pytest.raises(ExceptionGroup) as failed:
        serve(ask(), error=ZeroDivisionError())
    assert failed.value.subgroup(ZeroDivisionError) is not None
