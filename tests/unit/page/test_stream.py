"""Stream of the page, on virtual time with an etcd."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import StreamingResponse

from registry.access.control import AccessControl
from registry.access.principal import operator
from registry.admin.health import Readiness
from registry.admin.page import stream
from registry.admin.page.front import FrontPage
from registry.admin.page.stream import FleetParts, FleetStream
from registry.admin.rpc.calls import CallContext
from registry.model.errors import ResourceExhausted
from registry.model.status import RememberedReplica, RememberedReplicas
from registry.runtime.clock import Clock, Deadline
from registry.store.reader import Reader
from registry.v1 import registry_pb2 as pb
from tests.support.admin import change_set, drop, put
from tests.support.played_admin import Served, served
from tests.support.played_etcd import now, play
from tests.support.records import KEYS
from tests.unit.admin.test_models import fleet

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ACCESS = """apiVersion: loraplane/v1
kind: Access
authentication: {certificateNames: [commonName]}
bindings:
  - {role: security, users: [root]}
  - {role: viewer, users: [acme], tenants: [acme]}
  - {role: viewer, users: [ops], tenants: ["*"], pools: [q]}
  - {role: router, users: [router]}
"""


class Screen:
    """Knowledge of a page from what it was told."""

    def __init__(self) -> None:
        self.adapters: dict[str, dict[str, dict[str, Any]]] = {}
        self.replicas: dict[str, dict[str, dict[str, Any]]] = {}
        self.pools: dict[str, dict[str, Any]] = {}
        self.told: list[tuple[str, dict[str, Any]]] = []

    def take(self, text: str) -> None:
        lines = dict(line.partition(": ")[::2] for line in text.strip().splitlines())
        if "event" not in lines:
            return
        kind, told = lines["event"], json.loads(lines["data"])
        self.told.append((kind, told))
        if kind in {"adapters", "replicas"}:
            self._rows(kind, told)
        elif kind == "pool":
            self.pools[told["name"]] = told
        elif kind == "gone":
            for pool in told["pools"]:
                for held in (self.adapters, self.replicas, self.pools):
                    held.pop(pool, None)

    def _rows(self, kind: str, told: dict[str, Any]) -> None:
        held = self.adapters if kind == "adapters" else self.replicas
        rows = {} if told.get("snapshot") else held.get(told["pool"], {})
        gone = {name.lower() for name in told["gone"]}
        rows |= {row["name"].lower(): row for row in told["rows"]}
        held[told["pool"]] = {name: row for name, row in rows.items() if name not in gone}

    def kinds(self) -> set[str]:
        return {kind for kind, _ in self.told}

    @property
    def states(self) -> dict[str, dict[str, str]]:
        return {pool: {name: row["state"] for name, row in rows.items()} for pool, rows in self.adapters.items()}


def parts_of(served: Served, access: AccessControl | None = None) -> FleetParts:
    service = served.service
    return FleetParts(service.hub, Reader(served.client, KEYS), service.probe, access, service.calls.stopping)


def fleet_of(served: Served, access: AccessControl | None = None) -> FleetStream:
    return FleetStream(parts_of(served, access))


def call_by(
    name: str = "ann", access: AccessControl | None = None, expires: float | None = None, path: str = "/page/stream"
) -> CallContext:
    who = operator(name)
    grant = access.grant(who) if access else None
    return CallContext(path, who, Deadline.of(5), name, "c", grant=grant, expires=expires)


async def opened(page: FleetStream, call: CallContext) -> AsyncIterator[str]:
    reply = await page.page(Request({"type": "http"}), call)
    assert isinstance(reply, StreamingResponse)
    async for one in reply.body_iterator:
        yield str(one)


@asynccontextmanager
async def watched(page: FleetStream, call: CallContext) -> AsyncIterator[Screen]:
    """A screen that hears what comes while the body runs, a second after it was opened."""
    screen = Screen()

    async def hear() -> None:
        async with aclosing(opened(page, call)) as told:  # type: ignore[type-var]
            async for one in told:
                screen.take(one)

    task = asyncio.create_task(hear())
    try:
        await asyncio.sleep(1)
        yield screen
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@served
async def test_a_page_hears_the_whole_and_then_each_change(served):
    """R9: within a second, of adapters, replicas and pools, without asking again.

    What is disabled is shown until it is deleted, and counts as no adapter.
    """
    replicas = await fleet(served, "p", "q")
    async with watched(fleet_of(served), call_by()) as screen:
        assert screen.states == {pool: {"acme/a": "Healthy", "other/b": "Healthy"} for pool in ("p", "q")}
        counts = {"ready": 1, "replicas": 1, "served": 2, "adapters": 2}
        said = {"name": "p", "state": "Healthy", "absent": [], "shows_replicas": True}
        assert screen.pools["p"] | {"absent": []} == said | counts
        assert screen.replicas["p"]["r1"]["url"] == "http://r1"
        await served.call("ApplyAdapters", change_set(drop("acme/a"), put("c"), pool="p"))
        await asyncio.sleep(1)
        assert screen.states["p"] == {"other/b": "Healthy", "c": "Progressing"}
        assert screen.pools["p"]["state"] == "Progressing"
        await replicas["p"].says("r1", served.etcd.store.revision, note="so it is")
        await asyncio.sleep(1)
        assert screen.states["p"]["c"] == "Healthy"
        assert screen.replicas["p"]["r1"]["note"] == "so it is"
        await served.call("ApplyAdapters", change_set(put("off", enabled=False), pool="p"))
        await asyncio.sleep(1)
        assert screen.states["p"]["off"] == "Disabled"
        assert (screen.pools["p"]["adapters"], screen.pools["p"]["state"]) == (2, "Healthy")
        await served.call("ApplyAdapters", change_set(drop("off"), pool="p"))
        await asyncio.sleep(1)
        assert "off" not in screen.states["p"]
        await replicas["p"].gone("r1")
        await asyncio.sleep(1)
        assert screen.replicas["p"] == {}
        heard = len(screen.told)
        await asyncio.sleep(60)
        assert len(screen.told) == heard, "nothing is told while nothing changes"
    async with watched(fleet_of(served), call_by()) as screen:
        assert screen.replicas["p"] == {}, "who comes back may know of some that are gone"


@served
async def test_pools_come_and_go(served):
    served.probe.readiness = Readiness(ready=True, reason="")
    await fleet(served, "p")
    async with watched(fleet_of(served), call_by()) as screen:
        await served.make_pool("empty")
        await asyncio.sleep(stream.POOLS_SECONDS + 1)
        assert screen.states == {"p": {"acme/a": "Healthy", "other/b": "Healthy"}, "empty": {}}
        await served.call("DeletePool", pb.DeletePoolRequest(name="empty"))
        await asyncio.sleep(stream.POOLS_SECONDS + 1)
        assert set(screen.pools) == {"p"}


@served
async def test_more_adapters_than_one_event_takes_come_in_several_and_none_is_lost(served, monkeypatch):
    """R16 bounded."""
    monkeypatch.setattr("registry.admin.page.cursor.ROWS_AT_ONCE", 3)
    await served.make_pool("p")
    names = [f"a{number}" for number in range(10)]
    await served.call("ApplyAdapters", change_set(*map(put, names), pool="p"))
    async with watched(fleet_of(served), call_by()) as screen:
        assert set(screen.adapters["p"]) == {*names}
        parts = [told for kind, told in screen.told if kind == "adapters"]
        ends = [(one["snapshot"], one["last"]) for one in parts]
        assert ends == [(True, False), (False, False), (False, False), (False, True)]


@served
async def test_a_burst_of_changes_ends_in_what_is_so(served):
    """Twenty changes a second: the last of each adapter is shown, whatever was told in between."""
    await served.make_pool("p")
    await served.call("ApplyAdapters", change_set(*(put(f"a{n}") for n in range(10)), pool="p"))
    async with watched(fleet_of(served), call_by()) as screen:
        for number in range(100):
            await served.call("ApplyAdapters", change_set(put(f"a{number % 10}", f"file:///v{number}"), pool="p"))
            await asyncio.sleep(0.05)
        await asyncio.sleep(1)
        assert {row["generation"] for row in screen.adapters["p"].values()} == {11}


@served
async def test_a_reader_comes_again_after_a_while_and_at_the_end_of_the_service(served):
    """R16 bounded: and it is told why, so that it does at once."""
    await fleet(served, "p")
    page, begun = fleet_of(served), now()
    told = [one async for one in opened(page, call_by())]
    assert now() - begun == pytest.approx(stream.AGE_SECONDS, abs=1)
    assert "come again" in told[-1]
    assert sum(one.startswith(":") for one in told) >= stream.AGE_SECONDS / stream.BEAT_SECONDS - 2
    begun = now()
    asyncio.get_running_loop().call_later(3, served.service.calls.stopping.set)
    assert "ADMIN_UNAVAILABLE" in [one async for one in opened(page, call_by())][-1]
    assert now() - begun == pytest.approx(3, abs=0.5)
    assert page._places._held == {}


@served
async def test_a_subscription_that_ended_is_begun_anew(served):
    await fleet(served, "p")
    async with watched(fleet_of(served), call_by()) as screen:
        await served.service.hub.aclose()
        await served.call("ApplyAdapters", change_set(put("c"), pool="p"))
        await asyncio.sleep(stream.POOLS_SECONDS + 1)
        assert set(screen.states["p"]) == {"acme/a", "other/b", "c"}


@served
async def test_a_caller_has_so_many_places_and_gets_them_back(served, monkeypatch):
    """R16 bounded: pages that never read hold places of their caller, and no others."""
    monkeypatch.setattr(stream, "MAX_READERS_OF_CALLER", 2)
    monkeypatch.setattr(stream, "MAX_READERS", 3)
    page = fleet_of(served)
    async with watched(page, call_by("ann")), watched(page, call_by("ann")):
        with pytest.raises(ResourceExhausted, match="close one, and load this one again"):
            await page.page(Request({"type": "http"}), call_by("ann"))
        async with watched(page, call_by("bob")) as screen:
            assert "health" in screen.kinds()
            with pytest.raises(ResourceExhausted):
                await page.page(Request({"type": "http"}), call_by("eve"))
    async with watched(page, call_by("ann")) as screen:
        assert "health" in screen.kinds()


def lost(served: Served, *pools: str) -> None:
    """A replica of each pool that lived and does not any more."""
    members = RememberedReplicas(members={name: RememberedReplica() for name in ("r1", "lost")})
    for pool in pools:
        served.etcd.store.put(KEYS.members(pool), members.to_bytes())


Scene = Callable[[Served, AccessControl], Awaitable[None]]


def secured(tmp_path: Any, scene: Scene) -> None:
    file = tmp_path / "access.yaml"
    file.write_text(ACCESS)

    async def work(etcd: Any) -> None:
        access = AccessControl(file, lambda: NOW + timedelta(seconds=now()))
        served = Served(etcd)
        await fleet(served, "p", "q")
        running = asyncio.create_task(access.run())
        try:
            await scene(served, access)
        finally:
            running.cancel()

    play(work)


def test_who_asks_sees_what_their_role_may_see_with_and_without_a_script(tmp_path):
    """A2 deny-by-default: pools, adapters and replicas, and no sentence that may name others' adapters."""

    async def scene(served: Served, access: AccessControl) -> None:
        streamed, plain = {}, {}
        lost(served, "p", "q")
        page = FrontPage(parts_of(served, access), Clock(random.Random(0)))
        for name in ("acme", "ops", "router", "nobody"):
            async with watched(fleet_of(served, access), call_by(name, access)) as screen:
                names = {pool: sorted(rows) for pool, rows in screen.adapters.items()}
                sentences = {"note" in row for rows in screen.replicas.values() for row in rows.values()}
                absent = {one["name"] for told in screen.pools.values() for one in told["absent"]}
                streamed[name] = names, sentences, absent
            reply = await page.page(Request({"type": "http"}), call_by(name, access, path="/"))
            text = bytes(reply.body).decode()
            cells = re.findall(r"<td>(acme/A|other/b|r1|lost)</td>", text)
            plain[name] = re.findall(r"<h2>Pool (\w+)</h2>", text), cells
        both = ["acme/a", "other/b"]
        assert streamed == {
            "acme": ({"p": ["acme/a"], "q": ["acme/a"]}, {False}, {"lost"}),
            "ops": ({"q": both}, {True}, {"lost"}),
            "router": ({"p": both, "q": both}, set(), set()),
            "nobody": ({}, set(), set()),
        }
        assert plain == {
            "acme": (["p", "q"], ["acme/A", "r1", "lost"] * 2),
            "ops": (["q"], ["acme/A", "other/b", "r1", "lost"]),
            "router": (["p", "q"], ["acme/A", "other/b"] * 2),
            "nobody": ([], []),
        }

    secured(tmp_path, scene)


def test_a_credential_that_ends_ends_the_page(tmp_path):
    """A1 named: it is told so, and that another is asked for."""

    async def scene(served: Served, access: AccessControl) -> None:
        begun = now()
        expires = NOW.timestamp() + begun + 30
        told = [one async for one in opened(fleet_of(served, access), call_by("ops", access, expires))]
        assert "your token has expired; take a new one" in told[-1]
        assert now() - begun == pytest.approx(30, abs=1)

    secured(tmp_path, scene)


def test_a_role_that_changes_ends_the_page(tmp_path):
    """A2 deny-by-default: whoever comes again sees what they may see now."""

    async def scene(served: Served, access: AccessControl) -> None:
        async with watched(fleet_of(served, access), call_by("ops", access)) as screen:
            (tmp_path / "access.yaml").write_text(ACCESS.replace("pools: [q]", "pools: [p]"))
            await asyncio.sleep(5)
            assert screen.told[-1][1]["message"] == "what you may do has changed; connect again"

    secured(tmp_path, scene)
