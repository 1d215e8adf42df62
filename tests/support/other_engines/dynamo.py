"""A simulated Dynamo worker's system port; `sidecar.engines.others.dynamo` names the sources of its contract."""

from __future__ import annotations

import zlib
from collections.abc import Coroutine

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from sidecar.engines.simulated.engine import Rejection, SimulatedVllm
from sidecar.engines.simulated.options import Options
from tests.support.other_engines.completions import complete


class SimulatedDynamo:
    """One worker. What its frontend has on another port, completions, it answers itself."""

    def __init__(self, base: str = "base") -> None:
        self.core = SimulatedVllm(Options(served_model_name=base, max_cpu_loras=1000))

    def app(self) -> Starlette:
        """Its routes."""
        return Starlette(
            routes=[
                Route("/health", self._health),
                Route("/v1/completions", self._complete, methods=["POST"]),
                Route("/v1/loras", self._list),
                Route("/v1/loras", self._load, methods=["POST"]),
                Route("/v1/loras/{name:path}", self._unload, methods=["DELETE"]),
            ]
        )

    async def _health(self, _: Request) -> Response:
        return PlainTextResponse('{"status": "ready"}')

    async def _list(self, _: Request) -> Response:
        loras = {name: _number(name) for name in self.core.cards}
        return JSONResponse({"status": "success", "loras": loras, "count": len(loras)})

    async def _load(self, request: Request) -> Response:
        body = await request.json()
        name, uri = body["lora_name"], body["source"]["uri"]
        return await self._said(name, self._do_load(name, uri))

    async def _do_load(self, name: str, uri: str) -> None:
        """A name that is there is a success, and stays what it was."""
        if name not in self.core.cards:
            await self.core.load(name, uri.removeprefix("file://"))

    async def _unload(self, request: Request) -> Response:
        name = request.path_params["name"]
        return await self._said(name, self.core.unload(name))

    async def _said(self, name: str, update: Coroutine[None, None, None]) -> Response:
        try:
            await update
        except Rejection as error:
            return JSONResponse({"status": "error", "message": error.message})
        return JSONResponse({"status": "success", "message": "done", "lora_name": name, "lora_id": _number(name)})

    async def _complete(self, request: Request) -> Response:
        return await complete(self.core, self.core.card_of, request)


def _number(name: str) -> int:
    return zlib.crc32(name.encode())
