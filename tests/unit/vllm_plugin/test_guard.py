"""The guard of the plugin's routes: web pages, foreign names, tokens, paths outside the store."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette

from sidecar.vllm_plugin.adapters import Adapters
from sidecar.vllm_plugin.guard import CONTROL_HEADER, Guard, guard_of_environment, is_own_host
from sidecar.vllm_plugin.routes import Plugin, routes

OURS = {CONTROL_HEADER: "sidecar", "host": "127.0.0.1:8000"}
UNLOAD = {"lora_name": "x"}
Client = Callable[[Guard], httpx.AsyncClient]


@pytest.fixture
def client(server) -> Client:
    def make(guard: Guard) -> httpx.AsyncClient:
        app = Starlette(routes=routes(Plugin(Adapters(server, sweep_seconds=3600), guard)))
        return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")

    return make


def reason_of(reply: httpx.Response) -> tuple[int, str, str]:
    error = reply.json()["error"]
    return reply.status_code, error["type"], error["param"]


async def unload(client: httpx.AsyncClient, headers: dict[str, str]) -> httpx.Response:
    return await client.post("/v1/loraplane/unload", json=UNLOAD, headers=headers)


async def test_the_sidecar_is_heard(client, server):
    assert (await unload(client(Guard()), OURS)).status_code == 200
    assert server.paths() == {}


@pytest.mark.parametrize("method", ["GET plugin", "GET state", "GET uses", "POST swap", "POST unload"])
async def test_without_our_header_there_is_no_plugin(client, server, method):
    """X2: a form of a page sends no header; and a sidecar of a release before this one goes on without the plugin."""
    verb, name = method.split()
    reply = await client(Guard()).request(verb, f"/v1/loraplane/{name}", headers={"host": "127.0.0.1"})
    assert (reply.status_code, reply.json()) == (404, {"detail": "Not Found"})
    assert server.paths() == {"x": "/old/x"}


@pytest.mark.parametrize("origin", ["https://evil.example", "http://127.0.0.1:8000", "null", ""])
async def test_pages_are_refused_whatever_they_send(client, server, origin):
    """X2: vLLM lets every origin send every header (its CORS defaults), and a browser always says the origin."""
    reply = await unload(client(Guard()), OURS | {"origin": origin})
    assert reason_of(reply) == (403, "forbidden", "origin")
    assert server.paths() == {"x": "/old/x"}


async def test_a_name_that_was_led_here_is_refused(client, server):
    """X2: a page whose own name was pointed at this address needs no leave of vLLM's."""
    reply = await client(Guard()).get("/v1/loraplane/state", headers=OURS | {"host": "evil.example:8000"})
    assert reason_of(reply) == (403, "forbidden", "host")


@pytest.mark.parametrize(
    ("hosts", "is_own"),
    [
        (["127.0.0.1:8000", "[::1]:8000", "[fe80::1%eth0]:8000", "[fe80::1%25eth0]:8000", "10.0.0.7"], True),
        (["localhost:8000", "app.localhost", "LOCALHOST.", "engine", "engine-1:8000"], True),
        (["node.example.com", "NODE.example.com.:8000"], True),
        (["evil.example", "example.com", "127.0.0.1.evil.example:8000", "localhost.evil.example"], False),
        (["x.localhost.evil", "", "[", "[::1", ":8000"], False),
    ],
)
def test_addresses_and_names_that_nobody_can_register_are_the_servers_own(monkeypatch, hosts, is_own):
    """X2: a name with a dot is somebody's in public, unless it is this host's."""
    monkeypatch.setattr(socket, "gethostname", lambda: "Node.Example.com")
    assert {is_own_host(host) for host in hosts} == {is_own}


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "", "application/jsonp"])
async def test_a_body_has_to_be_said_to_be_json(client, server, kind):
    """X2: text/plain is what a page may send anywhere without asking."""
    reply = await client(Guard()).post(
        "/v1/loraplane/unload", content=b'{"lora_name": "x"}', headers=OURS | {"content-type": kind}
    )
    assert reason_of(reply) == (415, "invalid_argument", "content-type")
    assert server.paths() == {"x": "/old/x"}


