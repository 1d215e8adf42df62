"""How a call of the admin service is refused, bounded, counted and ended, on virtual time."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Never

import pytest
import structlog.testing
from google.protobuf.message_factory import GetMessageClass
from grpc import StatusCode

from registry.admin.rpc.interceptor import _outcome
from registry.admin.rpc.service import BACKUPS_AT_ONCE, DESCRIPTOR
from registry.model.errors import Reason
from registry.model.names import REPEATED_METADATA
from registry.store.reader import Reader
from registry.transactions.changes import Remove
from registry.v1 import registry_pb2 as pb
from tests.simulation.links import Way
from tests.support.admin import change_set, drop, put
from tests.support.played_admin import Aborted, Context, Served, serve, served
from tests.support.played_etcd import now
from tests.support.records import KEYS

INVALID, NOT_FOUND = StatusCode.INVALID_ARGUMENT, StatusCode.NOT_FOUND


def request_of(method: str, **fields: object) -> Any:
    return GetMessageClass(DESCRIPTOR.methods_by_name[method].input_type)(**fields)


@pytest.mark.parametrize(
    ("method", "fields", "told"),
    [
        ("GetAdapter", {"pool": "p", "name": "a"}, (NOT_FOUND, "ADAPTER_NOT_FOUND", "name")),
        ("DeletePool", {"name": "p", "request_id": "a b"}, (INVALID, "INVALID_FIELD", "request_id")),
        ("GetPool", {"name": "q"}, (NOT_FOUND, "POOL_NOT_FOUND", "name")),
        ("ListAdapters", {"pool": "p", "page_token": "?"}, (INVALID, "INVALID_PAGE_TOKEN", "page_token")),
        ("WatchAdapters", {"pool": "p", "start_revision": -1}, (INVALID, "INVALID_FIELD", "start_revision")),
        ("WatchRollout", {"pool": "p", "name": "a", "generation": -1}, (INVALID, "INVALID_FIELD", "generation")),
        ("WatchRollout", {"pool": "p", "name": "a"}, (NOT_FOUND, "ADAPTER_NOT_FOUND", "name")),
        ("WatchResidency", {"pool": "p", "name": "a"}, (NOT_FOUND, "ADAPTER_NOT_FOUND", "name")),
        ("WatchResidency", {"pool": "q"}, (NOT_FOUND, "POOL_NOT_FOUND", "pool")),
    ],
)
@served
async def test_a_refusal_says_why_and_which_field_is_wrong(served, method, fields, told):
    """And is counted as what it is."""
    await served.make_pool()
    refused = await served.refusal(method, request_of(method, **fields))
    assert refused.told == told
    assert refused.message
    assert served.counted(method) == {told[0].name: 1.0}
    assert served.metrics.streams.labels(method)._value.get() == 0
    if not method.startswith("Watch"):
        assert sum(one.get() for one in served.metrics.seconds.labels(method)._buckets) == 1, "how long it took"
        assert served.metrics.seconds.labels(method)._sum.get() < time.monotonic()


@served
async def test_a_fault_of_ours_is_told_as_such_and_nothing_of_it(served, monkeypatch):
    """X2, R12: what nobody foresaw ends the call alone, and is in the log; no record is thought to be unreadable."""

    def breaks(*_: object, **__: object) -> Never:
        raise KeyError("secret")

    await served.make_pool()
    monkeypatch.setattr(served.service.writer, "change", breaks)
    monkeypatch.setattr("registry.admin.rpc.handlers.recorded_changes", breaks)
    with structlog.testing.capture_logs() as logged:
        for method, fields in (("DeletePool", {"name": "p"}), ("ListChanges", {"pool": "p"})):
            refused = await served.refusal(method, request_of(method, **fields))
            assert refused.told == (StatusCode.INTERNAL, "INTERNAL", "")
            assert "secret" not in refused.message
            assert served.counted(method) == {"INTERNAL": 1.0}
    assert served.metrics.no_space._value.get() == 0
    assert [line["method"] for line in logged if line["event"] == "internal_error"] == ["DeletePool", "ListChanges"]


class Fault(Exception):
    """Of ours."""


def test_what_a_failed_call_had_is_freed_with_it():
    """X3 given-back: many refused calls of four megabytes wait for no collection, which may be rare."""

    async def fails() -> Never:
        raise Fault

    async def scene() -> weakref.ref[Fault]:
        try:
            await _outcome(fails(), (Reason.DEADLINE_EXCEEDED, "late"))
        except Fault as fault:
            return weakref.ref(fault)
        pytest.fail("it did not fail")

    gc.disable()
    try:
        assert asyncio.run(scene())() is None
    finally:
        gc.enable()


@dataclass
class Stranger(Context):
    """A caller of its own."""

    name: str = ""

    def peer(self) -> str:
        return self.name


@served
async def test_so_many_calls_are_taken_at_once_and_no_more(served, monkeypatch):
    """R16 bounded: each may bring four megabytes, so no other is even read; and backups take a place of their own."""
    begun: list[str] = []

    async def hangs(name: str) -> AsyncIterator[bytes]:
        begun.append(name)
        await asyncio.Event().wait()
        yield b""

    async def reads(*_: object) -> None:
        begun.append("a backup")
        await asyncio.Event().wait()

    monkeypatch.setattr(Reader, "stored", reads)
    call = served.handler("GetPool").stream_unary
    for most, made in (
        (128, lambda who: call(hangs(who), Stranger(name=who))),
        (BACKUPS_AT_ONCE, lambda who: served.call("ReadBackup", pb.ReadBackupRequest(), Stranger(name=who))),
    ):
        begun.clear()
        calls = [asyncio.ensure_future(made(f"c{number}")) for number in range(most + 20)]
        await asyncio.sleep(0.5)
        assert len(begun) == most
        for one in calls:
            one.cancel()
        await asyncio.wait(calls)


@served
async def test_a_full_etcd_is_counted(served):
    await served.make_pool()
    served.etcd.store.is_full = True
    refused = await served.refusal("ApplyAdapters", change_set(put("a")))
    assert (refused.code, refused.info.reason) == (StatusCode.RESOURCE_EXHAUSTED, "ETCD_NO_SPACE")
    assert served.metrics.no_space._value.get() == 1
    assert served.counted("ApplyAdapters") == {"RESOURCE_EXHAUSTED": 1.0}


@pytest.mark.parametrize(("remaining", "took"), [(None, 10.0), (60.0, 10.0), (5.0, 4.5)])
@served
async def test_a_call_is_answered_within_its_time_also_where_etcd_hangs(served, remaining, took):
    """R16 bounded: ten seconds at most; a tenth of the client's time is for the way of the answer."""
    await served.make_pool()
    served.etcd.links["m0"].set_way(Way.HUNG)
    begun = now()
    refused = await served.refusal("GetPool", pb.GetPoolRequest(name="p"), Context(remaining))
    assert refused.code is StatusCode.UNAVAILABLE
    assert took - 2.0 <= now() - begun <= took + 0.01


