"""Any answer of a web server that has the files of an adapter."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, suppress
from functools import lru_cache
from pathlib import Path
from unittest import mock

from registry.etcd3.backoff import Backoff
from registry.model.source_uri import parse_prefix, parse_source
from registry.sources import failures
from registry.sources.base import ArtifactError, SourceLimits, Stop
from registry.sources.credentials import Credentials
from registry.sources.credentials_file import read_credentials
from registry.sources.http import Web, web_source
from tests.fuzz.fuzzer import SECRET, Run, Target, must_say
from tests.fuzz.mutation import Case, choice, raw

_OK = b'HTTP/1.1 200 OK\r\nContent-Length: @SIZE@\r\nETag: "x"\r\n'
_MOVED = b"HTTP/1.1 302 Found\r\nLocation: @ELSEWHERE@/r\r\nContent-Length: @SIZE@\r\n"
_NEVER_SAID = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"
_PART = b'HTTP/1.1 206 Part\r\nContent-Range: bytes 0-8/9\r\nContent-Length: 9\r\nETag: "x"\r\n'
_BUSY = b"HTTP/1.1 429 No\r\nRetry-After: 1\r\nContent-Length: @SIZE@\r\n"
# No answer is waited for; the limit is for a server that stops amid one.
_LIMITS = SourceLimits(connect_seconds=20, idle_seconds=20, pace_seconds=20)


@lru_cache
def _answers() -> tuple[Case, ...]:
    """A directory or an archive; the head and body that its first file gets, and those of what comes then."""
    weights = bytes(range(256))
    return (
        (b"/a/", _OK, b"{}", _OK, weights),
        (b"/a/", _MOVED, b"", _OK, weights),
        (b"/a/", _OK, b"{}", _PART, b"123456789"),
        (b"/a/", _NEVER_SAID, b"2\r\n{}\r\n0\r\n\r\n", _OK, b"x"),
        (b"/a/", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n", b"{}", _OK, weights),
        (b"/a/", _OK + b"Content-Type: text/html\r\n", b"<html>", _BUSY, b""),
        (b"/a.tar", _OK, b"\0" * 1024, _OK, b""),
        (b"/a.tar.gz", _OK, b"\x1f\x8b\x08", _MOVED, b"x"),
    )


class _Answering:
    """A server at two addresses, which answers by the case; what it was told at the second one is kept."""

    def __init__(self) -> None:
        self.case: Case = ()
        self.asked = 0
        self.elsewhere = b""
        self.told_elsewhere = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            said = await reader.readuntil(b"\r\n\r\n")
            if writer.get_extra_info("sockname")[0] == "127.0.0.2":
                self.told_elsewhere += said
            head, body = self.case[1:3] if self.asked == 0 else self.case[3:5]
            self.asked += 1
            head = head.replace(b"@SIZE@", b"%d" % len(body)).replace(b"@ELSEWHERE@", self.elsewhere)
            writer.write(head + b"Connection: close\r\n\r\n" + body)
            await writer.drain()
        writer.close()


class _Got:
    """What is handed over: as long as was said."""

    def __call__(self, name: str, size_bytes: int, chunks: Iterator[bytes]) -> None:
        got = b"".join(chunks)
        assert len(got) == size_bytes, f"{name} has {len(got)} bytes of {size_bytes}"


def _fetched(web: Web, credentials: Credentials, uri: str, named: list[str]) -> None:
    source = parse_source(uri)
    held = credentials.hold("team", source)
    try:
        web_source(web, source, [parse_prefix(one) for one in named], held).fetch(_Got(), Stop())
    except ArtifactError as error:
        must_say(error.reason, error.message)


@asynccontextmanager
async def _fetching(folder: Path) -> AsyncIterator[Run]:
    """Files behind a credential, at a server that may lead elsewhere, where the operator allows it."""
    answering = _Answering()
    server = await asyncio.start_server(answering.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    other = await asyncio.start_server(answering.serve, "127.0.0.2", 0)
    here, there = f"http://127.0.0.1:{port}", f"http://127.0.0.2:{other.sockets[0].getsockname()[1]}"
    answering.elsewhere = there.encode()
    file = folder / "credentials.yaml"
    file.write_text(f"team: {{kind: env, variable: FUZZ_SECRET, prefixes: ['{here}/']}}\n")
    at_once = mock.patch.object(failures, "_WAIT", Backoff(base_seconds=0.0, cap_seconds=0.0))
    with mock.patch.dict(os.environ, FUZZ_SECRET=SECRET), at_once:
        credentials = Credentials(read_credentials(file))

        async def play(case: Case) -> None:
            answering.case, answering.asked, answering.told_elsewhere = case, 0, b""
            with closing(Web(_LIMITS)) as web:  # each with origins of its own, none of which is paused
                uri = here + case[0].decode()
                await asyncio.to_thread(_fetched, web, credentials, uri, [f"{here}/", f"{there}/"])
            assert SECRET.encode() not in answering.told_elsewhere, "a credential went where a redirect led"

        async with server, other:
            yield play


TARGETS = (Target("source-answers", (choice, raw, raw, raw, raw), _answers, _fetching, runs=40),)
