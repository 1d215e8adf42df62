"""Where the client is told to connect to, how long it takes, and what is left of it at its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from loraplane import AsyncRegistry, Registry, Tls, Unavailable
from registry.client import asynchronous, transport
from registry.client.adapters import Published
from registry.client.transport import AdminCalls
from registry.model.errors import InvalidArgument, Reason
from registry.v1 import registry_pb2 as pb
from tests.simulation.loop import VirtualLoop
from tests.unit.client.test_transport import Failed


@pytest.mark.parametrize("address", ["admin", "http://admin:7600"])
def test_an_address_that_is_none_is_refused_at_once(address):
    before = {*threading.enumerate()}
    with pytest.raises(InvalidArgument, match="is not HOST:PORT") as refused:
        Registry(address)
    assert refused.value.field == "address"
    assert {*threading.enumerate()} <= before, "the thread that it had has ended"


class Channel:
    """One to a service that never answers, as gRPC has it: a call ends when its time is up."""

    opened: list[Channel] = []

    def __init__(self, *_told: object) -> None:
        self.calls: list[float] = []
        self.is_closed = False
        self.opened.append(self)

    def unary_unary(self, _path: str, *_forms: object) -> Callable[..., Any]:
        async def call(_request: object, timeout: float) -> None:
            self.calls.append(timeout)
            await asyncio.sleep(timeout)
            raise Failed(grpc.StatusCode.DEADLINE_EXCEEDED)

        return call

    async def close(self, _grace: float | None = None) -> None:
        self.is_closed = True


@pytest.fixture
def channels(monkeypatch) -> list[Channel]:
    monkeypatch.setattr(Channel, "opened", [])
    monkeypatch.setattr(transport, "_open", Channel)
    return Channel.opened


def threads() -> int:
    return sum(one.name == "loraplane-client" for one in threading.enumerate())


def test_leaving_ends_the_connection_and_all_connections_have_one_thread(channels):
    """R16 bounded: a program that connects again and again would keep each."""
    with Registry("admin:7600") as registry, Registry("admin:7600"):
        assert threads() == 1
    assert threads() == 1
    assert [one.is_closed for one in channels] == [True, True]
    registry.close()
    with pytest.raises(RuntimeError, match="closed"):
        registry.get("a", "p")


async def test_so_does_leaving_one_of_a_program_with_an_event_loop(channels):
    async with AsyncRegistry("admin:7600"):
        assert [one.is_closed for one in channels] == [False]
    assert [one.is_closed for one in channels] == [True]


def played(scene: Callable[[AsyncRegistry], Any]) -> float:
    """The seconds that a scene with an unreachable service takes, on virtual time, until it is told so."""
    loop = VirtualLoop()

    async def work() -> float:
        begun = loop.time()
        async with AsyncRegistry("admin:7600") as registry:
            with pytest.raises(Unavailable):
                await scene(registry)
        return loop.time() - begun

    try:
        return loop.run_until_complete(work())
    finally:
        loop.close()


PUBLISHED = Published("a", "p", 1, "s3://b/a", "", 7, "mine")
ARGUMENTS = ("s3://b/a", "a", "p")


@pytest.fixture
def on_virtual_time(monkeypatch, channels) -> list[Channel]:
    """With the clock of the loop."""

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return asyncio.get_running_loop().time()

    monkeypatch.setattr(transport, "time", Clock)
    return channels


@pytest.mark.parametrize(
    ("scene", "seconds"),
    [
        (lambda registry: registry.get("a", "p"), 30.0),
        (lambda registry: registry.get("a", "p", timeout_seconds=7.0), 7.0),
        (lambda registry: registry.history("a", "p"), 30.0),
        (lambda registry: registry.withdraw("a", "p"), 30.0),
        (lambda registry: registry.withdraw("a", "p", timeout_seconds=7.0), 7.0),
        (lambda registry: registry.publish(*ARGUMENTS), 30.0),
        (lambda registry: registry.publish(*ARGUMENTS, timeout_seconds=7.0), 7.0),
        (lambda registry: registry.rollback("a", "p"), 30.0),
        (lambda registry: registry.rollback("a", "p", timeout_seconds=7.0), 7.0),
    ],
    ids=[
        *("get", "get in time", "history", "withdraw", "withdraw in time"),
        *("publish", "publish in time", "rollback", "rollback in time"),
    ],
)
def test_a_call_has_half_a_minute_unless_somebody_says_otherwise(on_virtual_time, scene, seconds):
    """R16 bounded: repetitions included; a change has no more, however long replicas are waited for."""
    assert played(scene) == pytest.approx(seconds, abs=0.06)
    assert max(on_virtual_time[0].calls) <= 10.0


@pytest.mark.parametrize(("given", "seconds"), [({}, 300.0), ({"timeout_seconds": 7.0}, 7.0)])
def test_replicas_are_waited_for_five_minutes(on_virtual_time, monkeypatch, given, seconds):
    async def silent(*_arguments: object) -> Any:
        await asyncio.Event().wait()
        yield

    monkeypatch.setattr(AdminCalls, "follow", silent)
    assert played(lambda registry: registry.wait(PUBLISHED, **given)) == pytest.approx(seconds)


@pytest.mark.parametrize("taken", [2.0, 60.0])
async def test_replicas_are_waited_for_in_what_is_left_of_the_time(monkeypatch, channels, taken):
    """For the change and for the replicas together; where the change took all of it, not a moment."""
    waited: list[float] = []
    clock = [100.0]

    class Loop:
        @staticmethod
        def time() -> float:
            return clock[0]

    async def changed(*_told: object) -> pb.ApplyAdaptersResponse:
        clock[0] += taken
        return pb.ApplyAdaptersResponse(results=[pb.AdapterResult()])

    async def wait(_adapter: Published, *, timeout_seconds: float) -> None:
        waited.append(timeout_seconds)

    async with AsyncRegistry("admin:7600") as registry:
        monkeypatch.setattr(registry, "_changed", changed)
        monkeypatch.setattr(registry, "wait", wait)
        monkeypatch.setattr(asynchronous.asyncio, "get_running_loop", Loop)
        await registry.rollback("a", "p", timeout_seconds=20.0)
        monkeypatch.undo()
    assert waited == [max(0.0, 20.0 - taken)]


async def test_what_is_not_given_to_a_program_with_an_event_loop_has_its_default(monkeypatch, channels):
    """As the other client has it: no priority, the generation before the present one, and to wait."""
    sent: list[tuple[str, Any, bool]] = []

    async def rolled_out(method: str, request: Any, _seconds: float, *, wait: bool) -> Published:
        sent.append((method, request, wait))
        return PUBLISHED

    async with AsyncRegistry("admin:7600") as registry:
        monkeypatch.setattr(registry, "_rolled_out", rolled_out)
        await registry.publish(*ARGUMENTS)
        await registry.rollback("a", "p")
    spec = pb.AdapterSpec(source=pb.Source(uri="s3://b/a"))
    change = pb.AdapterChange(upsert=pb.Adapter(name="a", spec=spec))
    assert sent == [
        ("ApplyAdapters", pb.ApplyAdaptersRequest(pool="p", changes=[change]), True),
        ("RollbackAdapter", pb.RollbackAdapterRequest(pool="p", name="a"), True),
    ]


class Files:
    """TLS files that are read as a test says."""

    found: list[str | Exception] = []

    def __init__(self, *_told: object) -> None:
        pass

    def newest(self) -> str:
        one = self.found.pop(0)
        if isinstance(one, Exception):
            raise one
        return one


async def test_what_was_replaced_is_kept_only_until_it_is_closed(monkeypatch, channels):
    """R16 bounded: certificates are replaced each day, for years."""
    monkeypatch.setattr(transport, "TlsReader", Files)
    monkeypatch.setattr(Files, "found", ["first", "second", "third"])
    calls = AdminCalls("admin:7600", Tls(ca=Path("ca")), 30.0)
    for _ in range(2):
        calls._renew()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert [one.is_closed for one in channels] == [True, True, False]
    assert calls._closing == set()
    await calls.aclose()


@pytest.mark.parametrize("trouble", [transport.TlsUnusable("/ca", "no certificate"), ZeroDivisionError()])
async def test_files_that_cannot_be_used_are_told_and_a_fault_of_ours_is_not_taken_for_that(
    monkeypatch, channels, trouble
):
    monkeypatch.setattr(transport, "TlsReader", Files)
    monkeypatch.setattr(Files, "found", [trouble])
    is_theirs = isinstance(trouble, transport.TlsUnusable)
    with pytest.raises(InvalidArgument if is_theirs else ZeroDivisionError) as told:
        AdminCalls("admin:7600", Tls(ca=Path("ca")), 30.0)
    if isinstance(told.value, InvalidArgument):
        assert (told.value.reason, told.value.field) == (Reason.INVALID_FIELD, "tls")