async def never() -> AsyncIterator[bytes]:
    """A request that does not come."""
    await asyncio.Event().wait()
    yield b""


@pytest.mark.parametrize(("remaining", "took"), [(60.0, 1.0), (0.5, 0.45)])
def test_a_request_that_does_not_come_is_waited_for_no_longer_than_a_second(remaining, took):
    """X3 given-back: then its place is another's. And it is counted, and logged once a minute."""

    async def scene(served: Served) -> None:
        async def nothing() -> AsyncIterator[bytes]:
            for raw in list[bytes]():
                yield raw

        call = served.handler("GetPool").stream_unary
        for _ in range(3):
            begun = now()
            with pytest.raises(Aborted) as refused:
                await call(never(), Context(remaining))
            assert (refused.value.code, refused.value.info.reason) == (StatusCode.UNAVAILABLE, "DEADLINE_EXCEEDED")
            assert now() - begun == pytest.approx(took)
        await asyncio.sleep(60)
        with pytest.raises(Aborted):
            await call(never(), Context(remaining))
        assert served.metrics.refused.labels("DEADLINE_EXCEEDED")._value.get() == 4
        with pytest.raises(Aborted) as refused:
            await call(nothing(), Context())
        assert refused.value.code is StatusCode.INVALID_ARGUMENT

    with structlog.testing.capture_logs() as logged:
        serve(scene)
    told = [(line["reason"], line["calls"]) for line in logged if line["event"] == "calls_refused"]
    assert told == [("DEADLINE_EXCEEDED", 1), ("DEADLINE_EXCEEDED", 3)]


@served
async def test_a_request_that_has_come_counts_however_late_the_event_loop_looks(served):
    """X2: under load the refusal would be of those who did nothing wrong."""
    await served.make_pool()
    loop = asyncio.get_running_loop()
    behind, clock = 0.0, loop.time

    async def comes() -> AsyncIterator[bytes]:
        nonlocal behind
        arrived = loop.create_future()
        loop.call_later(0.5, arrived.set_result, None)
        behind += 5.0
        await arrived
        yield pb.GetPoolRequest(name="p").SerializeToString()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "time", lambda: clock() + behind)
        assert (await served.handler("GetPool").stream_unary(comes(), Context())).name == "p"


