"""Front of the page: a plain table, a form that asks for a token, and files.

A browser cannot show a token by itself, and has no cookie of ours. So a script sends it as a header, and a browser
without scripts in the form: its answer is the table, and loading it again sends the form again.
Scripts and styles are files of the package, which tell nothing of a fleet: whoever reaches the port may read them.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib.resources import files
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from registry.admin.page.browsers import BELOW
from registry.admin.page.markup import PoolTables, fleet, refusal, sign_in
from registry.admin.page.rows import absent_rows, adapter_rows, replica_row
from registry.admin.page.stream import CallerSight, FleetParts
from registry.admin.rpc.calls import CallContext
from registry.admin.rpc.streams import all_in_time
from registry.model.errors import RegistryError
from registry.model.names import name_of_key
from registry.residency.view import PoolView
from registry.runtime.clock import Clock, rfc3339
from registry.runtime.page_guard import MAX_BODY_BYTES, error_body

_MOST_TABLES = 20
_TYPES: Mapping[str, str] = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def refusal_json(error: RegistryError, status: int) -> Response:
    """The answer to a program that is refused."""
    return JSONResponse(error_body(error.reason.value, error.message, error.field), status)


class FrontPage:
    """The page ``/``."""

    def __init__(self, parts: FleetParts, clock: Clock) -> None:
        self._parts = parts
        self._clock = clock

    async def authorization(self, request: Request) -> str:
        """The credential that a header or the form shows, as a header would."""
        if request.method != "POST":
            return request.headers.get("authorization", "")
        body = b""
        async for part in request.stream():
            body += part[: MAX_BODY_BYTES - len(body)]
        token = parse_qs(body.decode(errors="replace"), max_num_fields=10).get("token", [""])[0].strip()
        return f"Bearer {token}" if token else ""

    def stranger(self) -> Response:
        """The answer to who shows no credential: a form, and nothing of the fleet."""
        return HTMLResponse(sign_in())

    def refused(self, request: Request, error: RegistryError, status: int) -> Response:
        """The answer to who is refused; JSON for a program."""
        if "text/html" not in request.headers.get("accept", ""):
            return refusal_json(error, status)
        return HTMLResponse(sign_in(error.message) if status == 401 else refusal(error.message), status)

    async def page(self, _: Request, call: CallContext) -> Response:
        """``GET /``, or ``POST /`` with a token. Raises RegistryError where it refuses."""
        reading = CallerSight(self._parts, call)
        names = (await reading.names())[:_MOST_TABLES]
        async with AsyncExitStack() as stack:
            looked = [await stack.enter_async_context(self._parts.hub.look(pool)) for pool in names]
            await all_in_time(looked)
            views = [one.view for one in looked]
        tables = [await asyncio.to_thread(_tables, reading, view) for view in views]
        return HTMLResponse(await asyncio.to_thread(fleet, tables, rfc3339(self._clock.wall())))


def _tables(reading: CallerSight, view: PoolView) -> PoolTables:
    sight = reading.sight(view.snapshot.pool)
    keys = [key for key in sorted(view.records) if sight.is_seen(name_of_key(key))]
    rows = adapter_rows(view, keys, with_groups=False).rows
    if not sight.shows_replicas:
        return PoolTables(view.snapshot.pool, rows)
    replicas = [replica_row(view, name, is_whole=False) for name in view.everybody]
    return PoolTables(view.snapshot.pool, rows, replicas, absent_rows(view))


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file and what identifies its content."""

    body: bytes
    media_type: str
    etag: str

    async def answer(self, request: Request) -> Response:
        """The file; nothing where the browser has it already."""
        headers = {"ETag": self.etag, "Cache-Control": "no-cache"}
        if self.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(self.body, headers=headers, media_type=self.media_type)


def static_files() -> dict[str, StaticFile]:
    """Each file of the page by its name."""
    found = dict[str, StaticFile]()
    for one in sorted(files("registry.admin.page").joinpath("static").iterdir(), key=lambda entry: entry.name):
        kind = _TYPES.get(one.name.rpartition(".")[2])
        if kind is not None:
            body = one.read_bytes()
            found[one.name] = StaticFile(body, kind, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
    return found


def static_routes() -> list[Route]:
    """Route of each file."""
    return [Route(f"{BELOW}{name}", one.answer) for name, one in static_files().items()]
