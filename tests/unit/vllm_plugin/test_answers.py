"""What an answer says of the version that made it, over an application that binds requests as vLLM does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message

from sidecar.vllm_plugin.adapters import Adapters
from sidecar.vllm_plugin.answers import HEADER, AnswerProofs, Versions, is_version
from sidecar.vllm_plugin.protocol import Resolved
from tests.unit.vllm_plugin.played import Asking, PlayedServer
from tests.unit.vllm_plugin.played import Version as Loaded

OLD, NEW = (f"x@{number} sha256:{letter * 64}" for number, letter in ((6, "a"), (7, "b")))


class Serving:
    """An API server's answers; what a request does after it was bound waits for `gate`."""

    def __init__(self, server: PlayedServer) -> None:
        self.server = server
        self.gate = asyncio.Event()
        self.bound = asyncio.Event()
        paths = ("/v1/completions", "/v1/chat/completions", "/tokenize")
        self.app = Starlette(routes=[Route(path, self._endpoint, methods=["POST"]) for path in paths])
        self.app.add_middleware(AnswerProofs)

    async def _endpoint(self, request: Request) -> Response:
        # vLLM answers in a task of its own, so that it can be cancelled.
        return await asyncio.create_task(self._answer(request))

    async def _answer(self, request: Request) -> Response:
        name = request.query_params["model"]
        if name != "base":
            self.server.registered[name]
        self.bound.set()
        await self.gate.wait()
        status = int(request.query_params.get("status", 200))
        if "stream" in request.query_params:
            return StreamingResponse(_parts())
        return PlainTextResponse("answer", status)

    async def ask(self, query: str, path: str = "/v1/completions") -> list[str]:
        """The proofs in the answer's headers."""
        started: list[Message] = []

        async def receive() -> Message:
            return await asyncio.Event().wait() or {}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                started.append(message)

        scope = {"type": "http", "method": "POST", "path": path, "query_string": query.encode(), "headers": []}
        await self.app(scope, receive, send)
        [start] = started
        return [value.decode() for name, value in start["headers"] if name == HEADER.encode()]


async def _parts() -> AsyncIterator[bytes]:
    yield b"data: 1\n\n"
    yield b"data: 2\n\n"


@pytest.fixture
def adapters(server) -> Adapters:
    adapters = Adapters(server)
    adapters.versions.tell("x", "/old/x", OLD)
    return adapters


@pytest.fixture
def serving(server, adapters) -> Serving:
    one = Serving(server)
    one.gate.set()
    return one


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("more", ["", "&stream"])
async def test_an_answer_names_the_version_that_it_was_bound_to(serving, path, more):
    """R26 answered-by."""
    assert await serving.ask(f"model=x{more}", path) == [OLD]


@pytest.mark.parametrize("more", ["", "&stream"])
async def test_what_a_name_gets_while_a_request_runs_is_not_what_answered_it(serving, adapters, files, more):
    """R26 answered-by: told before the swap, and swapped before the answer begins."""
    serving.gate.clear()
    running = asyncio.create_task(serving.ask(f"model=x{more}"))
    await serving.bound.wait()
    adapters.versions.tell("x", files, NEW)
    assert await asyncio.create_task(_asked_at_once(serving)) == [OLD], "the new version is told, and not bound yet"
    await adapters.swap("x", files, "/old/x")
    serving.gate.set()
    assert await running == [OLD]
    assert await serving.ask("model=x") == [NEW]


async def _asked_at_once(serving: Serving) -> list[str]:
    other = Serving(serving.server)
    other.gate.set()
    return await other.ask("model=x")


@pytest.mark.parametrize(
    ("query", "path"),
    [("model=base", "/v1/completions"), ("model=x&status=500", "/v1/completions"), ("model=x", "/tokenize")],
)
async def test_the_base_an_error_and_other_pages_prove_nothing(serving, query, path):
    assert await serving.ask(query, path) == []


async def test_files_of_which_nothing_was_told_prove_nothing(serving, server):
    """As of an adapter that somebody else loaded, or that a sidecar of an earlier release did."""
    server.load("x", "/other/x")
    assert await serving.ask("model=x") == []


async def test_a_lazy_adapter_has_its_proof_from_the_sidecars_answer(server, files):
    class Telling:
        async def find(self, name: str, _base: str) -> Resolved:
            return Resolved(files, version=NEW if name == "x" else "no proof")

    adapters = Adapters(server, Telling())  # type: ignore[arg-type]
    for name, proof in (("x", NEW), ("y", "")):
        candidate = await adapters.resolve(name, "/base")
        assert candidate is not None
        assert adapters.versions.of(candidate) == proof


def test_of_too_many_the_ones_told_first_are_forgotten():
    """R16 bounded."""
    versions = Versions(capacity=2)
    for name in ("a", "b", "a", "c"):
        versions.tell(name, "/p/", f"{name}@1 sha256:{'0' * 64}")
    assert [bool(versions.of(Loaded(name, 1, "/p"))) for name in "abc"] == [True, False, True]


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        (OLD, True),
        (f"acme/x@12 sha256:{'0' * 64}", True),
        ("x@0 sha256:" + "0" * 64, False),
        ("x@1 sha256:" + "0" * 63, False),
        ("x@1 sha256:" + "0" * 64 + "\r\nset-cookie: a", False),
        ("x" * 500 + "@1 sha256:" + "0" * 64, False),
        ("é@1 sha256:" + "0" * 64, False),
    ],
)
def test_nothing_else_can_get_into_a_header(text, is_one):
    """X2 unbreakable."""
    assert is_version(text) is is_one


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "versions"),
        ({"versions": ["x"]}, "versions"),
        ({"versions": [{"lora_name": "x", "lora_path": "/x", "version": "7"}]}, "version"),
        ({"versions": [{"lora_name": "x", "lora_path": "/x"}]}, "version"),
        ({"versions": [{"lora_name": "x", "lora_path": "x", "version": NEW}]}, "lora_path"),
        ({"versions": [{"lora_path": "/x", "version": NEW}]}, "lora_name"),
    ],
)
async def test_versions_are_told_by_a_page_that_says_what_is_wrong(server, adapters, body, field):
    ask = Asking(adapters)
    status, told = await ask("POST", "versions", body)
    assert (status, told["error"]["type"], told["error"]["param"]) == (400, "invalid_argument", field)
    assert adapters.versions.of(server.registered["x"]) == OLD
    row = {"lora_name": "x", "lora_path": "/old/x", "version": NEW}
    assert await ask("POST", "versions", {"versions": [row]}) == (200, {"schema": 1, "versions": 1})
    assert adapters.versions.of(server.registered["x"]) == NEW
