"""Calls of the client on virtual time: what is told when their time runs out, and tokens that a server forgot."""

from __future__ import annotations

import asyncio
import random
from contextlib import closing
from typing import Any

import pytest

from registry.etcd3 import rpc_pb2 as rpc
from registry.etcd3.calls import MemberCalls
from registry.etcd3.codec import RANGE
from registry.etcd3.errors import EtcdError, EtcdPermissionDenied, EtcdUnauthenticated, EtcdUnavailable, Timeout
from registry.etcd3.options import ClientOptions
from tests.simulation.loop import VirtualLoop


@pytest.mark.parametrize(
    ("failures", "says"),
    [
        (["refused"], "no answer in time; before that: refused"),
        (["refused", None], "no answer in time; before that: refused"),
        ([], "no answer in time"),
    ],
)
def test_what_failed_before_the_time_ran_out_is_named(failures, says):
    """The deadline is no cause; None stands for a try that ran into it."""

    async def scenario() -> None:
        calls = MemberCalls(ClientOptions(("a:1", "b:2")), random.Random(1))
        outcomes = iter(failures)

        async def attempt(*_: object) -> None:
            told = next(outcomes, "")
            if told:
                raise EtcdUnavailable(told, maybe_applied=False)
            raise Timeout("no answer in time", maybe_applied=told == "")

        calls._try = attempt  # type: ignore[method-assign,assignment]
        with pytest.raises(EtcdError) as caught:
            await calls.call(RANGE, rpc.RangeRequest(key=b"a"), 5)
        assert isinstance(caught.value, Timeout)
        assert (str(caught.value), caught.value.maybe_applied) == (says, True)

    with closing(VirtualLoop()) as loop:
        loop.run_until_complete(scenario())


def test_a_call_of_a_closed_client_fails_at_once():
    """Nobody opens it again before the time of the call is up."""

    async def scenario() -> float:
        calls = MemberCalls(ClientOptions(("a:1", "b:2")), random.Random(1))
        await calls.connections.close()
        began = asyncio.get_running_loop().time()
        with pytest.raises(EtcdUnavailable, match="the client is closed"):
            await calls.call(RANGE, rpc.RangeRequest(key=b"a"), 60)
        return asyncio.get_running_loop().time() - began

    with closing(VirtualLoop()) as loop:
        assert loop.run_until_complete(scenario()) == 0


def test_each_try_has_the_time_that_is_left_and_comes_later_than_the_one_before():
    """R16 bounded: a member that refuses is asked a few times, not as often as it answers."""
    left = list[float]()

    async def scenario() -> None:
        calls = MemberCalls(ClientOptions(("a:1", "b:2")), random.Random(1))

        async def attempt(_method: object, _request: object, left_seconds: float) -> None:
            left.append(left_seconds)
            raise EtcdUnavailable("refused", maybe_applied=False)

        calls._try = attempt  # type: ignore[method-assign,assignment]
        with pytest.raises(EtcdUnavailable):
            await calls.call(RANGE, rpc.RangeRequest(key=b"a"), 5)

    with closing(VirtualLoop()) as loop:
        loop.run_until_complete(scenario())
    assert left[0] == 5.0
    assert left == sorted(left, reverse=True)
    assert 0 < left[-1] < 2.0
    assert len(left) < 20


class Member:
    """Knows one token, which it gives to whoever logs in; with any other a call is refused in its way."""

    def __init__(self, refusal: type[EtcdError], knows: str) -> None:
        self._refusal = refusal
        self._knows = knows
        self.heard: list[str | None] = []

    async def call(self, method: Any, request: Any, *, deadline: float, token: str | None) -> Any:
        """See `MemberConnection.call`."""
        if isinstance(request, rpc.AuthenticateRequest):
            return rpc.AuthenticateResponse(token=self._knows)
        self.heard.append(token)
        if token != self._knows:
            raise self._refusal("refused")
        return rpc.RangeResponse(count=7)


@pytest.mark.parametrize("refusal", [EtcdUnauthenticated, EtcdPermissionDenied])
@pytest.mark.parametrize("user", ["lora", None])
def test_a_token_that_the_server_forgot_is_asked_for_anew_and_once(refusal, user):
    """R13 static-stable: old servers call it "permission denied". Whoever has no token has nothing to renew."""

    async def scenario() -> None:
        options = ClientOptions(("a:1",), user=user, password=(lambda: "p") if user else None)
        calls, member = MemberCalls(options, random.Random(1)), Member(refusal, "new")
        calls.login._token = "old"  # noqa: S105 - of the test
        if user is None:
            with pytest.raises(refusal):
                await calls._with_token(member, RANGE, rpc.RangeRequest(), 5.0)  # type: ignore[arg-type]
            assert member.heard == [None]
            return
        reply = await calls._with_token(member, RANGE, rpc.RangeRequest(), 5.0)  # type: ignore[arg-type]
        assert (reply.count, member.heard) == (7, ["old", "new"])

    with closing(VirtualLoop()) as loop:
        loop.run_until_complete(scenario())
