"""The HTTP application of simulated engines, and what serves it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from registry.runtime.http import Server, listen
from sidecar.engines.simulated import pages
from sidecar.engines.simulated.engine import Card, EngineDead, Rejection, SimulatedCall, SimulatedVllm
from sidecar.vllm_plugin.adapters import Adapters
from sidecar.vllm_plugin.answers import AnswerProofs
from sidecar.vllm_plugin.base_files import base_files
from sidecar.vllm_plugin.protocol import Step
from sidecar.vllm_plugin.resolver import ResolverClient
from sidecar.vllm_plugin.routes import Plugin, listing_route, routes
from sidecar.vllm_plugin.server import EngineAdapter, Lister, Prober
from sidecar.vllm_plugin.usage import Usage

Endpoint = Callable[[Request], Awaitable[Response]]


BodyOf = Callable[[SimulatedVllm], Mapping[str, object]]
_JSON_PAGES: dict[str, BodyOf] = {"/version": pages.version, "/v1/models": pages.models}


def make_app(engine: SimulatedVllm) -> Starlette:
    """The application that serves `engine`."""
    calls = _Calls(engine)
    with_plugin = engine.options.plugin and engine.options.runtime_lora
    routes = plugin_routes(engine) if with_plugin else []
    routes += [_route("GET", path, _json_page(engine, body_of)) for path, body_of in _JSON_PAGES.items()]
    routes += [
        _route("GET", "/health", calls.health),
        _route("GET", "/metrics", calls.metrics),
        _route("POST", "/v1/completions", calls.completions),
    ]
    if engine.options.runtime_lora:
        routes.append(_route("POST", "/v1/load_lora_adapter", calls.load))
        routes.append(_route("POST", "/v1/unload_lora_adapter", calls.unload))
    routes += _development(engine) if engine.options.development else []

    async def rejected(_: Request, error: Exception) -> Response:
        told = error if isinstance(error, Rejection) else _OF_THE_DEAD
        return JSONResponse(pages.error_body(told, is_flat=engine.manners.flat_errors), told.status)

    handlers = {404: _not_found, 405: _not_found, Rejection: rejected, EngineDead: rejected}
    app = Starlette(routes=routes, exception_handlers=handlers)
    if with_plugin:
        app.add_middleware(AnswerProofs)
    return app


_OF_THE_DEAD = Rejection(500, "InternalServerError", "EngineCore encountered an issue.")


def _json_page(engine: SimulatedVllm, body_of: BodyOf) -> Endpoint:
    async def answer(_: Request) -> Response:
        return JSONResponse(body_of(engine))

    return answer


def _development(engine: SimulatedVllm) -> list[Route]:
    """The pages that pause an engine, as vLLM has them in its development mode. Requests are kept meanwhile."""

    def setting(**state: bool) -> Endpoint:
        async def answer(_: Request) -> Response:
            engine.pause(**state)
            return JSONResponse({})

        return answer

    return [
        _route("POST", "/sleep", setting(is_paused=True, sleeps=True)),
        _route("POST", "/wake_up", setting(is_paused=False, sleeps=False)),
        _route("POST", "/pause", setting(is_paused=True)),
        _route("POST", "/resume", setting(is_paused=False)),
        _route("GET", "/is_sleeping", _json_page(engine, lambda one: {"is_sleeping": one.is_paused or one.sleeps})),
        _route("GET", "/is_paused", _json_page(engine, lambda one: {"is_paused": one.is_paused})),
    ]


def _route(method: str, path: str, endpoint: Endpoint) -> Route:
    return Route(path, endpoint, methods=[method])


async def _not_found(_: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    return JSONResponse({"detail": "Not Found" if status == 404 else "Method Not Allowed"}, status)


class _Calls:
    """Endpoints that are no JSON page."""

    def __init__(self, engine: SimulatedVllm) -> None:
        self._engine = engine

    async def health(self, _: Request) -> Response:
        return Response(status_code=503 if self._engine.dead.is_set() else 200)

    async def metrics(self, _: Request) -> Response:
        return PlainTextResponse(pages.metrics(self._engine))

    async def load(self, request: Request) -> Response:
        received_at = time.monotonic()
        fields = await _fields(request, "lora_name", "lora_path")
        name, path = fields["lora_name"], fields["lora_path"]
        self._engine.note(SimulatedCall("load", name, path, _request_id(request), received_at))
        await self._engine.load(name, path)
        return Response(f"Success: LoRA adapter '{name}' added successfully.")

    async def unload(self, request: Request) -> Response:
        received_at = time.monotonic()
        name = (await _fields(request, "lora_name"))["lora_name"]
        self._engine.note(SimulatedCall("unload", name, "", _request_id(request), received_at))
        await self._engine.unload(name)
        return Response(f"Success: LoRA adapter '{name}' removed successfully.")

    async def completions(self, request: Request) -> Response:
        body = await _json(request)
        prompt, tokens = body.get("prompt"), body.get("max_tokens", 16)
        if prompt is None or not isinstance(tokens, int) or tokens < 1:
            raise Rejection(400, "Bad Request", "1 validation error", "body.prompt")
        model = str(body.get("model") or self._engine.options.served_model_name)
        try:
            made = await self._engine.generate(await self._engine.card_of(model), str(prompt), tokens)
        finally:
            self._engine.cards.count(model)
        logprobs = body.get("logprobs")
        as_ids = bool(body.get("return_tokens_as_token_ids"))
        return JSONResponse(
            pages.completion(model, made, logprobs if isinstance(logprobs, int) else None, as_ids=as_ids)
        )


async def _json(request: Request) -> dict[str, object]:
    """The body's object.

    Raises:
        Rejection: it is no JSON, or no object.
    """
    if request.headers.get("content-type", "").split(";")[0] != "application/json":
        message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
        raise Rejection(400, "Bad Request", message)
    try:
        body = json.loads(await request.body())
    except ValueError as error:
        at = error.pos if isinstance(error, json.JSONDecodeError) else 0
        raise Rejection(400, "Bad Request", f"1 validation error:\n  {error}", f"body.{at}") from error
    if not isinstance(body, dict):
        raise Rejection(400, "Bad Request", "1 validation error:\n  Input should be a valid dictionary", "body")
    return body


async def _fields(request: Request, *names: str) -> dict[str, str]:
    """The named text fields of the body.

    Raises:
        Rejection: one is missing or no text.
    """
    body = await _json(request)
    fields: dict[str, str] = {}
    for name in names:
        value = body.get(name)
        if not isinstance(value, str):
            what = "Input should be a valid string" if name in body else "Field required"
            raise Rejection(400, "Bad Request", f"1 validation error:\n  {what}: body.{name}", f"body.{name}")
        fields[name] = value
    return fields


def _request_id(request: Request) -> str:
    return request.headers.get("x-request-id", "")


class SimulatedServer:
    """Implements `sidecar.vllm_plugin.server.ApiServer`."""

    def __init__(self, engine: SimulatedVllm) -> None:
        self._engine = engine

    @property
    def registered(self) -> Usage[EngineAdapter]:
        return cast("Usage[EngineAdapter]", self._engine.cards)

    def lock(self, name: str) -> asyncio.Lock:
        return self._engine.name_lock(name)

    @property
    def ask_workers(self) -> None:
        """See `ApiServer.ask_workers`. A simulated engine has no modules."""
        return

    @property
    def ask_memory(self) -> None:
        """See `ApiServer.ask_memory`. A simulated engine has no workers."""
        return

    @property
    def model_name(self) -> str:
        return self._engine.options.model

    @property
    def read_base(self) -> Callable[[], dict[str, Any]] | None:
        """See `ApiServer.read_base`. Where there is no such folder, it says nothing of its base."""
        directory = Path(self._engine.options.model)
        return partial(base_files, directory) if directory.is_dir() else None

    @property
    def prober(self) -> Prober | None:
        """See `ApiServer.prober`. Its answers are a function of all of an adapter's files."""
        return self._probe if self._engine.options.proves else None

    @property
    def lister(self) -> Lister:
        return self._list

    async def _list(self, adapters: Mapping[str, EngineAdapter]) -> dict[str, Any]:
        return pages.models(self._engine, cast("Iterable[Card]", adapters.values()))

    async def _probe(self, adapter: EngineAdapter | None, prompt: Sequence[int], tokens: int) -> tuple[Step, ...]:
        made = await self._engine.generate(cast("Card | None", adapter), str(list(prompt)), tokens)
        return tuple((token.number, {token.number: token.logprob}) for token in made)

    @property
    def is_full(self) -> bool:
        return False

    @property
    def limits(self) -> Mapping[str, int | None]:
        told = self._engine.options
        return {name: getattr(told, name) for name in ("max_loras", "max_cpu_loras", "max_lora_rank")}

    @property
    def kv_connectors(self) -> list[str]:
        return list(self._engine.options.kv_connectors)

    @property
    def vocabulary(self) -> None:
        """See `ApiServer.vocabulary`. It has an answer to every number."""
        return

    def make(self, name: str, path: str, like: EngineAdapter | None) -> EngineAdapter:  # noqa: ARG002 - a card has nothing else
        return self._engine.card(name, path)

    async def add(self, adapter: EngineAdapter) -> None:
        await self._engine.add(cast("Card", adapter))

    async def remove(self, number: int) -> None:
        await self._engine.remove(number)

    async def resident(self) -> set[int]:
        return await self._engine.resident()

    def in_flight(self) -> Iterable[EngineAdapter]:
        return self._engine.bound


