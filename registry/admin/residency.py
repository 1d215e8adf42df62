"""Where adapters are served, for routers: as a stream, and as a page that gateways may poll."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from registry.admin import wire_residency as wire
from registry.admin.calls import Call
from registry.errors import InvalidArgument, NotFound, Reason, RegistryError, Unavailable
from registry.model.names import check_adapter_name, check_segment, name_key
from registry.store.budget import Budget
from registry.store.reader import Reader
from registry.store.residency_board import Told
from registry.store.residency_boards import Boards
from registry.v1 import registry_pb2 as pb

_PAGE_SECONDS = 5.0
_HTTP_STATUSES: Mapping[type[RegistryError], int] = {InvalidArgument: 400, NotFound: 404, Unavailable: 503}


class Residency:
    """Serves both from the same boards."""

    def __init__(self, boards: Boards, reader: Reader) -> None:
        self._boards = boards
        self._reader = reader

    async def watch_residency(
        self, request: pb.WatchResidencyRequest, call: Call
    ) -> AsyncGenerator[pb.WatchResidencyResponse, None]:
        check_segment(request.pool, field="pool")
        if request.name:
            check_adapter_name(request.name)
            await self._reader.adapter(request.pool, request.name, call.budget)
        await self._reader.pool(request.pool, call.budget)
        async with self._boards.look(request.pool) as board, aclosing(board.follow()) as tellings:
            async for told in tellings:
                wanted = _only(told, name_key(request.name)) if request.name else told
                for start in wire.starts(wanted) if wanted.keys or wanted.snapshot else ():
                    yield await asyncio.to_thread(wire.response, wanted, start)

    async def page(self, request: Request) -> Response:
        """``GET /v1/residency?pool=P[&name=N]``."""
        try:
            return await self._page(request)
        except RegistryError as error:
            told = {"reason": error.reason.value, "message": error.message, "field": error.field}
            return JSONResponse({"error": told}, status_code=_HTTP_STATUSES.get(type(error), 500))

    async def _page(self, request: Request) -> Response:
        pool, name = _asked(request)
        await self._reader.pool(pool, Budget.of(_PAGE_SECONDS))
        async with self._boards.look(pool) as board:
            told = await _in_time(board.look())
        headers = {"ETag": f'"{board.epoch}.{told.version}"', "Cache-Control": "no-cache"}
        if headers["ETag"] in _etags(request):
            return Response(status_code=304, headers=headers)
        keys = told.keys if name is None else (name_key(name),)
        if name is not None and told.view.adapter(keys[0]) is None:
            raise NotFound(
                Reason.ADAPTER_NOT_FOUND,
                f"there is no adapter {name!r} in pool {pool!r}, or none that can be read",
                field="name",
            )
        return StreamingResponse(_json(pool, told, keys), headers=headers, media_type="application/json")


def _only(told: Told, key: str) -> Told:
    """What is told of one adapter."""
    return replace(told, keys=(key,) if key in told.keys else ())


def _asked(request: Request) -> tuple[str, str | None]:
    """The pool and the name that are asked for.

    Raises:
        InvalidArgument: there is no pool, or one of them cannot be a name.
    """
    pool, name = request.query_params.get("pool"), request.query_params.get("name")
    if not pool:
        raise InvalidArgument(Reason.INVALID_FIELD, "say which pool: /v1/residency?pool=POOL", field="pool")
    check_segment(pool, field="pool")
    if name is not None:
        check_adapter_name(name)
    return pool, name


def _etags(request: Request) -> list[str]:
    given = request.headers.get("if-none-match", "")
    return [one.strip().removeprefix("W/") for one in given.split(",")]


async def _in_time(look: Awaitable[Told]) -> Told:
    try:
        async with asyncio.timeout(_PAGE_SECONDS):
            return await look
    except TimeoutError as error:
        raise Unavailable(Reason.ETCD_UNAVAILABLE, "the pool could not be read in time; ask again") from error


async def _json(pool: str, told: Told, keys: Sequence[str]) -> AsyncIterator[str]:
    """One JSON document, written as far as it is derived."""
    yield f'{{"pool": {json.dumps(pool)}, "revision": {told.view.revision}, "adapters": ['
    parts, separator = wire.documents(told.view, keys), ""
    while part := await asyncio.to_thread(next, parts, None):
        yield separator + ", ".join(map(json.dumps, part))
        separator = ", "
    yield "]}"
