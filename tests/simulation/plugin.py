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

from sidecar.engines.simulated.app import SimulatedServer
from sidecar.engines.simulated.engine import Card, SimulatedVllm
from sidecar.engines.transport import Reply
from sidecar.resolver.server import Answers
from sidecar.vllm_plugin import adapters
from sidecar.vllm_plugin.adapters import Adapters
from sidecar.vllm_plugin.draining import Retired
from sidecar.vllm_plugin.guard import CONTROL_HEADER
from sidecar.vllm_plugin.listing import HIDE_SECONDS
from sidecar.vllm_plugin.protocol import (
    BadAnswer,
    Resolved,
    Unresolved,
    read_answer,
    read_question,
    write_answer,
    write_question,
)
from sidecar.vllm_plugin.resolver import ResolverClient
from sidecar.vllm_plugin.routes import PREFIX, Plugin, listing_route, routes
from sidecar.vllm_plugin.server import FilesMissing
from tests.simulation.artifacts import STORES
from tests.simulation.calls import ask
from tests.simulation.loop import Process, State, current_process

_HEADERS = [(b"host", b"localhost"), (b"content-type", b"application/json"), (CONTROL_HEADER.encode(), b"played")]
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
        """What `sidecar.resolver.server` answers. Raises ConnectionResetError: nobody listens, or it died meanwhile."""
        return await ask(self._process, self._answer(line))

    async def _answer(self, line: bytes) -> bytes:
        name = read_question(line)
        assert self._answers is not None
        return write_answer(Unresolved("bad_question") if name is None else await self._answers.ask(name))


class FileKeeper(Protocol):
    """Who knows which files there are."""

    def has(self, path: str) -> bool: ...


class PlayedResolver(ResolverClient):
    """Asks over a played socket."""

    def __init__(self, socket: Socket, files: FileKeeper) -> None:
        super().__init__("/played", now=asyncio.get_running_loop().time)
        self._played = socket
        self._files = files

    async def _asked(self, name: str, base_model: str) -> Resolved | None:
        try:
            async with asyncio.timeout(self._ask_seconds):
                found = read_answer(await self._played.ask(write_question(name, base_model)))
        except (OSError, BadAnswer):
            return None
        return found if found is not None and self._files.has(found.path) else None


class PlayedPlugin:
    """The plugin in one engine, which asks it from now on for names that it does not know."""

    def __init__(self, engine: SimulatedVllm, socket: Socket, files: FileKeeper) -> None:
        resolver = PlayedResolver(socket, files)
        self._adapters = Adapters(SimulatedServer(engine), resolver, hide_seconds=HIDE_SECONDS)
        all_routes = [listing_route(self._adapters), *routes(Plugin(self._adapters))]
        self._endpoints = {route.path: cast("Endpoint", route.endpoint) for route in all_routes}

    @property
    def retired(self) -> list[Retired]:
        """What is registered no more, and may be in use."""
        return self._adapters._drain.retired

    def is_leaving(self, card: Card) -> bool:
        """True if its name is on its way out, and not listed any more."""
        return self._adapters.listing.is_leaving(card)

    def version_of(self, card: Card) -> str:
        """What an answer of it says from now on."""
        return self._adapters.versions.of(card)

    async def strangers(self) -> list[str]:
        """The adapters that the list for everybody has."""
        cards = json.loads(await self._adapters.listing.page(whole=False))["data"]
        return [card["id"] for card in cards if card["parent"] is not None]

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
            "headers": _HEADERS,
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
            raise FilesMissing(f"no adapter in {path!r}", field="lora_path")

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
