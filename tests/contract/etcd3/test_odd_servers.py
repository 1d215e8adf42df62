"""What a real etcd does too seldom to wait for, played by a gRPC server that answers as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest

from registry.etcd3 import rpc_pb2 as rpc
from registry.etcd3.client import Client, MemberDown
from registry.etcd3.errors import EtcdError, EtcdInvalidArgument, EtcdUnavailable, Timeout
from registry.etcd3.ops import Put, Range, Txn
from registry.etcd3.options import ClientOptions
from registry.etcd3.watch import WatchStream
from tests.contract.etcd3.mirror import NOT_REACHED
from tests.support.etcd import PATIENCE_SECONDS
from tests.support.waiting import eventually

RANGE, TXN = "/etcdserverpb.KV/Range", "/etcdserverpb.KV/Txn"
WATCH, KEEPALIVE = "/etcdserverpb.Watch/Watch", "/etcdserverpb.Lease/LeaseKeepAlive"
STATUS, AUTHENTICATE = "/etcdserverpb.Maintenance/Status", "/etcdserverpb.Auth/Authenticate"
OK_STATUS = rpc.StatusResponse(version="3.5.30")


class Odd(grpc.GenericRpcHandler):
    """Answers each method with a message, with an abort (code, sentence), or, for a stream, by ending it."""

    def __init__(self, answers: dict[str, object]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def service(self, call_details):
        method = call_details.method
        answer = self.answers.get(method)
        if answer is None:
            return None
        self.asked.append(method)

        async def unary(_request, context):
            if isinstance(answer, tuple):
                await context.abort(*answer)
            return answer

        async def stream(_requests, _context):
            for message in answer:
                yield message

        if isinstance(answer, list):
            return grpc.stream_stream_rpc_method_handler(stream, response_serializer=_bytes)
        return grpc.unary_unary_rpc_method_handler(unary, response_serializer=_bytes)


def _bytes(message) -> bytes:
    return message.SerializeToString()


@asynccontextmanager
async def odd_server(answers: dict[str, object], **options) -> AsyncIterator[tuple[Client, Odd]]:
    """A client of such a server, and the server."""
    server = grpc.aio.server()
    odd = Odd(answers)
    server.add_generic_rpc_handlers((odd,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    client = Client(ClientOptions((f"127.0.0.1:{port}",), call_timeout_seconds=PATIENCE_SECONDS, **options))
    try:
        yield client, odd
    finally:
        await client.aclose()
        await server.stop(None)


@asynccontextmanager
async def odd_watch(*responses: rpc.WatchResponse) -> AsyncIterator[WatchStream]:
    """A watch stream to a server that sends these, and ends."""
    answers = {STATUS: OK_STATUS, WATCH: list(responses)}
    async with odd_server(answers) as (client, _), client.watch(client.options.endpoints[0]) as stream:
        yield stream


async def test_a_call_that_the_server_cancels_is_a_failure_and_not_our_cancellation():
    """grpc.aio raises CancelledError for the status CANCELLED, which would end the caller's task in silence."""
    async with odd_server({TXN: (grpc.StatusCode.CANCELLED, "context canceled")}) as (client, _):
        with pytest.raises(EtcdUnavailable) as caught:
            await client.txn(Txn((), (Put(b"a", b""),)))
    assert caught.value.maybe_applied


async def test_an_ambiguous_write_is_sent_once():
    """W8 no-false-fail."""
    async with odd_server({TXN: (grpc.StatusCode.UNAVAILABLE, "etcdserver: leader changed")}) as (client, odd):
        with pytest.raises(EtcdUnavailable):
            await client.txn(Txn((), (Put(b"a", b""),)))
    assert odd.asked == [TXN]


async def test_a_refused_write_is_sent_again_while_there_is_time():
    refusal = (grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: too many requests")
    async with odd_server({TXN: refusal}) as (client, odd):
        with pytest.raises(EtcdError):
            await client.txn(Txn((), (Put(b"a", b""),)), timeout_seconds=0.1)
        write = asyncio.create_task(client.txn(Txn((), (Put(b"a", b""),))))
        asked = len(odd.asked)
        await eventually(lambda: len(odd.asked) > asked + 1)
        odd.answers[TXN] = rpc.TxnResponse(succeeded=True)
        assert (await write).succeeded


async def test_something_that_is_not_etcd():
    async with odd_server({}) as (client, _):
        with pytest.raises((EtcdUnavailable, Timeout), match=f"Method not found|{NOT_REACHED}") as caught:
            await client.txn(Txn((), (Put(b"a", b""),)), timeout_seconds=1)
        assert caught.value.certainly_not_applied
        (down,) = await client.status()
        assert isinstance(down, MemberDown)


async def test_a_keepalive_stream_that_ends_without_an_answer_says_nothing_about_the_lease():
    async with odd_server({KEEPALIVE: []}) as (client, _):
        # gRPC has a sentence of its own for a request that it could not write any more, since the stream had ended.
        ended = f"without an answer|Internal error from Core|{NOT_REACHED}"
        with pytest.raises((EtcdUnavailable, Timeout), match=ended):
            await client.lease_keepalive(1, timeout_seconds=1)


async def test_a_watch_that_the_server_ends_is_unavailable():
    async with odd_watch(rpc.WatchResponse(created=True)) as stream:
        assert (await stream.receive()).created
        with pytest.raises(EtcdUnavailable, match="ended"):
            await stream.receive()


async def test_a_version_that_is_told_to_administrators_only_is_taken_for_an_old_one():
    answers = {STATUS: (grpc.StatusCode.PERMISSION_DENIED, "etcdserver: permission denied"), WATCH: []}
    async with odd_server(answers) as (client, _), client.watch(client.options.endpoints[0]) as stream:
        assert stream.server_version == ""


async def test_a_login_that_is_refused_for_an_unknown_reason_is_told():
    answers = {AUTHENTICATE: (grpc.StatusCode.FAILED_PRECONDITION, "etcdserver: something new")}
    async with odd_server(answers, user="lora", password=lambda: "x") as (client, _):
        with pytest.raises(EtcdInvalidArgument, match="something new"):
            await client.range(Range(b"a"))


async def test_a_stream_that_takes_no_message_is_given_up(monkeypatch):
    monkeypatch.setattr("registry.etcd3.watch._WRITE_SECONDS", 0.01)
    async with odd_watch() as stream:
        monkeypatch.setattr(stream, "_call", _Stuck(stream._call))
        with pytest.raises(Timeout, match="takes no message"):
            await stream.send(rpc.WatchRequest())


async def test_no_progress_is_asked_for_on_a_stream_that_has_ended():
    """What ended it waits in the queue and is the better message."""
    async with odd_watch() as stream:
        await stream._reader
        await stream._ask_for_progress()
        with pytest.raises(EtcdUnavailable, match="ended"):
            await stream.receive()


class _Stuck:
    """A call whose flow-control window never opens."""

    def __init__(self, call) -> None:
        self._inner = call

    async def write(self, _message) -> None:
        await asyncio.Event().wait()

    def cancel(self) -> None:
        self._inner.cancel()
