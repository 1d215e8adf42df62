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
    """One worker. `lora_enabled` False: without DYN_LORA_ENABLED; `has_endpoints` False: it is still starting.

    What its frontend has on another port, completions, it answers itself.
    """

    def __init__(self, base: str = "base", *, lora_enabled: bool = True, has_endpoints: bool = True) -> None:
        self.core = SimulatedVllm(Options(served_model_name=base, max_cpu_loras=1000))
        self._lora_enabled = lora_enabled
        self._has_endpoints = has_endpoints

    def app(self) -> Starlette:
        """Its routes."""
        routes = [Route("/health", self._health), Route("/v1/completions", self._complete, methods=["POST"])]
        if self._lora_enabled:
            routes += [
                Route("/v1/loras", self._list),
                Route("/v1/loras", self._load, methods=["POST"]),
                Route("/v1/loras/{name:path}", self._unload, methods=["DELETE"]),
            ]
        return Starlette(routes=routes)

    async def _health(self, _: Request) -> Response:
        status = "ready" if self._has_endpoints else "notready"
        return PlainTextResponse(f'{{"status": "{status}"}}', 200 if self._has_endpoints else 503)

    async def _list(self, _: Request) -> Response:
        if not self._has_endpoints:
            return _not_found("list_loras")
        loras = {name: _number(name) for name in self.core.cards}
        return JSONResponse({"status": "success", "loras": loras, "count": len(loras)})

    async def _load(self, request: Request) -> Response:
        body = await request.json()
        name, uri = body["lora_name"], body["source"]["uri"]
        return await self._said("load_lora", name, self._do_load(name, uri))

    async def _do_load(self, name: str, uri: str) -> None:
        """A name that is there is a success, and stays what it was."""
        if name not in self.core.cards:
            await self.core.load(name, uri.removeprefix("file://"))

    async def _unload(self, request: Request) -> Response:
        name = request.path_params["name"]
        return await self._said("unload_lora", name, self.core.unload(name))

    async def _said(self, endpoint: str, name: str, update: Coroutine[None, None, None]) -> Response:
        try:
            if not self._has_endpoints:
                return _not_found(endpoint)
            await update
        except Rejection as error:
            return JSONResponse({"status": "error", "message": error.message})
        finally:
            update.close()
        return JSONResponse({"status": "success", "message": "done", "lora_name": name, "lora_id": _number(name)})

    async def _complete(self, request: Request) -> Response:
        return await complete(self.core, self.core.card_of, request)


def _number(name: str) -> int:
    return zlib.crc32(name.encode())


def _not_found(endpoint: str) -> Response:
    return JSONResponse({"status": "error", "message": f"Endpoint '{endpoint}' not found in local registry."}, 500)
