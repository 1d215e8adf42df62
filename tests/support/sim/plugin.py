"""Our plugin inside an engine of the simulation: its own code and routes, over a played socket and files in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, cast
from unittest import mock

from starlette.requests import Request
from starlette.responses import Response

from sidecar.engines.exchange import Reply
from sidecar.engines.simulated.card import Card
from sidecar.engines.simulated.engine import SimulatedVllm
from sidecar.engines.simulated.plugin import SimulatedServer
from sidecar.lazy.server import Answers
from sidecar.lazy.wire import No, read_question, write_answer
from sidecar.vllm_plugin import adapters
from sidecar.vllm_plugin.adapters import Adapters
from sidecar.vllm_plugin.draining import Retired
from sidecar.vllm_plugin.errors import PathMissing
from sidecar.vllm_plugin.question import BadAnswer, question, read_answer
from sidecar.vllm_plugin.resolver import Resolver
from sidecar.vllm_plugin.routes import PREFIX, Plugin, routes
from tests.support.sim.artifacts import STORES
from tests.support.sim.calls import ask
from tests.support.sim.loop import Process, State, current_process

Endpoint = Callable[[Request], Awaitable[Response]]


class Socket:
    """The unix socket between an engine and its sidecar."""

    def __init__(self) -> None:
        self._process = Process("none", State.DEAD)
        self._answers: Answers | None = None

    def listen(self, answers: Answers) -> None:
        """From now on the process that calls this answers."""
        self._process, self._answers = current_process(), answers

    async def ask(self, line: bytes) -> bytes:
        """What `sidecar.lazy.server` answers. Raises ConnectionResetError: nobody listens, or it died meanwhile."""
        return await ask(self._process, self._answer(line))

    async def _answer(self, line: bytes) -> bytes:
        name = read_question(line)
        assert self._answers is not None
        return write_answer(No("bad_question") if name is None else await self._answers.ask(name))


class FileKeeper(Protocol):
    """Who knows which files there are."""

    def has(self, path: str) -> bool: ...


class PlayedResolver(Resolver):
    """Asks over a played socket."""

    def __init__(self, socket: Socket, files: FileKeeper) -> None:
        super().__init__("/played", now=asyncio.get_running_loop().time)
        self._played = socket
        self._files = files

    async def _asked(self, name: str, base_model: str) -> str | None:
        try:
            async with asyncio.timeout(self._ask_seconds):
                path = read_answer(await self._played.ask(question(name, base_model)))
        except (OSError, BadAnswer):
            return None
        return path if path is not None and self._files.has(path) else None


class PlayedPlugin:
    """The plugin in one engine, which asks it from now on for names that it does not know."""

    def __init__(self, engine: SimulatedVllm, socket: Socket, files: FileKeeper) -> None:
        self._adapters = Adapters(SimulatedServer(engine), PlayedResolver(socket, files))
        self._endpoints = {route.path: cast("Endpoint", route.endpoint) for route in routes(Plugin(self._adapters))}

    async def resolve(self, name: str, base_model: str) -> Card | None:
        """See `Adapters.resolve`."""
        return cast("Card | None", await self._adapters.resolve(name, base_model))

    def has(self, path: str) -> bool:
        """True if there is such a page."""
        return path in self._endpoints

    async def call(self, path: str, body: Mapping[str, object] | None = None) -> Reply:
        """What a request is answered; without a body it is a GET."""

        async def receive() -> dict[str, object]:
            return {"type": "http.request", "body": json.dumps(body).encode()}

        scope: dict[str, object] = {
            "type": "http",
            "method": "GET" if body is None else "POST",
            "path": path,
            "headers": [],
        }
        response = await self._endpoints[path](Request(scope, receive))
        return Reply(response.status_code, bytes(response.body))


class Played(Protocol):
    """A host of engines, as far as the plugin in them looks beyond its API server."""

    @property
    def store(self) -> FileKeeper: ...
    @property
    def coming(self) -> Iterable[Any]: ...


@contextmanager
def playing(hosts: Callable[[], Iterable[Played]]) -> Iterator[None]:
    """What is in stores in memory is found there, and is referred to by who is on the way to the queue."""
    on_disk = adapters._check_there
    referred_to: Callable[[Retired], int] = vars(Retired)["references"].fget

    async def check_there(path: str) -> None:
        if not path.startswith(STORES):
            await on_disk(path)
        elif not any(host.store.has(path) for host in hosts()):
            raise PathMissing(f"no adapter in {path!r}", field="lora_path")

    def references(retired: Retired) -> int:
        if not retired.adapter.lora_path.startswith(STORES):
            return referred_to(retired)
        return sum(card is retired.adapter for host in hosts() for card in host.coming)

    with (
        mock.patch.object(adapters, "_check_there", check_there),
        mock.patch.object(Retired, "references", property(references)),
    ):
        yield


def is_plugins(path: str) -> bool:
    """True for the plugin's pages."""
    return path.startswith(PREFIX)
