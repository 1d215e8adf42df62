"""The plugin's routes one by one: what they answer, what they take, and how each error is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import AsyncMock

import pytest

from sidecar.vllm_plugin import server as errors
from sidecar.vllm_plugin.adapters import Adapters
from sidecar.vllm_plugin.guard import CONTROL_HEADER
from sidecar.vllm_plugin.protocol import Step
from sidecar.vllm_plugin.resolver import ResolverClient
from sidecar.vllm_plugin.routes import MAX_BODY_BYTES, Plugin, read_fields, read_versions, routes
from sidecar.vllm_plugin.server import DeadlinePassed, InvalidRequest
from tests.simulation.loop import virtual
from tests.unit.vllm_plugin.played import Asking, PlayedServer


@pytest.fixture
def server(server) -> PlayedServer:
    """It has x, limits and a connector."""
    server.limits, server.kv_connectors = {"max_loras": 4}, ["C"]
    return server


@pytest.fixture
def ask(server) -> Asking:
    return Asking(Adapters(server))


ALL = [
    ("GET", "plugin"),
    ("GET", "state"),
    ("GET", "uses"),
    ("GET", "coverage"),
    ("GET", "base"),
    ("GET", "changes"),
    ("POST", "prove"),
    ("POST", "swap"),
    ("POST", "unload"),
    ("POST", "show"),
    ("POST", "hide"),
    ("POST", "versions"),
]


@pytest.mark.parametrize(("method", "path"), ALL)
async def test_until_it_serves_there_is_no_plugin(method, path):
    """As in a vLLM in which it declined: a sidecar then goes on without it."""
    assert await Asking(None)(method, path, {}) == (404, {"detail": "Not Found"})


async def answered(*_: object) -> tuple[Step, ...]:
    return ((1, {1: -1.0}),)


async def all_workers() -> list[dict[str, Any]]:
    return [{"architecture": "A", "applied": ["l.0.q"], "taken": ["q"], "renames": [{}, {}, {}]}]


@pytest.mark.parametrize(
    ("changes", "resolver", "more"),
    [
        ({}, None, []),
        ({}, ResolverClient("/s"), ["resolve"]),
        ({"ask_workers": all_workers}, None, ["coverage"]),
        ({"prober": answered}, None, ["proof", "expect"]),
        ({"read_base": dict}, None, ["base"]),
        (
            {"prober": answered, "ask_workers": all_workers},
            ResolverClient("/s"),
            ["resolve", "coverage", "proof", "expect"],
        ),
    ],
)
async def test_it_says_what_it_can_do_in_this_vllm(server, changes, resolver, more):
    for name, value in changes.items():
        setattr(server, name, value)
    ask = Asking(Adapters(server, resolver))
    status, told = await ask("GET", "plugin")
    assert (status, told["schema"], told["incarnation"]) == (200, 1, ask.plugin.incarnation)
    assert told["capabilities"] == ["swap", "unload", "state", "uses", "changes", "versions", *more]
    assert (told["limits"], told["kv_connectors"]) == ({"max_loras": 4}, ["C"])
    assert Plugin().incarnation != Plugin().incarnation


async def test_what_changed_and_what_was_used_is_told_without_the_engine(ask, server):
    """R6: each page is of one life of the plugin; a request counts for the name that it is bound to."""
    about = {"schema": 1, "incarnation": ask.plugin.incarnation}
    assert await ask("GET", "changes") == (200, {**about, "changes": 1})
    server.load("y", "/old/y")
    assert server.registered["x"]
    server.registered.count("x")
    status, told = await ask("GET", "uses")
    ages = told.pop("last_used")
    assert (status, list(ages)) == (200, ["x"])
    none = {"no_effect": [], "as_expected": [], "unexpected": {}}
    assert told == {**about, "changes": 2, "requests": {"x": 1}, "in_flight": {}, **none}
    server.flying += [server.registered["x"]] * 2
    assert (await ask("GET", "uses"))[1]["in_flight"] == {"x": 2}
    assert server.calls == []


async def test_the_state_and_what_is_applied_are_the_engines(ask, server):
    status, told = await ask("GET", "state")
    assert (status, told["schema"], told["incarnation"], told["resident"]) == (200, 1, ask.plugin.incarnation, [1])
    assert [(row["name"], row["path"], row["registered"]) for row in told["adapters"]] == [("x", "/old/x", True)]
    status, told = await ask("GET", "coverage")
    assert (status, told["error"]["type"]) == (500, "refused")
    server.ask_workers = all_workers
    status, told = await ask("GET", "coverage")
    assert (status, told["schema"], told["architecture"], told["applied"]) == (200, 1, "A", ["l.0.q"])
    server.read_base = lambda: {"path": "/m"}
    about = {"schema": 1, "incarnation": ask.plugin.incarnation}
    assert await ask("GET", "base") in ((200, about | {"path": "/m"}), (200, about | {"reading": True}))


async def test_a_swap_and_an_unload_say_what_they_did(ask, server, files):
    server.load("x", f"{files}/../old")
    body = {"lora_name": "x", "lora_path": files, "expected_path": f"{files}/../old"}
    status, told = await ask("POST", "swap", body)
    assert (status, told["error"]["type"], server.paths()) == (403, "forbidden", {"x": f"{files}/../old"})
    server.load("x", files.rpartition("/")[0] + "/old")
    status, told = await ask("POST", "swap", body | {"expected_path": server.paths()["x"]})
    assert (status, told, server.paths()) == (200, {"lora_name": "x", "lora_path": files}, {"x": files})
    assert await ask("POST", "unload", {"lora_name": "x"}) == (200, {"lora_name": "x"})
    assert server.paths() == {}


@pytest.mark.parametrize(
    ("kind", "status", "reason"),
    [
        (errors.PluginError, 500, "internal"),
        (errors.InvalidRequest, 400, "invalid_argument"),
        (errors.UnsupportedBody, 415, "invalid_argument"),
        (errors.Forbidden, 403, "forbidden"),
        (errors.NotLoaded, 404, "not_loaded"),
        (errors.FilesMissing, 404, "path_missing"),
        (errors.NameConflict, 409, "conflict"),
        (errors.EngineRefused, 500, "refused"),
        (errors.Busy, 503, "busy"),
        (errors.DeadlinePassed, 504, "deadline"),
    ],
)
async def test_each_error_has_its_status_and_its_reason(ask, monkeypatch, kind, status, reason):
    """What a sidecar makes of an answer rests on these; they stay from release to release."""
    monkeypatch.setattr(Adapters, "unload", AsyncMock(side_effect=kind("m" * 3000, field="f")))
    error = {"message": "m" * 2000, "type": reason, "param": "f", "code": status}
    assert await ask("POST", "unload", {"lora_name": "x"}) == (status, {"error": error})


NAME, PATH, EXPECT = "n" * 256, "/" + "p" * 4095, "e" * 8192
SWAP = {"lora_name": "x", "lora_path": "/old/y", "expected_path": "/old/x"}


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("unload", {"lora_name": NAME}, None),
        ("unload", {"lora_name": NAME + "n"}, "lora_name"),
        ("unload", {"lora_name": ""}, "lora_name"),
        ("unload", {"lora_name": "a\0"}, "lora_name"),
        ("unload", {"lora_name": 7}, "lora_name"),
        ("unload", {}, "lora_name"),
        *(("unload", body, "body") for body in ([], "x", 7, b"null")),
        ("unload", b"{", "body"),
        ("unload", b"\xff", "body"),
        ("unload", b"[" * 60_000, "body"),
        ("unload", b"{}" + b" " * 65_535, "body"),
        ("swap", SWAP | {"lora_path": PATH, "expected_path": PATH}, None),
        ("swap", SWAP | {"lora_path": PATH + "p"}, "lora_path"),
        ("swap", SWAP | {"lora_path": "old/y"}, "lora_path"),
        ("swap", SWAP | {"lora_path": "/a\0"}, "lora_path"),
        ("swap", SWAP | {"lora_path": ""}, "lora_path"),
        ("swap", SWAP | {"expected_path": None}, "expected_path"),
        ("swap", {name: SWAP[name] for name in ("lora_name", "lora_path")}, "expected_path"),
        ("prove", {"lora_path": "/nowhere/a", "expect": EXPECT}, None),
        ("prove", {"lora_path": "/nowhere/a", "expect": EXPECT + "e"}, "expect"),
        ("prove", {"lora_path": "/nowhere/a", "expect": 7}, "expect"),
        ("prove", {"lora_path": "/nowhere/a", "expect": ""}, None),
        ("prove", {"expect": ""}, "lora_path"),
        ("prove", {"lora_path": "/nowhere/../a"}, "lora_path"),
    ],
    ids=lambda value: f"{value}"[:40],
)
async def test_a_body_is_taken_as_far_as_it_is_well_formed(ask, server, path, body, field):
    """R16, X2: by the length of each field; what is not is refused before anything is done."""
    server.prober = answered
    status, told = await ask("POST", path, body)
    error = told.get("error", {})
    if field is None:
        assert error.get("type") != "invalid_argument"
    else:
        assert error["param"] == field
        is_elsewhere = ".." in str(body)
        assert (status, error["type"]) == ((403, "forbidden") if is_elsewhere else (400, "invalid_argument"))
    assert (server.paths(), server.calls) == ({"x": "/old/x"}, [])


@pytest.mark.parametrize("has_begun", [True, False])
async def test_who_leaves_before_the_end_of_a_body_is_answered_nothing(ask, server, has_begun):
    """X2: no error of ours in the log of vLLM."""
    sent: list[dict[str, Any]] = []
    left = {"type": "http.disconnect"}
    coming = iter([*([{"type": "http.request", "body": b'{"lora_', "more_body": True}] * has_begun), left])

    async def receive() -> dict[str, Any]:
        return next(coming)

    async def send(message: Any) -> None:
        sent.append(message)

    [route] = [one for one in routes(ask.plugin) if one.path.endswith("/unload")]
    headers = [(CONTROL_HEADER.encode(), b"s"), (b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": route.path, "headers": headers, "query_string": b""}
    await route.app(scope, receive, send)
    assert [message.get("status", message.get("body")) for message in sent] == [499, b""]
    assert server.paths() == {"x": "/old/x"}


async def test_rows_that_are_no_objects_are_refused():
    """X2 unbreakable: be it one among others."""
    row = {"lora_name": "a", "lora_path": "/a", "version": "a@1 sha256:" + "0" * 64}

    async def body(rows: object) -> AsyncIterator[bytes]:
        yield json.dumps({"versions": rows}).encode()

    assert len(await read_versions(body([row]))) == 1
    for odd in (row, [row, "a"], [row, []], None):
        with pytest.raises(InvalidRequest, match="a list of objects"):
            await read_versions(body(odd))


@virtual
async def test_a_body_is_waited_for_ten_seconds():
    """X2 unbreakable: whoever opens requests and sends nothing holds none of them for ever."""

    async def slow(seconds: float) -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(seconds)
        yield b'"lora_name": "a"}'

    assert await read_fields(slow(9.9), "lora_name") == {"lora_name": "a"}
    with pytest.raises(DeadlinePassed, match="did not come within 10 s"):
        await read_fields(slow(99.0), "lora_name")
    assert asyncio.get_running_loop().time() == pytest.approx(19.9)


@pytest.mark.parametrize(("size_bytes", "is_taken"), [(MAX_BODY_BYTES, True), (MAX_BODY_BYTES + 1, False)])
async def test_a_body_may_have_so_many_bytes_however_it_is_cut(size_bytes, is_taken):
    """R16 bounded."""
    text = b'{"lora_name": "a"}'
    body = text + b" " * (size_bytes - len(text))

    async def cut() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 1000):
            yield body[start : start + 1000]

    if is_taken:
        assert await read_fields(cut(), "lora_name") == {"lora_name": "a"}
    else:
        with pytest.raises(InvalidRequest, match="a body of more than"):
            await read_fields(cut(), "lora_name")
