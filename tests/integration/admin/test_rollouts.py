"""Rollouts with canaries, on a real etcd over real gRPC, ended by one admin service of several."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from registry.etcd3.ops import KeyValue, Range, prefix_end
from registry.model.errors import FailedPrecondition, PermissionDenied, Reason, Unavailable
from registry.model.records import AdapterRecord
from registry.rollout import controller
from registry.rollout.policy import conductor_request_id
from registry.rollout.pool import PoolSnapshot
from registry.rollout.pool_reader import read_pool
from registry.v1 import registry_pb2 as pb
from tests.support.admin import admin_inside, change_set, put, refusal, refused, wait_ready
from tests.support.made_up_replicas import SaidReplicas
from tests.support.metrics import read_metrics
from tests.support.waiting import eventually

NAME = "acme/a"


def canaries(replicas: str = "1", **strategy) -> pb.AdapterSpec:
    return pb.Strategy(canary_replicas=replicas, **{"soak_seconds": 0, **strategy})


@pytest.fixture
async def replicas(ledger, admin) -> SaidReplicas:
    """Three that live."""
    said = SaidReplicas(ledger.client, ledger.keys)
    await said.alive("r1", "r2", "r3")
    return said


async def apply(admin, uri: str, strategy: pb.Strategy | None = None, **spec) -> tuple[int, int]:
    """Generation and revision of the change."""
    response = await admin.stub.ApplyAdapters(change_set(put(NAME, uri, strategy=strategy or canaries(), **spec)))
    return response.results[0].adapter.generation, response.revision


async def begun(admin, strategy: pb.Strategy | None = None) -> int:
    """Generation 1 for all, generation 2 for canaries; the revision of that."""
    await apply(admin, "file:///a/v1", strategy)
    generation, revision = await apply(admin, "file:///a/v2", strategy)
    assert generation == 2
    return revision


async def adapter(admin) -> pb.Adapter:
    return await admin.stub.GetAdapter(pb.GetAdapterRequest(pool="p", name=NAME))


def watch(admin, generation: int = 0):
    return admin.stub.WatchRollout(pb.WatchRolloutRequest(pool="p", name=NAME, generation=generation))


async def heard(call, wanted) -> pb.Rollout:
    """The first rollout of a stream for which `wanted` holds."""
    async with asyncio.timeout(120):
        while True:
            rollout = await call.read()
            assert isinstance(rollout, pb.Rollout), "the stream ended before"
            if wanted(rollout):
                return rollout


async def audits(ledger) -> list[dict]:
    prefix = ledger.keys.audit("p", "")
    found = await ledger.client.range(Range(prefix, prefix_end(prefix)))
    return [json.loads(kv.value) for kv in found.kvs]


async def test_what_canaries_serve_comes_to_all(ledger, admin, replicas):
    """W2, W6, W7: one promotion, by the conductor, with its audit record; the generation stays what it is."""
    revision = await begun(admin)
    before = await adapter(admin)
    assert (before.rollout.stable_generation, before.rollout.stable_spec.source.uri) == (1, "file:///a/v1")
    call = watch(admin)
    first = await call.read()
    assert sorted(one.generation for one in first.replicas) == [1, 1, 2]
    (canary,) = [one for one in first.replicas if one.canary]
    assert (canary.generation, first.waiting) == (2, "1 of 1 canaries do not serve it yet")
    await replicas.say(canary.replica, revision)
    promoted = await heard(call, lambda rollout: not rollout.HasField("canary"))
    assert (promoted.generation, promoted.done) == (2, False)
    after = await adapter(admin)
    assert (after.generation, after.spec, after.HasField("rollout")) == (2, before.spec, False)
    await replicas.all_serve(int(after.etag))
    last = await heard(call, lambda rollout: rollout.done)
    assert (last.failure, {one.generation for one in last.replicas}) == ("", {2})
    (told,) = [one for one in await audits(ledger) if one["method"] == "PromoteRollout"]
    assert (told["principal"], told["role"]) == ("loraplane-admin", "conductor")
    assert told["request_id"].startswith("promote-p-")

    async def is_counted() -> bool:
        return (await read_metrics(admin.http)).get('loraplane_admin_rollouts_total{verb="promote"}') == 1

    await eventually(is_counted)  # once the service has etcd's answer to what others see already
    await ledger.check()


async def test_many_admin_services_promote_once(ledger, admin, etcd, replicas):
    """W3 idempotent, W7: three conductors see the same at the same time, and it is done once."""
    async with AsyncExitStack() as stack:
        others = [await stack.enter_async_context(admin_inside(etcd.endpoints, etcd.prefix)) for _ in range(2)]
        for one in others:
            await wait_ready(one)
        names = [f"acme/n{number}" for number in range(8)]
        for uri in ("file:///a/v1", "file:///a/v2"):
            changed = await admin.stub.ApplyAdapters(
                change_set(*(put(name, uri, strategy=canaries("34%")) for name in names))
            )
        await replicas.all_serve(changed.revision)

        async def all_promoted() -> bool:
            listed = await admin.stub.ListAdapters(pb.ListAdaptersRequest(pool="p"))
            return not any(one.HasField("rollout") for one in listed.adapters)

        await eventually(all_promoted)
    told = [one["changes"][0]["name"] for one in await audits(ledger) if one["method"] == "PromoteRollout"]
    assert sorted(told) == names
    await ledger.check()


@pytest.mark.parametrize("kind", [FailedPrecondition, PermissionDenied, Unavailable])
async def test_a_look_that_fails_is_taken_again(ledger, admin, replicas, monkeypatch, kind):
    """Whatever etcd answers, e.g. that it compacted the revision or that our token expired: the service goes on."""
    failing = [kind(Reason.INTERNAL, "not now")] * 2

    async def read(*arguments: Any) -> tuple[KeyValue | None, PoolSnapshot]:
        if failing:
            raise failing.pop()
        return await read_pool(*arguments)

    monkeypatch.setattr(controller, "read_pool", read)
    await replicas.all_serve(await begun(admin))

    async def promoted() -> bool:
        return not (await adapter(admin)).HasField("rollout")

    await eventually(promoted)
    assert not failing


async def test_abortions_against_two_conductors(ledger, admin, etcd, replicas):
    """W4, W6, W7: of promotion and abortion one wins, whole, and the other is told so."""
    async with admin_inside(etcd.endpoints, etcd.prefix) as other:
        await wait_ready(other)
        names = [f"acme/n{number}" for number in range(6)]
        for uri in ("file:///a/v1", "file:///a/v2"):
            changed = await admin.stub.ApplyAdapters(
                change_set(*(put(name, uri, strategy=canaries("34%")) for name in names))
            )
        pairs = [(one, name) for name in names for one in (admin, other)]
        abort = [one.stub.AbortRollout(pb.AbortRolloutRequest(pool="p", name=name)) for one, name in pairs]
        _, *ended = await asyncio.gather(replicas.all_serve(changed.revision), *abort, return_exceptions=True)

        async def all_over() -> bool:
            listed = await admin.stub.ListAdapters(pb.ListAdaptersRequest(pool="p"))
            return not any(one.HasField("rollout") for one in listed.adapters)

        await eventually(all_over)
    aborted = [reply for reply in ended if not isinstance(reply, BaseException)]
    listed = await admin.stub.ListAdapters(pb.ListAdaptersRequest(pool="p"))
    back = {one.name for one in listed.adapters if one.spec.source.uri == "file:///a/v1"}
    assert sorted(reply.results[0].adapter.name for reply in aborted) == sorted(back)
    told = {refused(error).reason for error in ended if isinstance(error, grpc.RpcError)}
    assert told <= {"NO_ROLLOUT", "LOST_RACE"}
    await ledger.check()


async def test_no_caller_delays_a_halt(ledger, admin, replicas):
    """W3 idempotent: ids of the conductor that somebody took before are none of its own."""
    revision = await begun(admin)
    record = AdapterRecord.parse((await ledger.client.range(Range(ledger.keys.adapter("p", NAME)))).kvs[0].value)
    for attempt in range(12):
        taken = conductor_request_id("halt", record, attempt)
        await admin.stub.ApplyAdapters(change_set(put(f"b/{attempt}"), request_id=taken))
    call = watch(admin)
    (canary,) = [one.replica for one in (await call.read()).replicas if one.canary]
    await replicas.refuse(canary, NAME, 2, revision)
    assert (await heard(call, lambda rollout: rollout.done)).failure == "halted"
    (told,) = [one for one in await audits(ledger) if one["role"] == "conductor"]
    assert told["request_id"] == conductor_request_id("halt", record, 0), "the first id that it asked with"
    await ledger.check()


async def test_what_canaries_refuse_is_halted(ledger, admin, replicas):
    """It goes no further by itself, even if they serve it later; it is taken back by hand."""
    revision = await begun(admin)
    call = watch(admin)
    (canary,) = [one.replica for one in (await call.read()).replicas if one.canary]
    await replicas.refuse(canary, NAME, 2, revision)
    halted = await heard(call, lambda rollout: rollout.done)
    assert halted.failure == "halted"
    assert halted.canary.halted == f"1 of 1 canaries refuse it: {canary} digest_mismatch - m"
    now = await adapter(admin)
    assert now.generation == 2
    for detail in pb.WatchResidencyRequest.Detail.values():
        where = await admin.stub.WatchResidency(pb.WatchResidencyRequest(pool="p", name=NAME, detail=detail)).read()
        assert where.adapters[0].halted == halted.canary.halted
    await replicas.all_serve(int(now.etag))
    again = await watch(admin).read()
    assert (again.done, again.failure) == (True, "halted")
    assert (await adapter(admin)).etag == now.etag, "it is neither promoted nor taken back"
    aborted = await admin.stub.AbortRollout(pb.AbortRolloutRequest(pool="p", name=NAME, generation=2))
    back = aborted.results[0].adapter
    assert (back.generation, back.spec.source.uri, back.HasField("rollout")) == (3, "file:///a/v1", False)
    history = await admin.stub.ListAdapterHistory(pb.ListAdapterHistoryRequest(pool="p", name=NAME))
    assert [one.HasField("rollout") for one in history.generations] == [False, True, False]
    await ledger.check()


async def test_so_many_may_refuse_it(ledger, admin, replicas):
    """With two canaries of which one may fail, the one that serves is enough; and two are not."""
    strategy = canaries("2", max_failures=1)
    revision = await begun(admin, strategy)
    one, other = [each.replica for each in (await watch(admin).read()).replicas if each.canary]
    await replicas.refuse(one, NAME, 2, revision)
    await replicas.say(other, revision)
    await eventually(lambda: _is_promoted(admin))
    _, revision = await apply(admin, "file:///a/v3", strategy)
    await replicas.refuse(one, NAME, 3, revision)
    await replicas.refuse(other, NAME, 3, revision)
    last = await heard(watch(admin), lambda rollout: rollout.done)
    assert last.canary.halted.startswith("2 of 2 canaries refuse it")


async def _is_promoted(admin) -> bool:
    return not (await adapter(admin)).HasField("rollout")


async def test_by_hand(ledger, admin, replicas):
    """W3, W4, W9: the stream ends once the canaries serve it; promoted when somebody says so, once."""
    revision = await begun(admin, canaries(promote="manual"))
    await replicas.all_serve(revision)
    last = await heard(watch(admin), lambda rollout: rollout.done)
    assert (last.failure, last.note) == (
        "",
        "1 of 3 replicas, its canaries, serve it, the others generation 1, until it is promoted by hand",
    )
    now = await adapter(admin)
    asked = {"pool": "p", "name": NAME}
    told = await refusal(admin.stub.PromoteRollout(pb.PromoteRolloutRequest(**asked, generation=1)))
    assert (told.code, told.reason) == (StatusCode.ABORTED, "GENERATION_MISMATCH")
    told = await refusal(admin.stub.PromoteRollout(pb.PromoteRolloutRequest(**asked, etag="1")))
    assert (told.code, told.reason) == (StatusCode.ABORTED, "ETAG_MISMATCH")
    dry = await admin.stub.PromoteRollout(pb.PromoteRolloutRequest(**asked, validate_only=True))
    assert not dry.results[0].adapter.HasField("rollout")
    assert (await adapter(admin)).etag == now.etag
    request = pb.PromoteRolloutRequest(**asked, etag=now.etag, request_id="q1")
    done = await admin.stub.PromoteRollout(request)
    assert await admin.stub.PromoteRollout(request) == done
    for method in (admin.stub.PromoteRollout, admin.stub.AbortRollout):
        kind = pb.PromoteRolloutRequest if method is admin.stub.PromoteRollout else pb.AbortRolloutRequest
        told = await refusal(method(kind(**asked)))
        assert (told.code, told.reason) == (StatusCode.FAILED_PRECONDITION, "NO_ROLLOUT")
    await ledger.check()


async def test_an_interruption_starts_the_soak_anew(ledger, admin, replicas):
    """A canary that stops serving is not promoted, however long it served before."""
    revision = await begun(admin, canaries(soak_seconds=3600))
    call = watch(admin)
    (canary,) = [one.replica for one in (await call.read()).replicas if one.canary]
    await replicas.say(canary, revision)
    soaking = await heard(call, lambda rollout: "3600 seconds" in rollout.waiting)
    assert not soaking.done
    await replicas.say(canary, revision, stale=True)
    await heard(call, lambda rollout: rollout.waiting == "1 of 1 canaries do not serve it yet")
    assert (await adapter(admin)).HasField("rollout")


async def test_more_canaries_than_replicas(ledger, admin, replicas):
    told = await refusal(admin.stub.ApplyAdapters(change_set(put(NAME, strategy=canaries("4")))))
    assert (told.code, told.reason) == (StatusCode.FAILED_PRECONDITION, "CANARY_TOO_LARGE")
    assert told.metadata == {"canaries": "4", "replicas": "3"}
    told = await refusal(admin.stub.ApplyAdapters(change_set(put(NAME, strategy=canaries("9" * 5000)))))
    assert (told.code, told.field) == (
        StatusCode.INVALID_ARGUMENT,
        "changes[0].upsert.spec.strategy.canary.replicas",
    )


async def test_a_canary_that_goes_is_followed_by_another(ledger, admin, replicas):
    """Who is a canary follows from who lives; one that died is not waited for."""
    revision = await begun(admin)
    call = watch(admin)
    (first,) = [one.replica for one in (await call.read()).replicas if one.canary]
    await replicas.gone(first)
    then = await heard(call, lambda rollout: len(rollout.replicas) == 2)
    (second,) = [one.replica for one in then.replicas if one.canary]
    assert second != first
    await replicas.say(second, revision)
    await eventually(lambda: _is_promoted(admin))
