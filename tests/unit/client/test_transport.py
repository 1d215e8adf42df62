"""How long calls are repeated and streams followed; what failures become; and what a connection is and leaves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, closing
from dataclasses import replace
from importlib.metadata import version
from inspect import getmembers, isawaitable, isfunction, signature
from itertools import chain, islice, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import grpc
import pytest

from loraplane import AsyncRegistry, Registry, Withdrawal
from registry.client import admin_api as api
from registry.client import transport
from registry.client.adapters import Published
from registry.client.address import Tls
from registry.client.channel import open_channel
from registry.client.errors import KIND_OF, CallErrors
from registry.client.handshake import HandshakeTrouble
from registry.client.transport import AdminCalls
from registry.model.errors import (
    RETRY_AFTER,
    Conflict,
    Internal,
    InvalidArgument,
    NotFound,
    Reason,
    RegistryError,
    ResourceExhausted,
    Unavailable,
)
from registry.v1 import registry_pb2 as pb
from tests.simulation.loop import VirtualLoop
from tests.support.fake_admin import FakeAdmin, FakeStream, Hold, Refusal

AWAY = Unavailable(Reason.ADMIN_UNAVAILABLE, "away")


class PlayedTime:
    """A clock that only sleeps, and what tries are said to take, move on; pauses are as long as they may be."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(round(seconds, 6))
        self.now += seconds


@pytest.fixture
def clock(monkeypatch) -> PlayedTime:
    clock = PlayedTime()
    monkeypatch.setattr(transport, "time", SimpleNamespace(monotonic=clock.monotonic))
    monkeypatch.setattr(transport, "random", SimpleNamespace(uniform=lambda _least, most: most))
    known = {name: getattr(asyncio, name) for name in ("create_task", "gather", "Task")}
    monkeypatch.setattr(transport, "asyncio", SimpleNamespace(sleep=clock.sleep, **known))
    return clock


@pytest.fixture
async def calls(address) -> AsyncIterator[AdminCalls]:
    made = AdminCalls(address, None, 30.0)
    yield made
    await made.aclose()


def attempt(
    clock: PlayedTime, takes: float, given: list[float], *, failures: int = 10_000, error: RegistryError = AWAY
) -> Callable[[float], Any]:
    """One that takes so long and fails so often; what each try was given is noted."""

    async def tried(seconds: float) -> str:
        given.append(round(seconds, 6))
        clock.now += min(takes, seconds)
        if len(given) > failures:
            return "answer"
        raise error

    return tried


