"""GET /v1/residency, with replicas that say what the test has them say."""

from __future__ import annotations

import httpx
import pytest

from registry.admin import wire_residency
from tests.support.admin import change_set, put
from tests.support.replicas import Replicas
from tests.support.waiting import eventually


@pytest.fixture
def replicas(ledger) -> Replicas:
    return Replicas(ledger.client, ledger.keys)


async def page(admin, etag: str = "", **query: str) -> httpx.Response:
    headers = {"If-None-Match": etag} if etag else {}
    async with httpx.AsyncClient(timeout=30) as client:
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


async def test_the_page_in_parts(admin, monkeypatch):
    monkeypatch.setattr(wire_residency, "_PARTS_AT_ONCE", 2)
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
