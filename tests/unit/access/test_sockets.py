"""The host's own socket: who comes by it is known by the user of the process, through a real gRPC server."""

from __future__ import annotations

import asyncio
import os
import stat
from contextlib import suppress
from pathlib import Path
from unittest.mock import AsyncMock, Mock, call

import grpc
import pytest

from registry.access import sockets
from registry.access.principal import Credential, Principal
from registry.access.sockets import MAX_CONNECTIONS, HostSocket, socket_principal
from registry.runtime.http import CannotListen
from tests.support.waiting import eventually

ME = Principal(f"loraplane:host:{os.geteuid()}", Credential.SOCKET)


class Served:
    """A gRPC server behind a host socket; who called it."""

    def __init__(self, path) -> None:
        self.seen: list[Principal | None] = []
        self.path = path
        self.socket = HostSocket(path)
        self.server = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(self._answer)
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a.B", {"C": handler}),))
        self.server.add_insecure_port(self.socket.inner)

    async def _answer(self, request: bytes, context) -> bytes:
        self.seen.append(socket_principal(context.peer()))
        return request

    async def call(self, payload: bytes = b"x") -> bytes:
        async with grpc.aio.insecure_channel(f"unix:{self.path}") as channel:
            return await channel.unary_unary("/a.B/C")(payload, timeout=60)

    async def __aenter__(self):
        await self.server.start()
        self._listening = self.socket.listening()
        await self._listening.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._listening.__aexit__(None, None, None)
        await self.server.stop(None)


async def test_a_caller_on_the_host_is_known_by_the_user_of_its_process(tmp_path):
    async with Served(tmp_path / "s") as served:
        payload = os.urandom(300_000)
        assert await served.call(payload) == payload
        await served.call()
        assert served.seen == [ME, ME]
        assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600
    assert not (tmp_path / "s").exists()
    assert not Path(served.socket.inner.removeprefix("unix:")).parent.exists()
    failing, writer = HostSocket(tmp_path / "s"), Mock()
    await failing._serve(0, Mock(), writer)  # where gRPC does not answer
    writer.close.assert_called_once_with()
    with pytest.raises(ZeroDivisionError):
        async with failing.listening():
            raise ZeroDivisionError
    assert not (tmp_path / "s").exists(), "however the service ends"
    assert not Path(failing.inner.removeprefix("unix:")).parent.exists()


async def test_what_a_killed_process_left_is_replaced_and_what_is_no_socket_stays(tmp_path):
    path = tmp_path / "s"
    served = Served(path)
    async with served:
        os.link(path, tmp_path / "left")
    (tmp_path / "left").rename(path)
    async with Served(path) as again:
        await again.call()
    path.write_text("mine")
    with pytest.raises(CannotListen, match="--socket"):
        async with HostSocket(path).listening():
            pass
    assert path.read_text() == "mine"


async def test_what_comes_waits_until_what_came_before_it_went_on():
    """R16 bounded: where one end is slower than the other."""
    source, target = asyncio.StreamReader(), Mock(drain=AsyncMock())
    source.feed_data(b"x")
    source.feed_eof()
    await sockets._pump(source, target)
    assert target.mock_calls == [call.write(b"x"), call.drain(), call.close()]


@pytest.mark.parametrize("uid", [0, 7])
async def test_our_own_user_and_root_are_let_in(tmp_path, monkeypatch, uid):
    """A1 named: each by its own name."""
    monkeypatch.setattr(os, "geteuid", lambda: 7)
    monkeypatch.setattr(sockets, "_uid_of", lambda _: uid)
    async with Served(tmp_path / "s") as served:
        await served.call()
    assert served.seen == [Principal(f"loraplane:host:{uid}", Credential.SOCKET)]


async def test_the_end_waits_for_nobody_who_says_nothing(tmp_path):
    """R16 bounded."""
    async with asyncio.timeout(60):
        async with Served(tmp_path / "s") as served:
            reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
            await served.call()
        await reader.read()
        assert reader.at_eof()
        writer.close()
        await writer.wait_closed()


async def test_another_user_of_the_host_is_let_in_nowhere(tmp_path, monkeypatch):
    """A1 named: whatever the permissions of the socket, as between its making and their change."""
    monkeypatch.setattr(sockets, "_uid_of", lambda _: os.geteuid() + 1)
    async with Served(tmp_path / "s") as served:
        reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
        assert await asyncio.wait_for(reader.read(), 60) == b""
        writer.close()
        assert served.seen == []


async def test_connections_that_say_nothing_leave_places_when_they_end_and_no_more_are_taken(tmp_path):
    async with Served(tmp_path / "s") as served:
        silent = [await asyncio.open_unix_connection(tmp_path / "s") for _ in range(MAX_CONNECTIONS)]
        await asyncio.sleep(0.1)
        reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
        assert await asyncio.wait_for(reader.read(), 60) == b"", "closed: all places are taken"
        writer.close()
        for _, one in silent:
            one.close()

        async def is_let_in() -> bool:
            with suppress(grpc.aio.AioRpcError):
                await served.call()
            return served.seen[-1:] == [ME]

        await eventually(is_let_in)
