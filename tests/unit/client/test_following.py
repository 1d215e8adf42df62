"""Streams without end, and what a connection does when certificates are replaced."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing, closing
from itertools import islice
from pathlib import Path

import grpc
import pytest

from loraplane import NotFound, Registry, Tls, Unavailable
from registry.client import transport
from registry.client.transport import AdminCalls
from registry.v1 import registry_pb2 as pb
from tests.support.unanswered import nobody_listens
from tests.support.fake_admin import Hold, Refusal, connected


def told(name: str, revision: int, **fields: bool) -> pb.WatchResidencyResponse:
    return pb.WatchResidencyResponse(revision=revision, adapters=[pb.AdapterResidency(name=name)], **fields)


def test_a_router_hears_of_each_whole_state(admin):
    """R9: a part of one is none; after a break what was gone meanwhile is gone."""
    first = [told("a", 5, snapshot=True, more=True), told("b", 5, snapshot=True), told("c", 6)]
    admin.answers["WatchResidency"] = [
        [*first, Refusal(grpc.StatusCode.UNAVAILABLE)],
        [told("d", 9, snapshot=True), Hold()],
    ]
    with connected(admin) as address, Registry(address) as registry, closing(registry.residency("p")) as states:
        seen = [(one.revision, sorted(one.adapters)) for one in islice(states, 3)]
    assert seen == [(5, ["a", "b"]), (6, ["a", "b", "c"]), (9, ["d"])]
    assert {one.pool for one in admin.asked("WatchResidency")} == {"p"}


def test_what_stays_an_error_ends_a_router_at_once(admin):
    admin.answers["WatchResidency"] = [Refusal(grpc.StatusCode.NOT_FOUND, "POOL_NOT_FOUND")]
    with (
        connected(admin) as address,
        Registry(address) as registry,
        closing(registry.residency("p")) as states,
        pytest.raises(NotFound),
    ):
        next(states)
    assert len(admin.asked("WatchResidency")) == 1


async def test_patience_begins_anew_with_each_answer(admin):
    """Streams that break again and again, and say something each time, are no outage."""
    broken = Refusal(grpc.StatusCode.UNAVAILABLE)
    admin.answers["WatchResidency"] = [[told("a", revision), broken] for revision in range(3)] + [broken]
    with connected(admin) as address:
        calls = AdminCalls(address, None, 120)
        request, reply = pb.WatchResidencyRequest(pool="p"), pb.WatchResidencyResponse
        async with aclosing(calls.follow("WatchResidency", request, reply, 0.0)) as answers:
            assert [(await anext(answers)).revision for _ in range(3)] == [0, 1, 2]
            with pytest.raises(Unavailable):
                await anext(answers)
        await calls.aclose()


class Renewed:
    """TLS files that are replaced at once after the first look: with those that were there nobody is reached."""

    def __init__(self, *_arguments: object) -> None:
        self.looks = 0

    def newest(self) -> str:
        self.looks += 1
        return "old" if self.looks == 1 else "new"


@pytest.fixture
def renewed(monkeypatch, admin) -> Callable[[str, str], AdminCalls]:
    """Calls whose first channel leads to one address, and those of new files to another."""

    def make(before: str, after: str) -> AdminCalls:
        homes = {"old": before, "new": after}
        monkeypatch.setattr(transport, "TlsReader", Renewed)
        monkeypatch.setattr(transport, "_open", lambda _address, pem: grpc.aio.insecure_channel(homes[pem]))
        return AdminCalls("admin:7600", Tls(ca=Path("ca")), 120)

    return make


async def test_a_stream_that_breaks_goes_on_with_the_newest_certificates(admin, renewed):
    """R13 static-stable: a channel never learns of them; a router would be without news for ever."""
    admin.answers["WatchResidency"] = [[told("a", 5, snapshot=True), Hold()]]
    with nobody_listens() as nobody, connected(admin) as address:
        calls = renewed(nobody, address)
        request, reply = pb.WatchResidencyRequest(pool="p"), pb.WatchResidencyResponse
        async with aclosing(calls.follow("WatchResidency", request, reply, 0.0)) as answers:
            assert (await anext(answers)).revision == 5
        await calls.aclose()


async def test_a_call_is_repeated_with_the_newest_certificates(admin, renewed):
    with nobody_listens() as nobody, connected(admin) as address:
        calls = renewed(nobody, address)
        reply = await calls.unary("ListPools", pb.ListPoolsRequest(), pb.ListPoolsResponse)
        assert [one.name for one in reply.pools] == ["dev"]
        kept = calls.channel
        calls._renew()
        assert calls.channel is kept, "they are the same still"
        await calls.aclose()
