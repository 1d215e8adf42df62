"""The HTTP between the real driver and an engine, played: the same answers, without sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sidecar.engines.driver import EngineAbsent, EngineUnreachable
from sidecar.engines.simulated import pages
from sidecar.engines.simulated.engine import EngineDead, Rejection
from sidecar.engines.transport import Lost, NotSent, PostRequest, Reply, unheard
from sidecar.engines.vllm.plugin_calls import STATE_PATH
from tests.simulation.engines import HALF, EngineHost, SimEngine, noted, waited_for
from tests.simulation.plugin import is_plugins


class SimHttp:
    """In place of `sidecar.engines.vllm.http.VllmHttp`: the same answers, without sockets."""

    def __init__(
        self,
        host: EngineHost,
        on_call: Callable[[EngineHost, PostRequest], None],
        on_twice: Callable[[EngineHost, set[str]], None],
    ) -> None:
        self.url = host.url
        self._on_twice = on_twice
        self._host = host
        self._on_call = on_call
        self._out: set[str] = set()

    async def get(self, paths: Sequence[str], timeout_seconds: float, *, optional: str = "") -> list[bytes]:
        """See `VllmHttp.get`."""
        return [body or b"" for body in await self._get(paths, timeout_seconds)]

    async def _get(self, paths: Sequence[str], timeout_seconds: float) -> list[bytes | None]:
        """The pages; None for one that there is not."""
        with waited_for(self._host.questions):
            return await self._answered(paths, timeout_seconds)

    async def _answered(self, paths: Sequence[str], timeout_seconds: float) -> list[bytes | None]:
        try:
            async with asyncio.timeout(timeout_seconds):
                asked_at = asyncio.get_running_loop().time()
                await asyncio.sleep(self._host.rng.uniform(0.0002, 0.002))
                if self._host.engine is None:
                    raise EngineAbsent(f"{self.url}: connection refused")
                for path in {one for one in paths if self._host.broken.get(one, HALF) != HALF}:
                    raise EngineUnreachable(f"{self.url}{path} answers HTTP {self._host.broken[path]}")
                bodies = await self._host.ask(_pages(self._host, self._host.engine, paths))
                await self._host.dawdle()
                if STATE_PATH in paths:
                    self._host.evidence.append(asked_at)
                self._host.listed_at = asked_at if "/v1/models" in paths else self._host.listed_at
                return bodies
        except (TimeoutError, ConnectionResetError) as error:
            raise EngineUnreachable(f"{self.url}: {error}") from error

    async def find(self, path: str, timeout_seconds: float) -> bytes | None:
        """See `VllmHttp.find`."""
        [body] = await self._get([path], timeout_seconds)
        return body

    async def has_route(self, _path: str, timeout_seconds: float) -> bool:
        """See `VllmHttp.has_route`."""
        await self.get(["/health"], timeout_seconds)
        return True

    async def completes(self, _model: str) -> bool | None:
        """See `VllmHttp.completes`."""
        if self._host.engine is None:
            return False
        if self._host.broken.get("/v1/completions") in {404, 405, 501}:
            return None
        asked_at = asyncio.get_running_loop().time()
        with waited_for(self._host.questions):
            await self._host.dawdle()
            found = await self._generates(self._host.engine)
        if found and self._host.socket is None:
            self._host.evidence.append(asked_at)
        return found

    async def _generates(self, engine: SimEngine | None) -> bool:
        """Whether an engine completes a prompt; None: it has ended meanwhile."""
        try:
            if engine is not None:
                await self._host.ask(engine.generate(None, ".", 1))
        except (ConnectionResetError, EngineDead):
            return False
        return engine is not None

    async def post(
        self,
        requests: Sequence[PostRequest],
        _request_id: str,
        timeout_seconds: float,
        on_sent: Callable[[], None] = unheard,
    ) -> Sequence[Reply | Lost | NotSent]:
        """See `VllmHttp.post`."""
        host = self._host
        await asyncio.sleep(host.rng.uniform(0.0002, 0.002))
        if host.engine is None:
            return [NotSent("connection refused")] * len(requests)
        on_sent()
        odd = host.odd.pop(0) if host.odd else ""
        names = {str(request.body["lora_name"]) for request in requests if "lora_name" in request.body}
        host.let_go -= names
        if odd == "lost request":
            host.let_go |= names - {str(one.body["lora_name"]) for one in requests if "lora_path" in one.body}
            return [Lost("the connection broke")] * len(requests)
        if odd == "busy":
            return [Reply(429, b"slow down")] * len(requests)
        for request in (one for one in requests if "lora_name" in one.body):
            self._on_call(host, request)
        if twice := names & self._out:
            self._on_twice(host, twice)
        self._out |= names
        try:
            with noted(host.calls):
                return await self._converse(requests, timeout_seconds, is_lost=odd == "lost reply")
        finally:
            self._out -= names

    async def _converse(
        self, requests: Sequence[PostRequest], timeout_seconds: float, *, is_lost: bool
    ) -> Sequence[Reply | Lost | NotSent]:
        host = self._host
        answers: list[Reply | Lost | NotSent] = []
        conversation = _Conversation(host, requests, answers)
        try:
            async with asyncio.timeout(timeout_seconds):
                await host.ask(conversation.run())
                await host.dawdle()
        except (TimeoutError, ConnectionResetError) as error:
            conversation.is_over = True
            return [*answers, *[Lost(f"no answer: {error}")] * (len(requests) - len(answers))]
        return [Lost("the connection broke")] * len(requests) if is_lost else answers

    async def aclose(self) -> None:
        """See `VllmHttp.aclose`."""


@dataclass
class _Conversation:
    """Requests that came in one piece: carried out in order, the later ones perhaps not if the client has gone."""

    host: EngineHost
    requests: Sequence[PostRequest]
    answers: list[Reply | Lost | NotSent]
    is_over: bool = False

    async def run(self) -> None:
        await self.host.dawdle()
        for request in self.requests:
            if self.is_over and self.host.rng.random() < 0.5:
                return
            self.answers.append(await self._answer(request))

    async def _answer(self, request: PostRequest) -> Reply:
        if is_plugins(request.path):
            return await self.host.call_plugin(request.path, request.body)
        name, path = str(request.body["lora_name"]), request.body.get("lora_path")
        try:
            if path is not None:
                await self.host.load(name, str(path))
            else:
                await self.host.unload(name)
        except Rejection as rejection:
            return Reply(rejection.status, json.dumps(pages.error_body(rejection)).encode())
        return Reply(200, b"Success")


async def _pages(host: EngineHost, engine: SimEngine, paths: Sequence[str]) -> list[bytes | None]:
    """The bodies, with room for other requests between them; None: there is no such page."""
    bodies = []
    for path in paths:
        if path == STATE_PATH:
            await asyncio.sleep(host.rng.uniform(0.0, host.step_seconds))
        is_half = host.broken.get(path) == HALF
        bodies.append(await _plugins_page(engine, path) if is_plugins(path) else _page(engine, path, is_half))
        await asyncio.sleep(0.0)
        await host.dawdle()
    return bodies


async def _plugins_page(engine: SimEngine, path: str) -> bytes | None:
    if engine.plugin is None:
        return None
    reply = await engine.plugin.call(path)
    if reply.status != 200:
        raise EngineUnreachable(f"{path} answers HTTP {reply.status}")
    return reply.body


def _halved(listing: dict[str, Any]) -> dict[str, Any]:
    """A listing whose last adapter is not told as it should be."""
    *cards, last = listing["data"]
    return listing if last["parent"] is None else listing | {"data": [*cards, last | {"root": None}]}


def _page(engine: SimEngine, path: str, is_half: bool) -> bytes | None:
    match path:
        case "/is_sleeping" | "/is_paused":
            told = {"is_sleeping": engine.is_paused, "is_paused": engine.is_paused and not engine.sleeps}
            field = path.removeprefix("/")
            return json.dumps({field: told[field]}).encode() if engine.options.development else None
        case "/metrics":
            return pages.metrics(engine).encode()
        case "/v1/models":
            listing = pages.models(engine, engine.listed)
            return json.dumps(_halved(listing) if is_half else listing).encode()
        case "/version":
            return json.dumps({"version": engine.options.version}).encode()
        case _:
            return b""


def http_for(
    hosts: Mapping[str, EngineHost],
    on_call: Callable[[EngineHost, PostRequest], None],
    on_twice: Callable[[EngineHost, set[str]], None] = lambda _host, _names: None,
) -> Callable[..., SimHttp]:
    """A constructor to stand in for `VllmHttp`."""

    def make(url: str, _api_key_file: Path | None, *, control_token_file: Path | None = None) -> SimHttp:
        return SimHttp(hosts[url], on_call, on_twice)

    return make
