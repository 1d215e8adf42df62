"""/v1/completions of a simulated engine, alike for all kinds but for how a request names an adapter."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from sidecar.engines.simulated.engine import Card, Rejection, SimulatedVllm

FindCard = Callable[[str], Awaitable[Card | None]]


async def complete(engine: SimulatedVllm, find: FindCard, request: Request) -> Response:
    """Answers from the weights that `find` gives for the request's model."""
    body = await request.json()
    try:
        tokens = await engine.generate(await find(body["model"]), body["prompt"], body.get("max_tokens", 16))
    except Rejection as error:
        return JSONResponse({"error": {"message": error.message}}, error.status)
    text = "".join(chr(token.number) for token in tokens)
    return JSONResponse({"object": "text_completion", "model": body["model"], "choices": [{"text": text}]})