@pytest.mark.parametrize(("timeout_seconds", "whole"), [(None, 30.0), (3.0, 3.0), (0.0, 0.0)])
async def test_a_call_is_repeated_as_long_as_there_is_time(clock, calls, timeout_seconds, whole):
    """Repetitions included; no pause begins that would outlast it, and the last error is told."""
    given: list[float] = []
    with pytest.raises(Unavailable, match="away"):
        await calls.repeated(attempt(clock, 0.0, given), timeout_seconds)
    assert clock.now - 100.0 < whole or not whole
    assert whole - 2.0 <= clock.now - 100.0
    pauses = [0.2, 0.4, 0.8, 1.6, *[2.0] * 20]
    expected = next(count for count in range(len(pauses)) if round(sum(pauses[: count + 1]), 6) >= whole)
    assert (clock.pauses, len(given)) == (pauses[:expected], expected + 1)
    for takes, seconds, expected in ((0.0, 60.0, [10.0] * 7), (60.0, 25.0, [10.0, 10.0, 4.4]), (60.0, 0.01, [0.05])):
        # A connection may hang that another would not: ten seconds each, of the rest what is left, a moment at least.
        clock.pauses.clear()
        given.clear()
        if takes:
            with pytest.raises(Unavailable):
                await calls.repeated(attempt(clock, takes, given), seconds)
        else:
            assert await calls.repeated(attempt(clock, takes, given, failures=6), seconds) == "answer"
            assert clock.pauses == [0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
        assert given == expected


@pytest.mark.parametrize(("seconds", "pauses"), [(30.0, [0.2, 0.4, 0.4]), (0.5, [0.2])])
async def test_a_handshake_that_cannot_succeed_is_told_after_a_second(monkeypatch, clock, calls, seconds, pauses):
    """A6 rotates: until then one side may have new files before the other. No later than the time is up."""
    found = AsyncMock(return_value=HandshakeTrouble("it is another's", "name its own"))
    monkeypatch.setattr(transport, "found_trouble", found)
    with pytest.raises(Unavailable, match="it is another's"):
        await calls.repeated(attempt(clock, 0.0, []), seconds)
    assert clock.pauses == pauses


def streams(admin: FakeAdmin, clock: PlayedTime, *scripts: list[Any]) -> None:
    """A stream after another; a number is a time that passes, a name an answer. After the last all fail at once."""

    def played(script: list[Any]) -> Callable[[object], Iterator[object]]:
        def items(_request: object) -> Iterator[object]:
            for one in script:
                if isinstance(one, float):
                    clock.now += one
                else:
                    yield told(one, 0) if isinstance(one, str) else one

        return items

    admin.answers["WatchResidency"] = [*map(played, scripts), BROKEN]


def told(name: str, revision: int, **fields: bool) -> pb.WatchResidencyResponse:
    return pb.WatchResidencyResponse(revision=revision, adapters=[pb.AdapterResidency(name=name)], **fields)


REFUSED = Refusal(grpc.StatusCode.NOT_FOUND, "POOL_NOT_FOUND")
BROKEN = Refusal(grpc.StatusCode.UNAVAILABLE)
TOO_LARGE = Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED)
BUSY = Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_CALLS", metadata={RETRY_AFTER: "3"})
ODD = [["a"], [], [BROKEN], ["b", "c", BROKEN], [BROKEN], ["d", REFUSED]]


@pytest.mark.parametrize(
    ("patience", "scripts", "names", "pauses"),
    [
        (None, ODD, "abcd", [0.2, 0.4, 0.8, 0.2, 0.4]),
        *(
            (patience, [["a", 50.0, "b", 50.0, BROKEN]], "ab", [0.2, 0.4, 0.8, 1.6, 2.0][:pauses])
            for patience, pauses in ((0.0, 1), (0.1, 1), (0.3, 2), (2.9, 4), (3.1, 5))
        ),
        (0.5, [[BROKEN], [], [], ["a"], [REFUSED]], "a", [0.2, 0.4, 0.8, 0.2]),
        (0.0, [["a", BROKEN], ["b", BROKEN], ["c", BROKEN]], "abc", [0.2, 0.2, 0.2]),
    ],
)
async def test_a_stream_is_begun_again_with_patience(admin, clock, calls, patience, scripts, names, pauses):
    """Since it broke; with pauses that begin anew with each answer. A service that stops in order is followed on."""
    streams(admin, clock, *scripts)
    found: list[str] = []
    answers = calls.follow(api.WATCH_RESIDENCY, pb.WatchResidencyRequest(), patience)

    async def read() -> None:
        async with aclosing(answers):
            async for one in answers:
                found.append(one.adapters[0].name)  # noqa: PERF401 - what came before an error, too

    with pytest.raises(NotFound if REFUSED in scripts[-1] else Unavailable):
        await read()
    assert (found, clock.pauses) == ([*names], pauses)


@pytest.mark.parametrize(
    ("patience", "scripts", "names", "pauses"),
    [
        (None, [[BUSY], [BUSY], ["a"], [REFUSED]], "a", [3.0, 3.0, 0.2]),
        (1.0, [[BUSY], [BUSY]], "", [3.0]),
        (None, [["a"], [TOO_LARGE]], "a", [0.2]),
    ],
)
async def test_a_stream_that_is_a_call_too_many_is_begun_when_the_service_says(
    admin, clock, calls, patience, scripts, names, pauses
):
    """As a call is; what is refused for good, as for its size, is told."""
    streams(admin, clock, *scripts)
    found: list[str] = []

    async def read() -> None:
        async for one in calls.follow(api.WATCH_RESIDENCY, pb.WatchResidencyRequest(), patience):
            found.append(one.adapters[0].name)  # noqa: PERF401 - what came before an error, too

    with pytest.raises(NotFound if REFUSED in scripts[-1] else ResourceExhausted):
        await read()
    assert (found, clock.pauses) == ([*names], pauses)


