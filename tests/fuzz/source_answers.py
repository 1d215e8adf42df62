"""Any answer of a web server, a hub or an object store that has the files of an adapter."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, suppress
from functools import lru_cache
from pathlib import Path
from unittest import mock

from registry.etcd3.backoff import Backoff
from registry.lora.digest import FILES
from registry.model.source_uri import SourceUri
from registry.sources import failures, object_stores
from registry.sources.allowed import AllowedSources, RemoteOptions
from registry.sources.base import ArtifactError, Source, SourceLimits, Stop
from registry.sources.credentials import Credentials, HeldCredential
from registry.sources.credentials_file import read_credentials
from registry.sources.object_stores import ObjectSource, Stores
from tests.fuzz.fuzzer import SECRET, Run, Target, must_say
from tests.fuzz.mutation import Case, choice, raw

_OK = b'HTTP/1.1 200 OK\r\nContent-Length: @SIZE@\r\nETag: "x"\r\n'
_MOVED = b"HTTP/1.1 302 Found\r\nLocation: @ELSEWHERE@/r\r\nContent-Length: @SIZE@\r\n"
_NEVER_SAID = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"
_PART = b'HTTP/1.1 206 Part\r\nContent-Range: bytes 0-8/9\r\nContent-Length: 9\r\nETag: "x"\r\n'
_BUSY = b"HTTP/1.1 429 No\r\nRetry-After: 1\r\nContent-Length: @SIZE@\r\n"
_OBJECT = (
    b'HTTP/1.1 206 Part\r\nContent-Range: bytes %b\r\nETag: "x"\r\nLast-Modified: Mon, 05 Jan 2026 00:00:00 GMT\r\n'
)
_SIZED = b"Content-Length: @SIZE@\r\n"
# More than what is read of an answer that is refused, with what sockets have on the way.
_ENDLESS, _ENDLESS_BYTES, _MOST_TAKEN_BYTES = b"@ENDLESS@", 64 << 20, 32 << 20
_ENDLESS_SIZE = b"Content-Length: %d\r\n" % _ENDLESS_BYTES
_COMMIT = "0123456789abcdef0123456789abcdef01234567"
_SECRETS = {
    "http": SECRET,
    "hf": SECRET,
    "s3": json.dumps({"access_key_id": "x", "secret_access_key": SECRET, "session_token": SECRET}),
    "gs": json.dumps({"token": SECRET}),
    "az": json.dumps({"sas_token": f"sv=1&sig={SECRET}"}),
}
_RANGE_BYTES, _MOST_BYTES = 100, 4096
# Of both files and of what could be there instead; each is tried again, and led on by redirects.
_MOST_ASKED = 1000
# No answer is waited for; the limit is for a server that stops amid one.
_LIMITS = SourceLimits(connect_seconds=20, idle_seconds=20, pace_seconds=20)


@lru_cache
def _answers() -> tuple[Case, ...]:
    """A directory or an archive; the head and body that its first file gets, and those of what comes then."""
    weights = bytes(range(256))
    return (
        (b"@HERE@/a/", _OK, b"{}", _OK, weights),
        (b"@HERE@/a/", _MOVED, b"", _OK, weights),
        (b"@HERE@/a/", _OK, b"{}", _PART, b"123456789"),
        (b"@HERE@/a/", _NEVER_SAID, b"2\r\n{}\r\n0\r\n\r\n", _OK, b"x"),
        (b"@HERE@/a/", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n", b"{}", _OK, weights),
        (b"@HERE@/a/", _OK + b"Content-Type: text/html\r\n", b"<html>", _BUSY, b""),
        (b"@HERE@/a.tar", _OK, b"\0" * 1024, _OK, b""),
        (b"@HERE@/a.tar.gz", _OK, b"\x1f\x8b\x08", _MOVED, b"x"),
    )


def _objects(scheme: bytes) -> Iterator[Case]:
    """What a store may say of the two objects, the second one in three ranges."""
    uri, weights = scheme + b"://b/a", bytes(range(256))
    config = (_OBJECT % b"0-1/2" + _SIZED, b"{}")
    first = (_OBJECT % b"0-99/256" + _SIZED, weights[:100])
    rest = (_OBJECT % b"100-199/256" + _SIZED, weights[100:200], _OBJECT % b"200-255/256" + _SIZED, weights[200:])
    yield (uri, *config, *first, *rest)
    yield (uri, *config, *first, rest[0].replace(b'"x"', b'"y"'), *rest[1:])
    yield (uri, *config, _OBJECT % b"0-99/99999999999999" + _SIZED, weights[:100], *rest)
    yield (uri, *config, *first, _OBJECT % b"100-199/256" + _NEVER_SAID.partition(b"\n")[2], b"1\r\na\r\n0\r\n\r\n")
    yield (uri, _MOVED, b"", *config)
    yield (uri, *config, b"HTTP/1.1 412 No\r\n" + _SIZED, b"<Error/>")
    yield (uri, b"HTTP/1.1 103 Early\r\n\r\n" * 50 + config[0], b"{}", _BUSY, b"<Error><Code>SlowDown</Code></Error>")
    yield (uri, _OBJECT % b"0-1/2" + _ENDLESS_SIZE, _ENDLESS)
    yield (uri, b"HTTP/1.1 404 No\r\n" + _ENDLESS_SIZE, _ENDLESS)


@lru_cache
def _store_answers() -> tuple[Case, ...]:
    """A bucket or a repository, and the heads and bodies of all its answers in turn."""
    hub = [(f"hf://acme/a@{_COMMIT}".encode(), *rest) for uri, *rest in _answers() if uri.endswith(b"/a/")]
    return (*(case for scheme in (b"s3", b"gs", b"az") for case in _objects(scheme)), *hub)


class _Answering:
    """A server at two addresses, which answers by the case; what it was told at the second one is kept."""

    def __init__(self) -> None:
        self.elsewhere = b""
        self.play(())

    def play(self, case: Case) -> None:
        """Begins to answer by this case."""
        self.case = case
        self.asked = self.taken_bytes = 0
        self.told_elsewhere = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            said = await reader.readuntil(b"\r\n\r\n")
            if writer.get_extra_info("sockname")[0] == "127.0.0.2":
                self.told_elsewhere += said
            at = 1 + 2 * min(self.asked, len(self.case) // 2 - 1)
            head, body = self.case[at : at + 2]
            self.asked += 1
            head = head.replace(b"@SIZE@", b"%d" % len(body)).replace(b"@ELSEWHERE@", self.elsewhere)
            writer.write(head + b"Connection: close\r\n\r\n" + body)
            await writer.drain()
            await self._go_on(writer, _ENDLESS_BYTES if body == _ENDLESS else 0)
        writer.close()

    async def _go_on(self, writer: asyncio.StreamWriter, size_bytes: int) -> None:
        for sent_bytes in range(0, size_bytes, 1 << 20):
            self.taken_bytes = max(self.taken_bytes, sent_bytes)
            writer.write(bytes(1 << 20))
            await writer.drain()


class _Got:
    """What is handed over: as long as was said, and no more than may be staged."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def __call__(self, name: str, size_bytes: int, chunks: Iterator[bytes]) -> None:
        if size_bytes > _MOST_BYTES:
            raise ArtifactError("too_large", "publish less")
        got = b"".join(chunks)
        assert len(got) == size_bytes, f"{name} has {len(got)} bytes of {size_bytes}"
        self.names.add(name)


