"""Routes of the plugin below ``/v1/``, behind ``--api-key`` and `Guard`.

Bodies are bounded in size, time and length of every field.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

from .adapters import Adapters
from .answers import is_version
from .guard import ANYONE_BESIDE, CONTROL_HEADER, Guard
from .listing import MAX_HIDE_SECONDS
from .protocol import MAX_EXPECT_CHARACTERS
from .server import DeadlinePassed, InvalidRequest, PluginError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route


MAX_BODY_BYTES = 64 * 1024
MAX_HIDING_BYTES = 1024 * 1024  # names of all that one replica serves
MAX_NAME_LENGTH = 256
MAX_PATH_LENGTH = 4096
BODY_SECONDS = 10.0
LEFT = 499  # as proxies write down that the client went before the answer


async def read_fields(stream: AsyncIterator[bytes], *names: str, optional: str = "") -> dict[str, str]:
    """The named text fields of the JSON object that `stream` brings; the `optional` one is empty if it is missing.

    Raises:
        InvalidRequest: it is too large, no JSON object, or a field is missing, no text, empty or too long.
        DeadlinePassed: it did not come in time.
    """
    fields = _object(await _in_time(stream))
    found = {name: _text(name, fields.get(name)) for name in names}
    return found | ({optional: _expectation(optional, fields.get(optional, ""))} if optional else {})


async def read_hiding(stream: AsyncIterator[bytes]) -> tuple[float, frozenset[str]]:
    """``hide_seconds`` of the JSON object that `stream` brings, and its ``kept`` names; raises as `read_fields`."""
    fields = _object(await _in_time(stream, MAX_HIDING_BYTES))
    kept = fields.get("kept", [])
    if not isinstance(kept, list):
        raise InvalidRequest("kept must be a list of names", field="kept")
    match fields.get("hide_seconds"):
        case int() | float() as seconds if not isinstance(seconds, bool) and 0 <= seconds <= MAX_HIDE_SECONDS:
            return float(seconds), frozenset(_text("kept", name) for name in kept)
    raise InvalidRequest(f"hide_seconds must be a number from 0 to {MAX_HIDE_SECONDS:g}", field="hide_seconds")


async def read_versions(stream: AsyncIterator[bytes]) -> list[tuple[str, str, str]]:
    """Rows of name, path and version in the JSON object that `stream` brings; raises as `read_fields`."""
    rows = _object(await _in_time(stream)).get("versions")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InvalidRequest("versions must be a list of objects", field="versions")
    return [(_text("lora_name", row.get("lora_name")), *_path_and_version(row)) for row in rows]


def _path_and_version(row: dict[str, object]) -> tuple[str, str]:
    version = row.get("version")
    if not isinstance(version, str) or not is_version(version):
        raise InvalidRequest("version must be NAME@GENERATION sha256:HEX", field="version")
    return _text("lora_path", row.get("lora_path")), version


async def _in_time(stream: AsyncIterator[bytes], most_bytes: int = MAX_BODY_BYTES) -> bytes:
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await _read(stream, most_bytes)
    except TimeoutError as error:
        raise DeadlinePassed(f"the body did not come within {BODY_SECONDS:g} s") from error


async def _read(stream: AsyncIterator[bytes], most_bytes: int) -> bytes:
    body = bytearray()
    async for chunk in stream:
        body += chunk
        if len(body) > most_bytes:
            raise InvalidRequest(f"a body of more than {most_bytes} bytes", field="body")
    return bytes(body)


def _object(body: bytes) -> dict[str, object]:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the body is no JSON: {error}", field="body") from error
    if not isinstance(fields, dict):
        raise InvalidRequest("the body is no JSON object", field="body")
    return fields


def _expectation(name: str, value: object) -> str:
    if not isinstance(value, str) or len(value) > MAX_EXPECT_CHARACTERS:
        raise InvalidRequest(f"{name} must be text of at most {MAX_EXPECT_CHARACTERS} characters", field=name)
    return value


def _text(name: str, value: object) -> str:
    is_name = name in {"lora_name", "kept"}
    limit = MAX_NAME_LENGTH if is_name else MAX_PATH_LENGTH
    if not isinstance(value, str) or not 0 < len(value) <= limit or "\0" in value:
        raise InvalidRequest(f"{name} must be text of 1 to {limit} characters", field=name)
    if not is_name and not value.startswith("/"):
        raise InvalidRequest(f"{name} must be an absolute path", field=name)
    return value


_log = logging.getLogger("vllm.loraplane")
PREFIX = "/v1/loraplane"
MODELS_PATH = "/v1/models"
SCHEMA = 1
CAPABILITIES = ("swap", "unload", "state", "uses", "changes", "versions")
Endpoint = Callable[[Adapters, "Request"], Awaitable[dict[str, object]]]


class Plugin:
    """State behind the routes, and callers. Until there are `adapters` they answer 404, as if there were no plugin."""

    def __init__(self, adapters: Adapters | None = None, guard: Guard = ANYONE_BESIDE) -> None:
        self.adapters = adapters
        self.guard = guard
        self.incarnation = os.urandom(8).hex()

    async def about(self, adapters: Adapters, _: Request) -> dict[str, object]:
        """Description of the plugin, its abilities, and the engine's limits."""
        can = [*CAPABILITIES, *adapters.abilities]
        told = {"limits": adapters.limits, "kv_connectors": adapters.kv_connectors}
        return {"schema": SCHEMA, "incarnation": self.incarnation, "capabilities": can, **told}

    def page(self, told: Callable[[Adapters], Awaitable[dict[str, object]]]) -> Endpoint:
        """A page of what the adapters tell."""

        async def answer(adapters: Adapters, _: Request) -> dict[str, object]:
            return {"schema": SCHEMA, "incarnation": self.incarnation, **await told(adapters)}

        return answer

    async def uses(self, adapters: Adapters, _: Request) -> dict[str, object]:
        """See `Adapters.last_used`. Unlike the state it does not ask the engine, which may be within a step."""
        used = {"last_used": adapters.last_used(), "requests": adapters.requests(), "in_flight": adapters.in_flight()}
        prover = adapters.prover
        found = {"no_effect": prover.without_effect, "as_expected": prover.as_expected, "unexpected": prover.unexpected}
        return {**await self.changes(adapters, _), **used, **found}

    async def changes(self, adapters: Adapters, _: Request) -> dict[str, object]:
        """See `Adapters.changes`; short, for who asks twice a second. Proofs that were put off are made then."""
        adapters.prover.look_later()
        return {"schema": SCHEMA, "incarnation": self.incarnation, "changes": adapters.changes}

    async def prove(self, adapters: Adapters, request: Request) -> dict[str, object]:
        """See `Adapters.prove`."""
        fields = await read_fields(request.stream(), "lora_path", optional="expect")
        await self.guard.check_path(fields["lora_path"], fields["lora_path"])
        return {"schema": SCHEMA, **await adapters.prove(fields["lora_path"], fields["expect"])}

    async def swap(self, adapters: Adapters, request: Request) -> dict[str, object]:
        """See `Adapters.swap`."""
        fields = await read_fields(request.stream(), "lora_name", "lora_path", "expected_path")
        name, path, expected = fields["lora_name"], fields["lora_path"], fields["expected_path"]
        await self.guard.check_path(path, expected)
        await adapters.swap(name, path, expected)
        _log.info("loraplane: swapped %r to %r", name, path)
        return {"lora_name": name, "lora_path": path}

    async def show(self, adapters: Adapters, request: Request) -> dict[str, object]:
        """See `Adapters.show`."""
        fields = await read_fields(request.stream(), "lora_name", "lora_path")
        name, path = fields["lora_name"], fields["lora_path"]
        await self.guard.check_path(path, adapters.path_of(name))
        await adapters.show(name, path)
        _log.info("loraplane: listed %r again", name)
        return {"lora_name": name}