async def test_a_state_that_broke_off_is_no_part_of_the_next_one(admin, clock, address):
    """R24: a reader that stays connected ends equal to etcd, whatever is gone when it connects again."""
    gone, there = (told(name, 1, snapshot=True, more=name == "gone") for name in ("gone", "there"))
    streams(admin, clock, [gone, BROKEN], [there, Hold()])
    listed = [
        pb.WatchAdaptersResponse(
            events=[pb.AdapterEvent(put=pb.Adapter(name=name))], snapshot=True, more=name == "gone"
        )
        for name in ("gone", "there")
    ]
    admin.answers["WatchAdapters"] = [[listed[0], BROKEN], [listed[1], Hold()]]
    async with AsyncRegistry(address) as registry:
        async with aclosing(registry.residency("p")) as states:
            assert [*(await anext(states)).adapters] == ["there"]
        async with aclosing(registry.watch("p")) as listings:
            assert [one.name for one in (await anext(listings)).adapters] == ["there"]


async def test_where_adapters_are_now_is_the_first_whole_state(admin, clock, calls):
    """Nothing of one that broke, and nothing that comes later."""
    a, b, c, d = (
        pb.WatchResidencyResponse(adapters=[pb.AdapterResidency(name=name)], more=name in "ab", snapshot=True)
        for name in "abcd"
    )
    streams(admin, clock, [a, BROKEN], [b, c, d])
    found = await calls.residency_now(pb.WatchResidencyRequest(pool="p"))
    assert [one.name for part in found for one in part.adapters] == ["b", "c"]


def error_of(failure: BaseException, request_id: str = "", **remedies: str) -> RegistryError:
    """What a failure becomes."""
    errors = CallErrors("h:1", {Reason(reason): told for reason, told in remedies.items()})
    with pytest.raises(RegistryError) as told, errors.translated(request_id):
        raise failure
    assert told.value.__cause__ is failure
    return told.value


BARE = {
    grpc.StatusCode.UNAVAILABLE: (Reason.ADMIN_UNAVAILABLE, "no connection to the admin service at h:1 (t)"),
    grpc.StatusCode.CANCELLED: (Reason.ADMIN_UNAVAILABLE, "no connection to the admin service at h:1 (t)"),
    grpc.StatusCode.DEADLINE_EXCEEDED: (Reason.DEADLINE_EXCEEDED, "the admin service at h:1 did not answer in time"),
    grpc.StatusCode.UNIMPLEMENTED: (Reason.UNSUPPORTED, "what answers at h:1 does not know this call (t)"),
    grpc.StatusCode.RESOURCE_EXHAUSTED: (Reason.TOO_LARGE, "the admin service at h:1 failed: t"),
}


@pytest.mark.parametrize("code", KIND_OF)
def test_a_failure_without_a_reason_is_told_by_its_status(code):
    """X2 unbreakable: whatever answers there."""
    reason, message = BARE.get(code, (Reason.INTERNAL, "the admin service at h:1 failed: t"))
    told = error_of(Refusal(code, message="t").failure())
    assert (type(told), told.reason, told.message) == (KIND_OF[code], reason, message)
    assert (told.field, told.metadata) == (None, {})
    named = error_of(Refusal(code, message="t").failure(), "mine", **{reason.value: "do this"})
    assert (named.message, named.metadata) == (f"{message}; do this", {"request_id": "mine"})


@pytest.mark.parametrize("is_text", [False, True])
def test_a_refusal_is_told_as_the_service_told_it(is_text):
    """W4, W8: kind, reason, facts and field; remedies are for those that have no words of their own."""
    stale = Refusal(grpc.StatusCode.ABORTED, "ETAG_MISMATCH", "stale", {"etag": "17"}, "etag")
    sent = (("other", "x"), *stale.details())
    if is_text:
        sent = tuple((key, value.decode() if isinstance(value, bytes) else value) for key, value in sent)
    told = error_of(stale.failure(sent), "mine", ETAG_MISMATCH="do this")
    assert (type(told), told.reason, told.message, told.field) == (Conflict, Reason.ETAG_MISMATCH, "stale", "etag")
    assert told.metadata == {"etag": "17", "request_id": "mine"}
    assert error_of(replace(stale, where="").failure()).field is None


