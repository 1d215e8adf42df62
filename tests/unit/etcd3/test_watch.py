"""One watch stream, on virtual time: how long silence is borne, and what is told of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc
import pytest

from registry.etcd3 import rpc_pb2 as rpc
from registry.etcd3.codec import RANGE, STATUS
from registry.etcd3.errors import EtcdError, EtcdPermissionDenied, EtcdUnauthenticated, EtcdUnavailable, Timeout
from registry.etcd3.stream import Mark
from registry.etcd3.watch import WatchStream, open_watch
from tests.simulation.links import Way, rpc_error
from tests.simulation.loop import virtual
from tests.support.played_etcd import now, played

TOKEN = "t"  # noqa: S105 - of the test


@dataclass
class PlayedMember:
    """A connection to a member.

    Attributes:
        answers_after: seconds that each call takes.
        refusal: what calls fail with.
        takes_after: seconds until the stream takes a message.
        told: what the stream says next; an error ends it, and so does None, as the server does.
        asked: when it was asked for progress.
        logins: the tokens that were refused before.
        waits: how long is waited for each login and call.
    """

    answers_after: float = 0.0
    refusal: EtcdError | None = None
    takes_after: float = 0.0
    told: asyncio.Queue[rpc.WatchResponse | BaseException | None] = field(default_factory=asyncio.Queue)
    asked: list[float] = field(default_factory=list)
    logins: list[str | None] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    endpoint: str = "m0"
    is_done: bool = False
    closed: int = 0

    def stream(self, _method: object, *, timeout_seconds: float | None, token: str | None) -> PlayedMember:
        assert (timeout_seconds, token) == (None, TOKEN)
        return self

    async def token(self, connection: object, *, deadline: float, stale: str | None) -> str:
        """Of a login, which it is, too."""
        assert connection is self
        self.logins.append(stale)
        self.waits.append(deadline - now())
        return TOKEN

    async def close(self) -> None:
        self.closed += 1

    async def call(self, method: object, request: object, *, deadline: float, token: str | None) -> object:
        """Answers by its deadline, or fails."""
        assert token == TOKEN
        self.waits.append(deadline - now())
        if now() + self.answers_after > deadline:
            await asyncio.sleep(deadline - now())
            raise Timeout("no answer", maybe_applied=False)
        await asyncio.sleep(self.answers_after)
        if self.refusal is not None:
            raise self.refusal
        header = rpc.ResponseHeader(revision=7, cluster_id=5, raft_term=3)
        if method is STATUS:
            return rpc.StatusResponse(version="3.5.30")
        assert method is RANGE
        assert request == rpc.RangeRequest(key=b"k", keys_only=True)
        return rpc.RangeResponse(header=header)

    async def write(self, message: rpc.WatchRequest) -> None:
        await asyncio.sleep(self.takes_after)
        assert message.HasField("progress_request")
        self.asked.append(now())

    async def read(self) -> object:
        said = await self.told.get()
        if isinstance(said, BaseException):
            raise said
        return grpc.aio.EOF if said is None else said

    def done(self) -> bool:
        return self.is_done

    def cancel(self) -> None:
        self.is_done = True


@asynccontextmanager
async def watching(member: PlayedMember) -> AsyncIterator[WatchStream]:
    async with WatchStream(member, token=TOKEN, server_version="3.5.30") as stream:  # type: ignore[arg-type]
        yield stream
    assert member.is_done


def progress(revision: int) -> rpc.WatchResponse:
    return rpc.WatchResponse(header=rpc.ResponseHeader(revision=revision))


@virtual
async def test_what_is_told_comes_in_order_and_silence_that_is_answered_is_borne():
    member = PlayedMember()
    async with watching(member) as stream:
        member.told.put_nowait(progress(1))
        member.told.put_nowait(progress(2))
        assert [await stream.receive(), await stream.receive()] == [progress(1), progress(2)]
        assert (now(), member.asked) == (0.0, [])
        for silence in (1.9, 3.9, 4.9):
            begun = now()
            asyncio.get_running_loop().call_later(silence, member.told.put_nowait, progress(3))
            assert await stream.receive() == progress(3)
            assert now() - begun == pytest.approx(silence)
        assert len(member.asked) == 3, "after two seconds, and after four; then none is awaited any more"


@virtual
async def test_a_stream_that_takes_no_message_is_given_up():
    member = PlayedMember(takes_after=0.9)
    async with watching(member) as stream:
        request = rpc.WatchRequest(progress_request=rpc.WatchProgressRequest())
        await stream.send(request)
        assert member.asked == [now()]
        member.takes_after = 1000.0
        begun = now()
        with pytest.raises(Timeout, match="m0: the stream takes no message") as stuck:
            await stream.send(request)
        assert not stuck.value.maybe_applied
        assert now() - begun == pytest.approx(1.0)


@pytest.mark.parametrize("end", [None, rpc_error("UNAVAILABLE", "Connection reset by peer"), asyncio.CancelledError()])
@virtual
async def test_an_end_is_told_after_all_that_came_before_it_and_changed_nothing(end):
    """R3: by the server's will, by the network, or by a channel that was closed."""
    member = PlayedMember()
    async with watching(member) as stream:
        member.told.put_nowait(progress(1))
        member.told.put_nowait(end)
        assert await stream.receive() == progress(1)
        with pytest.raises(EtcdUnavailable, match="m0: ") as broken:
            await stream.receive()
        assert not broken.value.maybe_applied


