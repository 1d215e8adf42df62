"""The client over links that break, on virtual time: which calls are repeated, and what is told of the others."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable

import grpc
import pytest

from registry.etcd3.channel import MemberConnection, translated
from registry.etcd3.client import Client, MemberDown, MemberStatus
from registry.etcd3.errors import EtcdError, EtcdUnavailable
from registry.etcd3.ops import Put, Range, Txn
from registry.etcd3.options import ClientOptions
from tests.simulation.links import Way, rpc_error
from tests.support.played_etcd import PlayedEtcd, now, played, played_by

WRITE = Txn((), (Put(b"a", b"1"),))
READ = Txn((), (Range(b"a"),))


def lose_answers(etcd: PlayedEtcd, count: int) -> list[int]:
    """The next so many answers are lost, with their connections; gives a list of the revisions at which that was."""
    lost: list[int] = []
    for link in etcd.links.values():
        serve = link.member.serve

        def served(path: str, request: object, at: float, serve: Callable[..., object] = serve) -> object:
            reply = serve(path, request, at)
            if len(lost) < count:
                lost.append(etcd.store.revision)
                for one in etcd.links.values():
                    one.cut()
            return reply

        link.member.serve = served  # type: ignore[method-assign,assignment]
    return lost


@played
async def test_a_write_whose_answer_was_lost_is_sent_once_and_what_reads_is_asked_again(etcd):
    """R1 accepted: somebody has to find out what became of it; a second one might undo what came between."""
    client, lost = etcd.client(), lose_answers(etcd, 1)
    with pytest.raises(EtcdUnavailable) as broken:
        await client.txn(WRITE)
    assert (broken.value.maybe_applied, lost, etcd.store.revision) == (True, [2], 2)
    for read in (client.txn(READ), client.range(Range(b"a")), client.list_prefix(b"a")):
        lost = lose_answers(etcd, 1)
        assert (await read).revision == 2
        assert lost == [2]
    result = await client.txn(WRITE)
    assert (result.succeeded, etcd.store.revision) == (True, 3)


@played_by(3)
async def test_a_write_that_never_left_is_sent_to_another_member(etcd):
    client = etcd.client()
    await client.range(Range(b"a"))
    etcd.links[etcd.opened[-1]].set_way(Way.REFUSED)
    assert (await client.txn(WRITE)).revision == 2
    assert len({*etcd.opened}) == 2
    assert etcd.store.revision == 2


@pytest.mark.parametrize("call", [lambda client: client.range(Range(b"a")), lambda client: client.txn(WRITE)])
@played
async def test_where_no_member_takes_a_connection_the_last_failure_is_told(etcd, call):
    """R16 bounded: within the time of the call, with what a human needs; and nothing was applied."""
    client = etcd.client()
    etcd.links["m0"].set_way(Way.HUNG)
    with pytest.raises(EtcdError) as failed:
        await call(client)
    assert str(failed.value).startswith("m0: no connection within ")
    assert not failed.value.maybe_applied
    assert now() <= client.options.call_timeout_seconds
    with pytest.raises(EtcdUnavailable, match=r"m0: no connection within 0.5 s"):
        await client.range(Range(b"a"), timeout_seconds=0.5)


@played_by(2)
async def test_a_member_that_hangs_says_nothing_for_as_long_as_a_call_may_take(etcd):
    """R16 bounded: that of the options, if nobody says otherwise."""
    client = Client(ClientOptions(tuple(etcd.links), call_timeout_seconds=0.5), rng=random.Random(0))
    etcd.links["m1"].set_way(Way.HUNG)
    for seconds, taken in ((None, 0.5), (1.0, 1.0)):
        begun = now()
        first, hung = await client.status(timeout_seconds=seconds)
        assert now() - begun == pytest.approx(taken, abs=0.1)
        assert isinstance(first, MemberStatus)
        assert isinstance(hung, MemberDown)


async def _failing(error: BaseException, *, writes: bool) -> BaseException:
    with pytest.raises(BaseException) as raised, translated("m0", writes=writes):  # noqa: PT011 - whatever it is
        raise error
    return raised.value


@pytest.mark.parametrize("writes", [True, False])
async def test_what_goes_wrong_in_grpc_is_an_error_of_ours_with_the_member_in_it(writes):
    for error in (
        rpc_error("UNAVAILABLE", "Connection reset by peer"),
        asyncio.CancelledError(),
        grpc.aio.UsageError(),
    ):
        told = await _failing(error, writes=writes)
        assert isinstance(told, EtcdUnavailable)
        assert str(told).startswith("m0: ")
        assert told.maybe_applied is writes


async def test_what_is_no_failure_of_a_call_passes_as_it_is():
    """R12: the end of our own task is no news of etcd, and a fault of ours is none either."""
    fault = KeyError("of ours")
    assert await _failing(fault, writes=False) is fault
    entered = asyncio.Event()

    async def wait() -> None:
        with translated("m0", writes=True):
            entered.set()
            await asyncio.Event().wait()

    waiting = asyncio.create_task(wait())
    await entered.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_nobody_s_proxy_gets_what_is_for_etcd(monkeypatch):
    """X1 secret-free: a shell's variables are of its browsers."""
    with socket.create_server(("127.0.0.1", 0)) as proxy, socket.create_server(("127.0.0.1", 0)) as member:
        for name in ("http_proxy", "https_proxy", "grpc_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        for name in ("no_proxy", "no_grpc_proxy"):
            monkeypatch.delenv(name, raising=False)
        for one in (proxy, member):
            one.settimeout(0)
        connection = MemberConnection(f"127.0.0.1:{member.getsockname()[1]}", None)
        loop = asyncio.get_running_loop()
        accepting = [asyncio.ensure_future(loop.sock_accept(one)) for one in (member, proxy)]
        connection.channel.get_state(try_to_connect=True)
        done, waiting = await asyncio.wait(accepting, return_when=asyncio.FIRST_COMPLETED, timeout=60)
        for one in waiting:
            one.cancel()
        assert done == {accepting[0]}
        accepting[0].result()[0].close()
        await connection.close()
