"""Guarantees of writes while connections break and etcd is killed."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator

import grpc
import pytest
from grpc import StatusCode

from registry.etcd3.ops import Range
from registry.model.keys import Keys
from registry.v1 import registry_pb2 as pb
from tests.support.admin import Admin, admin_inside, change_set, make_pool, put, refusal, refused, wait_ready
from tests.support.etcd import Cluster, make_cluster
from tests.support.history_check import check_history, read_history
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

PREFIX = "/faults"


@pytest.fixture
async def proxy(etcd) -> AsyncIterator[Proxy]:
    """Between the admin service and etcd."""
    async with Proxy(etcd.cluster.members[0].client_port) as proxy:
        yield proxy


@pytest.fixture
async def proxied(etcd, ledger, proxy) -> AsyncIterator[Admin]:
    """The service behind the proxy, with a pool."""
    async with admin_inside([proxy.endpoint], etcd.prefix) as admin:
        await wait_ready(admin)
        await make_pool(admin)
        yield admin


async def test_a_lost_reply_is_settled(ledger, proxied, proxy):
    """W3 idempotent, W8 no-false-fail: the reply of etcd is lost, the same transaction settles it, once."""
    await proxied.stub.ApplyAdapters(change_set(put("acme/a")))
    before = await ledger.revision()
    proxy.hold_replies()
    call = proxied.stub.ApplyAdapters(change_set(put("acme/a", "file:///a/v2")), timeout=60)

    async def applied() -> bool:
        return await ledger.revision() > before

    await eventually(applied)
    await eventually(lambda: proxy.held)
    proxy.cut()
    proxy.pass_on()
    reply = await call
    assert reply.results[0].outcome == pb.AdapterResult.UPDATED
    assert reply.revision == await ledger.revision()
    await ledger.check()


async def test_an_unknown_outcome_says_so(ledger, proxied, proxy, answers_early):
    """W8 no-false-fail: with no time left to settle it, UNAVAILABLE with the request_id; the retry gets the reply."""
    await proxied.stub.ApplyAdapters(change_set(put("acme/a")))
    before = await ledger.revision()
    request = change_set(put("acme/a", "file:///a/v2"), request_id="unclear")
    proxy.hold_replies()
    told = await refusal(proxied.stub.ApplyAdapters(request, timeout=60))
    assert (told.code, told.reason) == (StatusCode.UNAVAILABLE, "OUTCOME_UNKNOWN")
    assert told.metadata == {"request_id": "unclear"}
    assert "retry with the same request_id" in told.message
    proxy.cut()
    proxy.pass_on()
    reply = await proxied.stub.ApplyAdapters(request)
    assert before < reply.revision == await ledger.revision()
    await ledger.check()


async def test_cut_connections(ledger, proxied, proxy):
    """W1, W3, W5, W8: connections are cut after any number of bytes; every reply and every refusal is true."""
    await proxied.stub.SetTenant(pb.SetTenantRequest(tenant=pb.Tenant(name="acme", max_adapters=12)))
    proxy.cut_after(itertools.cycle([40, 90, 200, 500, 1300, 2500]))
    proxy.cut()
    requests = {f"r{i}": change_set(put(f"acme/n{i}"), request_id=f"r{i}") for i in range(20)}
    outcomes = dict(await asyncio.gather(*(_tell(proxied, name, one, 8) for name, one in requests.items())))
    proxy.cut_after(None)
    proxy.cut()
    await _check_truth(ledger, outcomes)
    settled = dict(await asyncio.gather(*(_tell(proxied, name, one, 60) for name, one in requests.items())))
    await _check_truth(ledger, settled)
    assert sum(isinstance(one, int) for one in settled.values()) == 12, settled


async def _tell(
    admin: Admin, name: str, request: pb.ApplyAdaptersRequest, timeout_seconds: float
) -> tuple[str, int | str]:
    """The revision of a reply, or the reason of a refusal."""
    try:
        reply = await admin.stub.ApplyAdapters(request, timeout=timeout_seconds)
    except grpc.RpcError as error:
        return name, refused(error).reason or refused(error).code.name
    return name, reply.revision


async def _check_truth(ledger, outcomes: dict[str, int | str]) -> None:
    """Each reply is in history at its revision, and nothing that was refused is."""
    history = await ledger.history()
    check_history(ledger.keys, history)
    done = requests_in(ledger.keys, history)
    for name, outcome in outcomes.items():
        if isinstance(outcome, int):
            assert done.get(name) == outcome, f"W1: {name} was acknowledged at {outcome}"
        elif outcome not in {"OUTCOME_UNKNOWN", "DEADLINE_EXCEEDED"}:
            assert name not in done, f"W8: {name} was refused with {outcome}, and applied"


def requests_in(keys: Keys, history) -> dict[str, int]:
    """The revisions at which requests were carried out."""
    prefix = keys.request("")
    events = [(revision, event) for revision, events in history for event in events]
    return {
        event.key.removeprefix(prefix).decode(): revision
        for revision, event in events
        if event.key.startswith(prefix) and event.kv and b'"reply":null' not in event.kv.value
    }


@pytest.fixture
async def mortal(tmp_path) -> AsyncIterator[Cluster]:
    """One member that writes to disk for real, to be killed."""
    cluster = make_cluster(tmp_path / "etcd")
    cluster.start()
    try:
        await cluster.ready()
        yield cluster
    finally:
        cluster.stop()


async def test_kill_nine_of_every_member(mortal):
    """W1 acked-durable, W8 no-false-fail: etcd is killed under writes; every reply is in H, no refusal is."""
    keys = Keys(PREFIX)
    async with admin_inside(mortal.endpoints, PREFIX) as admin:
        await wait_ready(admin)
        await make_pool(admin)
        outcomes: dict[str, int | str] = {}
        writers = [asyncio.create_task(_write(admin, writer, outcomes)) for writer in range(4)]
        for _ in range(2):
            size = len(outcomes)
            await eventually(lambda size=size: len(outcomes) >= size + 40)
            mortal.members[0].kill()
            mortal.members[0].start()
            await mortal.ready()
        size = len(outcomes)
        await eventually(lambda: len(outcomes) >= size + 40)
        for writer in writers:
            writer.cancel()
        await asyncio.wait(writers)
    client = mortal.patient()
    try:
        history = await read_history(client, PREFIX, 1)
    finally:
        await client.aclose()
    check_history(keys, history)
    done = requests_in(keys, history)
    for name, outcome in outcomes.items():
        if isinstance(outcome, int):
            assert done.get(name) == outcome, f"W1: {name} was acknowledged at {outcome}"
        elif outcome != "OUTCOME_UNKNOWN":
            assert name not in done, f"W8: {name} was refused with {outcome}, and applied"
    assert sum(isinstance(one, int) for one in outcomes.values()) > 100


async def _write(admin: Admin, writer: int, outcomes: dict[str, int | str]) -> None:
    """Writes one after the other, until it is cancelled; those in flight then tell nothing."""
    for number in itertools.count():
        name = f"w{writer}.{number}"
        request = change_set(put(f"t{writer}/a{number % 5}", f"file:///a/{number}"), request_id=name)
        _, outcomes[name] = await _tell(admin, name, request, 120)


async def test_no_quorum(etcd_cluster, answers_early):
    """W8 no-false-fail: without a quorum nothing is acknowledged, and the reply says what is known."""
    async with admin_inside(etcd_cluster.endpoints, PREFIX) as admin:
        await wait_ready(admin)
        await make_pool(admin)
        await admin.stub.ApplyAdapters(change_set(put("acme/a")))
        leader = await etcd_cluster.leader()
        for member in etcd_cluster.members:
            if member is not leader:
                member.kill()
        told = await refusal(admin.stub.ApplyAdapters(change_set(put("acme/b"), request_id="r"), timeout=60))
        assert told.code is StatusCode.UNAVAILABLE
        assert told.reason in {"OUTCOME_UNKNOWN", "ETCD_UNAVAILABLE"}
        for member in etcd_cluster.members:
            if member is not leader:
                member.start()
        await etcd_cluster.ready()
        await wait_ready(admin)
        reply = await admin.stub.ApplyAdapters(change_set(put("acme/b"), request_id="r"))
        client = etcd_cluster.patient()
        try:
            kept = await client.range(Range(Keys(PREFIX).request("r")))
        finally:
            await client.aclose()
        assert kept.kvs[0].mod_revision == reply.revision
