"""The way to the admin service, how a call waits for it, and how streams are joined."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncGenerator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import grpc
import pytest
from grpc_health.v1 import health_pb2

from registry.cli import client as of_client
from registry.cli.client import AdminClient, _connection_trouble, _merged, _while_etcd_answers
from registry.cli.failure import CliError, Exit
from registry.cli.main import run
from registry.cli.session import Session
from registry.cli.views.output import Format
from registry.client import admin_api as api
from registry.client.address import Tls
from registry.etcd3.backoff import Backoff
from registry.model.errors import Unavailable
from registry.tools.devstack.processes import Process, remember
from registry.tools.devstack.stack_file import DEFAULT_FOLDER, EngineKind, make_layout, pid_file, save
from registry.v1 import registry_pb2 as pb
from tests.support.fake_admin import FakeAdmin, Hold, Refusal, Slow, applied
from tests.support.unanswered import nobody_listens


def test_nobody_listens(capsys, monkeypatch):
    """Told after the first try: the last of several might have so little time left that it ends before any answer."""
    monkeypatch.setattr("registry.client.transport.REPEAT", Backoff(base_seconds=3600.0, cap_seconds=3600.0))
    monkeypatch.setattr("registry.client.transport.random.uniform", lambda _, most: most)
    with nobody_listens() as address:
        assert run(["--admin", address, "get", "adapters"]) == 6
    error = capsys.readouterr().err
    assert (error.count("\n"), "--admin" in error) == (1, True)
    assert error.startswith(f"error: ADMIN_UNAVAILABLE: no connection to the admin service at {address}")


@pytest.fixture
def unnamed(monkeypatch, tmp_path) -> Path:
    """An empty working directory, where nothing names an admin service."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LORAPLANE_ADMIN", raising=False)
    return tmp_path


def make_stack(address: str, *, runs: bool, secure: bool = False) -> None:
    """Writes down a local stack whose admin service is at that address; it is this process, or has ended."""
    save(DEFAULT_FOLDER, make_layout(EngineKind.SIM, 1, {"admin": int(address.rpartition(":")[2])}, secure=secure))
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    remember(pid_file(DEFAULT_FOLDER, "admin"), Process(os.getpid(), started if runs else started + 1))


def test_a_stack_that_is_down_is_an_error_and_an_admin_service_that_was_not_named_is_told(
    unnamed, address, admin, capsys, monkeypatch
):
    """X2: another service than the user means would be told everything, and changed. Standard output is what it was,
    and for programs standard error stays one object.
    """
    monkeypatch.setattr("registry.cli.session.DEFAULT_ADMIN", address)
    make_stack(address, runs=False)
    assert run(["get", "pools"]) == 6
    error = capsys.readouterr().err
    assert error.startswith("error: STACK_NOT_READY: the admin service of the stack in .loraplane does not run; ")
    assert ("loraplane dev up" in error, "--admin" in error) == (True, True)
    assert (run(["doctor"]), capsys.readouterr().err.startswith("error: STACK_NOT_READY: ")) == (6, True)
    assert (run(["digest", "nothing"]), "STACK" in capsys.readouterr().err) == (3, False), "what asks no service"
    assert run(["--admin", address, "-o", "name", "get", "pools"]) == 0
    capsys.readouterr()
    make_stack(address, runs=True)
    named = ["-o", "name", "get", "pools"]
    told = f"admin service: {address} (of the stack in .loraplane)\n"
    assert (run(named), capsys.readouterr()) == (0, ("dev\n", told))
    shutil.rmtree(DEFAULT_FOLDER)
    monkeypatch.setattr("registry.cli.session.DEFAULT_ADMIN", address)
    told = f"admin service: {address} (the default; --admin or LORAPLANE_ADMIN names one)\n"
    for none in ([], ["--admin", ""]):
        assert (run([*none, *named]), capsys.readouterr()) == (0, ("dev\n", told))
    assert (run(["--admin", address, *named]), capsys.readouterr()) == (0, ("dev\n", ""))
    with nobody_listens() as nobody:
        monkeypatch.setattr("registry.cli.session.DEFAULT_ADMIN", nobody)
        assert run(["-o", "json", "get", "pools", "--timeout", "0.2"]) == 6
    assert nobody in json.loads(capsys.readouterr().err)["error"]["message"]
    monkeypatch.setenv("LORAPLANE_ADMIN", address)
    monkeypatch.setenv("LORAPLANE_OUTPUT", "name")
    assert (run(["get", "pools"]), capsys.readouterr().out) == (0, "dev\n")


