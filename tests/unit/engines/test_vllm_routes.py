"""Whether a server has a route for POST, also behind what answers 404 to any other method."""

from __future__ import annotations

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sidecar.engines.driver import EngineAbsent, EngineUnreachable, EngineUnusable
from sidecar.engines.transport import NotSent
from sidecar.engines.vllm.http import VllmHttp
from tests.support.other_engines.server import serving

PATH = "/v1/unload_lora_adapter"
MISSING = {"detail": "Not Found"}
NO_SUCH_ADAPTER = {"error": {"message": "cannot be found", "type": "NotFoundError", "param": None, "code": 404}}


async def _has_route(get: int, post: int, body: object) -> tuple[bool, list[tuple[str, bytes]]]:
    seen: list[tuple[str, bytes]] = []

    async def answer(request: Request) -> Response:
        seen.append((request.method, await request.body()))
        return JSONResponse(body, status_code=get if request.method == "GET" else post)

    async with serving(Starlette(routes=[Route(PATH, answer, methods=["GET", "POST"])])) as url:
        return await VllmHttp(url, None).has_route(PATH, 30), seen


async def test_what_answers_405_to_get_is_not_asked_further():
    assert await _has_route(405, 500, {}) == (True, [("GET", b"")])


@pytest.mark.parametrize(
    ("status", "body", "there"),
    [(400, {}, True), (422, {}, True), (404, NO_SUCH_ADAPTER, True), (404, MISSING, False), (405, MISSING, False)],
)
async def test_what_answers_404_to_get_is_asked_with_a_post_that_names_nothing(status, body, there):
    assert await _has_route(404, status, body) == (there, [("GET", b""), ("POST", b"{}")])


@pytest.mark.parametrize(("status", "error"), [(401, EngineUnusable), (502, EngineUnreachable)])
async def test_what_says_neither_is_no_answer(status, error):
    with pytest.raises(error):
        await _has_route(404, status, {})


async def test_an_engine_that_goes_away_between_the_two_is_absent(monkeypatch):
    """R18: it is told as one that nobody reaches, and not as one whose routes are odd."""

    async def answer(_: Request) -> Response:
        return JSONResponse(MISSING, status_code=404)

    async def refused(*_: object) -> list[NotSent]:
        return [NotSent("no connection")]

    async with serving(Starlette(routes=[Route(PATH, answer)])) as url:
        engine = VllmHttp(url, None)
        monkeypatch.setattr(engine, "post", refused)
        with pytest.raises(EngineAbsent, match="no connection"):
            await engine.has_route(PATH, 30)
