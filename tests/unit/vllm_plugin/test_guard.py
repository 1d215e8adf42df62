"""The guard of the plugin's routes: web pages, foreign names, tokens, paths outside the store."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from sidecar.vllm_plugin.adapters import Adapters
from sidecar.vllm_plugin.guard import CONTROL_HEADER, Guard, guard_of_environment, is_own_host
from tests.unit.vllm_plugin.played import OURS, Asking

UNLOAD = {"lora_name": "x"}


@pytest.fixture
def client(server) -> Callable[..., Asking]:
    return lambda **guard: Asking(Adapters(server), Guard(**guard))


def reason_of(answer: tuple[int, Any]) -> tuple[int, str, str]:
    error = answer[1]["error"]
    return answer[0], error["type"], error["param"]


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({}, None),
        *(
            ({"origin": origin}, (403, "forbidden", "origin"))
            for origin in ("https://evil.example", "http://127.0.0.1:8000", "null", "")
        ),
        ({"host": "evil.example:8000"}, (403, "forbidden", "host")),
        *(
            ({"content-type": kind}, (415, "invalid_argument", "content-type"))
            for kind in ("text/plain", "application/x-www-form-urlencoded", "", "application/jsonp")
        ),
    ],
)
async def test_the_sidecar_is_heard_and_pages_are_refused_whatever_they_send(client, server, headers, reason):
    """X2: vLLM lets every origin send every header (its CORS defaults), and a browser always says the origin.

    A page whose own name was pointed at this address needs no leave of vLLM's; text/plain it may send anywhere.
    """
    answer = await client()("POST", "unload", UNLOAD, **headers)
    if reason is None:
        assert (answer[0], server.paths()) == (200, {})
    else:
        assert (reason_of(answer), server.paths()) == (reason, {"x": "/old/x"})


@pytest.mark.parametrize("method", ["GET plugin", "GET state", "GET uses", "POST swap", "POST unload"])
async def test_without_our_header_there_is_no_plugin(client, server, method):
    """X2: a form of a page sends no header; and a sidecar of a release before this one goes on without the plugin."""
    with mock.patch.dict(OURS, clear=True):
        assert await client()(*method.split(), UNLOAD) == (404, {"detail": "Not Found"})
    assert server.paths() == {"x": "/old/x"}


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


async def test_where_there_is_a_token_nothing_goes_without_it(client, server, tmp_path):
    """X2: it is read anew at each call, and one that cannot be read lets nobody in."""
    file = tmp_path / "token"
    locked = client(token_file=file)

    async def unload(given: str = "sidecar") -> tuple[int, Any]:
        return await locked("POST", "unload", UNLOAD, **{CONTROL_HEADER: given})

    assert reason_of(await unload()) == (403, "forbidden", None)
    file.write_text(" \n")
    assert reason_of(await unload("")) == (403, "forbidden", None)
    file.write_text("s3cret\n")
    for wrong in ("sidecar", "s3cre", "s3cret2", "", "\xff"):
        answer = await unload(wrong)
        assert reason_of(answer) == (403, "forbidden", CONTROL_HEADER)
        assert "s3cret" not in str(answer)  # X1 secret-free
    assert reason_of(await locked("GET", "state")) == (403, "forbidden", CONTROL_HEADER)
    assert server.paths() == {"x": "/old/x"}
    os.truncate(file, 8 << 30)  # X3 given-back: no more of it is read than a token may have
    answer = await unload("s3cret")
    assert reason_of(answer) == (403, "forbidden", None)
    assert "more than 65536 bytes" in str(answer)
    file.write_text("s3cret\n")
    assert (await unload("s3cret"))[0] == 200


def adapter_at(folder: Path) -> str:
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text("{}")
    return str(folder)


async def swap(client: Asking, old: str, new: str) -> tuple[int, Any]:
    return await client("POST", "swap", {"lora_name": "x", "lora_path": new, "expected_path": old})


async def test_nothing_is_swapped_to_files_outside_the_store(client, server, tmp_path):
    """R4 digest-true, X2: nor through a link, nor through what looks like the store."""
    store = tmp_path / "store"
    old, new = adapter_at(store / "adapters/a"), adapter_at(store / "adapters/b")
    outside = adapter_at(tmp_path / "store-2/adapters/b")
    (store / "adapters/link").symlink_to(outside)
    server.load("x", old)
    guarded = client(store=str(store))
    dots = f"{store}/adapters/../../store-2/adapters/b"
    for path in (outside, dots, str(store / "adapters/link"), str(store), "/etc"):
        assert reason_of(await swap(guarded, old, path)) == (403, "forbidden", "lora_path")
    assert server.paths() == {"x": old}
    assert (await swap(guarded, old, new))[0] == 200
    assert server.paths() == {"x": new}


async def test_where_nobody_names_the_store_a_new_version_lies_beside_the_old_one(client, server, tmp_path):
    """R4 digest-true: an engine that was set up before this release, which is not obeyed beyond its store either."""
    old, new = adapter_at(tmp_path / "store/a"), adapter_at(tmp_path / "store/b")
    outside = adapter_at(tmp_path / "elsewhere/b")
    server.load("x", old)
    open_one = client()
    for path in (outside, f"{tmp_path}/store/.."):
        assert reason_of(await swap(open_one, old, path)) == (403, "forbidden", "lora_path")
    # Whoever claims that the name has other files is told so by the swap itself.
    assert reason_of(await swap(open_one, f"{tmp_path}/elsewhere/a", outside)) == (409, "conflict", None)
    assert (await swap(open_one, old, new))[0] == 200
    assert server.paths() == {"x": new}


def test_the_variables_of_the_process_are_what_counts(monkeypatch):
    monkeypatch.delenv("LORAPLANE_STORE", raising=False)
    monkeypatch.setenv("LORAPLANE_CONTROL_TOKEN_FILE", " ")
    assert guard_of_environment() == Guard()
    monkeypatch.setenv("LORAPLANE_STORE", "/store")
    monkeypatch.setenv("LORAPLANE_CONTROL_TOKEN_FILE", "/run/token")
    assert guard_of_environment() == Guard("/store", Path("/run/token"))


@pytest.mark.parametrize("names_store", [True, False])
async def test_a_name_on_its_way_out_comes_back_with_no_files_from_outside(server, tmp_path, names_store):
    """R4 digest-true: to take an unload back may give other weights, as a swap does."""
    store = tmp_path / "store"
    old, new = adapter_at(store / "a"), adapter_at(store / "b")
    outside = adapter_at(tmp_path / "elsewhere/b")
    server.lister = mock.AsyncMock()  # so that a name leaves the list before it stops to answer
    server.load("x", old)
    ask = Asking(Adapters(server, hide_seconds=600.0), Guard(str(store) if names_store else None))
    assert (await ask("POST", "unload", UNLOAD))[0] == 200
    answer = await ask("POST", "show", UNLOAD | {"lora_path": outside})
    assert (reason_of(answer), server.paths()) == ((403, "forbidden", "lora_path"), {"x": old})
    assert (await ask("POST", "show", UNLOAD | {"lora_path": new}))[0] == 200
    assert server.paths() == {"x": new}
    assert (await ask("POST", "show", {"lora_name": "y", "lora_path": new}))[0] == 404