def test_the_certificates_of_a_secure_stack_are_for_its_admin_service_alone(unnamed):
    """X1 secret-free; those that the user names go before them."""
    mine, secrets = Tls(ca=Path("mine.pem")), DEFAULT_FOLDER / "secrets"
    make_stack("127.0.0.1:7600", runs=True)
    assert Session(None, Format.TABLE, Tls()).shown_tls == Tls(), "it has none"
    make_stack("127.0.0.1:7600", runs=True, secure=True)
    shown = Session(None, Format.TABLE, Tls()).shown_tls
    assert shown == Tls(secrets / "services-ca.pem", secrets / "operator.pem", secrets / "operator.key")
    assert Session(None, Format.TABLE, mine).shown_tls == mine
    assert Session("other:7600", Format.TABLE, Tls()).shown_tls == Tls()


@pytest.mark.parametrize("command", ["get pools", "dev status", "dev down", "dev up"])
def test_a_stack_of_another_user_is_not_obeyed(unnamed, address, admin, capsys, monkeypatch, command):
    """X2: whoever may write into the working directory would be told everything."""
    make_stack(address, runs=True)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert run(command.split()) == 4
    assert capsys.readouterr().err.startswith("error: STACK_NOT_TRUSTED: .loraplane is another user's; ")


@pytest.mark.parametrize(("request_id", "is_settled"), [("", False), ("q1", True)])
async def test_a_call_is_waited_for_until_etcd_is_known_to_be_away(monkeypatch, request_id, is_settled):
    """W8 no-false-fail: of a change it says what settles it; nothing goes on behind it. Its error is its outcome."""
    asked = AsyncMock(side_effect=[False, True])
    monkeypatch.setattr(of_client, "_is_without_etcd", asked)
    monkeypatch.setattr(of_client, "_ASK_AFTER_SECONDS", 0.0)
    calls = SimpleNamespace(errors=SimpleNamespace(address="a:1"), has_answered=True)
    ends = list[str]()

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("cancelled")

    with pytest.raises(Unavailable) as raised:
        await _while_etcd_answers(calls, slow, request_id)
    assert (asked.await_count, ends, raised.value.reason) == (2, ["cancelled"], "ETCD_UNAVAILABLE")
    assert raised.value.message.startswith("the admin service at a:1 answers, but reaches no majority of etcd; ")
    assert (f"with --request-id {request_id}" in raised.value.message) == is_settled
    with pytest.raises(ValueError, match="no"):
        await _while_etcd_answers(calls, AsyncMock(side_effect=ValueError("no")), request_id)


@pytest.mark.parametrize(("has_answered", "trouble"), [(False, "refused"), (False, ""), (True, "refused")])
async def test_where_nobody_listens_is_told_at_once_by_a_first_call(monkeypatch, has_answered, trouble):
    """Who has answered once may be restarting, and is waited for."""
    looked = AsyncMock(return_value=trouble)
    monkeypatch.setattr(of_client, "_connection_trouble", looked)
    monkeypatch.setattr(of_client, "_is_without_etcd", AsyncMock(return_value=True))
    for seconds in ("_ASK_AFTER_SECONDS", "_LOOK_AFTER_SECONDS"):
        monkeypatch.setattr(of_client, seconds, 0.0)
    errors = SimpleNamespace(address="a:1", unreachable=ConnectionError)
    calls = SimpleNamespace(errors=errors, address="a:1", has_answered=has_answered)
    told = ["refused", "q"] if trouble and not has_answered else []
    with pytest.raises(ConnectionError if told else Unavailable) as raised:
        await _while_etcd_answers(calls, asyncio.Event().wait, "q")
    assert not told or [*raised.value.args] == told
    assert looked.await_count == (not has_answered)


