"""The plugin's routes, below ``/v1/`` so that ``--api-key`` guards them. starlette comes with vLLM."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from sidecar.vllm_plugin.adapters import Adapters
from sidecar.vllm_plugin.bodies import read_fields
from sidecar.vllm_plugin.errors import PluginError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

_log = logging.getLogger("vllm.loraplane")
PREFIX = "/v1/loraplane"
SCHEMA = 1
CAPABILITIES = ("swap", "unload", "state", "uses")
Endpoint = Callable[[Adapters, "Request"], Awaitable[dict[str, object]]]


class Plugin:
    """What the routes serve. Until there are `adapters` they answer 404, as if there were no plugin."""

    def __init__(self, adapters: Adapters | None = None) -> None:
        self.adapters = adapters
        self.incarnation = os.urandom(8).hex()

    async def about(self, adapters: Adapters, _: Request) -> dict[str, object]:
        """That there is a plugin, what it can do, and what the engine can hold."""
        can = [*CAPABILITIES, *(["resolve"] if adapters.resolves else [])]
        return {"schema": SCHEMA, "incarnation": self.incarnation, "capabilities": can, "limits": adapters.limits}

    async def state(self, adapters: Adapters, _: Request) -> dict[str, object]:
        """See `Adapters.state`."""
        return {"schema": SCHEMA, "incarnation": self.incarnation, **await adapters.state()}

    async def uses(self, adapters: Adapters, _: Request) -> dict[str, object]:
        """See `Adapters.last_used`. Unlike the state it does not ask the engine, which may be within a step."""
        return {"schema": SCHEMA, "incarnation": self.incarnation, "last_used": adapters.last_used()}


async def _swap(adapters: Adapters, request: Request) -> dict[str, object]:
    fields = await read_fields(request.stream(), "lora_name", "lora_path", "expected_path")
    name, path = fields["lora_name"], fields["lora_path"]
    await adapters.swap(name, path, fields["expected_path"])
    _log.info("loraplane: swapped %r to %r", name, path)
    return {"lora_name": name, "lora_path": path}


async def _unload(adapters: Adapters, request: Request) -> dict[str, object]:
    name = (await read_fields(request.stream(), "lora_name"))["lora_name"]
    await adapters.unload(name)
    _log.info("loraplane: unloaded %r", name)
    return {"lora_name": name}


def routes(plugin: Plugin) -> list[Route]:
    """The routes, for a starlette or fastapi application."""
    from starlette.routing import Route  # noqa: PLC0415 - only where there is a server

    served: tuple[tuple[str, str, Endpoint], ...] = (
        ("GET", "/plugin", plugin.about),
        ("GET", "/state", plugin.state),
        ("GET", "/uses", plugin.uses),
        ("POST", "/swap", _swap),
        ("POST", "/unload", _unload),
    )
    return [Route(PREFIX + path, _answer(plugin, endpoint), methods=[method]) for method, path, endpoint in served]


def _answer(plugin: Plugin, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    from starlette.responses import JSONResponse  # noqa: PLC0415 - only where there is a server

    async def answer(request: Request) -> Response:
        if plugin.adapters is None:
            return JSONResponse({"detail": "Not Found"}, 404)
        try:
            return JSONResponse(await endpoint(plugin.adapters, request))
        except PluginError as error:
            return JSONResponse(_error_body(error), error.status)

    return answer


def _error_body(error: PluginError) -> dict[str, object]:
    """In the form of vLLM's own errors; `type` is our stable reason."""
    fields = {"message": error.message[:2000], "type": error.reason, "param": error.field, "code": error.status}
    return {"error": fields}
