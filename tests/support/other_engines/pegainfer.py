"""A simulated pegainfer server; `sidecar.engines.others.pegainfer` names the source of its contract."""

from __future__ import annotations

from collections.abc import Coroutine

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from sidecar.engines.simulated.engine import Rejection, SimulatedVllm
from sidecar.engines.simulated.options import Options
from tests.support.other_engines.completions import complete


class SimulatedPegainfer:
    """One server."""

    def __init__(self, base: str = "base") -> None:
        self.core = SimulatedVllm(Options(served_model_name=base, max_cpu_loras=1000))
        self._base = base

    def app(self) -> Starlette:
        """Its routes."""
        return Starlette(
            routes=[
                Route("/v1/models", self._models),
                Route("/v1/load_lora_adapter", self._load, methods=["POST"]),
                Route("/v1/unload_lora_adapter", self._unload, methods=["POST"]),
                Route("/v1/completions", self._complete, methods=["POST"]),
            ]
        )

    async def _models(self, _: Request) -> Response:
        ids = sorted({self._base, *self.core.cards})
        cards = [{"id": one, "object": "model", "created": 0, "owned_by": "vllm-frontend-rs"} for one in ids]
        return JSONResponse({"object": "list", "data": cards})

    async def _load(self, request: Request) -> Response:
        body = await request.json()
        name, is_replaced = body["lora_name"], body.get("load_inplace", False) and body["lora_name"] in self.core.cards
        load = self._replace if is_replaced else self.core.load
        return await self._said(load(name, body["lora_path"]), name, "added")

    async def _replace(self, name: str, path: str) -> None:
        await self.core.unload(name)
        await self.core.load(name, path)

    async def _unload(self, request: Request) -> Response:
        name = (await request.json())["lora_name"]
        return await self._said(self.core.unload(name), name, "removed")

    async def _said(self, update: Coroutine[None, None, None], name: str, done: str) -> Response:
        try:
            await update
        except Rejection as error:
            return JSONResponse({"error": error.message}, 400)
        return PlainTextResponse(f"Success: LoRA adapter '{name}' {done} successfully.")

    async def _complete(self, request: Request) -> Response:
        return await complete(self.core, self.core.card_of, request)
