"""The page over real HTTP: as a browser asks, with a token and without, and as those ask who should not."""

from __future__ import annotations

import asyncio
import html
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import httpx
import pytest

from registry.admin.page import stream
from tests.integration.admin.test_access import guarded, token
from tests.support.admin import admin_with_pool, change_set, put
from tests.support.http_client import http_client
from tests.support.residency_world import Replicas
from tests.support.tls import Authority
from tests.support.waiting import eventually

HTML = {"accept": "text/html"}


async def events(reply: httpx.Response) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """What a stream tells, event by event."""
    kind = ""
    async for line in reply.aiter_lines():
        if line.startswith("event: "):
            kind = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield kind, json.loads(line.removeprefix("data: "))


@asynccontextmanager
async def followed(base: str, **headers: str) -> AsyncIterator[AsyncIterator[tuple[str, dict[str, Any]]]]:
    async with http_client(timeout=60) as client, client.stream("GET", f"{base}/page/stream", headers=headers) as reply:
        assert (reply.status_code, reply.headers["content-type"][:17]) == (200, "text/event-stream")
        async with aclosing(events(reply)) as told:  # type: ignore[type-var]
            yield told


async def until(told: AsyncIterator[tuple[str, dict[str, Any]]], wanted: dict[str, str]) -> None:
    """Reads on until these are the states of adapters."""
    states: dict[str, str] = {}
    async with asyncio.timeout(30):
        async for kind, one in told:
            if kind == "adapters":
                states |= {row["name"]: row["state"] for row in one["rows"]}
                states = {name: state for name, state in states.items() if name not in one["gone"]}
            if states == wanted:
                return


async def test_the_table_and_the_stream_tell_what_is_so(ledger, admin):
    """R9: of a replica that fails, within a moment, and in the table without a script."""
    replicas = Replicas(ledger.client, ledger.keys)
    revision = (await admin.stub.ApplyAdapters(change_set(put("acme/A"), put("b")))).revision
    await replicas.alive("r1")
    async with followed(admin.http) as told:
        await until(told, {"acme/A": "Progressing", "b": "Progressing"})
        await replicas.says("r1", revision)
        await until(told, {"acme/A": "Healthy", "b": "Healthy"})
    async with http_client(timeout=30) as client:
        page = await client.get(f"{admin.http}/", headers=HTML)
        assert (page.status_code, "acme/A" in page.text, "Healthy" in page.text) == (200, True, True)
        details = (await client.get(f"{admin.http}/page/adapter", params={"pool": "p", "name": "acme/a"})).json()
        assert [one["generation"] for one in details["history"]["entries"]] == [1]
        foreign = await client.get(f"{admin.http}/page/stream", headers={"origin": "http://evil.example"})
        rebound = await client.get(f"{admin.http}/", headers={"host": "evil.example"})
        assert (foreign.status_code, rebound.status_code) == (403, 421)
        for name in ("app.js", "page.css"):
            assert (await client.get(f"{admin.http}/page/{name}")).status_code == 200


async def test_a_token_lets_in_shows_its_part_and_ends(etcd, tmp_path, monkeypatch):
    """A1 named, A2 deny-by-default: by header or form; and a page that is open is told when it ends."""
    monkeypatch.setattr("registry.access.tokens.LEEWAY_SECONDS", 0)
    authority = Authority(tmp_path / "authority", "ours")
    async with guarded(etcd, tmp_path, authority) as (ports, _), admin_with_pool(etcd.endpoints, etcd.prefix) as free:
        await free.stub.ApplyAdapters(change_set(put("acme/a"), put("other/b")))
        base = f"http://127.0.0.1:{ports.http_port}"
        async with http_client(timeout=30) as client:
            form = await client.get(f"{base}/", headers=HTML)
            assert ('id="token"' in form.text, "acme" in form.text) == (True, False)
            assert (await client.get(f"{base}/page/stream")).status_code == 401
            shown = await client.post(f"{base}/", headers=HTML, data={"token": token("ml-acme")})
            assert (shown.status_code, "acme/a" in shown.text, "other" in shown.text) == (200, True, False)
            assert "set-cookie" not in shown.headers
            wrong = await client.post(f"{base}/", headers=HTML, data={"token": token("ml-acme", -60)})
            assert (wrong.status_code, "acme" in wrong.text) == (401, False)
        async with followed(base, authorization=f"Bearer {token('ml-acme', 4)}") as told:
            await until(told, {"acme/a": "Progressing"})
            async with asyncio.timeout(60):
                ended = [one async for kind, one in told if kind == "end"]
        assert [one["reason"] for one in ended] == ["UNAUTHENTICATED"]


async def test_pages_that_never_read_take_nothing_from_others(admin, monkeypatch):
    """R16 bounded: a hundred of one address, of which each is silent; and probes are answered meanwhile."""
    monkeypatch.setattr("registry.runtime.http.MAX_OF_ADDRESS", 150)
    monkeypatch.setattr(stream, "MAX_READERS_OF_CALLER", 5)
    port = int(admin.http.rpartition(":")[2])
    silent = []
    try:
        for _ in range(100):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /page/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            silent.append(writer)

        async def refused() -> bool:
            async with http_client(timeout=30) as client:
                return (await client.get(f"{admin.http}/page/stream")).status_code == 429

        await eventually(refused)
        async with http_client(timeout=30) as client:
            assert (await client.get(f"{admin.http}/readyz")).status_code == 200
            assert (await client.get(f"{admin.http}/", headers=HTML)).status_code == 200
    finally:
        for writer in silent:
            writer.transport.abort()

    async def is_free() -> bool:
        async with http_client(timeout=30) as client, client.stream("GET", f"{admin.http}/page/stream") as reply:
            return reply.status_code == 200

    await eventually(is_free)


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "a'onclick=alert(1)"])
async def test_a_label_that_looks_like_markup_stays_text(admin, name):
    await admin.stub.ApplyAdapters(change_set(put("a", labels={"l": name})))
    async with http_client(timeout=30) as client:
        page = (await client.get(f"{admin.http}/", headers=HTML)).text
    assert (name in page, html.escape(name) in page) == (False, True)