@served
async def test_large_requests_of_one_caller_are_few_at_once(served):
    """X3 given-back: 16 MiB together; a fifth of 4 MiB is refused, and a small one is not."""
    await served.make_pool()
    served.etcd.links["m0"].set_way(Way.HUNG)
    large = change_set(put("a", labels={f"k{number}": "x" * 60_000 for number in range(64)}))

    async def hang(*_: object, **__: object) -> Never:
        await asyncio.Event().wait()
        raise AssertionError

    small = pb.GetPoolRequest(name="p")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("registry.transactions.validate.make_upsert", lambda name, *_, **__: Remove(name))
        patch.setattr(served.service.writer, "change", hang)
        calls = [asyncio.create_task(served.call("ApplyAdapters", large)) for _ in range(4)]
        await asyncio.sleep(0.1)
        refused = await served.refusal("ApplyAdapters", large)
        assert refused.told == (StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_CALLS", "")
        repeated = await served.refusal("ApplyAdapters", large, Context(metadata=(REPEATED_METADATA,)))
        assert repeated.info.reason == "OUTCOME_UNKNOWN", "W8 no-false-fail: it may have been carried out before"
        served.etcd.links["m0"].set_way(Way.OPEN)
        assert (await served.call("GetPool", small)).name == "p"
        for one in calls:
            one.cancel()
        await asyncio.wait(calls)
    assert (await served.refusal("ApplyAdapters", large)).told[0] is StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("metadata", [(), (("other", "1"), REPEATED_METADATA)])
@served
async def test_a_repetition_that_says_so_is_refused_behind_a_fence(served, metadata):
    """W8 no-false-fail: what it repeats may be under way at another service. Whoever does not say so is not asked."""
    await served.make_pool()
    request = change_set(drop("a"), request_id="r")
    refused = await served.refusal("ApplyAdapters", request, Context(metadata=metadata))
    assert refused.info.reason == "ADAPTER_NOT_FOUND"
    assert (KEYS.request("r") in served.etcd.store.kvs) is bool(metadata)


@pytest.mark.parametrize(
    ("method", "metadata", "reason"),
    [
        ("ApplyAdapters", (REPEATED_METADATA,), "OUTCOME_UNKNOWN"),
        ("ApplyAdapters", (), "DEADLINE_EXCEEDED"),
        ("GetPool", (REPEATED_METADATA,), "DEADLINE_EXCEEDED"),
    ],
)
@served
async def test_a_repetition_that_finds_no_time_or_room_is_not_told_that_nothing_was_changed(
    served, method, metadata, reason
):
    """W8 no-false-fail: the call that it repeats may have been carried out. A reading call has changed nothing."""
    with pytest.raises(Aborted) as refused:
        await served.handler(method).stream_unary(never(), Context(metadata=metadata))
    assert (refused.value.code, refused.value.info.reason) == (StatusCode.UNAVAILABLE, reason)
    assert ("nothing was done" in refused.value.message) is (reason != "OUTCOME_UNKNOWN")


@served
async def test_a_stream_ends_as_the_service_stops_and_is_counted_while_it_is_open(served):
    await served.make_pool()
    async with aclosing(served.watch("WatchAdapters", pb.WatchAdaptersRequest(pool="p"))) as answers:
        assert (await anext(answers)).snapshot
    assert served.counted("WatchAdapters") == {"CANCELLED": 1.0}, "who leaves is counted as one who left"
    async with aclosing(served.watch("WatchAudit", pb.WatchAuditRequest())) as answers:
        await anext(answers)
        assert served.service.calls.calls._running == 0, "X3 given-back: who takes no second answer keeps no place"
    open_streams = served.metrics.streams.labels("WatchAdapters")._value
    answers = served.watch("WatchAdapters", pb.WatchAdaptersRequest(pool="p"))
    assert (await anext(answers)).snapshot
    assert open_streams.get() == 1
    following = asyncio.ensure_future(anext(answers))
    await asyncio.sleep(1)
    served.service.calls.stopping.set()
    with pytest.raises(Aborted) as ended:
        await following
    assert ended.value.told == (StatusCode.UNAVAILABLE, "ADMIN_UNAVAILABLE", "")
    assert (open_streams.get(), served.counted("WatchAdapters")) == (0, {"UNAVAILABLE": 1.0, "CANCELLED": 1.0})
