"""Page of the fleet's models, on virtual time with an etcd."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from starlette.requests import Request

from registry.access.control import AccessControl
from registry.access.decision import Grant
from registry.access.principal import operator
from registry.admin.rpc import models, visible
from registry.admin.rpc.calls import CallContext
from registry.admin.rpc.models import FleetModels
from registry.admin.rpc.streams import Residency
from registry.model.errors import Unavailable
from registry.residency import hub
from registry.runtime.clock import Deadline
from registry.store.reader import Reader
from tests.simulation.links import Way
from tests.support.admin import change_set, drop, put
from tests.support.played_admin import Served, served
from tests.support.played_etcd import play
from tests.support.records import KEYS
from tests.support.residency_world import Replicas, engine_status

ACCESS = """apiVersion: loraplane/v1
kind: Access
authentication: {certificateNames: [commonName]}
bindings:
  - {role: security, users: [root]}
  - {role: viewer, users: [acme], tenants: [acme]}
  - {role: viewer, users: [ops], tenants: ["*"], pools: [q]}
"""


async def asks(served: Served, query: str = "", **headers: str) -> tuple[int, str, list[dict[str, Any]]]:
    """The status, the ETag, and the cards of ``GET /v1/models``."""
    reply = await served.page(f"/v1/models?{query}", **headers)
    return reply.status_code, reply.headers["ETag"], reply.json()["data"] if reply.content else []


def ids(told: tuple[int, str, list[dict[str, Any]]]) -> list[tuple[str, str | None]]:
    return [(card["id"], card["parent"]) for card in told[2]]


async def fleet(served: Served, *pools: str) -> dict[str, Replicas]:
    """Pools with two adapters each, which a replica of theirs serves."""
    found = {pool: Replicas(served.client, KEYS, pool) for pool in pools}
    for pool, replicas in found.items():
        await served.make_pool(pool)
        await served.call("ApplyAdapters", change_set(put("acme/A"), put("other/b"), pool=pool))
        await replicas.alive("r1")
        engine = engine_status(url="http://r1", base_models=[f"base-{pool}"], max_model_len=512)
        await replicas.says("r1", served.etcd.store.revision, engine=engine)
    return found


@served
async def test_the_fleet_lists_what_requests_may_ask_for_and_only_what_is_new(served):
    """R9, for a gateway or a client of OpenAI's API that polls it: the bases, and each adapter that somebody serves."""
    replicas = await fleet(served, "p", "q")
    told = await asks(served)
    assert ids(told) == [
        (name, parent)
        for pool in ("p", "q")
        for name, parent in ((f"base-{pool}", None), ("acme/A", f"base-{pool}"), ("other/b", f"base-{pool}"))
    ]
    assert {card["max_model_len"] for card in told[2]} == {512}
    for same in (told[1], f"W/{told[1]}", f'"other", {told[1]}'):
        assert await asks(served, **{"If-None-Match": same}) == (304, told[1], [])
    assert ids(await asks(served, "pool=q")) == ids(told)[3:]
    await served.call("ApplyAdapters", change_set(drop("acme/a"), put("c"), pool="q"))
    await replicas["q"].says("r1", served.etcd.store.revision)
    await asyncio.sleep(1)
    status, tag, cards = await asks(served, **{"If-None-Match": told[1]})
    assert (status, tag == told[1]) == (200, False)
    assert [card["id"] for card in cards] == ["base-p", "acme/A", "other/b", "base", "c", "other/b"]
    assert ids(await asks(served, "pool=q")) == ids((status, tag, cards))[3:]
    for query, code, reason in (("pool=none", 404, "POOL_NOT_FOUND"), ("pool=a%20b", 400, "INVALID_NAME")):
        reply = await served.page(f"/v1/models?{query}")
        assert (reply.status_code, reply.json()["error"]["reason"]) == (code, reason)


@served
async def test_nothing_is_encoded_twice_and_every_admin_service_gives_the_same(served, monkeypatch):
    await fleet(served, "p", "q")
    encoded = list[str]()

    def noted(view: Any, keys: Any, heads: Any, real: Any = models.adapter_cards) -> Any:
        keys = list(keys)
        encoded.extend(f"{view.snapshot.pool} {key}" for key in keys)
        return real(view, keys, heads)

    answered = list[Any]()
    monkeypatch.setattr(models, "adapter_cards", noted)
    monkeypatch.setattr(models, "_answer", lambda *of, real=models._answer: answered.append(of) or real(*of))
    first, again = await asks(served), await asks(served)
    assert (first, len(encoded), len(answered)) == (again, 4, 1)
    other = Served(served.etcd)
    assert await asks(other) == first
    encoded.clear()
    await served.call("ApplyAdapters", change_set(put("other/b", "file:///a/v2"), pool="q"))
    await asyncio.sleep(1)
    await asks(served)
    assert encoded == ["q other%2Fb"]
    await served.service.hub.aclose()  # its readers come to another subscription, whose versions count anew
    await asks(served)
    assert encoded[1:] == ["p acme%2Fa", "p other%2Fb", "q acme%2Fa", "q other%2Fb"]


