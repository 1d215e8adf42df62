"""Front of the page: the plain table, the form for a token, and what a browser of another origin gets."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from unittest.mock import AsyncMock, Mock

import httpx
import pytest
from starlette.datastructures import Headers

from registry.access.control import AccessControl
from registry.admin.page.browsers import foreign_origin
from registry.admin.page.front import FrontPage, static_files
from registry.admin.page.markup import MAX_ROWS, PoolTables, fleet, refusal, sign_in
from registry.model.errors import Reason, Unavailable
from registry.model.status import Failed
from registry.runtime.page_guard import MAX_BODY_BYTES
from tests.support.admin import change_set, put
from tests.support.played_admin import Served, served
from tests.support.played_etcd import play
from tests.unit.admin import test_models

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HTML = {"accept": "text/html"}
EVIL = "<img src=x onerror=alert(1)>\"'&"


def row(name: str, state: str = "Healthy", **more: Any) -> dict[str, Any]:
    counts = {"generation": 1, "serving": 1, "replicas": 2, "of": 0}
    return {"name": name, "state": state, "reasons": {}, "note": "", "halted": "", "labels": {}} | counts | more


def texts(page: str) -> list[str]:
    """The cells of a page's tables, as a browser shows them."""
    return [html.unescape(one) for one in re.findall(r"<td>(.*?)</td>", page)]


def test_what_is_not_settled_stands_first_and_says_why():
    rows = [
        row("b", note="too few serve it"),
        row("a", of=2),
        row("z", "Degraded", reasons={"BAD": 2}),
        row("h", "Halted", halted="r1: BAD", of=8),
        row("off", "Disabled", note="it is disabled"),
        row("g", "Progressing", labels={"team": "x"}),
    ]
    told = texts(fleet([PoolTables("p", rows)], "now"))
    assert told[::6] == ["h", "z", "g", "a", "b", "off"]
    assert told[:6] == ["h", "1", "Halted", "1/2 of 8", "r1: BAD", ""]
    assert told[21] == "1/2", "that all are chosen goes without saying"
    assert (told[10], told[17], told[28]) == ("2 × BAD", "team=x", "too few serve it")


def test_every_word_of_somebody_stays_a_word():
    """Names, labels, notes, reasons and pools are escaped wherever they stand."""
    rows = [row(EVIL, EVIL, labels={EVIL: EVIL}, note=EVIL), row(EVIL, halted=EVIL, reasons={EVIL: 1})]
    replicas = [{"name": EVIL, "labels": {EVIL: EVIL}, "leaving": False, "ready": False, "engine": EVIL}]
    absent = [{"name": EVIL, "labels": {}, "last_seen": EVIL, "engine": EVIL}]
    for page in (fleet([PoolTables(EVIL, rows, replicas, absent)], EVIL), sign_in(EVIL), refusal(EVIL)):
        assert "<img" not in page
        assert not re.search(r"=\s*\"[^\"]*<", page)
        assert html.unescape(page).count(EVIL) >= 1


def test_replicas_that_leave_or_are_gone_are_told_and_who_may_not_see_them_has_no_table():
    places = (("r1", False, True), ("r2", True, True), ("r3", False, False))
    replicas = [{"name": name, "labels": {}, "leaving": leaves, "ready": ready} for name, leaves, ready in places]
    absent = [
        {"name": "r4", "labels": {}, "last_seen": "", "engine": ""},
        {"name": "r5", "labels": {}, "last_seen": "then", "engine": "vllm 0.32"},
    ]
    told = texts(fleet([PoolTables("p", [], replicas, absent)], "now"))
    assert told[::7] == ["r1", "r2", "r3", "r4", "r5"]
    assert told[1::7] == ["yes", "leaving", "no", "just gone", "gone, last seen then"]
    assert told[2::7][3:] == ["-", "vllm 0.32"], "what it told last"
    assert "Replicas of" not in fleet([PoolTables("p", [])], "now")
    assert "There is no pool" in fleet([], "now")


def test_a_table_is_bounded_and_says_that_there_are_more():
    """R16 bounded."""
    page = fleet([PoolTables("p", [row(f"a{number}") for number in range(MAX_ROWS + 7)])], "now")
    assert (len(texts(page)), "7 more" in page) == (6 * MAX_ROWS, True)