async def test_where_there_is_a_token_nothing_goes_without_it(client, server, tmp_path):
    """X2: it is read anew at each call, and one that cannot be read lets nobody in."""
    file = tmp_path / "token"
    locked = client(Guard(token_file=file))
    assert reason_of(await unload(locked, OURS)) == (403, "forbidden", None)
    file.write_text(" \n")
    assert reason_of(await unload(locked, OURS | {CONTROL_HEADER: ""})) == (403, "forbidden", None)
    file.write_text("s3cret\n")
    for wrong in ("sidecar", "s3cre", "s3cret2", "", b"\xff"):
        reply = await unload(locked, OURS | {CONTROL_HEADER: wrong})
        assert reason_of(reply) == (403, "forbidden", CONTROL_HEADER)
        assert "s3cret" not in reply.text  # X1 secret-free
    reply = await locked.get("/v1/loraplane/state", headers=OURS)
    assert reason_of(reply) == (403, "forbidden", CONTROL_HEADER)
    assert server.paths() == {"x": "/old/x"}
    os.truncate(file, 8 << 30)  # X3 given-back: no more of it is read than a token may have
    reply = await unload(locked, OURS | {CONTROL_HEADER: "s3cret"})
    assert reason_of(reply) == (403, "forbidden", None)
    assert "more than 65536 bytes" in reply.text
    file.write_text("s3cret\n")
    assert (await unload(locked, OURS | {CONTROL_HEADER: "s3cret"})).status_code == 200


def adapter_at(folder: Path) -> str:
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text("{}")
    return str(folder)


async def swap(client: httpx.AsyncClient, old: str, new: str) -> httpx.Response:
    body = {"lora_name": "x", "lora_path": new, "expected_path": old}
    return await client.post("/v1/loraplane/swap", json=body, headers=OURS)


async def test_nothing_is_swapped_to_files_outside_the_store(client, server, tmp_path):
    """R4 digest-true, X2: nor through a link, nor through what looks like the store."""
    store = tmp_path / "store"
    old, new = adapter_at(store / "adapters/a"), adapter_at(store / "adapters/b")
    outside = adapter_at(tmp_path / "store-2/adapters/b")
    (store / "adapters/link").symlink_to(outside)
    server.load("x", old)
    guarded = client(Guard(store=str(store)))
    dots = f"{store}/adapters/../../store-2/adapters/b"
    for path in (outside, dots, str(store / "adapters/link"), str(store), "/etc"):
        assert reason_of(await swap(guarded, old, path)) == (403, "forbidden", "lora_path")
    assert server.paths() == {"x": old}
    assert (await swap(guarded, old, new)).status_code == 200
    assert server.paths() == {"x": new}


async def test_where_nobody_names_the_store_a_new_version_lies_beside_the_old_one(client, server, tmp_path):
    """R4 digest-true: an engine that was set up before this release, which is not obeyed beyond its store either."""
    old, new = adapter_at(tmp_path / "store/a"), adapter_at(tmp_path / "store/b")
    outside = adapter_at(tmp_path / "elsewhere/b")
    server.load("x", old)
    open_one = client(Guard())
    for path in (outside, f"{tmp_path}/store/.."):
        assert reason_of(await swap(open_one, old, path)) == (403, "forbidden", "lora_path")
    # Whoever claims that the name has other files is told so by the swap itself.
    assert reason_of(await swap(open_one, f"{tmp_path}/elsewhere/a", outside)) == (409, "conflict", None)
    assert (await swap(open_one, old, new)).status_code == 200
    assert server.paths() == {"x": new}


def test_the_variables_of_the_process_are_what_counts(monkeypatch):
    monkeypatch.delenv("LORAPLANE_STORE", raising=False)
    monkeypatch.setenv("LORAPLANE_CONTROL_TOKEN_FILE", " ")
    assert guard_of_environment() == Guard()
    monkeypatch.setenv("LORAPLANE_STORE", "/store")
    monkeypatch.setenv("LORAPLANE_CONTROL_TOKEN_FILE", "/run/token")
    assert guard_of_environment() == Guard("/store", Path("/run/token"))