async def test_a_cancellation_of_our_own_passes_through():
    """That of the other side is a failure like others."""
    told = error_of(asyncio.CancelledError(), "mine")
    assert (type(told), told.reason, told.metadata) == (Unavailable, Reason.ADMIN_UNAVAILABLE, {"request_id": "mine"})
    assert told.message == "no connection to the admin service at h:1 (the call was cancelled)"

    async def waits() -> None:
        with CallErrors("h:1", {}).translated():
            await asyncio.Event().wait()

    task = asyncio.create_task(waits())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_with_certificates_a_channel_is_encrypted(monkeypatch):
    """X1 secret-free: what goes over it is for the admin service alone; without them it is as it was asked for."""
    opened: list[tuple[object, ...]] = []
    monkeypatch.setattr(grpc, "ssl_channel_credentials", lambda *pem: ("credentials", *pem))
    monkeypatch.setattr(grpc.aio, "secure_channel", lambda *told, options: opened.append(("secure", *told, options)))
    monkeypatch.setattr(
        grpc.aio, "insecure_channel", lambda *told, options: opened.append(("insecure", *told, options))
    )
    open_channel("h:1", (b"ca", b"key", b"cert"))
    open_channel("h:1", None)
    secure = ("secure", "h:1", ("credentials", b"ca", b"key", b"cert"))
    assert [one[:-1] for one in opened] == [secure, ("insecure", "h:1")]
    for *_, options in opened:
        told = dict(options)  # type: ignore[call-overload] # pairs
        assert told["grpc.max_receive_message_length"] == told["grpc.max_send_message_length"] == 64 << 20
        assert told["grpc.enable_http_proxy"] == 0
        assert told["grpc.primary_user_agent"] == f"loraplane/{version('loraplane')}"


PUBLISHED = Published("a", "p", 1, "s3://b/a", "", 7, "mine")


def test_a_router_hears_of_each_whole_state(registry, admin):
    """R9: a part of one is none; after a break what was gone meanwhile is gone. What stays an error ends it at once."""
    first = [told("a", 5, snapshot=True, more=True), told("b", 5, snapshot=True), told("c", 6)]
    admin.answers["WatchResidency"] = [[*first, BROKEN], [told("d", 9, snapshot=True), REFUSED]]
    with closing(registry.residency("p")) as states:
        seen = [(one.revision, sorted(one.adapters)) for one in islice(states, 3)]
        with pytest.raises(NotFound):
            next(states)
    assert seen == [(5, ["a", "b"]), (6, ["a", "b", "c"]), (9, ["d"])]
    assert [one.pool for one in admin.asked("WatchResidency")] == ["p", "p"]


async def test_one_call_too_many_is_repeated_when_the_service_says_so(clock, calls):
    """If that is in time; and a refusal for another cause is not."""
    later = ResourceExhausted(Reason.TOO_MANY_CALLS, "too many", metadata={RETRY_AFTER: "0.25"})
    assert await calls.repeated(attempt(clock, 0.0, [], failures=2, error=later), 5.0) == "answer"
    at_once = ResourceExhausted(Reason.TOO_MANY_CALLS, "too many", metadata={RETRY_AFTER: "0"})
    assert await calls.repeated(attempt(clock, 0.0, [], failures=1, error=at_once), 5.0) == "answer"
    assert clock.pauses == [0.25, 0.25, 0.05]
    for error, seconds in (
        (later, 0.2),
        (ResourceExhausted(Reason.TOO_LARGE, "too large"), 5.0),
        (ResourceExhausted(Reason.TOO_MANY_CALLS, "x", metadata={RETRY_AFTER: "soon"}), 5.0),
        (ResourceExhausted(Reason.TOO_MANY_CALLS, "x", metadata={RETRY_AFTER: "inf"}), 5.0),
    ):
        given: list[float] = []
        with pytest.raises(ResourceExhausted):
            await calls.repeated(attempt(clock, 0.0, given, error=error), seconds)
        assert len(given) == 1