@virtual
async def test_where_the_store_stands_is_read_from_the_member_that_is_watched():
    member = PlayedMember(answers_after=2.9)
    async with watching(member) as stream:
        assert await stream.mark(b"k") == Mark(7, 5, 3)
        member.answers_after = 1000.0
        begun = now()
        with pytest.raises(Timeout):
            await stream.mark(b"k")
        assert now() - begun == pytest.approx(3.0)


@virtual
async def test_what_nobody_takes_is_not_read_without_end():
    """R16 bounded: etcd holds the rest back."""
    member = PlayedMember()
    async with watching(member) as stream:
        for revision in range(1000):
            member.told.put_nowait(progress(revision))
        await asyncio.sleep(1)
        assert member.told.qsize() > 900
        for revision in range(1000):
            assert (await stream.receive()).header.revision == revision


@played
async def test_a_watch_leaves_no_connection_behind(etcd):
    """R16 bounded: a member that goes away ten times a day would cost ten a day."""
    client, link = etcd.client(), etcd.links["m0"]
    async with client.watch("m0") as stream:
        assert (stream.server_version, stream.token) == ("3.5.30", None)
        assert len(link.channels) == 1
    assert not link.channels
    link.set_way(Way.REFUSED)
    with pytest.raises(EtcdUnavailable):
        async with client.watch("m0"):
            pass
    assert not link.channels


class Fault(Exception):
    """Of ours."""


@virtual
async def test_a_stream_that_has_ended_is_not_asked_for_progress():
    """What is written to it would be told instead of why it ended."""
    member = PlayedMember(is_done=True)
    async with watching(member) as stream:
        asyncio.get_running_loop().call_later(3.0, member.told.put_nowait, None)
        with pytest.raises(EtcdUnavailable, match="the server ended the watch"):
            await stream.receive()
        assert member.asked == []


@pytest.mark.parametrize(
    ("refusal", "version"),
    [
        (None, "3.5.30"),
        (EtcdPermissionDenied("m0: etcdserver: permission denied"), "3.5.28"),
        (EtcdPermissionDenied("m0: not through this proxy"), ""),
        (EtcdUnauthenticated("who are you"), ""),
    ],
    ids=["told", "denied by etcd", "denied by others", "unknown"],
)
@played
async def test_a_watch_replaces_what_was_refused_and_waits_for_no_member_for_long(etcd, monkeypatch, refusal, version):
    """R13: three seconds for each question. Old members tell everybody their version, so that who denies it is none.

    A member whose version is unknown is taken for an old one.
    """
    opened = PlayedMember(refusal=refusal)
    monkeypatch.setattr("registry.etcd3.watch.MemberConnection", lambda *_: opened)
    async with open_watch("m0", None, opened, "old") as stream:  # type: ignore[arg-type]
        assert (stream.token, stream.server_version, opened.closed) == (TOKEN, version, 0)
    assert (opened.logins, opened.waits, opened.closed) == (["old"], [3.0, 3.0], 1)


@pytest.mark.parametrize(
    ("member", "patience", "answers"),
    [
        ({"answers_after": 1000.0}, 1.0, False),
        ({"answers_after": 1000.0}, 8.0, False),
        ({"answers_after": 0.5}, 1.0, True),
        ({"answers_after": 6.0}, 8.0, True),
        ({"refusal": EtcdPermissionDenied("not you")}, 1.0, True),  # as etcd tells its version to administrators only
        ({"refusal": EtcdUnauthenticated("who are you")}, 1.0, True),
    ],
)
@virtual
async def test_a_silent_member_is_given_up(member, patience, answers):
    """R13: after five seconds, or as many times that as it was silent before. What to do is said: etcd #21813."""
    async with watching(PlayedMember(**member)) as stream:
        with pytest.raises(Timeout) as silent:
            await stream.receive(patience)
    assert (silent.value.refuses_progress, silent.value.maybe_applied) == (answers, False)
    if answers:
        assert f"within {5 * patience:g} s" in str(silent.value)
    else:
        assert str(silent.value) == f"m0: no sign of life on the watch for {5 * patience:g} s"
        assert now() == pytest.approx(6 * patience), "one second of it for the question whether it answers at all"


@pytest.mark.parametrize("broken", ["call", "write", "read"])
@virtual
async def test_a_fault_of_ours_is_neither_an_end_nor_a_message_nor_silence(broken, monkeypatch):
    """R12 crash-only: it is told, where it is not of a stream that says nothing any more."""
    member = PlayedMember()

    async def fails(*_: object, **__: object) -> None:
        raise Fault

    monkeypatch.setattr(member, broken, fails)
    async with watching(member) as stream:
        asked = rpc.WatchRequest(progress_request=rpc.WatchProgressRequest())
        with pytest.raises(Timeout if broken == "read" else Fault):
            await (stream.send(asked) if broken == "write" else stream.receive())
