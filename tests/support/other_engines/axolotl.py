"""A simulated server of axolotl's; `sidecar.engines.others.axolotl` names the sources of its contract."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from sidecar.engines.simulated.engine import Card, EngineDead, SimulatedVllm
from sidecar.engines.simulated.options import Options

TYPES = {"lora_name": str, "lora_int_id": int, "lora_path": str}


class SimulatedAxolotl:
    """One server.

    Attributes:
        active: what every request is answered with.
        told: what it was told to answer with, all of it.
    """

    def __init__(self, base: str = "base") -> None:
        # The name alone tells weights in its prefix cache, as in the vLLM that most of its releases ask for.
        self.core = SimulatedVllm(Options(served_model_name=base, max_cpu_loras=2, version="0.30.1"))
        self.active: Card | None = None
        self.told: list[Card | None] = []
        self._base = base

    def app(self) -> Starlette:
        """Its routes."""
        routes = [
            Route("/v1/models", self._models),
            Route("/health/", self._health),
            Route("/set_lora_adapter/", self._set, methods=["POST"]),
            Route("/clear_lora_adapter/", self._clear, methods=["POST"]),
            Route("/generate/", self._generate, methods=["POST"]),
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
        ]
        return Starlette(routes=routes)

    async def _health(self, _: Request) -> Response:
        if self.core.dead.is_set():
            return JSONResponse({"status": "unhealthy", "dead_workers": [0], "message": "Worker(s) died."}, 503)
        return JSONResponse({"status": "ok"})

    async def _models(self, _: Request) -> Response:
        card = {"id": self._base, "object": "model", "owned_by": "axolotl"}
        return JSONResponse({"object": "list", "data": [card]})

    async def _set(self, request: Request) -> Response:
        """Keeps whatever has the right types; nothing is read."""
        body = await request.json()
        wrong = [name for name, kind in TYPES.items() if not isinstance(body.get(name), kind)]
        if wrong:
            return JSONResponse({"detail": [{"loc": ["body", name], "msg": "Field required"} for name in wrong]}, 422)
        return await self._be_told(Card(body["lora_name"], body["lora_path"], body["lora_int_id"]))

    async def _clear(self, _: Request) -> Response:
        return await self._be_told(None)

    async def _be_told(self, card: Card | None) -> Response:
        self.active = card
        self.told.append(card)
        return JSONResponse({"status": "ok"})

    async def _generate(self, request: Request) -> Response:
        body = await request.json()
        active, tokens = self.active, body.get("max_tokens", 16)
        answers = [await self._answer(active, prompt, tokens) for prompt in body["prompts"]]
        if None in answers:
            return PlainTextResponse("Internal Server Error", 500)
        return JSONResponse({"completion_ids": answers})

    async def _chat(self, request: Request) -> Response:
        """Of the request's model it reads nothing."""
        body = await request.json()
        answer = await self._answer(self.active, str(body["messages"]), body.get("max_tokens", 16))
        if answer is None:
            return PlainTextResponse("Internal Server Error", 500)
        message = {"role": "assistant", "content": "".join(map(chr, answer))}
        return JSONResponse({"model": self._base, "choices": [{"index": 0, "message": message}]})

    async def _answer(self, card: Card | None, prompt: str, tokens: int) -> list[int] | None:
        try:
            return [token.number for token in await self.core.generate(card, prompt, tokens)]
        except EngineDead:
            return None