def _fetched(source: Source) -> None:
    got = _Got()
    try:
        source.fetch(got, Stop())
        assert got.names == {*FILES}, f"of an adapter there are {got.names}"
        source.version(Stop())
    except ArtifactError as error:
        must_say(error.reason, error.message)


def _credentials(folder: Path, here: str) -> Credentials:
    """One for each kind of source, with the secret as it takes it."""
    bound = {"http": f"{here}/", "hf": "hf://acme"}
    entries = {
        scheme: {
            "kind": "env",
            "variable": f"FUZZ_{scheme.upper()}",
            "prefixes": [bound.get(scheme, f"{scheme}://b")],
            "store": {"endpoint": here, "account": "acme"},
        }
        for scheme in _SECRETS
    }
    file = folder / "credentials.json"
    file.write_text(json.dumps(entries))
    return Credentials(read_credentials(file))


@asynccontextmanager
async def _fetching(folder: Path) -> AsyncIterator[Run]:
    """Files behind a credential, at a server that may lead elsewhere, where the operator allows it."""
    answering = _Answering()
    server = await asyncio.start_server(answering.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    other = await asyncio.start_server(answering.serve, "127.0.0.2", 0)
    here, there = f"http://127.0.0.1:{port}", f"http://127.0.0.2:{other.sockets[0].getsockname()[1]}"
    answering.elsewhere = there.encode()
    secrets = {f"FUZZ_{scheme.upper()}": secret for scheme, secret in _SECRETS.items()}
    allowed = [f"{here}/", f"{there}/", *(f"{scheme}://b" for scheme in ("s3", "gs", "az")), "hf://acme"]
    options = RemoteOptions(_credentials(folder, here), here, _LIMITS)
    at_once = mock.patch.object(failures, "_WAIT", Backoff(base_seconds=0.0, cap_seconds=0.0))
    ranges = mock.patch.object(object_stores, "object_source", _in_ranges)
    timeouts = mock.patch.multiple(object_stores, IDLE_TIMEOUT="20s", RANGE_TIMEOUT="20s")
    with mock.patch.dict(os.environ, secrets), at_once, ranges, timeouts:

        async def play(case: Case) -> None:
            answering.play(case)
            uri = case[0].replace(b"@HERE@", here.encode()).decode()
            # Each with origins of its own, none of which is paused.
            with closing(AllowedSources(allowed, options)) as sources:
                await asyncio.to_thread(_fetched, sources.source(uri, uri.partition(":")[0]))
            assert SECRET.encode() not in answering.told_elsewhere, "a credential went where a redirect led"
            assert answering.taken_bytes < _MOST_TAKEN_BYTES, "what nobody asked for was read on"
            assert answering.asked < _MOST_ASKED, f"{answering.asked} requests for two files"

        async with server, other:
            yield play


def _in_ranges(stores: Stores, uri: SourceUri, held: HeldCredential | None) -> ObjectSource:
    return ObjectSource(stores, uri, held, _RANGE_BYTES)


TARGETS = (
    Target("source-answers", (choice, raw, raw, raw, raw), _answers, _fetching, runs=40),
    Target("store-answers", (choice, raw), _store_answers, _fetching, runs=60),
)
