"""Sequences of calls on one connection of the admin service, and many connections that say little or nothing.

What is hurt is the sequence: lines of a kind and a number of times. What one request says is the task of `requests`.
"""

from __future__ import annotations

import asyncio
import gzip
import socket
import struct
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path

from registry.runtime.program import raise_descriptor_limit
from registry.v1 import registry_pb2 as pb
from sidecar.vllm_plugin.protocol import write_question
from tests.fuzz.fuzzer import Run, Target, memory_bytes
from tests.fuzz.mutation import Case, choice, fields_of, message_of, protobuf, raw, steps
from tests.fuzz.requests import Connection, Ports, admin_on_etcd, all_ports, request, whole_answer
from tests.support.admin import Admin, change_set, put
from tests.support.hanging_callers import BEGINNING, DATA, END_STREAM, HEADERS, PREFACE, RESET, answer_to, frame, head
from tests.support.waiting import eventually

# Above what the service had at the beginning, whatever was sent to it since.
MAX_KEPT_BYTES = 160 << 20
# For an answer, on any machine.
ANSWER_SECONDS = 40.0
_MOST_CALLS, _MOST_CONNECTIONS = 120, 260
_LARGE = "x" * ((4 << 20) - 4000)
_MARK = b"large"  # stands for that text, which is made only where it is sent
_MAX_FRAME_BYTES = 16 << 10
_WINDOW_UPDATE, _GOAWAY = 8, 7
_UNARY = ("ApplyAdapters", "GetPool", "ListPools", "RestoreHistory", "ListAdapters")


@lru_cache
def _sequences() -> tuple[Case, ...]:
    """A method, what its requests say, and how they come."""
    pool = pb.GetPoolRequest(name="p")
    labels = change_set(put("acme/a", labels={"team": _MARK.decode()}))
    told = (
        ("ApplyAdapters", labels, "zipped 20\nwhole 1"),
        ("ListPools", pb.ListPoolsRequest(page_token=_MARK.decode()), "zipped 7\nempty 1\ntwice 1"),
        ("RestoreHistory", pb.RestoreHistoryRequest(pool="p", name="acme/a", generations=[_MARK]), "zipped 7"),
        ("GetPool", pool, "whole 7\nheaders 20\nhalf 7\nleft 20"),
        ("GetPool", pool, "cancelled 20\nlate 1\nwhole 1"),
        ("WatchAdapters", pb.WatchAdaptersRequest(pool="p"), "whole 3\ncancelled 7\nleft 1"),
    )
    return tuple((name.encode(), message.SerializeToString(), lines.encode()) for name, message, lines in told)


def _lines(part: bytes) -> Iterator[tuple[str, int]]:
    """Kinds and how often; a line that is none is passed over."""
    for line in part.splitlines():
        kind, _, times = line.decode("latin-1").partition(" ")
        yield kind, int(times) if times.isascii() and times.isdecimal() and len(times) < 4 else 1


def _in_turn(part: bytes) -> Iterator[str]:
    for kind, times in _lines(part):
        yield from [kind] * times


def _swollen(content: bytes) -> bytes:
    """The message with the large text where its mark stands first."""
    fields = fields_of(content)
    for at, (number, inner) in enumerate(fields):
        if isinstance(inner, bytes) and _MARK in inner:
            return message_of([*fields[:at], (number, _swollen(inner)), *fields[at + 1 :]])
    return _LARGE.encode() if content == _MARK else content


@lru_cache(maxsize=8)
def _zipped(content: bytes) -> bytes:
    return gzip.compress(_swollen(content)[: len(_LARGE) + 2000], 1)


def _message(content: bytes, *, is_zipped: bool = False) -> bytes:
    return struct.pack(">?I", is_zipped, len(content)) + content


def _data(stream: int, content: bytes) -> bytes:
    """The last of a call."""
    pieces = [content[at : at + _MAX_FRAME_BYTES] for at in range(0, len(content), _MAX_FRAME_BYTES)] or [b""]
    return b"".join(frame(DATA, 0, stream, one) for one in pieces[:-1]) + frame(DATA, END_STREAM, stream, pieces[-1])


