"""Calls of the client on virtual time: what is told when their time runs out, and tokens that a server forgot."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from registry.etcd3 import calls
from registry.etcd3 import rpc_pb2 as rpc
from registry.etcd3.backoff import Backoff
from registry.etcd3.calls import Connections, Login, MemberCalls, Rotation
from registry.etcd3.client import Client
from registry.etcd3.codec import AUTHENTICATE, RANGE, TXN, Method
from registry.etcd3.errors import (
    Compacted,
    EtcdError,
    EtcdInvalidArgument,
    EtcdPermissionDenied,
    EtcdUnauthenticated,
    EtcdUnavailable,
    LeaseExpired,
    NoLeader,
    NoSpace,
    Timeout,
    TlsFailed,
    TooManyRequests,
)
from registry.etcd3.options import ClientOptions, TlsFiles
from registry.etcd3.tls import TlsReader
from tests.simulation.loop import virtual
from tests.support.flaky_etcd import Longest
from tests.support.played_etcd import now


@pytest.mark.parametrize(
    ("failures", "says"),
    [
        (["refused"], "no answer in time; before that: refused"),
        (["refused", None], "no answer in time; before that: refused"),
        ([], "no answer in time"),
    ],
)
@virtual
async def test_what_failed_before_the_time_ran_out_is_named(failures, says):
    """The deadline is no cause; None stands for a try that ran into it."""
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


class Tries:
    """What is tried of a call, on which member and with how much time; each try fails with this."""

    def __init__(self, *endpoints: str, fails: EtcdError) -> None:
        self.calls = MemberCalls(ClientOptions(endpoints), Longest())
        self.made: list[tuple[float, float]] = []
        self._fails = fails
        self.calls.connections.current = lambda: None  # type: ignore[method-assign,assignment,return-value]
        self.calls._on = self._on  # type: ignore[method-assign,assignment]

    async def _on(self, _connection: object, _method: object, _request: object, timeout_seconds: float) -> None:
        self.made.append((round(now(), 6), round(timeout_seconds, 6)))
        raise self._fails


REFUSED = EtcdUnavailable("refused", maybe_applied=False)


@virtual
async def test_a_call_that_is_refused_is_repeated_ever_more_slowly_up_to_once_a_second():
    """R16 bounded: and never without time for it."""
    tries = Tries("a:1", fails=REFUSED)
    with pytest.raises(EtcdUnavailable):
        await tries.calls.call(TXN, rpc.TxnRequest(), 5.0)
    at = [when for when, _ in tries.made]
    assert [round(after - before, 6) for before, after in pairwise(at)] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
    assert tries.made == [(when, round(5.0 - when, 6)) for when in at]
    once = Tries("a:1", fails=REFUSED)
    with pytest.raises(EtcdUnavailable):
        await once.calls.call(TXN, rpc.TxnRequest(), 0.05)
    assert len(once.made) == 1, "the pause would take all that is left"


@pytest.mark.parametrize(
    ("method", "endpoints", "left", "share"),
    [
        (RANGE, ("a:1", "b:2"), 4.0, 2.0),
        (RANGE, ("a:1", "b:2", "c:3"), 4.0, 2.0),
        (RANGE, ("a:1", "b:2"), 0.8, 0.5),
        (RANGE, ("a:1", "b:2"), 0.3, 0.3),
        (RANGE, ("a:1",), 4.0, 4.0),
        (TXN, ("a:1", "b:2"), 4.0, 4.0),
        (RANGE, ("a:1", "b:2"), None, 2.5),
        (TXN, ("a:1",), None, 5.0),
    ],
)
@virtual
async def test_a_read_leaves_half_of_its_time_for_other_members_and_a_write_none(method, endpoints, left, share):
    """R13: a member that hangs must not cost a read all; of a write the answer is all that counts."""
    tries = Tries(*endpoints, fails=NoSpace("full"))
    with pytest.raises(NoSpace):
        await tries.calls.call(method, method.request(), left)
    assert tries.made == [(0.0, share)]


class Opened:
    """A connection that notes what becomes of it."""

    def __init__(self, endpoint: str, tls: TlsReader | None) -> None:
        self.endpoint, self.tls = endpoint, tls
        self.ended: list[str] = []
        self.is_old = False

    async def __aenter__(self) -> None:
        self.ended.append("used")

    async def __aexit__(self, *_: object) -> None:
        self.ended.append("left")

    def has_old_files(self) -> bool:
        return self.is_old

    async def retire(self) -> None:
        self.ended.append("retired")

    async def close(self) -> None:
        self.ended.append("closed")


@pytest.fixture
def connections(monkeypatch) -> Connections:
    monkeypatch.setattr("registry.etcd3.calls.MemberConnection", Opened)
    return Connections(ClientOptions(("a:1", "b:2", "c:3")), random.Random(1))


@pytest.mark.parametrize(
    ("error", "is_left", "is_replaced"),
    [
        (EtcdUnavailable("", maybe_applied=True), True, True),
        (TlsFailed("", maybe_applied=False), True, True),
        (Timeout("", maybe_applied=True), True, True),
        (NoLeader(""), True, False),
        (TooManyRequests(""), True, False),
        (LeaseExpired(""), False, False),
        (NoSpace(""), False, False),
        (EtcdPermissionDenied(""), False, False),
        (Compacted("", compact_revision=0), False, False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
async def test_what_an_error_says_of_a_member_and_of_the_way_to_it(connections, error, is_left, is_replaced):
    """R13: another one is asked next where this one cannot answer; a broken connection is never used again."""
    first = connections.current()
    assert connections.current() is connections.to(first.endpoint) is first
    await connections.failed(first, error)
    assert (connections.current().endpoint != first.endpoint) is is_left
    assert (connections.to(first.endpoint) is not first) is is_replaced
    assert first.ended == (["retired"] if is_replaced else [])


async def test_a_connection_that_would_be_made_with_files_of_before_is_not_used_again(connections):
    """A6 rotates: gRPC makes a channel anew with the files that it was opened with."""
    first = connections.current()
    assert await connections.renewed(first) is first
    first.is_old = True
    second = await connections.renewed(first)
    assert (second is connections.current(), first.ended) == (True, ["retired"])
    assert await connections.renewed(first) is second
    assert (first.ended, second.ended) == (["retired"], [])


HANDSHAKE = TlsFailed("unknown authority", maybe_applied=False)


@pytest.mark.parametrize(
    ("is_old", "error", "tries"),
    [
        (True, HANDSHAKE, 2),
        (True, TlsFailed("unknown authority", maybe_applied=True), 1),
        (False, HANDSHAKE, 1),
        (True, NoSpace("full"), 1),
    ],
)
@virtual
async def test_a_handshake_that_failed_by_files_of_before_is_tried_with_the_new_ones(monkeypatch, is_old, error, tries):
    """A6 rotates: with the newest ones it is told at once, and so is what may have been applied, or says another."""
    opened: list[Opened] = []

    class Refused(Opened):
        def __init__(self, endpoint: str, tls: TlsReader | None) -> None:
            super().__init__(endpoint, tls)
            opened.append(self)

        async def call(self, _method: object, _request: object, **_: object) -> rpc.RangeResponse:
            if len(opened) > 1:
                return rpc.RangeResponse(count=7)
            self.is_old = is_old
            raise error

    monkeypatch.setattr("registry.etcd3.calls.MemberConnection", Refused)
    calls = MemberCalls(ClientOptions(("a:1",)), random.Random(1))
    if tries == 1:
        with pytest.raises(type(error)):
            await calls.call(RANGE, rpc.RangeRequest(), 5.0)
    else:
        assert (await calls.call(RANGE, rpc.RangeRequest(), 5.0)).count == 7
    assert len(opened) == tries


async def test_calls_that_fail_late_on_a_replaced_connection_leave_the_new_one_alone(connections):
    """Else each of a thousand calls that hung together would break what the next ones use."""
    old, error = connections.current(), EtcdUnavailable("", maybe_applied=True)
    await connections.failed(old, error)
    new, left_for = connections.to(old.endpoint), connections.current()
    await connections.failed(old, error)
    assert connections.to(old.endpoint) is new
    assert (new.ended, connections.current()) == ([], left_for)


async def test_a_client_that_is_closed_closes_each_connection_once_and_opens_none(connections):
    opened = [connections.to(endpoint) for endpoint in ("a:1", "b:2")]
    for _ in range(2):
        await connections.close()
    assert [one.ended for one in opened] == [["closed"], ["closed"]]
    for ask in (connections.current, lambda: connections.to("a:1"), lambda: connections.to("c:3")):
        with pytest.raises(EtcdUnavailable, match="the client is closed") as told:
            ask()
        assert not told.value.maybe_applied


async def test_connections_have_the_files_that_the_options_name(monkeypatch):
    """X1: with none they are in plain text, which only who says so gets."""
    monkeypatch.setattr("registry.etcd3.calls.MemberConnection", Opened)
    plain = Connections(ClientOptions(("a:1",)), random.Random(1))
    secret = Connections(ClientOptions(("a:1",), tls=TlsFiles(ca=Path("ca.pem"))), random.Random(1))
    assert (plain.tls, plain.current().tls) == (None, None)  # type: ignore[attr-defined]
    assert isinstance(secret.tls, TlsReader)
    assert secret.current().tls is secret.tls  # type: ignore[attr-defined]


async def test_a_fault_of_ours_is_no_member_that_is_down(monkeypatch):
    """R12: what a member says of itself could not be asked."""
    client = Client(ClientOptions(("a:1", "b:2")))

    async def breaks(*_: object) -> None:
        raise KeyError

    monkeypatch.setattr(client._calls, "ask", breaks)
    with pytest.raises(KeyError):
        await client.status()
    await client.aclose()


def test_endpoints_are_taken_in_their_order_one_after_the_other():
    """R13: from one that chance gives, and by one for many calls that fail together."""
    endpoints = ("a", "b", "c", "d")
    assert {Rotation(endpoints, random.Random(seed)).current for seed in range(30)} == set(endpoints)
    rotation = Rotation(endpoints, random.Random(1))
    begin = endpoints.index(rotation.current)
    for step in range(1, 9):
        left = rotation.current
        for _ in range(2):
            rotation.leave(left)
        assert rotation.current == endpoints[(begin + step) % 4]


class Gate:
    """A member that gives numbered tokens, and fails first if it is told to."""

    def __init__(self, *fails: Exception) -> None:
        self._fails = [*fails]
        self.deadline = 5.0
        self.asked: list[tuple[str, str]] = []

    async def call(self, method: Method[Any, Any], request: Any, *, deadline: float, token: str | None) -> Any:
        assert (method, deadline, token) == (AUTHENTICATE, self.deadline, None)
        self.asked.append((request.name, request.password))
        await asyncio.sleep(0)
        if self._fails:
            raise self._fails.pop(0)
        return rpc.AuthenticateResponse(token=f"t{len(self.asked)}")


async def test_a_token_is_asked_for_once_and_anew_with_the_password_of_the_day():
    """R13: a password that was rotated is read again; who asks for a token meanwhile has the same."""
    passwords = iter(["one", "two"])
    login, gate = Login(ClientOptions(("a:1",), user="lora", password=lambda: next(passwords))), Gate()

    async def token(stale: str | None = None) -> str | None:
        return await login.token(gate, deadline=5.0, stale=stale)  # type: ignore[arg-type]

    assert await asyncio.gather(token(), token(), token()) == ["t1"] * 3
    assert [await token(), await token("of somebody else")] == ["t1", "t1"]
    assert await asyncio.gather(token("t1"), token("t1")) == ["t2", "t2"]
    assert gate.asked == [("lora", "one"), ("lora", "two")]


@pytest.mark.parametrize("fails", [KeyError("authentication is not enabled"), EtcdInvalidArgument("wrong")])
async def test_what_a_login_fails_with_is_told_and_the_next_one_tries_again(fails):
    login, gate = Login(ClientOptions(("a:1",), user="lora", password=lambda: "p")), Gate(fails)
    with pytest.raises(type(fails)):
        await login.token(gate, deadline=5.0)  # type: ignore[arg-type]
    assert await login.token(gate, deadline=5.0) == "t2"  # type: ignore[arg-type]


async def test_a_password_that_is_being_exchanged_is_waited_for(monkeypatch):
    """A6 rotates: etcd has the new one before its file is here. One that was never right is told at once."""
    monkeypatch.setattr(calls, "_ROTATION_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(calls, "_REFUSED", Backoff(base_seconds=0.001, cap_seconds=0.001))
    wrong = EtcdUnauthenticated("invalid user ID or password")
    login = Login(ClientOptions(("a:1",), user="lora", password=lambda: "p"))
    soon = asyncio.get_running_loop().time() + 5.0

    def gate(*fails: Exception) -> Gate:
        made = Gate(*fails)
        made.deadline = soon
        return made

    with pytest.raises(EtcdUnauthenticated):
        await login.token(gate(wrong), deadline=soon)  # type: ignore[arg-type]
    assert await login.token(gate(), deadline=soon) == "t1"  # type: ignore[arg-type]
    later = gate(wrong, wrong, wrong)
    assert await login.token(later, deadline=soon, stale="t1") == "t4"  # type: ignore[arg-type]
    monkeypatch.setattr(calls, "ROTATION_SECONDS", 0.01)
    with pytest.raises(EtcdUnauthenticated):
        await login.token(gate(*[wrong] * 1000), deadline=soon, stale="t4")  # type: ignore[arg-type]


class RefusingGate:
    """A member that takes one password, and notes when it is asked."""

    def __init__(self, takes: str) -> None:
        self.takes = takes
        self.asked: list[float] = []

    async def call(self, _method: Any, request: Any, *, deadline: float, token: str | None) -> Any:
        assert (deadline > 0, token) == (True, None)
        self.asked.append(now())
        await asyncio.sleep(0.09)  # as long as etcd takes, whose processor is busy meanwhile
        if request.password != self.takes:
            raise EtcdUnauthenticated("invalid user ID or password")
        return rpc.AuthenticateResponse(token=f"t{len(self.asked)}")


@virtual
async def test_a_password_that_stays_wrong_does_not_keep_etcd_busy():
    """A6 rotates, R13: each check of a password takes etcd a tenth of a second; a new one is tried at once."""
    passwords = ["old"]
    login = Login(ClientOptions(("a:1",), user="lora", password=lambda: passwords[-1]))
    gate = RefusingGate("old")

    async def token(stale: str | None = None) -> str | None:
        return await login.token(gate, deadline=now() + 5.0, stale=stale)  # type: ignore[arg-type]

    assert await token() == "t1"
    gate.takes, begin = "new", now()
    while now() < begin + 600.0:
        with pytest.raises(EtcdUnauthenticated, match="invalid user ID"):
            await token("t1")
    assert 600 / 30 <= len(gate.asked) <= 40
    asyncio.get_running_loop().call_later(1.0, passwords.append, "new")
    begin = now()
    assert await token("t1") == f"t{len(gate.asked)}"
    assert now() - begin < 1.3
    known = f"t{len(gate.asked)}"
    gate.takes = "old"  # and set back, to what is refused here no more
    passwords.append("old")
    begin = now()
    assert await token(known) == f"t{len(gate.asked)}"
    assert now() - begin < 0.3


async def test_a_server_that_has_no_users_needs_no_token():
    """Credentials may be set here before authentication is switched on there."""
    gate = Gate(EtcdInvalidArgument("etcdserver: authentication is not enabled"))
    for options in (ClientOptions(("a:1",), user="lora", password=lambda: "p"), ClientOptions(("a:1",))):
        assert await Login(options).token(gate, deadline=5.0) is None  # type: ignore[arg-type]
    assert len(gate.asked) == 1


class Held:
    """A connection that has to be held by whoever calls, to a member that knows one token."""

    endpoint = "a:1"

    def __init__(self, knows: str | None, fails: Exception) -> None:
        self.inside, self._knows, self._fails = 0, knows, fails
        self.heard: list[str | None] = []

    async def __aenter__(self) -> None:
        self.inside += 1

    async def __aexit__(self, *_: object) -> None:
        self.inside -= 1

    def has_old_files(self) -> bool:
        return False

    async def call(self, _method: object, request: object, *, deadline: float, token: str | None) -> Any:
        """See `MemberConnection.call`."""
        assert (deadline > 0, self.inside) == (True, 1), "who retires it meanwhile would cut the call"
        if isinstance(request, rpc.AuthenticateRequest):
            return rpc.AuthenticateResponse(token=self._knows)
        self.heard.append(token)
        if token != self._knows:
            raise self._fails
        return rpc.RangeResponse(count=7)


class Denying(Held):
    """A member that allows nothing, whatever token it gave."""

    async def call(self, method: object, request: object, *, deadline: float, token: str | None) -> Any:
        if isinstance(request, rpc.AuthenticateRequest):
            self.heard.append(None)
            return rpc.AuthenticateResponse(token=f"t{len(self.heard)}")
        return await super().call(method, request, deadline=deadline, token=token)


@virtual
async def test_who_may_not_do_something_does_not_log_in_for_each_try():
    """R13: a login takes etcd a tenth of a second; only a token of some age may be what an old server denies."""
    calls = MemberCalls(ClientOptions(("a:1",), user="lora", password=lambda: "p"), random.Random(1))
    held = Denying(None, EtcdPermissionDenied("etcdserver: permission denied"))
    calls.connections.to = lambda _: held  # type: ignore[method-assign,assignment,return-value]
    for _ in range(600):
        with pytest.raises(EtcdPermissionDenied):
            await calls.ask("a:1", RANGE, rpc.RangeRequest(), 5.0)
        await asyncio.sleep(1)
    assert 2 <= held.heard.count(None) <= 11


FORGOTTEN = [EtcdUnauthenticated("refused"), EtcdPermissionDenied("refused")]


@pytest.mark.parametrize(
    ("token", "knows", "fails", "heard"),
    [
        *((one, one, KeyError("never"), [one]) for one in ("old", None)),
        *((one, "new", KeyError("of ours"), [one]) for one in ("old", None)),
        *(("old", "new", error, ["old", "new"]) for error in FORGOTTEN),
        *((None, "new", error, [None]) for error in FORGOTTEN),
    ],
)
@virtual
async def test_a_call_holds_its_connection_and_asks_once_for_a_token_that_the_server_forgot(token, knows, fails, heard):
    """R13 static-stable, X3, R12: old servers call it "permission denied"; who has none has nothing to renew.

    A connection that another call gives up is closed after the last; a fault of ours is no reason to log in.
    """
    options = ClientOptions(("a:1",), user="lora" if token else None, password=(lambda: "p") if token else None)
    calls, held = MemberCalls(options, random.Random(1)), Held(knows, fails)
    calls.login._token = token
    if isinstance(fails, EtcdUnauthenticated):  # etcd may be restarted a moment after somebody logged in
        calls.login._taken_at = asyncio.get_running_loop().time()
    calls.connections.to = lambda _: held  # type: ignore[method-assign,assignment,return-value]
    if heard[-1] == knows:
        assert (await calls.ask("a:1", RANGE, rpc.RangeRequest(), 5.0)).count == 7
    else:
        with pytest.raises(type(fails)):
            await calls.ask("a:1", RANGE, rpc.RangeRequest(), 5.0)
    assert (held.inside, held.heard) == (0, heard)