@pytest.mark.parametrize("look", ["_connection_trouble", "_is_without_etcd"])
async def test_an_answer_that_comes_during_a_look_is_the_outcome(monkeypatch, look):
    """W8 no-false-fail: what was seen of a network that loses packets, or of etcd's election, is over by then."""
    monkeypatch.setattr(of_client, "_is_without_etcd", AsyncMock(return_value=False))
    for seconds in ("_ASK_AFTER_SECONDS", "_LOOK_AFTER_SECONDS"):
        monkeypatch.setattr(of_client, seconds, 0.0)
    looks = asyncio.Event()

    async def call() -> str:
        await looks.wait()
        return "made"

    async def looked(_at: object) -> str:
        looks.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return "trouble"

    monkeypatch.setattr(of_client, look, looked)
    errors = SimpleNamespace(address="a:1", unreachable=ConnectionError)
    calls = SimpleNamespace(errors=errors, address="a:1", has_answered=False)
    assert await _while_etcd_answers(calls, call, "q") == "made"


async def test_a_connection_that_is_not_taken_in_time_or_has_no_port_to_ask(monkeypatch):
    async def never(*_: object, happy_eyeballs_delay: float) -> None:
        assert happy_eyeballs_delay < of_client._CONNECT_SECONDS
        await asyncio.Event().wait()

    for nowhere in ("unix:/nowhere", "dns:host:1", "host", "host:https"):
        assert await _connection_trouble(nowhere) == ""
    monkeypatch.setattr(of_client, "_CONNECT_SECONDS", 0.3)
    monkeypatch.setattr(asyncio, "open_connection", never)
    assert await _connection_trouble("h:1") == "nothing answers there"


def test_what_may_change_something_is_told_before_the_first_time_and_once(address, admin):
    admin.answers["ApplyAdapters"] = [applied]
    told: list[int] = []

    def note() -> None:
        told.append(len(admin.requests))

    with AdminClient(address, Tls(), timeout_seconds=60.0, before_change=note) as client:
        list(client.pages(api.LIST_POOLS))
        client.unary(api.APPLY_ADAPTERS, pb.ApplyAdaptersRequest(pool="dev", request_id="q", validate_only=True))
        assert told == []
        client.unary(api.APPLY_ADAPTERS, pb.ApplyAdaptersRequest(pool="dev", request_id="q"))
        client.unary(api.APPLY_ADAPTERS, pb.ApplyAdaptersRequest(pool="dev", request_id="r"))
    assert told == [2]


async def test_a_stream_that_breaks_ends_all_and_what_is_quiet_gives_an_empty_answer():
    """So that whoever shows ages can go on. Answers come as they are there; the end of one is the end of all."""
    ended = set[str]()

    async def stream(name: str, *items: Any) -> AsyncGenerator[Any, None]:
        try:
            for item in items:
                if isinstance(item, Exception):
                    raise item
                yield item
            if name != "ends":
                await asyncio.Event().wait()
        finally:
            ended.add(name)

    joined = _merged([stream("broken", "a", ValueError("broken")), stream("other")], 60.0)
    assert await anext(joined) == ["a"]
    with pytest.raises(ValueError, match="broken"):
        await anext(joined)
    both = [one async for one in _merged([stream("ends", "b", "c"), stream("beside", "d")], 60.0)]
    assert [item for one in both for item in one if item != "d"] == ["b", "c"]
    joined = _merged([stream("quiet")], 0.0)
    assert await anext(joined) == []
    await joined.aclose()
    assert ended == {"broken", "other", "ends", "beside", "quiet"}


HELD = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.NOT_SERVING)


