"""A simulated engine in this process, without its port: requests of a driver, answered by its application."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from starlette.types import ASGIApp, Message, Scope

from sidecar.engines.driver import UNTOLD, USUAL, Deadlines
from sidecar.engines.load_ledger import LoadLedger
from sidecar.engines.observed import EngineLimits
from sidecar.engines.simulated.app import make_app
from sidecar.engines.simulated.engine import SimulatedVllm
from sidecar.engines.simulated.options import Options
from sidecar.engines.transport import MAX_REPLY_BYTES, GetRequest, Lost, NotSent, PostRequest, Reply, Request
from sidecar.engines.vllm.driver import VllmEngine

URL = "http://127.0.0.1:8000"
PLAIN = Options(served_model_name="base", model="/models/base")
WITH_PLUGIN = replace(PLAIN, plugin=True)
DEADLINES = Deadlines(1, 2, 4, 8, 16, 32)
METHODS = {GetRequest: "GET", PostRequest: "POST"}
Asked = tuple[str, str, Mapping[str, object]]


@dataclass
class InMemory:
    """Stands for the way to an engine, as `sidecar.engines.transport.Transport`.

    Attributes:
        app: what answers.
        asked: method, path and body of each request, in the order in which they were answered.
        together: the paths that were sent in one piece, of each call.
        seconds: how long each of these may take.
        headers: of the last of these.
        instead: what is answered in place of the application, by path and in order; None: the application is asked.
        hangs: paths for which the application is asked, and never answers.
        before: what happens before the application is asked for a path.
        is_there: False: no connection can be made.
    """

    app: ASGIApp
    asked: list[Asked] = field(default_factory=list)
    together: list[tuple[str, ...]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    headers: Mapping[str, str] = field(default_factory=dict)
    instead: defaultdict[str, deque[Reply | Lost | None]] = field(default_factory=lambda: defaultdict(deque))
    hangs: set[str] = field(default_factory=set)
    before: dict[str, Callable[[], None]] = field(default_factory=dict)
    is_there: bool = True
    _running: set[asyncio.Task[Reply | Lost]] = field(default_factory=set)

    async def send(
        self,
        requests: Sequence[Request],
        headers: Mapping[str, str],
        *,
        timeout_seconds: float,
        max_reply_bytes: int = MAX_REPLY_BYTES,
        on_sent: Callable[[], None] = lambda: None,
    ) -> list[Reply | Lost] | NotSent:
        """See `Transport.send`. A request for which nobody waits any more goes on."""
        if not self.is_there:
            return NotSent("nobody is there")
        self.headers = headers
        self.together.append(tuple(request.path for request in requests))
        self.seconds.append(timeout_seconds)
        on_sent()
        answers: list[Reply | Lost] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                for request in requests:
                    task = asyncio.create_task(self._answer(request, headers))
                    self._running.add(task)
                    task.add_done_callback(self._running.discard)
                    answer = await asyncio.shield(task)
                    is_large = isinstance(answer, Reply) and len(answer.body) > max_reply_bytes
                    answers.append(Lost(f"a reply of more than {max_reply_bytes} bytes") if is_large else answer)
        return [*answers, *[Lost("no answer in time")] * (len(requests) - len(answers))]

    async def _answer(self, request: Request, headers: Mapping[str, str]) -> Reply | Lost:
        body = request.body if isinstance(request, PostRequest) else {}
        method = METHODS[type(request)]
        self.asked.append((method, request.path, body))
        self.before.get(request.path, lambda: None)()
        waiting = self.instead[request.path]
        if waiting and (answer := waiting.popleft()) is not None:
            return answer
        if request.path in self.hangs:
            await asyncio.Event().wait()
        content = json.dumps(body).encode() if method == "POST" else b""
        return await answer_of(self.app, method, request.path, headers, content)

    async def ask(self, method: str, path: str, body: object = None, **headers: str) -> Reply | Lost:
        """Somebody else's request."""
        return await answer_of(self.app, method, path, headers, b"" if body is None else json.dumps(body).encode())

    @property
    def changes(self) -> list[tuple[str, ...]]:
        """What it was told to load or unload: the last part of the path, and the texts of the body."""
        told = [(path.rpartition("/")[2], body) for method, path, body in self.asked if method == "POST"]
        return [(what, *map(str, body.values())) for what, body in told if "lora_name" in body]


async def answer_of(
    app: ASGIApp, method: str, path: str, headers: Mapping[str, str], content: bytes = b""
) -> Reply | Lost:
    """What an application answers; one that promises more than it sends breaks the connection."""
    told = {"host": "127.0.0.1:8000", "content-type": "application/json"} | {
        name.lower(): value for name, value in headers.items()
    }
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in told.items()],
        "client": ("127.0.0.1", 9),
        "server": ("127.0.0.1", 8000),
    }
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": content, "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in sent[1:])
    promised = dict(sent[0]["headers"]).get(b"content-length")
    if promised is not None and int(promised) != len(body):
        return Lost("the connection broke")
    return Reply(sent[0]["status"], body)


def driver_of(
    engine: SimulatedVllm,
    deadlines: Deadlines = USUAL,
    *,
    limits: EngineLimits = UNTOLD,
    past: LoadLedger | None = None,
) -> tuple[VllmEngine, InMemory]:
    """The driver of an engine, and the way between them."""
    driver, way = VllmEngine(f"{URL}/", deadlines=deadlines, limits=limits, past=past), InMemory(make_app(engine))
    driver._http._exchange = way  # type: ignore[assignment]
    return driver, way