def _frames(kind: str, stream: int, method: str, content: bytes) -> bytes:
    """What is sent for one call; nothing: there is no such kind."""
    one, begun = _message(content[: 4 * _MAX_FRAME_BYTES]), head(stream, method)
    given_up = frame(RESET, 0, stream, struct.pack(">I", 8))
    made = {
        "whole": lambda: begun + _data(stream, one),
        "zipped": lambda: _zipped_call(stream, method, content),
        "headers": lambda: begun,
        "late": lambda: begun,
        "half": lambda: begun + frame(DATA, 0, stream, one[: len(one) // 2][:_MAX_FRAME_BYTES]),
        "empty": lambda: head(stream, method, END_STREAM),
        "twice": lambda: begun + _data(stream, one * 2),
        "cancelled": lambda: begun + _data(stream, one) + given_up,
        "left": lambda: begun + given_up,
    }
    return made[kind]() if kind in made else b""


def _zipped_call(stream: int, method: str, content: bytes) -> bytes:
    return head(stream, method, grpc_encoding="gzip") + _data(stream, _message(_zipped(content), is_zipped=True))


# Those of which the other end is waited for, be it a refusal.
_ANSWERED = frozenset({"whole", "zipped", "late", "empty", "twice"})


async def _ended(connection: Connection, streams: set[int]) -> None:
    """Reads until these calls have come to their ends, or the connection has."""
    reader, writer = connection
    while streams:
        begun = await reader.readexactly(9)
        content = await reader.readexactly(int.from_bytes(begun[:3], "big"))
        kind, flags, stream = begun[3], begun[4], int.from_bytes(begun[5:], "big")
        writer.write(answer_to(kind, flags, content))
        if kind == RESET or (kind in {HEADERS, DATA} and flags & END_STREAM):
            streams.discard(stream)


async def _sent(admin: Admin, calls: Mapping[int, str], case: Case) -> None:
    """Makes the calls on a connection of their own, and ends it once those are answered that have to be."""
    method, content = case[0].decode(), case[1]
    host, _, port = admin.address.rpartition(":")
    connection = await asyncio.open_connection(host, int(port))
    awaited = {stream for stream, kind in calls.items() if kind in _ANSWERED and method in _UNARY}
    try:
        connection[1].write(BEGINNING + frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", 1 << 30)))
        for stream, kind in calls.items():
            connection[1].write(_frames(kind, stream, method, content))
        async with asyncio.timeout(ANSWER_SECONDS):
            with suppress(OSError, asyncio.IncompleteReadError):  # it may end who goes too far
                await _ended(connection, awaited)
    except TimeoutError as error:
        raise AssertionError(f"no answer to {', '.join(sorted({calls[one] for one in awaited}))}") from error
    finally:
        connection[1].transport.abort()


@asynccontextmanager
async def _calling_in_turn(folder: Path) -> AsyncIterator[Run]:
    """The admin service, whose memory is looked at after each sequence."""
    async with admin_on_etcd(folder) as admin:
        before = memory_bytes("VmRSS")

        async def play(case: Case) -> None:
            nonlocal before
            kinds = [kind for kind in islice(_in_turn(case[2]), _MOST_CALLS) if _frames(kind, 1, "GetPool", b"")]
            await _sent(admin, {1 + 2 * number: kind for number, kind in enumerate(kinds)}, case)
            await admin.stub.GetPool(pb.GetPoolRequest(name="p"), timeout=ANSWER_SECONDS)
            kept = memory_bytes("VmRSS") - before
            if kept > MAX_KEPT_BYTES:
                before += kept
                raise AssertionError(f"{kept >> 20} MiB are kept of calls that came to their ends")

        yield play


_SAID: Mapping[str, bytes] = {
    "silent": b"",
    "head": b"GET /livez HTTP/1.1\r\nHost: 127.0",
    "body": b"POST /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10\r\n\r\nx",
    "unread": request("GET", "/metrics").replace(b"close", b"keep-alive") * 20,
    "preface": PREFACE[:9],
    "begun": BEGINNING,
    "hanging": BEGINNING + head(1, "GetPool"),
    "question": write_question("good", "/models/tiny")[:9],
}


def _crowds() -> tuple[Case, ...]:
    """A port, what somebody says there, and how connections come."""
    sample = request("GET", "/livez")
    http = b"silent 200\nhead 20\nbody 20\nunread 1\nsaid 7"
    return (
        (b"sidecar", sample, http),
        (b"admin", sample, b"head 20\n" * 12),
        (b"grpc", BEGINNING, b"silent 200\npreface 20\nbegun 20\nhanging 7"),
        (b"resolver", write_question("good", "/models/tiny"), b"silent 200\nquestion 20\nsaid 7"),
    )


def _connect(crowd: ExitStack, ports: Ports, port: str, number: int) -> socket.socket:
    """A connection that comes from one of a few addresses."""
    is_local = port == "resolver"
    made = crowd.enter_context(socket.socket(socket.AF_UNIX if is_local else socket.AF_INET))
    made.settimeout(ANSWER_SECONDS)
    if not is_local:
        made.bind((f"127.0.0.{1 + number % 13}", 0))
    made.connect(str(ports.resolver) if is_local else ("127.0.0.1", ports.numbers[port]))
    made.settimeout(0)
    return made


async def _is_answered(ports: Ports, port: str) -> bool:
    """True if who says what it wants gets it there."""
    connection = await ports.opened(port)
    if port == "resolver":
        return b'"path"' in await whole_answer(connection, write_question("good", "/models/tiny"))
    if port != "grpc":
        return b" 200 OK" in await whole_answer(connection, request("GET", "/livez"))
    connection[1].write(BEGINNING + _frames("whole", 1, "GetPool", pb.GetPoolRequest(name="p").SerializeToString()))
    await _ended(connection, {1})
    connection[1].close()
    return True


async def _must_be_answered(ports: Ports, port: str, when: str) -> None:
    """A few times somebody may be asked to come again; not for as long as silent connections may last."""
    for _ in range(10):
        with suppress(OSError, asyncio.IncompleteReadError):
            async with asyncio.timeout(ANSWER_SECONDS):
                if await _is_answered(ports, port):
                    return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{port} answers nobody {when}")


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@asynccontextmanager
async def _crowding(folder: Path) -> AsyncIterator[Run]:
    """All ports of a pool; who asks is answered while the others stay, and afterwards."""
    raise_descriptor_limit()
    async with all_ports(folder) as ports:

        async def play(case: Case) -> None:
            port, before = case[0].decode(), _descriptors()
            with ExitStack() as crowd:
                for number, kind in enumerate(islice(_in_turn(case[2]), _MOST_CONNECTIONS)):
                    one = _connect(crowd, ports, port, number)
                    with suppress(OSError):
                        one.send(_SAID.get(kind, case[1]))
                    await asyncio.sleep(0)
                await _must_be_answered(ports, port, "beside silent connections")
            await _must_be_answered(ports, port, "after silent connections")
            # Of what else goes on here a few may be open at either time.
            await eventually(lambda: _descriptors() <= before + _OTHER_DESCRIPTORS)

        yield play


_OTHER_DESCRIPTORS = 5
TARGETS = (
    Target("sequences", (choice, protobuf, steps), _sequences, _calling_in_turn, runs=4),
    Target("connections", (choice, raw, steps), _crowds, _crowding, runs=3),
)
