"""One connection to one member: what gRPC is told, how long is waited, and what becomes of a call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from unittest.mock import AsyncMock

import grpc
import pytest

from registry.etcd3 import channel
from registry.etcd3 import rpc_pb2 as rpc
from registry.etcd3.channel import MemberConnection
from registry.etcd3.codec import LEASE_KEEPALIVE, RANGE, TXN, Method
from registry.etcd3.errors import EtcdUnavailable, Timeout
from registry.etcd3.tls import Pem
from tests.simulation.loop import virtual
from tests.support.played_etcd import now

IDLE, READY = grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.READY
FAILING = grpc.ChannelConnectivity.TRANSIENT_FAILURE
CONNECTING = grpc.ChannelConnectivity.CONNECTING


class Defect(Exception):
    """A fault of ours."""


class Stream:
    """A call of one message and one answer."""

    def __init__(self, answer: object) -> None:
        self._answer = answer
        self.told: list[object] = []

    async def write(self, message: object) -> None:
        self.told.append(message)

    async def read(self) -> object:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def cancel(self) -> None:
        self.told.append("cancelled")


class Channel:
    """Connects in so many seconds, by way of these states; what is sent is noted."""

    def __init__(self, *states: grpc.ChannelConnectivity, each_seconds: float = 0.0, answer: object = None) -> None:
        self._states = [*states]
        self._each_seconds = each_seconds
        self.answer = answer
        self.sent: list[tuple[str, float, object]] = []
        self.made: list[str] = []
        self.streams: list[Stream] = []

    def get_state(self, *, try_to_connect: bool) -> grpc.ChannelConnectivity:
        assert try_to_connect, "gRPC goes idle, and would never try by itself"
        return self._states[0]

    async def wait_for_state_change(self, last: grpc.ChannelConnectivity) -> None:
        assert last is self._states[0]
        await asyncio.sleep(self._each_seconds)
        if len(self._states) == 1:
            raise Defect
        self._states.pop(0)

    def unary_unary(self, path: str, _serialize: object, _parse: object) -> Callable[..., Coroutine[Any, Any, object]]:
        self.made.append(path)

        async def call(_request: object, *, timeout: float, metadata: object) -> object:
            self.sent.append((path, timeout, metadata))
            return self.answer

        return call

    def stream_stream(self, path: str, _serialize: object, _parse: object) -> Callable[..., Stream]:
        def call(*, timeout: float | None, metadata: object) -> Stream:
            assert timeout is not None
            self.sent.append((path, timeout, metadata))
            self.streams.append(Stream(self.answer))
            return self.streams[-1]

        return call


@asynccontextmanager
async def connected(opened: Channel) -> AsyncIterator[MemberConnection]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(channel, "_open", lambda *_: opened)
        yield MemberConnection("a:1", None)


LEADER = ("hasleader", "true")


@pytest.mark.parametrize("states", [(READY,), (FAILING,), (IDLE, CONNECTING, READY), (CONNECTING, FAILING)])
@virtual
async def test_a_call_is_sent_as_soon_as_the_connection_stands_or_has_failed(states):
    opened = Channel(*states, each_seconds=0.5, answer=rpc.RangeResponse(count=7))
    took = 0.5 * (len(states) - 1)
    async with connected(opened) as connection:
        for _ in range(2):
            left = 5.0 - now()
            reply = await connection.call(RANGE, rpc.RangeRequest(), deadline=5.0, token="t")  # noqa: S106 - of the test
            assert reply.count == 7
            assert now() == took
            assert opened.sent[-1] == (
                RANGE.path,
                left - (took if len(opened.sent) == 1 else 0),
                (LEADER, ("token", "t")),
            )
        await connection.call(TXN, rpc.TxnRequest(), deadline=5.0, token=None)
        assert opened.sent[-1] == (TXN.path, 5.0 - took, (LEADER,))
        assert opened.made == [RANGE.path, TXN.path], "what gRPC makes for a method is kept"


@pytest.mark.parametrize(("seconds", "waits"), [(60.0, 2.0), (2.0, 2.0), (0.5, 0.5), (0.0, 0.0), (-1.0, 0.0)])
@virtual
async def test_a_connection_is_waited_for_two_seconds_or_as_long_as_there_is(seconds, waits):
    """R13: another member may answer. Nothing was sent, of a write neither."""
    opened = Channel(IDLE, CONNECTING, each_seconds=0.0 if not waits else 40.0)
    opened._each_seconds = 40.0
    async with connected(opened) as connection:
        with pytest.raises(EtcdUnavailable, match=f"^a:1: no connection within {waits:g} s$") as told:
            await connection.call(TXN, rpc.TxnRequest(), deadline=seconds, token=None)
        assert not told.value.maybe_applied
        assert (now(), opened.sent) == (waits, [])


@pytest.mark.parametrize("left", [0.0, -1.0, 0.25])
@virtual
async def test_without_time_nothing_is_sent(left):
    """W8 no-false-fail: so it was certainly not applied."""
    opened = Channel(READY, answer=rpc.TxnResponse())
    async with connected(opened) as connection:
        call = connection.call(TXN, rpc.TxnRequest(), deadline=left, token=None)
        if left > 0:
            await call
            assert opened.sent == [(TXN.path, left, (LEADER,))]
            return
        with pytest.raises(Timeout, match="a:1: no time left") as told:
            await call
        assert (told.value.maybe_applied, opened.sent) == (False, [])


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize(
    "answer", [rpc.LeaseKeepAliveResponse(TTL=30), grpc.aio.EOF, Defect()], ids=["ok", "eof", "defect"]
)
@virtual
async def test_one_question_on_a_stream_of_its_own(writes, answer):
    """It leaves no stream open, however it ends; an end without an answer says nothing of what was done."""
    method = Method(
        LEASE_KEEPALIVE.path, LEASE_KEEPALIVE.request, LEASE_KEEPALIVE.response, writes=writes, streams=True
    )
    opened, asked = Channel(READY, answer=answer), rpc.LeaseKeepAliveRequest(ID=5)
    async with connected(opened) as connection:
        call = connection.call(method, asked, deadline=5.0, token=None)
        if answer is grpc.aio.EOF:
            with pytest.raises(EtcdUnavailable, match="without an answer") as told:
                await call
            assert told.value.maybe_applied is writes
        elif isinstance(answer, Defect):
            with pytest.raises(Defect):
                await call
        else:
            assert await call is answer
        assert opened.sent == [(method.path, 5.0, (LEADER,))]
        assert opened.streams[0].told == [asked, "cancelled"]


async def test_what_grpc_is_told_keeps_to_what_etcd_bears_and_finds_a_dead_member_in_time(monkeypatch):
    """R13 static-stable, W8: each bound is one that etcd, or a reader of our guarantees, relies on."""
    made: list[dict[str, int]] = []
    monkeypatch.setattr(grpc.aio, "insecure_channel", lambda _endpoint, options: made.append(dict(options)))
    MemberConnection("a:1", None)
    [told] = made
    assert told["grpc.max_receive_message_length"] == 64 << 20, "two statuses in one page would be half a megabyte"
    assert told["grpc.keepalive_time_ms"] > 5_000, "etcd ends a connection that pings more often"
    dead_after = told["grpc.keepalive_time_ms"] + max(
        told["grpc.keepalive_timeout_ms"], told["grpc.http2.ping_timeout_ms"]
    )
    assert dead_after <= 15_000
    assert min(told["grpc.keepalive_timeout_ms"], told["grpc.http2.ping_timeout_ms"]) >= 1_000
    assert told["grpc.keepalive_permit_without_calls"] == 0, "etcd ends a connection that pings without a call"
    assert told["grpc.use_local_subchannel_pool"] == 1, "a dead connection is never used again"
    assert told["grpc.enable_retries"] == 0, "a write is never repeated behind our back"
    assert told["grpc.enable_http_proxy"] == 0
    assert told["grpc.initial_reconnect_backoff_ms"] <= 100
    assert 1_000 <= told["grpc.min_reconnect_backoff_ms"] <= 2_000
    assert told["grpc.max_reconnect_backoff_ms"] <= 2_000


@pytest.mark.parametrize(("pem", "made"), [(None, ["plain"]), (Pem(b"ca", b"key", b"own"), [(b"ca", b"key", b"own")])])
def test_whoever_has_tls_files_speaks_tls_with_them(monkeypatch, pem, made):
    """X1 secret-free: passwords and tokens go nowhere in plain text; what gRPC is told is the same."""
    told = list[object]()
    monkeypatch.setattr(grpc, "ssl_channel_credentials", lambda root, key, chain: (root, key, chain))
    monkeypatch.setattr(grpc.aio, "insecure_channel", lambda *_, **__: told.append("plain"))
    monkeypatch.setattr(grpc.aio, "secure_channel", lambda _, shown, options: told.append(options and shown))
    channel._open("a:1", pem)
    assert told == made


async def test_a_fault_of_ours_in_reading_tls_files_is_told_as_it_is():
    class Broken:
        def newest(self) -> None:
            raise Defect

    with pytest.raises(Defect):
        MemberConnection("a:1", Broken())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("calls", "end", "closed"),
    [(2, MemberConnection.retire, [0, 0, 1]), (0, MemberConnection.retire, [1]), (1, MemberConnection.close, [1, 1])],
    ids=["retired amid calls", "retired", "closed amid a call"],
)
async def test_a_connection_is_closed_when_its_last_call_has_ended(monkeypatch, calls, end, closed):
    """R16 bounded: else each member that went away would leave one behind; or at once, where the client is closed."""
    opened = AsyncMock()
    monkeypatch.setattr(channel, "_open", lambda *_: opened)
    connection, counts = MemberConnection("a:1", None), list[int]()
    async with AsyncExitStack() as under_way:
        for _ in range(calls):
            await under_way.enter_async_context(connection)
        await end(connection)
        counts.append(opened.close.await_count)
        for _ in range(calls):
            await connection.__aexit__(None, None, None)
            counts.append(opened.close.await_count)
        under_way.pop_all()
    assert counts == closed


@virtual
async def test_a_channel_that_is_closed_before_anything_was_sent_applied_nothing(monkeypatch):
    """W8 no-false-fail."""
    opened = Channel(IDLE)
    monkeypatch.setattr(opened, "wait_for_state_change", AsyncMock(side_effect=grpc.aio.UsageError("closed")))
    async with connected(opened) as connection:
        with pytest.raises(EtcdUnavailable, match="the channel is closed") as told:
            await connection.call(TXN, rpc.TxnRequest(), deadline=5.0, token=None)
        assert not told.value.maybe_applied


@virtual
async def test_a_fault_of_ours_while_a_connection_is_made_is_told_as_it_is():
    async with connected(Channel(IDLE)) as connection:
        with pytest.raises(Defect):
            await connection.call(RANGE, rpc.RangeRequest(), deadline=5.0, token=None)