async def test_what_is_refused_is_not_repeated_and_each_page_has_the_time_of_a_call(admin, address, calls):
    """X2 unbreakable: pages that lead in a circle are an error, also the very first."""
    given: list[float] = []
    with pytest.raises(NotFound):
        await calls.repeated(attempt(PlayedTime(), 0.0, given, error=NotFound(Reason.ADAPTER_NOT_FOUND, "none")))
    assert given == [10.0]
    pages = {"a": "b", "b": "c", "d": "d", "e": "f", "f": "g", "g": "f"}
    page = lambda asked: pb.ListPoolsResponse(next_page_token=pages.get(asked.page_token, ""))  # noqa: E731 - short
    admin.answers["ListPools"] = [page]
    paged = AdminCalls(address, None, 120)

    async def tokens(first: str) -> list[str]:
        request = pb.ListPoolsRequest(page_token=first)
        found = [page.next_page_token async for page in paged.pages(api.LIST_POOLS, request, 7.0)]
        assert admin.channels[-1].timeouts == pytest.approx([7.0] * len(admin.channels[-1].timeouts), abs=1)
        return found

    assert await tokens("a") == ["b", "c", ""]
    for first in "de":
        with pytest.raises(Internal, match="ListPools lead in a circle"):
            await tokens(first)
    await paged.aclose()


@pytest.mark.parametrize("answers", [["a"], ["a", "b"], ["a", REFUSED]])
async def test_a_stream_that_is_left_is_ended_for_the_service_too(admin, address, monkeypatch, answers):
    """R16 bounded: it would go on sending to nobody."""
    ended: list[int] = []
    monkeypatch.setattr(FakeStream, "cancel", lambda _stream: ended.append(1))
    admin.answers["WatchRollout"] = [[pb.Rollout(name=one) if isinstance(one, str) else one for one in answers]]
    calls, request = AdminCalls(address, None, 30.0), pb.WatchRolloutRequest(pool="p")
    stream = calls.stream(api.WATCH_ROLLOUT, request, 7.0)
    assert not calls.has_answered
    assert ((await anext(stream)).name, calls.has_answered) == ("a", True)
    if answers[-1] is REFUSED:
        with pytest.raises(NotFound):
            await anext(stream)
    else:
        await stream.aclose()
    assert (len(ended), admin.asked("WatchRollout"), admin.channels[0].timeouts) == (1, [request], [7.0])
    await calls.aclose()


@pytest.mark.parametrize("trailing", [None, (), (("grpc-status-details-bin", b"\xff\xff"),), (("x", b"?"),)])
def test_details_that_are_none_are_none(trailing):
    """What a caller can do is told; a reason that only a later service knows is kept beside."""
    found = error_of(grpc.aio.AioRpcError(grpc.StatusCode.NOT_FOUND, grpc.aio.Metadata(), trailing, "t"))
    assert (type(found), found.reason, found.metadata) == (NotFound, Reason.INTERNAL, {})
    assert "failed: INTERNAL" in error_of(Refusal(grpc.StatusCode.INTERNAL, message="").failure()).message
    later = Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_NEW", "full", {"a": "b"})
    found = error_of(later.failure(), TOO_LARGE="do this")
    assert (type(found), found.reason, found.message) == (ResourceExhausted, Reason.TOO_LARGE, "full")
    assert found.metadata == {"a": "b", "reason": "TOO_NEW"}


def test_a_call_is_traced_as_a_change_by_its_request_id_where_it_changes_something():
    for request, told in (
        (pb.ApplyAdaptersRequest(request_id="q"), "q"),
        (pb.SetTenantRequest(request_id="q"), "q"),
        (pb.ApplyAdaptersRequest(request_id="q", validate_only=True), ""),
        (pb.ListPoolsRequest(), ""),
    ):
        assert transport._change_of(request) == told


def threads() -> int:
    return sum(one.name == "loraplane-client" for one in threading.enumerate())


