"""The fake admin service answers within a process as it does over gRPC's own wire."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc
import pytest

from registry.client import admin_api as api
from registry.client.transport import AdminCalls
from registry.model.errors import Conflict, NotFound, ResourceExhausted, Unavailable
from registry.v1 import registry_pb2 as pb
from tests.support.fake_admin import FakeAdmin, Hold, Refusal, connected, served

POOLS = pb.ListPoolsRequest(page_size=7)
WATCH = pb.WatchRolloutRequest(pool="p", name="a")
AWAY = Refusal(grpc.StatusCode.UNAVAILABLE, "ETCD_UNAVAILABLE", "away")
STALE = Refusal(grpc.StatusCode.ABORTED, "ETAG_MISMATCH", "stale", {"etag": "17"}, "changes[0]")


@pytest.fixture
def admin() -> FakeAdmin:
    return FakeAdmin()


@pytest.fixture(params=[connected, served])
async def calls(request, admin) -> AsyncIterator[AdminCalls]:
    with request.param(admin) as address:
        made = AdminCalls(address, None, 120.0)
        yield made
        await made.aclose()


async def pools(calls: AdminCalls, seconds: float = 120.0) -> list[str]:
    reply = await calls.unary(api.LIST_POOLS, POOLS, timeout_seconds=seconds)
    return [one.name for one in reply.pools]


async def generations(calls: AdminCalls, seconds: float = 120.0) -> list[int]:
    """What a stream brings until it ends."""
    async with aclosing(calls.stream(api.WATCH_ROLLOUT, WATCH, seconds)) as answers:
        return [one.generation async for one in answers]


async def test_calls_are_answered_one_after_the_other(calls, admin):
    """What is unavailable, or cancelled by the service, comes again; what was asked is kept."""
    admin.answers["ListPools"] = [AWAY, Refusal(grpc.StatusCode.CANCELLED), *admin.answers["ListPools"]]
    assert (await pools(calls), await pools(calls), admin.asked("ListPools")) == (["dev"], ["dev"], [POOLS] * 4)


async def test_a_refusal_has_its_reason_its_facts_and_its_field(calls, admin):
    admin.answers["ListPools"] = [STALE]
    with pytest.raises(Conflict) as refused:
        await pools(calls)
    found = refused.value
    assert (found.reason, found.message, found.metadata) == ("ETAG_MISMATCH", "stale", {"etag": "17"})
    assert found.field == "changes[0]"


async def test_a_message_that_is_too_large_is_refused(calls):
    with pytest.raises(ResourceExhausted) as refused:
        await calls.unary(api.GET_POOL, pb.GetPoolRequest(name="p" * (5 << 20)))
    assert refused.value.reason == "TOO_LARGE"


async def test_who_is_held_gives_up_in_time(calls, admin):
    admin.answers |= {"ListPools": [Hold()], "WatchRollout": [[pb.Rollout(generation=1), Hold()]]}
    for held in (pools, generations):
        with pytest.raises(Unavailable) as late:
            await held(calls, 0.1)
        assert late.value.reason == "DEADLINE_EXCEEDED"


async def test_streams_end_break_and_are_left(calls, admin):
    told = [pb.Rollout(generation=number) for number in (1, 2)]
    admin.answers["WatchRollout"] = [told, [told[0], AWAY], Refusal(grpc.StatusCode.NOT_FOUND), [*told, Hold()]]
    assert await generations(calls) == [1, 2]
    for failure in (Unavailable, NotFound):
        with pytest.raises(failure):
            await generations(calls)
    async with aclosing(calls.stream(api.WATCH_ROLLOUT, WATCH)) as answers:
        assert (await anext(answers)).generation == 1
    assert len(admin.asked("WatchRollout")) == 4
