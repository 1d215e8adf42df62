"""Tokens that clients show: where they come from, how long they are kept, and whom they are shown."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import grpc
import pytest

from loraplane import Registry, TokenCommand, TokenFile
from registry.client import admin_api as api
from registry.client import transport
from registry.client.address import Tls, is_of_this_host
from registry.client.credentials import BearerToken, ShownToken
from registry.client.transport import AdminCalls
from registry.model.errors import InvalidArgument, Unauthenticated
from registry.model.names import REPEATED_METADATA
from registry.v1 import registry_pb2 as pb
from tests.support.fake_admin import Hold, Refusal, Slow
from tests.support.waiting import eventually

EXPIRED = Refusal(grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED", "your token has expired; take a new one")
KIND = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}


def shown(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


@pytest.fixture
def file(tmp_path) -> Path:
    (tmp_path / "token").write_text("one\n")
    return tmp_path / "token"


@pytest.fixture
def program(tmp_path) -> Callable[..., TokenCommand]:
    """A program of Python whose runs are counted in a file beside it."""

    def make(body: str) -> TokenCommand:
        (tmp_path / "program.py").write_text(
            f"import json, os, sys, time\nopen({str(tmp_path / 'runs')!r}, 'a').write('x')\n{body}"
        )
        return TokenCommand([sys.executable, str(tmp_path / "program.py")])

    return make


def printing(status: object) -> str:
    return f"print({json.dumps({**KIND, 'status': status})!r})"


def test_each_call_and_stream_shows_the_file_as_it_is_then(admin, address, file):
    with Registry(address, token=TokenFile(file)) as registry:
        admin.answers["GetAdapter"] = [Refusal(grpc.StatusCode.UNAVAILABLE), pb.Adapter(name="a")]
        registry.get("a", "p")
        file.write_text("two")
        for _ in registry.residency("p"):
            break
        assert admin.channels[0].metadata == [shown("one"), (*shown("one"), REPEATED_METADATA), shown("two")]


@pytest.mark.parametrize(
    ("address", "tls", "is_taken"),
    [
        *(("10.0.0.1:7600", None, False), ("127.0.0.2:7600", None, True), ("[::1]:7600", None, True)),
        *(("localhost:7600", None, True), ("localhost.example:7600", None, False), ("unix:/run/admin", None, True)),
        *(("dns:///localhost:7600", None, True), ("dns:admin:7600", None, False), ("ipv4:127.0.0.1:1", None, True)),
        *(("ipv4:127.0.0.1:1,10.0.0.1:1", None, False), ("ipv6:[::1]:1", None, True), ("admin:7600", Tls(), False)),
        ("admin:7600", Tls(ca=Path("ca")), True),
    ],
)
async def test_a_token_is_shown_to_this_host_alone_without_tls(monkeypatch, file, address, tls, is_taken):
    """A1 named: whoever reads it on its way would be us."""
    monkeypatch.setattr(transport, "TlsReader", lambda *_: Mock(newest=lambda: None))
    assert is_of_this_host(address) == (is_taken and not tls)
    if is_taken:
        await AdminCalls(address, tls, 1.0, token=TokenFile(file)).aclose()
        return
    with pytest.raises(InvalidArgument, match="could read it") as refused:
        AdminCalls(address, tls, 1.0, token=TokenFile(file))
    assert refused.value.field == "token"


@pytest.mark.parametrize(("argv", "told"), [([], "is empty"), ("", "is empty"), ("gcloud auth token", "is one text")])
async def test_no_program_is_none(argv, told):
    """One text is no list of programs of one letter each."""
    with pytest.raises(InvalidArgument, match=f"{told}; write the program") as refused:
        AdminCalls("127.0.0.1:1", None, 1.0, token=TokenCommand(argv))
    assert refused.value.field == "token"


async def test_a_stream_whose_token_is_refused_at_first_is_not_begun_again(admin, address, file):
    admin.answers["WatchResidency"] = [[EXPIRED]]
    calls = AdminCalls(address, None, 30.0, token=TokenFile(file))
    with pytest.raises(Unauthenticated, match="has expired"):
        await anext(calls.stream(api.WATCH_RESIDENCY, pb.WatchResidencyRequest(pool="p")))
    await calls.aclose()


async def test_a_stream_whose_token_ends_goes_on_with_a_new_one_once(admin, address, file):
    """A6 rotates: a router is not without news for want of a token that is there."""
    first = pb.WatchResidencyResponse(snapshot=True, revision=1)
    second = pb.WatchResidencyResponse(snapshot=True, revision=2)

    def replaced(_request: object) -> list[object]:
        file.write_text("two")
        return [first, EXPIRED]

    admin.answers["WatchResidency"] = [replaced, [second, EXPIRED], [EXPIRED]]
    calls = AdminCalls(address, None, 30.0, token=TokenFile(file))
    request = pb.WatchResidencyRequest(pool="p")
    async with aclosing(calls.follow(api.WATCH_RESIDENCY, request)) as answers:
        assert [(await anext(answers)).revision, (await anext(answers)).revision] == [1, 2]
        with pytest.raises(Unauthenticated, match="has expired"):
            await anext(answers)
    assert admin.channels[0].metadata == [shown("one"), shown("two"), shown("two")]
    await calls.aclose()


async def test_a_stream_without_a_token_is_refused_at_once(admin, address):
    admin.answers["WatchResidency"] = [[pb.WatchResidencyResponse(snapshot=True), EXPIRED], [Hold()]]
    calls = AdminCalls(address, None, 30.0)
    async with aclosing(calls.follow(api.WATCH_RESIDENCY, pb.WatchResidencyRequest(pool="p"))) as answers:
        await anext(answers)
        with pytest.raises(Unauthenticated):
            await anext(answers)
    await calls.aclose()


async def test_a_programs_token_is_kept_until_half_a_minute_before_its_end(program, tmp_path):
    now = 1_000_000_000.0
    source = program(printing({"token": "t", "expirationTimestamp": "2001-09-09T01:47:40Z"}))  # a minute later
    token = BearerToken(source, lambda: now)
    assert await asyncio.gather(token.shown(), token.shown()) == [ShownToken("t"), ShownToken("t", is_kept=True)]
    now += 29
    token.forget(ShownToken("of before"))  # which says nothing of this one
    await token.shown()
    assert (tmp_path / "runs").read_text() == "x"
    now += 1
    await token.shown()
    assert (tmp_path / "runs").read_text() == "xx"


async def test_a_programs_token_that_is_refused_is_taken_anew(program, admin, address, tmp_path):
    """A6 rotates: one without an end is kept until then, and no call fails for it; a new one is tried once."""
    runs = str(tmp_path / "runs")
    body = f"print(json.dumps({{**{KIND!r}, 'status': {{'token': str(os.path.getsize({runs!r}))}}}}))"
    calls = AdminCalls(address, None, 30.0, token=program(body))
    good = pb.ListPoolsResponse()
    admin.answers["ListPools"] = [EXPIRED, good, good, EXPIRED, good, EXPIRED, EXPIRED]
    for refused in (True, False, False, False, True):
        if refused:
            with pytest.raises(Unauthenticated, match="your token has expired; take a new one"):
                await calls.unary(api.LIST_POOLS, pb.ListPoolsRequest())
        else:
            await calls.unary(api.LIST_POOLS, pb.ListPoolsRequest())
    plain = [one[:1] for one in admin.channels[0].metadata]
    assert plain == [*map(shown, "1222334")]
    await calls.aclose()


async def test_calls_that_are_refused_together_are_all_made_again(program, admin, address, tmp_path):
    """A6 rotates: the refusal of the one does not make that of the other one that nothing helps."""
    runs = str(tmp_path / "runs")
    body = f"print(json.dumps({{**{KIND!r}, 'status': {{'token': str(os.path.getsize({runs!r}))}}}}))"
    calls = AdminCalls(address, None, 30.0, token=program(body))
    good = pb.ListPoolsResponse()
    admin.answers["ListPools"] = [good]
    await calls.unary(api.LIST_POOLS, pb.ListPoolsRequest())

    def answer(_request: object) -> object:
        return Slow(EXPIRED) if admin.channels[0].metadata[-1][:1] == shown("1") else good

    admin.answers["ListPools"] = [answer]
    async with asyncio.TaskGroup() as tasks:
        for _ in range(3):
            tasks.create_task(calls.unary(api.LIST_POOLS, pb.ListPoolsRequest()))
    assert [one[:1] for one in admin.channels[0].metadata] == [*map(shown, "1111222")]
    await calls.aclose()


SECRET = "s3cr3t"  # noqa: S105 - of nothing
NO_CREDENTIAL = "has to print an ExecCredential of client.authentication.k8s.io/v1 with status.token"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (f"print('{SECRET}')", NO_CREDENTIAL),
        ("", NO_CREDENTIAL),
        (f"print('[' * 60000, '{SECRET}')", NO_CREDENTIAL),
        (f"while True: print('{SECRET}' * 10_000)", NO_CREDENTIAL),
        (printing({"token": 7}), NO_CREDENTIAL),
        (printing(SECRET), NO_CREDENTIAL),
        (printing({"token": SECRET, "expirationTimestamp": "soon"}), NO_CREDENTIAL),
        (printing({"token": SECRET, "expirationTimestamp": "2001-09-09T01:47:40"}), NO_CREDENTIAL),
        (printing({"token": SECRET, "expirationTimestamp": 7}), NO_CREDENTIAL),
        (printing({"token": SECRET}).replace("/v1", "/v1alpha1"), NO_CREDENTIAL),
        (printing({"token": f"{SECRET}\n{SECRET}"}), "one word of ASCII"),
        (printing({"token": ""}), "one word of ASCII"),
        (f"print('{SECRET}', file=sys.stderr); sys.exit(3)", "ended with 3"),
    ],
)
async def test_what_a_program_prints_is_never_told(program, body, told):
    with pytest.raises(Unauthenticated) as refused:
        await BearerToken(program(body)).shown()
    assert (told in refused.value.message, SECRET in f"{refused.value!r} {refused.value.__cause__!r}") == (True, False)
    assert "Traceback" not in refused.value.message


@pytest.mark.parametrize("argv", [["/no/such/program"], ["/"], ["a\0b"]])
async def test_a_program_that_is_none(argv):
    with pytest.raises(Unauthenticated, match="cannot be run"):
        await BearerToken(TokenCommand(argv)).shown()


def is_over(process: int) -> bool:
    """True also where nobody has fetched its end yet."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def test_a_program_that_hangs_is_ended_with_all_that_it_began(program, tmp_path):
    """R16 bounded."""
    note = f"open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid))"
    body = f"import subprocess\nchild = subprocess.Popen(['sleep', '600'])\n{note}\ntime.sleep(600)"
    hanging = replace(program(body), seconds=1.0)
    with pytest.raises(Unauthenticated, match=r"was not done within 1 s; .* LORAPLANE_TOKEN_SECONDS"):
        await BearerToken(hanging).shown()
    child = int((tmp_path / "child").read_text())
    await eventually(lambda: is_over(child))


async def test_a_program_that_ended_is_not_killed(program, monkeypatch):
    """What it left running, as an agent, is meant to; and its number may be another's by then."""
    monkeypatch.setattr(os, "killpg", Mock())
    assert await BearerToken(program(printing({"token": "t"}))).shown() == ShownToken("t")
    os.killpg.assert_not_called()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "cannot be read: No such file"),
        ("", "one word"),
        (f"{SECRET} {SECRET}", "one word"),
        ("ü" + SECRET, "one word"),
        (SECRET * 4000, "more than 16384 bytes"),
    ],
)
async def test_a_file_without_a_token(file, content, told):
    file.unlink()
    if content is not None:
        file.write_text(content)
    with pytest.raises(Unauthenticated) as refused:
        await BearerToken(TokenFile(file)).shown()
    assert refused.value.message.startswith(f"the token file {file} ")
    assert (told in refused.value.message, SECRET in refused.value.message) == (True, False)
