"""How a call waits for the admin service, and how streams are joined: what comes, what ends, what is cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from registry.cli import client as of_client
from registry.cli.client import AdminClient, _merged, _while_etcd_answers
from registry.cli.failure import CliError, Exit
from registry.client.address import Tls
from registry.model.errors import Unavailable
from registry.v1 import registry_pb2 as pb
from tests.unit.cli.fake_admin import applied

CALLS = SimpleNamespace(errors=SimpleNamespace(address="a:1"))


class Says:
    """What the service says of etcd, in turn: it is there, or away; and how often it was asked."""

    def __init__(self, monkeypatch: Any, *answers: str) -> None:
        self.asked, self._answers = 0, answers
        self.is_done = asyncio.Event()
        monkeypatch.setattr(of_client, "_is_without_etcd", self)
        monkeypatch.setattr(of_client, "_ASK_AFTER_SECONDS", 0.0)

    async def __call__(self, _calls: object) -> bool:
        self.asked += 1
        if self.asked == len(self._answers):
            self.is_done.set()
        return self._answers[min(self.asked, len(self._answers)) - 1] == "away"


async def test_a_call_that_has_its_answer_asks_for_no_more(monkeypatch):
    says = Says(monkeypatch, "away")

    async def at_once() -> str:
        return "done"

    task = asyncio.ensure_future(at_once())
    await task
    assert await _while_etcd_answers(CALLS, lambda: task, "") == "done"
    assert says.asked == 0


async def test_a_call_is_waited_for_while_etcd_is_there(monkeypatch):
    ended = asyncio.Event()
    says = Says(monkeypatch, "there", "there", "there")

    async def slow() -> str:
        await ended.wait()
        return "done"

    waiting = asyncio.ensure_future(_while_etcd_answers(CALLS, slow, ""))
    await says.is_done.wait()
    ended.set()
    assert await waiting == "done"


@pytest.mark.parametrize(("request_id", "is_settled"), [("", False), ("q1", True)])
async def test_a_call_is_given_up_once_etcd_is_known_to_be_away(monkeypatch, request_id, is_settled):
    """W8 no-false-fail: of a change it says what settles it; and nothing goes on behind it."""
    says = Says(monkeypatch, "there", "away")
    ends: list[str] = []

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("cancelled")

    with pytest.raises(Unavailable) as raised:
        await _while_etcd_answers(CALLS, slow, request_id)
    assert (says.asked, ends, raised.value.reason) == (2, ["cancelled"], "ETCD_UNAVAILABLE")
    assert raised.value.message.startswith("the admin service at a:1 answers, but reaches no majority of etcd; ")
    assert (f"with --request-id {request_id}" in raised.value.message) == is_settled


async def test_an_error_of_a_call_is_its_outcome(monkeypatch):
    Says(monkeypatch, "there")

    async def fails() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await _while_etcd_answers(CALLS, fails, "")


Stream = AsyncGenerator[Any, None]


class Source:
    """A stream that gives what a test puts into it, and says whether it was ended."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Any] = asyncio.Queue()
        self.is_ended = False

    async def stream(self) -> Stream:
        try:
            while (item := await self.queue.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            self.is_ended = True


async def test_streams_are_joined_as_their_answers_come():
    one, two = Source(), Source()
    joined = _merged([one.stream(), two.stream()], 60.0)
    one.queue.put_nowait("a")
    assert await anext(joined) == ["a"]
    two.queue.put_nowait("b")
    assert await anext(joined) == ["b"]
    for source, item in ((one, "c"), (two, "d")):
        source.queue.put_nowait(item)
    both = await anext(joined)
    both += await anext(joined) if len(both) < 2 else []
    assert sorted(both) == ["c", "d"]
    one.queue.put_nowait(None)
    assert [item async for item in joined] == [[]]
    assert (one.is_ended, two.is_ended) == (True, True)


async def test_what_is_quiet_gives_an_empty_answer():
    """So that whoever shows ages can go on."""
    source = Source()
    joined = _merged([source.stream()], 0.0)
    assert await anext(joined) == []
    await joined.aclose()
    assert source.is_ended


async def test_a_stream_that_breaks_ends_all():
    one, two = Source(), Source()
    joined = _merged([one.stream(), two.stream()], 60.0)
    one.queue.put_nowait(ValueError("broken"))
    with pytest.raises(ValueError, match="broken"):
        await anext(joined)
    assert two.is_ended


def test_what_may_change_something_is_told_before_the_first_time_and_once(address, admin):
    admin.answers["ApplyAdapters"] = [applied]
    told: list[int] = []

    def note() -> None:
        told.append(len(admin.requests))

    with AdminClient(address, Tls(), timeout_seconds=60.0, before_change=note) as client:
        list(client.pool_pages())
        client.apply(pb.ApplyAdaptersRequest(pool="dev", request_id="q", validate_only=True))
        assert told == []
        client.apply(pb.ApplyAdaptersRequest(pool="dev", request_id="q"))
        client.apply(pb.ApplyAdaptersRequest(pool="dev", request_id="r"))
    assert told == [2]


PAGED = {
    "ListPools": lambda client: list(client.pool_pages(show_unknown=True)),
    "ListAdapters": lambda client: list(client.adapter_pages("dev")),
    "ListReplicas": lambda client: client.all_replicas("dev"),
    "ListTenants": lambda client: list(client.tenant_pages()),
    "ReadBackup": lambda client: list(client.backup_pages()),
}


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("method", PAGED)
def test_pages_are_read_to_their_end_whether_etcd_is_waited_for_or_not(address, admin, method, waits):
    """Bounded: a thousand each."""
    reply = getattr(pb, f"{method}Response")
    admin.answers[method] = [reply(next_page_token="n"), reply()]  # noqa: S106 - of a listing
    with AdminClient(address, Tls(), timeout_seconds=60.0, waits=waits) as client:
        PAGED[method](client)
    asked = admin.asked(method)
    assert [one.page_token for one in asked] == ["", "n"]
    assert {one.page_size for one in asked} == {1000}
    if method == "ListPools":
        assert {one.show_unknown for one in asked} == {True}


@pytest.mark.parametrize("prefix", ["", "sql"])
def test_only_names_that_begin_so_are_asked_for(address, admin, prefix):
    admin.answers["ListAdapters"] = [pb.ListAdaptersResponse(adapters=[pb.Adapter(name="sql")])]
    with AdminClient(address, Tls(), timeout_seconds=60.0) as client:
        assert [one.name for one in client.some_adapters("dev", prefix)] == ["sql"]
    assert [one.filter for one in admin.asked("ListAdapters")] == ["name=sql*" if prefix else ""]


def test_an_address_that_is_none_leaves_no_thread_behind(monkeypatch):
    closed: list[bool] = []
    close = of_client.BackgroundLoop.close
    monkeypatch.setattr(
        of_client.BackgroundLoop, "close", lambda self, *more: closed.append(True) or close(self, *more)
    )
    with pytest.raises(CliError) as raised:
        AdminClient("nonsense", Tls(), timeout_seconds=1.0)
    assert (raised.value.failure.exit, closed) == (Exit.USAGE, [True])


@pytest.mark.parametrize("method", ["ListPools", "GetPool"])
def test_a_question_is_given_up_as_well_once_etcd_is_known_to_be_away(address, admin, monkeypatch, method):
    """Unless the user said how long it may take."""
    Says(monkeypatch, "away")
    held = threading.Event()
    answer = pb.ListPoolsResponse() if method == "ListPools" else pb.Pool(name="dev")

    def slow(_request: object) -> object:
        held.wait(60)
        return answer

    def ask(client: AdminClient) -> None:
        if method == "ListPools":
            list(client.pool_pages())
        else:
            client.get_pool("dev")

    admin.answers[method] = [slow]
    with AdminClient(address, Tls(), timeout_seconds=60.0, waits=False) as client:
        with pytest.raises(CliError, match="reaches no majority of etcd"):
            ask(client)
        held.set()
    with AdminClient(address, Tls(), timeout_seconds=60.0) as client:
        ask(client)