@served
async def test_without_access_control_anybody_gets_the_table(served):
    """R9: also without a script."""
    replicas = (await test_models.fleet(served, "p"))["p"]
    failed = Failed(name="acme/A", generation=1, reason="BAD", message="m", attempts=1, retry_at=None)
    await replicas.says("r1", served.etcd.store.revision, failed=[failed])
    reply = await served.page("/", **HTML)
    assert (reply.status_code, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert texts(reply.text)[:6] == ["acme/A", "1", "Degraded", "0/1", "1 × BAD", ""]
    assert "r1" in texts(reply.text)
    policy = reply.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "frame-ancestors 'none'" in policy
    assert "require-trusted-types-for 'script'" in policy
    assert (reply.headers["cache-control"], reply.headers["x-content-type-options"]) == ("no-store", "nosniff")
    assert "<script>" not in reply.text
    assert not re.search(r"\son\w+=|style=", reply.text), "the policy would forbid it"


@served
async def test_what_cannot_be_shown_is_told_in_the_form_that_was_asked_for(served, monkeypatch):
    fails = AsyncMock(side_effect=Unavailable(Reason.ETCD_UNAVAILABLE, "etcd does <not> answer"))
    monkeypatch.setattr("registry.store.reader.Reader.pools", fails)
    for headers, told in ((HTML, "etcd does &lt;not&gt; answer"), ({"accept": "*/*"}, "etcd does <not> answer")):
        reply = await served.page("/", **headers)
        assert (reply.status_code, told in reply.text) == (503, True)


@served
async def test_the_page_has_its_files_and_a_browser_keeps_them(served):
    """Nothing is fetched from anywhere else."""
    page = (await served.page("/", **HTML)).text
    assert {"app.js", "page.css", "icon.svg"} <= set(static_files())
    for path in re.findall(r"(?:src|href)=\"(/page/[^\"]+)\"", page):
        reply = await served.page(path)
        assert (reply.status_code, reply.headers["content-security-policy"][:18]) == (200, "default-src 'none'")
        again = await served.page(path, **{"if-none-match": reply.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    known = set(static_files())
    modules = {name for name in known if name.endswith(".js")} - {"app.js"}
    assert set(re.findall(r'modulepreload" href="/page/([^"]+)"', sign_in())) == modules
    for name, one in static_files().items():
        text = one.body.decode()
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
        assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|eval\(", text)
        assert {found.removeprefix("./") for found in re.findall(r"from \"(.*?)\"", text)} <= known, name
    assert (await served.page("/page/none.js")).status_code == 404


@pytest.mark.parametrize(
    ("headers", "is_foreign"),
    [
        ({}, False),
        ({"origin": "http://admin"}, False),
        ({"origin": "https://ADMIN"}, False),
        ({"origin": "http://admin:81"}, True),
        ({"origin": "http://evil.example"}, True),
        ({"origin": "null"}, True),
        ({"origin": "http://["}, True),
        ({"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}, False),
        ({"sec-fetch-site": "none", "sec-fetch-mode": "navigate"}, False),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, False),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, True),
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"}, True),
    ],
)
@served
async def test_a_web_page_of_another_origin_may_ask_nothing(served, headers, is_foreign):
    """X1: nor one of the same host on another port; a link from anywhere leads here."""
    assert bool(foreign_origin(Headers({"host": "admin"} | headers))) is is_foreign
    for path in ("/", "/page/app.js", "/page/adapter?pool=p&name=a"):
        reply = await served.page(path, **headers)
        assert (reply.status_code == 403) is is_foreign, path
    if is_foreign:
        assert reply.json()["error"]["reason"] == "origin"
        assert (await served.page("/v1/residency?pool=none", **headers)).status_code == 404, "pages for machines go on"
    assert (await served.page("/", "evil.example")).status_code == 421


ACCESS = """apiVersion: loraplane/v1
kind: Access
authentication: {certificateNames: [commonName]}
bindings: [{role: security, users: [root]}]
"""


async def posts(served: Served, body: str, **headers: str) -> httpx.Response:
    transport = httpx.ASGITransport(served.service.app, client=("127.0.0.1", 7))
    async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
        form = {"content-type": "application/x-www-form-urlencoded"}
        return await client.post("/", content=body, headers=HTML | form | headers)


async def test_of_a_form_as_much_is_read_as_a_page_takes(monkeypatch):
    """R16 bounded: however many pieces it comes in."""

    async def shown(*pieces: bytes) -> str:
        async def stream() -> AsyncIterator[bytes]:
            for one in pieces:
                yield one

        page = FrontPage(Mock(), Mock())
        return await page.authorization(Mock(method="POST", stream=stream))

    full = b"x" * (MAX_BODY_BYTES - 8)
    assert [await shown(b"tok", b"en=t"), await shown(full, b"&token=tt")] == ["Bearer t", "Bearer t"]
    assert await shown(full + b"&token=t", b"t", b"t") == "Bearer t"


def test_without_a_token_there_is_a_form_and_no_data(tmp_path):
    """A1 named, A2 deny-by-default: and nobody is noted as refused who has shown nothing yet."""
    file = tmp_path / "access.yaml"
    file.write_text(ACCESS)

    async def scene(etcd: Any) -> None:
        await Served(etcd).make_pool("secret-pool")
        await Served(etcd).call("ApplyAdapters", change_set(put("secret-adapter"), pool="secret-pool"))
        served = Served(etcd, AccessControl(file, lambda: NOW))
        noted = list[object]()
        served.service.denials.note = lambda *told: noted.append(told)  # type: ignore[method-assign]
        reply = await served.page("/", **HTML)
        assert (reply.status_code, 'id="token"' in reply.text, 'data-asks="yes"' in reply.text) == (200, True, True)
        assert "secret" not in reply.text
        assert (await posts(served, "token=")).status_code == 200
        assert noted == []
        for wrong in (await posts(served, "token=wrong"), await served.page("/", **HTML, authorization="Bearer wrong")):
            assert (wrong.status_code, 'id="token"' in wrong.text, "secret" not in wrong.text) == (401, True, True)
            assert 'role="alert"' in wrong.text
        assert len(noted) == 2
        named = "pool=secret-pool&name=secret-adapter"
        for path in ("/page/stream", f"/page/adapter?{named}", f"/page/replica?{named}"):
            refused = await served.page(path)
            assert (refused.status_code, refused.json()["error"]["reason"]) == (401, "UNAUTHENTICATED")
        assert (await posts(served, "token=" + "x" * 5000)).status_code == 413
        assert (await posts(served, "token=wrong", origin="http://evil.example")).status_code == 403

    play(scene)
