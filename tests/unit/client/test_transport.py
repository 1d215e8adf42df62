"""How long calls are repeated and streams followed, on a clock of the test's own; and what failures become."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from google.protobuf.any_pb2 import Any as Packed
from google.rpc import error_details_pb2, status_pb2

from registry.client import transport
from registry.client.address import Tls, check_address
from registry.client.errors import KIND_OF, CallErrors
from registry.client.transport import AdminCalls
from registry.model.errors import (
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

FIRST = "a"
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
async def calls() -> AsyncIterator[AdminCalls]:
    made = AdminCalls("admin:7600", None, 30.0)
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


async def test_a_call_is_repeated_until_it_succeeds(clock, calls):
    """With pauses that double, from a fifth of a second to two."""
    given: list[float] = []
    assert await calls.repeated(attempt(clock, 0.0, given, failures=6)) == "answer"
    assert clock.pauses == [0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert given == [10.0] * 7


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


async def test_one_try_does_not_use_up_the_whole_time(clock, calls):
    """A connection may hang that another would not: ten seconds each, and of the rest what is left."""
    given: list[float] = []
    with pytest.raises(Unavailable):
        await calls.repeated(attempt(clock, 60.0, given), 25.0)
    assert given == [10.0, 10.0, round(25.0 - 20.0 - 0.2 - 0.4, 6)]
    given.clear()
    with pytest.raises(Unavailable):
        await calls.repeated(attempt(clock, 60.0, given), 0.01)
    assert given == [0.05], "each has a moment at least"


async def test_what_is_refused_is_not_repeated(clock, calls):
    given: list[float] = []
    refusal = NotFound(Reason.ADAPTER_NOT_FOUND, "none")
    with pytest.raises(NotFound):
        await calls.repeated(attempt(clock, 0.0, given, error=refusal))
    assert (given, clock.pauses) == ([10.0], [])


def streams(clock: PlayedTime, *scripts: list[object]) -> Callable[..., AsyncGenerator[Any, None]]:
    """A stream after another; a number is a time that passes, an error ends one. After the last all fail at once."""
    left = iter(scripts)

    async def stream(*_arguments: object) -> AsyncGenerator[Any, None]:
        for one in next(left, [AWAY]):
            if isinstance(one, float):
                clock.now += one
            elif isinstance(one, Exception):
                raise one
            else:
                yield one

    return stream


async def followed(calls: AdminCalls, patience: float | None, count: int = 100) -> list[object]:
    found: list[object] = []
    answers = calls.follow("WatchResidency", pb.WatchResidencyRequest(), pb.WatchResidencyResponse, patience)
    async with aclosing(answers):
        async for one in answers:
            found.append(one)
            if len(found) == count:
                break
    return found


async def test_a_stream_that_ends_or_breaks_is_begun_again(clock, calls, monkeypatch):
    """With pauses that begin anew with each answer."""
    monkeypatch.setattr(calls, "stream", streams(clock, ["a"], [], [AWAY], ["b", "c", AWAY], [AWAY], ["d"]))
    assert await followed(calls, None, 4) == ["a", "b", "c", "d"]
    assert clock.pauses == [0.2, 0.4, 0.8, 0.2, 0.4]


@pytest.mark.parametrize(("patience", "pauses"), [(0.0, 1), (0.1, 1), (0.3, 2), (2.9, 4), (3.1, 5)])
async def test_a_stream_is_followed_until_the_patience_is_at_an_end(clock, calls, monkeypatch, patience, pauses):
    """Since it broke, and not since the first answer."""
    monkeypatch.setattr(calls, "stream", streams(clock, ["a", 50.0, "b", 50.0, AWAY]))
    with pytest.raises(Unavailable):
        await followed(calls, patience)
    assert clock.pauses == [0.2, 0.4, 0.8, 1.6, 2.0][:pauses]


async def test_patience_is_not_used_up_by_streams_that_end(clock, calls, monkeypatch):
    """A service that stops in order is followed on, for as long as another takes its place."""
    monkeypatch.setattr(calls, "stream", streams(clock, [AWAY], [], [], ["a"], [NotFound(Reason.POOL_NOT_FOUND, "")]))
    with pytest.raises(NotFound):
        await followed(calls, 0.5)
    assert clock.pauses == [0.2, 0.4, 0.8, 0.2]


def residencies(*parts: tuple[str, bool]) -> list[object]:
    return [
        pb.WatchResidencyResponse(adapters=[pb.AdapterResidency(name=name)], more=more, snapshot=True)
        for name, more in parts
    ]


async def test_where_adapters_are_now_is_the_first_whole_state(clock, calls, monkeypatch):
    """Nothing of one that broke, and nothing that comes later."""
    broken, whole = residencies(("a", True)), residencies(("b", True), ("c", False), ("d", False))
    monkeypatch.setattr(calls, "stream", streams(clock, [*broken, AWAY], whole))
    found = await calls.residency_now(pb.WatchResidencyRequest(pool="p"))
    assert [one.name for one in found] == ["b", "c"]


async def test_each_page_is_asked_for_by_its_token(calls, monkeypatch):
    """From the one that is asked for on; with the time of each."""
    asked: list[tuple[str, float | None]] = []

    async def unary(_method: str, request: Any, _reply: object, *, timeout_seconds: float | None = None) -> Any:
        asked.append((request.page_token, timeout_seconds))
        return pb.ListPoolsResponse(next_page_token={"a": "b", "b": "c"}.get(request.page_token, ""))

    monkeypatch.setattr(calls, "unary", unary)
    request = pb.ListPoolsRequest(page_token=FIRST)
    assert len([page async for page in calls.pages("ListPools", request, pb.ListPoolsResponse, 7.0)]) == 3
    assert asked == [("a", 7.0), ("b", 7.0), ("c", 7.0)]


async def test_a_page_that_leads_to_itself_is_an_error(calls, monkeypatch):
    """X2 unbreakable: also the very first."""

    async def unary(*_arguments: object, **_named: object) -> Any:
        return pb.ListPoolsResponse(next_page_token=FIRST)

    monkeypatch.setattr(calls, "unary", unary)
    with pytest.raises(Internal, match="ListPools lead in a circle"):
        [page async for page in calls.pages("ListPools", pb.ListPoolsRequest(page_token=FIRST), pb.ListPoolsResponse)]


class Replaced:
    """TLS files, as they are named now."""

    names = ["old"]

    def __init__(self, *_arguments: object) -> None:
        pass

    def newest(self) -> str:
        return self.names[0]


async def test_a_channel_is_made_anew_where_files_were_replaced(monkeypatch):
    """R13 static-stable: the one before goes once its calls are over, and with the connection at the latest."""
    opened: list[Any] = []

    class Channel:
        def __init__(self, name: str) -> None:
            self.name, self.graces = name, list[float | None]()

        async def close(self, grace: float | None = None) -> None:
            self.graces.append(grace)

    def open_one(_address: str, pem: Any) -> Channel:
        opened.append(Channel(pem))
        return opened[-1]

    monkeypatch.setattr(transport, "TlsReader", Replaced)
    monkeypatch.setattr(transport, "_open", open_one)
    monkeypatch.setattr(Replaced, "names", ["old"])
    calls = AdminCalls("admin:7600", Tls(ca=Path("ca")), 30.0)
    calls._renew()
    assert [one.name for one in opened] == ["old"]
    Replaced.names[0] = "new"
    calls._renew()
    calls._renew()
    assert [one.name for one in opened] == ["old", "new"]
    assert calls.channel is opened[1]
    await calls.aclose()
    assert [one.graces for one in opened] == [[transport.TRY_SECONDS], [None]]


class Failed(grpc.RpcError):
    """A call that failed, as grpc.aio tells it."""

    def __init__(self, code: grpc.StatusCode, details: str = "", trailing: object = ()) -> None:
        self._told = code, details, trailing

    def code(self) -> grpc.StatusCode:
        return self._told[0]

    def details(self) -> str:
        return self._told[1]

    def trailing_metadata(self) -> object:
        return self._told[2]


def error_of(failure: BaseException, request_id: str = "", **remedies: str) -> RegistryError:
    """What a failure becomes."""
    errors = CallErrors("h:1", {Reason(reason): told for reason, told in remedies.items()})
    with pytest.raises(RegistryError) as told, errors.translated(request_id):
        raise failure
    assert told.value.__cause__ is failure
    return told.value


def details(reason: str, field: str = "", **metadata: str) -> tuple[tuple[str, object], ...]:
    """What the admin service sends with a refusal, behind what others send."""
    status = status_pb2.Status()
    info = error_details_pb2.ErrorInfo(reason=reason, domain="loraplane", metadata=metadata)
    packed = Packed()
    packed.Pack(info)
    status.details.append(packed)
    if field:
        bad = Packed()
        bad.Pack(error_details_pb2.BadRequest(field_violations=[{"field": field}, {"field": "second"}]))
        status.details.append(bad)
    return (("other", "x"), ("grpc-status-details-bin", status.SerializeToString()))


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
    told = error_of(Failed(code, "t"))
    assert (type(told), told.reason, told.message, told.field, told.metadata) == (
        KIND_OF[code],
        reason,
        message,
        None,
        {},
    )
    named = error_of(Failed(code, "t"), "mine", **{reason.value: "do this"})
    assert (named.message, named.metadata) == (f"{message}; do this", {"request_id": "mine"})


def test_a_failure_without_words_is_told_by_its_name():
    assert "failed: INTERNAL" in error_of(Failed(grpc.StatusCode.INTERNAL)).message


@pytest.mark.parametrize("is_text", [False, True])
def test_a_refusal_is_told_as_the_service_told_it(is_text):
    """W4, W8: kind, reason, facts and the first field; remedies are for those that have no words of their own."""
    sent = details("ETAG_MISMATCH", "etag", etag="17")
    if is_text:
        sent = tuple((key, value.decode() if isinstance(value, bytes) else value) for key, value in sent)
    told = error_of(Failed(grpc.StatusCode.ABORTED, "stale", sent), "mine", ETAG_MISMATCH="do this")
    assert (type(told), told.reason, told.message, told.field) == (Conflict, Reason.ETAG_MISMATCH, "stale", "etag")
    assert told.metadata == {"etag": "17", "request_id": "mine"}
    assert error_of(Failed(grpc.StatusCode.ABORTED, "stale", details("ETAG_MISMATCH"))).field is None


def test_a_reason_that_only_a_later_service_knows_is_kept_beside():
    told = error_of(Failed(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", details("TOO_NEW", a="b")), TOO_LARGE="do this")
    assert (type(told), told.reason, told.message) == (ResourceExhausted, Reason.TOO_LARGE, "full")
    assert told.metadata == {"a": "b", "reason": "TOO_NEW"}


@pytest.mark.parametrize("trailing", [None, (), (("grpc-status-details-bin", b"\xff\xff"),), (("x", b"?"),)])
def test_details_that_are_none_are_none(trailing):
    told = error_of(Failed(grpc.StatusCode.NOT_FOUND, "t", trailing))
    assert (type(told), told.reason, told.metadata) == (NotFound, Reason.INTERNAL, {})


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


@pytest.mark.parametrize(
    "address", ["h:1", "10.0.0.1:65535", "[::1]:7600", "dns:admin", "unix:/run/a", "ipv4:1.2.3.4:5"]
)
def test_an_address_is_one_that_grpc_finds(address):
    check_address(address)


@pytest.mark.parametrize("address", ["", "h", "h:", ":1", "h:123456", "h:a", "http://h:1", "a b:1", "h:1/", "file:a"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(InvalidArgument) as told:
        check_address(address)
    assert (told.value.reason, told.value.field) == (Reason.INVALID_FIELD, "address")


@pytest.mark.parametrize(
    ("tls", "is_on", "is_right"),
    [
        (Tls(), False, True),
        (Tls(ca=Path("a")), True, True),
        (Tls(cert=Path("c"), key=Path("k")), True, True),
        (Tls(Path("a"), Path("c"), Path("k")), True, True),
        (Tls(cert=Path("c")), True, False),
        (Tls(key=Path("k")), True, False),
    ],
)
def test_a_certificate_has_its_key(tls, is_on, is_right):
    assert bool(tls) is is_on
    if is_right:
        files = tls.files()
        assert (files.ca, files.certificate, files.key) == (tls.ca, tls.cert, tls.key)
    else:
        with pytest.raises(InvalidArgument) as told:
            tls.files()
        assert told.value.field == "tls"


def test_pauses_double_up_to_two_seconds():
    bounds = [transport.REPEAT.delay(number, lambda _least, most: most) for number in range(1, 8)]
    assert bounds == [0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]
    assert all(later >= earlier for earlier, later in pairwise(bounds))


async def test_with_certificates_a_channel_is_encrypted(monkeypatch):
    """X1 secret-free: what goes over it is for the admin service alone; without them it is as it was asked for."""
    opened: list[tuple[object, ...]] = []
    monkeypatch.setattr(grpc, "ssl_channel_credentials", lambda *pem: ("credentials", *pem))
    monkeypatch.setattr(grpc.aio, "secure_channel", lambda *told, options: opened.append(("secure", *told, options)))
    monkeypatch.setattr(
        grpc.aio, "insecure_channel", lambda *told, options: opened.append(("insecure", *told, options))
    )
    transport._open("h:1", (b"ca", b"key", b"cert"))
    transport._open("h:1", None)
    assert [one[:-1] for one in opened] == [
        ("secure", "h:1", ("credentials", b"ca", b"key", b"cert")),
        ("insecure", "h:1"),
    ]
    for *_, options in opened:
        told = dict(options)  # type: ignore[call-overload] # pairs
        assert told["grpc.max_receive_message_length"] == told["grpc.max_send_message_length"] == 64 << 20
        assert told["grpc.enable_http_proxy"] == 0


class Running:
    """A stream of gRPC, as far as a test lets it come."""

    def __init__(self, *answers: object) -> None:
        self.answers, self.cancels = list(answers), 0

    def cancel(self) -> None:
        self.cancels += 1

    async def __aiter__(self) -> AsyncIterator[object]:
        for one in self.answers:
            if isinstance(one, BaseException):
                raise one
            yield one


@pytest.mark.parametrize("answers", [("a",), ("a", "b"), ("a", Failed(grpc.StatusCode.NOT_FOUND))])
async def test_a_stream_that_is_left_is_ended_for_the_service_too(calls, monkeypatch, answers):
    """R16 bounded: it would go on sending to nobody."""
    running, asked = Running(*answers), list[object]()

    def unary_stream(path: str, *_forms: object) -> Callable[..., Running]:
        def call(request: object, timeout: float | None) -> Running:
            asked.extend((path, request, timeout))
            return running

        return call

    monkeypatch.setattr(calls, "channel", SimpleNamespace(unary_stream=unary_stream, close=calls.channel.close))
    request = pb.WatchRolloutRequest(pool="p")
    stream = calls.stream("WatchRollout", request, pb.Rollout, 7.0)
    assert await anext(stream) == "a"
    if isinstance(answers[-1], Failed):
        with pytest.raises(NotFound):
            await anext(stream)
    else:
        await stream.aclose()
    assert running.cancels == 1
    assert asked == ["/registry.v1.AdapterRegistry/WatchRollout", request, 7.0]


async def test_what_a_caller_can_do_is_told_with_its_failures():
    calls = AdminCalls("h:1", None, 30.0, {Reason.ADMIN_UNAVAILABLE: "start it"})
    with pytest.raises(Unavailable, match=r"; start it$"), calls.errors.translated():
        raise Failed(grpc.StatusCode.UNAVAILABLE)
    await calls.aclose()