async def test_leaving_ends_the_connection_and_all_connections_have_one_thread(admin, address):
    """R16 bounded: a program that connects again and again would keep each."""
    with Registry(address) as registry, Registry(address):
        assert threads() == 1
    registry.close()
    with pytest.raises(RuntimeError, match="closed"):
        registry.get("a", "p")
    async with AsyncRegistry(address):
        assert [one.graces for one in admin.channels] == [[None], [None], []]
    assert (threads(), [one.graces for one in admin.channels]) == (1, [[None]] * 3)


@pytest.fixture
def on_virtual_time(monkeypatch, admin, address) -> Callable[..., float]:
    """The seconds that a scene with a service that never answers takes, until it is told so."""
    loop = VirtualLoop()
    monkeypatch.setattr(transport, "time", SimpleNamespace(monotonic=loop.time))
    admin.answers = {method: [[Hold()] if method.startswith("Watch") else Hold()] for method in admin.answers}

    def play(scene: Callable[[AsyncRegistry], Any], **connection: float) -> float:
        async def work() -> float:
            begun = loop.time()
            async with AsyncRegistry(address, **connection) as registry:
                with pytest.raises(Unavailable):
                    await scene(registry)
            return loop.time() - begun

        try:
            return loop.run_until_complete(work())
        finally:
            loop.close()

    return play


GIVEN = {
    "adapter": PUBLISHED,
    "base_models": ["base"],
    "changes": [Withdrawal("a")],
    "max_adapters": 1,
    "source": "s3://b/a",
}
STREAMS = {"residency", "watch", "watch_audit"}


def scene_of(method: Callable[..., Any]) -> Callable[..., Any]:
    """A call of the method with what it needs."""
    needed = [name for name, one in signature(method).parameters.items() if one.default is one.empty]
    told = [GIVEN.get(name, "a") for name in needed[1:]]

    async def scene(registry: AsyncRegistry, **given: float) -> None:
        called = method(registry, *told, **given)
        await (called if isawaitable(called) else anext(called))

    return scene


SCENES = {
    name: scene_of(method)
    for name, method in getmembers(AsyncRegistry, isfunction)
    if name[0] != "_" and "timeout_seconds" in signature(method).parameters
}


@pytest.mark.parametrize(
    ("connection", "given", "seconds"),
    [({}, {}, 30.0), ({"timeout_seconds": 3.0}, {}, 3.0), ({"timeout_seconds": 3.0}, {"timeout_seconds": 7.0}, 7.0)],
)
@pytest.mark.parametrize("scene", sorted(SCENES.keys() - STREAMS))
def test_a_call_has_half_a_minute_unless_somebody_says_otherwise(
    admin, on_virtual_time, scene, connection, given, seconds
):
    """R16 bounded: repetitions included; a change has no more, however long replicas are waited for: five minutes."""
    if scene == "wait" and not given:
        seconds = 300.0
    taken = on_virtual_time(lambda registry: SCENES[scene](registry, **given), **connection)
    assert taken == pytest.approx(seconds, abs=0.06)
    assert scene == "wait" or max(admin.channels[0].timeouts) <= 10.0


@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
@pytest.mark.parametrize("scene", SCENES)
async def test_what_is_no_time_is_refused_before_anything_is_asked(admin, address, scene, seconds):
    """R16 bounded: a call that is given nan would be repeated for ever, and -1 is not without an end."""
    async with AsyncRegistry(address) as registry:
        with pytest.raises(InvalidArgument, match="write seconds, 0 or more") as refused:
            await SCENES[scene](registry, timeout_seconds=seconds)
    assert (refused.value.field, admin.requests) == ("timeout_seconds", [])
    with pytest.raises(InvalidArgument, match="write seconds, 0 or more"):
        AsyncRegistry(address, timeout_seconds=seconds)


