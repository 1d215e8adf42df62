"""A simulated SGLang server; `sidecar.engines.others.sglang` names the sources of its contract."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from sidecar.engines.simulated.engine import Card, Rejection, SimulatedVllm
from sidecar.engines.simulated.options import Options
from tests.support.other_engines.completions import complete

POLL_SECONDS = 0.005


class SimulatedSglang:
    """One server."""

    def __init__(self, base: str = "base") -> None:
        self.core = SimulatedVllm(Options(served_model_name=base, max_cpu_loras=1000))
        self._base = base
        self._updates = asyncio.Lock()
        self._ever: dict[str, str] = {}

    def app(self) -> Starlette:
        """Its routes."""
        routes = [
            Route("/metrics", self._metrics),
            Route("/get_server_info", self._info),
            Route("/v1/models", self._models),
            Route("/load_lora_adapter", self._load, methods=["POST"]),
            Route("/unload_lora_adapter", self._unload, methods=["POST"]),
            Route("/v1/completions", self._complete, methods=["POST"]),
        ]
        return Starlette(routes=routes)

    async def _info(self, _: Request) -> Response:
        facts = {"max_loaded_loras": None, "max_lora_rank": 16, "enable_lora": True}
        return JSONResponse({"model_path": "/models/tiny", "version": "0.5.9", "internal_states": [{}], **facts})

    async def _models(self, _: Request) -> Response:
        cards = [self._card(self._base, self._base, None)]
        cards += [self._card(card.name, card.path, self._base) for card in self.core.cards.values()]
        return JSONResponse({"object": "list", "data": cards})

    def _card(self, name: str, root: str, parent: str | None) -> dict[str, object]:
        card: dict[str, object] = {"id": name, "object": "model", "created": int(time.time()), "owned_by": "sglang"}
        return {**card, "root": root, "parent": parent, "max_model_len": None}

    async def _metrics(self, _: Request) -> Response:
        labels = f'{{engine_type="unified",model_name="{self._base}"}}'
        running, waiting = len(self.core.running), len(self.core.waiting)
        text = f"sglang:num_running_reqs{labels} {running}.0\nsglang:num_queue_reqs{labels} {waiting}.0\n"
        return PlainTextResponse(text)

    async def _load(self, request: Request) -> Response:
        body = await request.json()
        return await self._said(self._do_load(body["lora_name"], body["lora_path"]))

    async def _unload(self, request: Request) -> Response:
        return await self._said(self._do_unload((await request.json())["lora_name"]))

    async def _do_load(self, name: str, path: str) -> None:
        async with self._updates:
            await self.core.load(name, path)
            self._ever[name] = path

    async def _do_unload(self, name: str) -> None:
        async with self._updates:
            await self._drop(name)

    async def _drop(self, name: str) -> None:
        """Forgets the name at once, and waits for the requests that use it."""
        card = self.core.cards.get(name)
        await self.core.unload(name)
        while card in self.core.bound:  # noqa: ASYNC110 - the engine tells nobody when a request ends
            await asyncio.sleep(POLL_SECONDS)

    async def _said(self, update: Coroutine[None, None, None]) -> Response:
        error = ""
        try:
            await update
        except Rejection as rejection:
            error = rejection.message
        loaded = {card.name: card.path for card in self.core.cards.values()}
        body = {"success": not error, "error_message": error, "loaded_adapters": loaded}
        return JSONResponse(body, 400 if error else 200)

    async def _complete(self, request: Request) -> Response:
        return await complete(self.core, self._find, request)

    async def _find(self, model: str) -> Card | None:
        """``base:adapter``; whatever has no colon is the base model. One that was ever loaded is loaded again."""
        _, _, name = model.partition(":")
        if not name:
            return None
        if name not in self.core.cards and name in self._ever:
            await self._do_load(name, self._ever[name])
        return await self.core.card_of(name)