@served
async def test_who_asks_after_many_changes_sees_nothing_that_ended_meanwhile(served, monkeypatch):
    """R9: only the last changes of a pool are remembered."""
    monkeypatch.setattr(hub, "_STEPS_REMEMBERED", 1)
    replicas = await fleet(served, "p")
    await asks(served)
    for change in (drop("acme/a"), put("c")):
        await served.call("ApplyAdapters", change_set(change, pool="p"))
        await asyncio.sleep(1)
    engine = engine_status(url="http://r1", base_models=["base-p"], max_model_len=512)
    await replicas["p"].says("r1", served.etcd.store.revision, engine=engine)
    await asyncio.sleep(1)
    assert [name for name, _ in ids(await asks(served))] == ["base-p", "c", "other/b"]


def test_who_asks_sees_what_residency_would_show(tmp_path):
    """A2 deny-by-default: the same decision as of /v1/residency, for each pool and tenant."""
    file = tmp_path / "access.yaml"
    file.write_text(ACCESS)
    access = AccessControl(file, lambda: datetime(2026, 1, 1, tzinfo=UTC))

    async def scene(etcd: Any) -> None:
        served = Served(etcd)
        await fleet(served, "p", "q")
        page = FleetModels(served.service.hub, Reader(served.client, KEYS)).page

        async def seen(name: str) -> list[str]:
            reply = await page(request(), call(access.grant(operator(name))))
            return [
                f"{card['loraplane']['pool']} {card['id']}" for card in json.loads(cast("bytes", reply.body))["data"]
            ]

        for _ in range(2):  # from what is kept, too
            assert await seen("acme") == ["p base-p", "p acme/A", "q base-q", "q acme/A"]
            assert await seen("ops") == ["q base-q", "q acme/A", "q other/b"]
            assert await seen("nobody") == []
        where = Residency(served.service.hub, Reader(served.client, KEYS)).page
        grants = [None, *(access.grant(operator(name)) for name in ("acme", "ops", "nobody"))]
        tags = [(await where(request("pool=q"), call(grant))).headers["ETag"] for grant in grants]
        assert len({*tags}) == 4, "who may see more from now on is not told that nothing is new"

    play(scene)


def request(query: str = "") -> Request:
    return Request({"type": "http", "query_string": query.encode(), "headers": []})


def call(grant: Grant | None = None) -> CallContext:
    return CallContext("/v1/models", operator("ann"), Deadline.of(5), "o", "c", grant=grant)


@served
async def test_of_many_pools_and_callers_a_bounded_number_is_kept(served, monkeypatch):
    """R16 bounded; a pool that is gone is forgotten."""
    monkeypatch.setattr(visible, "_NAMES_AT_ONCE", 2)
    monkeypatch.setattr(models, "_MOST_POOLS", 4)
    pools = [f"p{number}" for number in range(6)]
    await fleet(served, *pools)
    fleets = FleetModels(served.service.hub, Reader(served.client, KEYS))
    for pool in pools:
        await fleets.page(request(f"pool={pool}"), call())
    await fleets.page(request(), call(Grant(())))
    assert len(fleets._cards) == 6, "also of those that one of the callers does not see"
    whole = json.loads(cast("bytes", (await fleets.page(request(), call())).body))
    assert [card["id"] for card in whole["data"] if card["parent"] is None] == [
        f"base-p{number}" for number in range(4)
    ]
    assert len(fleets._cards) == 4
    monkeypatch.setattr(models, "_BODIES", 2)
    await fleets.page(request("pool=p1"), call())
    assert list(fleets._bodies) == [("", None), ("p1", None)]


@served
async def test_a_pool_that_cannot_be_read_is_no_empty_one(served):
    """A list without its adapters would send their requests away."""
    await fleet(served, "p")
    page = FleetModels(served.service.hub, Reader(served.client, KEYS)).page
    served.etcd.links["m0"].set_way(Way.HUNG)
    with pytest.raises(Unavailable):
        await page(request(), call())
