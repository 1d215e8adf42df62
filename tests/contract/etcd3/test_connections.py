"""Calls over connections that break, hang or are closed, and what is known of a write then."""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import asynccontextmanager, suppress
from itertools import count

import pytest

from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdUnavailable, Timeout
from registry.etcd3.ops import (
    Range,
    Txn,
)
from registry.tools.devstack.processes import free_ports
from tests.contract.etcd3.mirror import FirstEndpoint, put
from tests.support.etcd import PATIENCE_SECONDS
from tests.support.waiting import eventually


async def _count(client: Client, key: bytes) -> int:
    return (await client.range(Range(key, count_only=True))).count


async def _is_sent(etcd, key: bytes) -> bool:
    """Whether a write has arrived, seen past the proxy."""
    client = etcd.patient()
    try:
        return bool(await _count(client, key))
    finally:
        await client.aclose()


@asynccontextmanager
async def _running(coroutine):
    """A task for the time of a block."""
    task = asyncio.create_task(coroutine)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_a_connection_that_breaks_after_the_commit_is_ambiguous_and_never_repeated(etcd, etcd_client, proxy):
    """W8 no-false-fail: the write happened, its reply did not; sent again it would make a second version."""
    endpoints = (proxy.endpoint, *etcd.endpoints)
    client = Client(etcd.options(endpoints=endpoints, call_timeout_seconds=PATIENCE_SECONDS), rng=FirstEndpoint())
    try:
        await client.range(Range(etcd.key("a")))
        proxy.hold_replies()
        async with _running(client.txn(put((etcd.key("a"), b"1")))) as write:
            await eventually(lambda: _count(etcd_client, etcd.key("a")))
            await eventually(lambda: proxy.held)
            proxy.cut()
            with pytest.raises(EtcdUnavailable) as caught:
                await write
        assert caught.value.maybe_applied
        assert not caught.value.certainly_not_applied
        assert (await etcd_client.range(Range(etcd.key("a")))).kvs[0].version == 1
        assert (await client.range(Range(etcd.key("a")))).count == 1, "the client goes on with another member"
    finally:
        await client.aclose()


async def test_a_write_without_an_answer_is_ambiguous_and_a_read_is_not(proxy, proxied_client, etcd, etcd_client):
    """W8 no-false-fail; and the next call works, since the dead connection is not used again."""
    for number in count():
        key = etcd.key(f"{number}")
        await proxied_client.range(Range(key))
        proxy.hold_replies()
        error = await _unanswered(proxied_client, key)
        is_applied = await _count(etcd_client, key) == 1
        with pytest.raises((Timeout, EtcdUnavailable)) as caught:
            await proxied_client.range(Range(key), timeout_seconds=0.5)
        assert caught.value.certainly_not_applied
        proxy.pass_on()
        if is_applied:  # a busy machine may be too late for that
            break
    assert error.maybe_applied
    assert (await proxied_client.range(Range(key))).kvs[0].version == 1


async def _unanswered(client: Client, key: bytes) -> Timeout:
    with pytest.raises(Timeout) as caught:
        await client.txn(put((key, b"1")), timeout_seconds=0.5)
    return caught.value


async def test_a_dead_connection_is_not_used_again(proxy, proxied_client, etcd):
    """gRPC would send the next call over the same connection, and the next, until TCP gives up."""
    await proxied_client.range(Range(etcd.key("a")))
    proxy.strand()
    with pytest.raises((Timeout, EtcdUnavailable)):
        await proxied_client.txn(put((etcd.key("a"), b"1")), timeout_seconds=2)
    assert (await proxied_client.txn(put((etcd.key("a"), b"1")))).succeeded


async def test_a_client_that_is_closed_ends_its_calls_as_ambiguous(proxy, etcd):
    """grpc.aio reports this as a cancellation, which would end the caller's task in silence."""
    client = Client(etcd.options(endpoints=(proxy.endpoint,), call_timeout_seconds=PATIENCE_SECONDS))
    await client.range(Range(etcd.key("a")))
    proxy.hold_replies()
    async with _running(client.txn(put((etcd.key("a"), b"1")), timeout_seconds=60)) as write:
        await eventually(lambda: _is_sent(etcd, etcd.key("a")))
        await eventually(lambda: proxy.held)
        await client.aclose()
        with pytest.raises(EtcdUnavailable) as caught:
            await write
    assert caught.value.maybe_applied


async def _cancelled(client: Client, txn: Txn, after_seconds: float) -> None:
    async with _running(client.txn(txn)) as read:
        await asyncio.wait([read], timeout=after_seconds)


async def _out_of_time(client: Client, txn: Txn, after_seconds: float) -> None:
    with suppress(Timeout, EtcdUnavailable):
        await client.txn(txn, timeout_seconds=after_seconds)


async def _closed(client: Client, txn: Txn, after_seconds: float) -> None:
    """As when the whole program ends."""
    other = Client(client.options)
    async with _running(other.txn(txn)) as read:
        await asyncio.wait([read], timeout=after_seconds)
        await other.aclose()


@pytest.mark.parametrize("leave", [_cancelled, _out_of_time, _closed])
async def test_a_caller_that_leaves_a_read_ends_no_member(own_etcd, own_client, rng, leave):
    """X2 unbreakable: up to 3.5.4 a member panics then if it knows the call as one that reads alone (etcd#14110); 3.5.1
    within 25 calls.
    """
    for start in range(0, 4000, 500):
        await own_client.txn(put(*((b"k/%05d" % i, b"x" * 200) for i in range(start, start + 500))))
    read = Txn((), (Range(b"k/", b"k0"),))
    began = asyncio.get_running_loop().time()
    (found,) = (await own_client.txn(read)).responses
    takes_seconds = min(0.1, asyncio.get_running_loop().time() - began)
    assert found.count == 4000
    before = (await own_client.status())[0].revision
    for _ in range(50):
        await asyncio.gather(*(leave(own_client, read, rng.uniform(0.0, takes_seconds)) for _ in range(3)))
    (member,) = own_etcd.members
    assert not member.has_ended, member.log()[-2000:]
    assert (await own_client.range(Range(b"k/", b"k0", count_only=True))).revision == before, "a read changes nothing"


async def test_status_tells_of_each_endpoint_also_of_one_that_is_down(etcd):
    (dead,) = free_ports(1)
    options = dataclasses.replace(etcd.options(), endpoints=(*etcd.endpoints, f"127.0.0.1:{dead}"))
    client = Client(options)
    try:
        up, down = await client.status(timeout_seconds=PATIENCE_SECONDS)
        assert up.leader_id == up.member_id
        assert up.version.count(".") == 2
        assert up.revision > 0
        assert up.db_size_bytes > 0
        assert isinstance(down.error, EtcdUnavailable)
        assert down.endpoint == f"127.0.0.1:{dead}"
    finally:
        await client.aclose()