async def _hide(adapters: Adapters, request: Request) -> dict[str, object]:
    seconds, kept = await read_hiding(request.stream())
    adapters.listing.hide_all(seconds, kept)
    return {"hide_seconds": seconds}


async def _tell_versions(adapters: Adapters, request: Request) -> dict[str, object]:
    rows = await read_versions(request.stream())
    for name, path, version in rows:
        adapters.versions.tell(name, path, version)
    return {"schema": SCHEMA, "versions": len(rows)}


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
        ("GET", "/state", plugin.page(Adapters.state)),
        ("GET", "/uses", plugin.uses),
        ("GET", "/coverage", plugin.page(Adapters.coverage)),
        ("GET", "/base", plugin.page(Adapters.base)),
        ("GET", "/changes", plugin.changes),
        ("POST", "/prove", plugin.prove),
        ("POST", "/swap", plugin.swap),
        ("POST", "/unload", _unload),
        ("POST", "/show", plugin.show),
        ("POST", "/versions", _tell_versions),
        ("POST", "/hide", _hide),
    )
    return [Route(PREFIX + path, _answer(plugin, endpoint), methods=[method]) for method, path, endpoint in served]


def listing_route(adapters: Adapters) -> Route:
    """The list of models in place of the server's own. Whoever sends the sidecar's header gets the sidecar's."""
    from starlette.responses import Response  # noqa: PLC0415 - only where there is a server
    from starlette.routing import Route  # noqa: PLC0415 - likewise

    async def models(request: Request) -> Response:
        page = await adapters.listing.page(whole=CONTROL_HEADER in request.headers)
        return Response(page, media_type="application/json")

    route = Route(MODELS_PATH, models, methods=["GET"])
    route.methods = {"GET"}  # the server has no other either
    return route


def _answer(plugin: Plugin, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    from starlette.requests import ClientDisconnect  # noqa: PLC0415 - only where there is a server
    from starlette.responses import JSONResponse, Response  # noqa: PLC0415 - likewise

    async def answer(request: Request) -> Response:
        # Nor is there one for a sidecar of a release that does not know the header: it can do without.
        if plugin.adapters is None or CONTROL_HEADER not in request.headers:
            return JSONResponse({"detail": "Not Found"}, 404)
        try:
            await plugin.guard.admit(request.method, request.headers)
            return JSONResponse(await endpoint(plugin.adapters, request))
        except PluginError as error:
            return JSONResponse(_error_body(error), error.status)
        except ClientDisconnect:
            return Response(status_code=LEFT)  # to nobody: whoever asked has gone

    return answer


def _error_body(error: PluginError) -> dict[str, object]:
    """In the form of vLLM's own errors; `type` is our stable reason."""
    fields = {"message": error.message[:2000], "type": error.reason, "param": error.field, "code": error.status}
    return {"error": fields}