@pytest.fixture
def without_etcd(admin, monkeypatch) -> FakeAdmin:
    """A service that answers nothing but that it does not reach etcd, which is asked at once."""
    monkeypatch.setattr(of_client, "_ASK_AFTER_SECONDS", 0.0)
    monkeypatch.delenv("LORAPLANE_TIMEOUT")
    admin.answers["Check"] = [HELD]
    return admin


@pytest.mark.parametrize(
    ("line", "method", "answer"),
    [
        ("delete adapter a --pool dev --request-id q1", "ApplyAdapters", lambda request: Slow(applied(request))),
        ("get pools", "ListPools", Slow(pb.ListPoolsResponse(pools=[pb.Pool(name="dev")]))),
        ("get pool dev", "GetPool", Slow(pb.Pool(name="dev"))),
    ],
)
def test_what_is_asked_ends_once_etcd_is_known_to_be_away(cli, without_etcd, line, method, answer):
    """W8 no-false-fail: a change may have been made, so the error says how that is settled. Unless the user said how
    long it may take, or nobody says that etcd is away.
    """
    without_etcd.answers[method] = [Hold()]
    ran = cli("-o", "name", *line.split())
    assert (ran.code, "reaches no majority of etcd" in ran.err) == (6, True)
    assert ran.err.startswith("error: ETCD_UNAVAILABLE: the admin service at")
    assert ("--request-id q1" in ran.err) == ("q1" in line)
    without_etcd.answers[method] = [answer]
    for given in ("10", "30", "60"):
        assert cli("-o", "name", *line.split(), "--timeout", given).code == 0
    without_etcd.answers["Check"] = [Refusal(grpc.StatusCode.UNIMPLEMENTED)]
    assert cli("-o", "name", *line.split()).out in {"dev\n", "a\n"}


PAGED = {
    "ListPools": lambda client: client.pages(api.LIST_POOLS, pb.ListPoolsRequest(show_unknown=True)),
    "ListAdapters": lambda client: client.pages(api.LIST_ADAPTERS, pb.ListAdaptersRequest(pool="dev")),
    "ListReplicas": lambda client: client.all_replicas("dev").replicas,
    "ListTenants": lambda client: client.pages(api.LIST_TENANTS),
    "ReadBackup": lambda client: client.pages(api.READ_BACKUP),
}


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("method", PAGED)
def test_pages_are_read_to_their_end_whether_etcd_is_waited_for_or_not(address, admin, method, waits):
    """Bounded: a thousand each."""
    reply = getattr(pb, f"{method}Response")
    admin.answers[method] = [reply(next_page_token="n"), reply()]  # noqa: S106 - of a listing
    with AdminClient(address, Tls(), timeout_seconds=60.0, waits=waits) as client:
        list(PAGED[method](client))
    assert [(one.page_token, one.page_size) for one in admin.asked(method)] == [("", 1000), ("n", 1000)]
    assert {getattr(one, "show_unknown", True) for one in admin.asked(method)} == {True}


def test_a_wrong_address_leaves_nothing_open(monkeypatch):
    """R16 bounded: whoever asks many services, as completion and doctor do, holds nothing that it is done with."""
    closed, close = list[bool](), of_client.BackgroundLoop.close
    monkeypatch.setattr(of_client.BackgroundLoop, "close", lambda *told: closed.append(True) or close(*told))
    with pytest.raises(CliError) as raised:
        AdminClient("nonsense", Tls(), timeout_seconds=1.0)
    assert (raised.value.failure.exit, closed) == (Exit.USAGE, [True])


def test_what_is_typed_about_the_form_goes_before_the_variable(capsys, monkeypatch):
    assert (run(["pool"]), "create" in capsys.readouterr().out) == (2, True), "a group tells its commands"
    monkeypatch.setenv("LORAPLANE_OUTPUT", "json")
    assert (run(["get", "foos"]), json.loads(capsys.readouterr().err)["error"]["reason"]) == (2, "USAGE")
    assert (run(["get", "foos", "-o", "table"]), capsys.readouterr().err.startswith("error: USAGE: ")) == (2, True)