@pytest.mark.parametrize(
    ("given", "taken", "seconds"),
    [({"timeout_seconds": 20.0}, 2.0, 20.0), ({"timeout_seconds": 20.0}, 60.0, 60.0), ({}, 2.0, 300.0)],
)
def test_replicas_are_waited_for_in_what_is_left_of_the_time(
    monkeypatch, admin, on_virtual_time, given, taken, seconds
):
    """For the change and for the replicas together; where the change took all of it, not a moment."""

    async def changed(*_told: object) -> pb.ApplyAdaptersResponse:
        await asyncio.sleep(taken)
        return pb.ApplyAdaptersResponse(results=[pb.AdapterResult()])

    monkeypatch.setattr(AsyncRegistry, "_changed", changed)
    rolled_back = on_virtual_time(lambda registry: registry.rollback("a", "p", **given))
    assert rolled_back == pytest.approx(seconds, abs=0.06)


@pytest.mark.parametrize("outcome", ["UNCHANGED", "UPDATED"])
def test_no_look_takes_longer_than_the_time_that_is_given(monkeypatch, admin, on_virtual_time, outcome):
    """R16 bounded: neither whether replicas refuse what is the same, nor where it is served, for each adapter anew."""
    results = [pb.AdapterResult(outcome=outcome, adapter=pb.Adapter(name=name, pool="p")) for name in "ab"]
    monkeypatch.setattr(AsyncRegistry, "_changed", AsyncMock(return_value=pb.ApplyAdaptersResponse(results=results)))
    admin.answers["WatchRollout"] = [[Hold()] if outcome == "UNCHANGED" else [pb.Rollout(done=True)]]

    async def scene(registry: AsyncRegistry) -> None:
        await registry.apply([Withdrawal("a")], "p", wait=outcome == "UPDATED", timeout_seconds=2.0)
        raise Unavailable(Reason.ADMIN_UNAVAILABLE, "as every scene ends")

    assert on_virtual_time(scene) == pytest.approx(2.0, abs=0.06)


@pytest.fixture
def files(monkeypatch, admin) -> Callable[..., AdminCalls]:
    """Calls with files that are found so; with those that are called nobody no service is reached."""

    def make(*found: str | Exception) -> AdminCalls:
        newest = Mock(side_effect=chain(found, repeat(found[-1])))
        monkeypatch.setattr(transport, "TlsReader", lambda *_: Mock(newest=newest))
        return AdminCalls("admin:7600", Tls(ca=Path("ca")), 120.0)

    def opened(to: str, pem: object) -> object:
        channel = admin.open(to, pem)
        if pem == "nobody":
            monkeypatch.setattr(channel, "_admin", nobody)
        return channel

    nobody = FakeAdmin()
    nobody.answers = {method: [BROKEN] for method in nobody.answers}
    monkeypatch.setattr(transport, "_open", opened)
    return make


async def test_a_channel_is_made_anew_where_files_were_replaced(files, admin):
    """R13 static-stable: the one before goes once its calls are over; R16: and is kept only until it is closed."""
    calls = files("old", "old", "new", "new", "newer")
    for _ in range(4):
        calls._renew()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert [one.graces for one in admin.channels] == [[transport.TRY_SECONDS], [transport.TRY_SECONDS], []]
    assert (calls.channel, calls._closing) == (admin.channels[2], set())
    await calls.aclose()
    assert admin.channels[2].graces == [None]


async def test_calls_and_streams_go_on_with_the_newest_certificates(files, admin):
    """R13 static-stable: a channel never learns of them; a router would be without news for ever."""
    admin.answers["WatchResidency"] = [[told("a", 5, snapshot=True), Hold()]]
    calls = files("nobody", "new")
    request = pb.WatchResidencyRequest(pool="p")
    async with aclosing(calls.follow(api.WATCH_RESIDENCY, request, 0.0)) as answers:
        assert (await anext(answers)).revision == 5
    await calls.aclose()
    calls = files("nobody", "new")
    assert not calls.has_answered
    found = await calls.unary(api.LIST_POOLS, pb.ListPoolsRequest())
    assert ([one.name for one in found.pools], calls.has_answered) == (["dev"], True)
    await calls.aclose()
    with pytest.raises(InvalidArgument) as refused:
        files(transport.TlsUnusable("/ca", "no certificate"))
    assert (refused.value.reason, refused.value.field) == (Reason.INVALID_FIELD, "tls")
    with pytest.raises(ZeroDivisionError):
        files(ZeroDivisionError())