def plugin_routes(engine: SimulatedVllm) -> list[Route]:
    """The plugin's routes, serving `engine`, which asks the plugin for names that it does not know."""
    socket, guard = engine.options.resolver, engine.options.guard
    resolver = ResolverClient(socket, store=guard.store) if socket else None
    adapters = Adapters(SimulatedServer(engine), resolver, hide_seconds=engine.options.hide_seconds)

    async def resolve(name: str) -> Card | None:
        return cast("Card | None", await adapters.resolve(name, engine.options.model))

    engine.resolve = resolve
    return [listing_route(adapters), *routes(Plugin(adapters, guard))]


DEATH_SECONDS = 0.3  # vLLM says 503 for at least so long before its port is closed


async def serve(engine: SimulatedVllm, listener: socket.socket) -> None:
    """Serves until it is cancelled or the engine dies."""
    async with served(make_app(engine), listener) as serving:
        death = asyncio.create_task(engine.dead.wait())
        await asyncio.wait({serving, death}, return_when=asyncio.FIRST_COMPLETED)
        death.cancel()
        if engine.dead.is_set():
            await asyncio.sleep(DEATH_SECONDS)


@contextlib.asynccontextmanager
async def serving(engine: SimulatedVllm, *, port: int = 0) -> AsyncIterator[str]:
    """Serves within the body, and breaks all connections at its end; gives the base URL. Port 0: any free one."""
    listener = listen("127.0.0.1", port)
    task = asyncio.create_task(serve(engine, listener))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@contextlib.asynccontextmanager
async def served(app: Starlette, listener: socket.socket) -> AsyncIterator[asyncio.Task[None]]:
    """An application that serves within the body, and at its end dies as a killed process does."""
    server = Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", ws="none"))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield task
    finally:
        # Running requests are cancelled, and their connections break.
        task.cancel()
        for port in getattr(server, "servers", ()):  # none, if it was cancelled before it began
            port.close()
        listener.close()
        for connection in server.server_state.connections:
            connection.transport.abort()
        for running in server.server_state.tasks:
            running.cancel()
        await asyncio.gather(task, return_exceptions=True)
