"""GET /v1/residency, with replicas that say what the test has them say."""

from __future__ import annotations

import httpx
import pytest

from registry.admin.rpc import encode_residency, streams
from registry.cli.views.residency_view import residency_dict
from registry.model.status import Failed, Lazy, Leaving, Pending, Resident
from registry.v1 import registry_pb2 as pb
from tests.support.admin import change_set, put
from tests.support.http_client import http_client
from tests.support.residency_world import Replicas, among, members
from tests.support.waiting import eventually


@pytest.fixture
def replicas(ledger) -> Replicas:
    return Replicas(ledger.client, ledger.keys)


@pytest.fixture(autouse=True)
def _in_time_however_slow_the_machine(monkeypatch) -> None:
    monkeypatch.setattr(streams, "_PAGE_SECONDS", 60.0)


async def page(admin, etag: str = "", **query: str) -> httpx.Response:
    headers = {"If-None-Match": etag} if etag else {}
    async with http_client(timeout=120) as client:
        return await client.get(f"{admin.http}/v1/residency", params=query or {"pool": "p"}, headers=headers)


async def test_the_page(ledger, admin, replicas):
    """GET /v1/residency says the same as the stream, and nothing at all while nothing has changed."""
    revision = (await admin.stub.ApplyAdapters(change_set(put("acme/a"), put("b")))).revision
    await replicas.alive("r1")
    await replicas.says("r1", revision)
    reply = await page(admin)
    assert (reply.status_code, reply.headers["content-type"]) == (200, "application/json")
    told = reply.json()
    assert (told["pool"], told["revision"] >= revision) == ("p", True)
    assert told["adapters"][0] == {
        "name": "acme/a",
        "generation": 1,
        "load": "eager",
        "replicas": [
            {
                "replica": "r1",
                "engine_url": "http://r1",
                "labels": {},
                "model": "acme/a",
                "generation": 1,
                "state": "serving",
                "reason": "",
                "loaded": True,
                "last_used": "",
                "wanted": None,
            }
        ],
        "note": "",
    }
    again = await page(admin, reply.headers["etag"])
    assert (again.status_code, again.content) == (304, b"")
    assert (await page(admin, f'"x", W/{reply.headers["etag"]}')).status_code == 304
    await replicas.says("r1", revision, stale=True)

    async def is_stale() -> bool:
        return (await page(admin, reply.headers["etag"])).status_code == 200

    await eventually(is_stale)
    one = (await page(admin, pool="p", name="ACME/A")).json()
    assert [(each["name"], each["replicas"][0]["state"]) for each in one["adapters"]] == [("acme/a", "unknown")]


async def whole(admin) -> list[dict]:
    """What the stream tells first, as the page writes it."""
    call = admin.stub.WatchResidency(pb.WatchResidencyRequest(pool="p"))
    first = await call.read()
    call.cancel()
    assert (first.snapshot, first.more) == (True, False)
    return [residency_dict(one) for one in first.adapters]


async def test_the_page_and_the_stream_agree_on_everything(ledger, admin, replicas):
    """R9: eager, lazy and used, placed, leaving, selected, in a rollout; served, pending, refused and unknown."""
    canary = {"strategy": pb.Strategy(canary_replicas="1", promote="manual")}
    few, zone = pb.Placement(replicas=7), pb.Placement(selector={"zone": "a"})
    await admin.stub.ApplyAdapters(change_set(put("acme/A"), put("lazy", load="lazy"), put("rolled", **canary)))
    changes = put("few", placement=few), put("zoned", placement=zone), put("rolled", "file:///a/v2", **canary)
    revision = (await admin.stub.ApplyAdapters(change_set(*changes))).revision
    await replicas.alive("r1", labels={"zone": "a"})
    await replicas.alive("r2", "r3", capacity=8)
    live = among([*members("r1", labels={"zone": "a"}), *members("r2", "r3", capacity=8)], {frozenset(): 2})
    used = Lazy(count=1, servable=True, resident=[Resident(name="lazy", generation=1, last_used="2026-01-01T00:00Z")])
    failed = Failed(name="rolled", generation=2, reason="BAD", message="m", attempts=1, retry_at=None)
    pending = Pending(name="acme/A", generation=1, reason="staging")
    await replicas.says("r1", revision, lazy=used, failed=[failed], pending=[pending], **live)
    await replicas.says("r2", revision, leaving=[Leaving(name="zoned", generation=1)], **live)
    await replicas.says("r3", revision, stale=True)

    async def has_come() -> list[dict] | None:
        told = (await page(admin)).json()["adapters"]
        return told if any(one["replica"] == "r3" and one["reason"] == "stale" for one in told[0]["replicas"]) else None

    told = await eventually(has_come)
    assert await whole(admin) == told
    parts = [part for one in told for part in one["replicas"]]
    assert {part["state"] for part in parts} == {"serving", "pending", "failed", "unknown"}
    assert {"leaving", "lazy", "BAD", "staging"} <= {part["reason"] for part in parts}
    assert {part["generation"] for part in parts} == {1, 2}
    assert [one["note"] for one in told if one["name"] == "few"] == ["placed on 7, 3 alive"]
    assert [part["last_used"] for part in parts if part["last_used"]] == ["2026-01-01T00:00Z"]


async def test_the_page_in_parts(admin, monkeypatch):
    monkeypatch.setattr(encode_residency, "_PARTS_AT_ONCE", 2)
    assert (await page(admin)).json()["adapters"] == []
    await admin.stub.ApplyAdapters(change_set(*(put(f"n{i}") for i in range(5))))

    async def has_all() -> bool:
        return [one["name"] for one in (await page(admin)).json()["adapters"]] == [f"n{i}" for i in range(5)]

    await eventually(has_all)


@pytest.mark.parametrize(
    ("query", "status", "field"),
    [
        ({"name": "a"}, 400, "pool"),
        ({"pool": "?"}, 400, "pool"),
        ({"pool": "p", "name": "a,b"}, 400, "name"),
        ({"pool": "q"}, 404, "pool"),
        ({"pool": "p", "name": "nobody"}, 404, "name"),
    ],
)
async def test_wrong_pages(admin, query, status, field):
    """Each says what is wrong with which parameter."""
    reply = await page(admin, **query)
    assert (reply.status_code, reply.json()["error"]["field"]) == (status, field)
