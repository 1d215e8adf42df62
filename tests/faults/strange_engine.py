"""An engine that misbehaves, in a program of its own: written from vLLM's documented HTTP contract alone.

It shares no code with `sidecar.engines.simulated`, so that a mistake there is not made here too. It speaks HTTP/1.1
over whatever streams it is given: sockets, or pipes in memory on virtual time. `tests.faults.behaviours` has what it
can do, and is the program, which is told by `ORDER` how to behave.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

BASE = "base"
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
MODELS, METRICS, VERSION, HEALTH, COMPLETIONS = "/v1/models", "/metrics", "/version", "/health", "/v1/completions"
GETS, POSTS = {MODELS, METRICS, VERSION, HEALTH}, {LOAD, UNLOAD, COMPLETIONS}
# Has the program behave as its body names it: ``{"name": …}``; empty: as it should. Nothing befalls this one.
ORDER = "/order"
LOAD_SECONDS = 0.05
TOKEN_SECONDS = 0.02
JSON = "application/json"


class Way(Protocol):
    """The connection below a writer."""

    def abort(self) -> None: ...


class Writer(Protocol):
    """As much of `asyncio.StreamWriter` as the engine needs."""

    @property
    def transport(self) -> Way: ...

    def write(self, data: bytes) -> None: ...

    async def drain(self) -> None: ...

    def close(self) -> None: ...


class Reader(Protocol):
    """As much of `asyncio.StreamReader` as the engine needs."""

    async def readuntil(self, separator: bytes) -> bytes: ...

    async def readexactly(self, n: int) -> bytes: ...


class Hung(Exception):
    """Nothing more is said on this connection, and it stays open."""


class Cut(Exception):
    """The connection ends here; `reset`: with RST."""

    def __init__(self, *, reset: bool = False) -> None:
        super().__init__()
        self.reset = reset


@dataclass(frozen=True)
class Request:
    """One request that came in."""

    method: str
    path: str
    body: bytes

    def field(self, name: str) -> str:
        """A field of its JSON; empty where it has none."""
        try:
            return str(json.loads(self.body or b"{}").get(name, ""))
        except (ValueError, AttributeError):
            return ""


@dataclass(frozen=True)
class Answer:
    """A reply, after which `end` is raised. `raw`: these bytes instead of a well-formed one."""

    status: int = 200
    body: bytes = b""
    kind: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    end: Exception | None = None
    version: str = "1.1"

    def wire(self) -> bytes:
        """The bytes on the wire."""
        if self.raw is not None:
            return self.raw
        fields = {"Content-Type": self.kind, "Content-Length": str(len(self.body)), **self.headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        return f"HTTP/{self.version} {self.status} Odd\r\n{lines}\r\n".encode() + self.body


def error(status: int, kind: str, message: str) -> Answer:
    """An error in vLLM's own form."""
    told = {"error": {"message": message, "type": kind, "param": None, "code": status}}
    return Answer(status, json.dumps(told).encode())


def missing_route(status: int = 404, detail: str = "Not Found") -> Answer:
    """What its framework answers where there is no such route, or not by this method."""
    return Answer(status, json.dumps({"detail": detail}).encode())


# What is done instead of the right thing; None: the right thing.
Rule = Callable[["StrangeEngine", Request], Awaitable[Answer | None]]


class StrangeEngine:
    """One engine process after the other, behind one address.

    Attributes:
        adapters: name to path of what this process serves.
        process: number of the process; each begins with no adapters.
        rule: how it misbehaves now; None: it does not.
        struck: how many requests were misbehaved to.
        asked: how many requests came in.
        remembered: a listing that is given again.
        calls: (verb, name) of what it was asked to load and unload.
        stands: clear while all of it stands still, as by SIGSTOP.
        core: clear while its core makes no step, though its pages answer.
        gone: connections are refused.
        twin: another engine behind the same address, which has every second connection.
        on_listed: is told its process and each listing that it gives.
        on_order: is told each name of an `ORDER`.
    """

    def __init__(self) -> None:
        self.adapters: dict[str, str] = {}
        self.process = 1
        self.rule: Rule | None = None
        self.struck = self.asked = 0
        self.remembered: Answer | None = None
        self.calls: list[tuple[str, str]] = []
        self.stands = asyncio.Event()
        self.core = asyncio.Event()
        self.stands.set()
        self.core.set()
        self.gone = False
        self.twin: StrangeEngine | None = None
        self._connections = 0
        self.asleep = False
        self.busy = 0
        self.tokens = 0
        self.on_order: Callable[[str], None] = lambda _name: None
        self.on_listed: Callable[[str, dict[str, str]], None] = lambda _process, _adapters: None

    @property
    def incarnation(self) -> str:
        """When its process started, as /metrics tells it."""
        return f"{1000.0 + self.process}"

    def restart(self) -> None:
        """Another process, which has no adapters."""
        self.process += 1
        self.adapters = {}

    async def serve(self, reader: Reader, writer: Writer) -> None:
        """Answers the requests of one connection in order, until it is closed."""
        self._connections += 1
        if self.twin is not None and self._connections % 2:
            await self.twin.serve(reader, writer)
            return
        try:
            while (request := await _read(reader)) is not None:
                await self._answer(request, writer)
        except Hung:
            await asyncio.get_running_loop().create_future()
        except Cut as cut:
            if cut.reset:
                writer.transport.abort()
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    async def _answer(self, request: Request, writer: Writer) -> None:
        process = self.process
        await self.stands.wait()
        answer = await self._behave(request)
        await self.stands.wait()
        if process != self.process:
            raise Cut(reset=True)  # who was asked is gone
        writer.write(answer.wire())
        await writer.drain()
        if answer.end is not None:
            raise answer.end

    async def _behave(self, request: Request) -> Answer:
        if request.path == ORDER:
            self.on_order(request.field("name"))
            return Answer()
        self.asked += 1
        if self.rule is not None and (odd := await self.rule(self, request)) is not None:
            self.struck += 1
            return odd
        return await self.right(request)

    async def right(self, request: Request) -> Answer:
        """Does what is asked, and answers as vLLM does."""
        if request.path in GETS | POSTS and request.method != ("GET" if request.path in GETS else "POST"):
            return missing_route(405, "Method Not Allowed")
        name = request.field("lora_name")
        match request.path:
            case "/v1/load_lora_adapter":
                return await self._load(name, request.field("lora_path"))
            case "/v1/unload_lora_adapter":
                return self._unload(name)
            case "/v1/completions":
                return await self._complete(request.field("model"))
            case path:
                return self._page(path)

    def _page(self, path: str) -> Answer:
        match path:
            case "/v1/models":
                self.on_listed(self.incarnation, dict(self.adapters))
                return Answer(200, json.dumps({"object": "list", "data": cards(self.adapters)}).encode())
            case "/metrics":
                return Answer(200, self.metrics().encode(), "text/plain; version=0.0.4")
            case "/version":
                return Answer(200, b'{"version":"0.32.0"}')
            case "/health":
                return Answer()
            case _:
                return missing_route()

    async def _load(self, name: str, path: str) -> Answer:
        self.calls.append(("load", name))
        if not name or not path:
            return error(400, "InvalidUserInput", "Both 'lora_name' and 'lora_path' must be provided.")
        if name in self.adapters or name == BASE:
            return error(400, "InvalidUserInput", f"The lora adapter '{name}' has already been loaded.")
        process = self.process
        await asyncio.sleep(LOAD_SECONDS)
        await self.core.wait()
        if process == self.process:
            self.adapters[name] = path
        return Answer(200, f"Success: LoRA adapter '{name}' added successfully.".encode(), "text/plain")

    def _unload(self, name: str) -> Answer:
        self.calls.append(("unload", name))
        if self.adapters.pop(name, None) is None:
            return error(404, "NotFoundError", f"The lora adapter '{name}' cannot be found.")
        return Answer(200, f"Success: LoRA adapter '{name}' removed successfully.".encode(), "text/plain")

    async def _complete(self, model: str) -> Answer:
        if model != BASE and model not in self.adapters:
            return error(404, "NotFoundError", f"The model `{model}` does not exist.")
        await self.core.wait()
        await asyncio.sleep(TOKEN_SECONDS)
        self.tokens += 1
        return Answer(200, json.dumps({"object": "text_completion", "choices": [{"text": "x"}]}).encode())

    def metrics(self) -> str:
        """/metrics."""
        labels = '{engine="0",model_name="base"}'
        return "\n".join(
            [
                "# TYPE process_start_time_seconds gauge",
                f"process_start_time_seconds {self.incarnation}",
                "# TYPE vllm:num_requests_running gauge",
                f"vllm:num_requests_running{labels} {float(self.busy)}",
                "# TYPE vllm:num_requests_waiting gauge",
                f"vllm:num_requests_waiting{labels} 0.0",
                "# TYPE vllm:generation_tokens counter",
                f"vllm:generation_tokens_total{labels} {float(self.tokens)}",
                f'vllm:engine_sleep_state{{engine="0",model_name="base",sleep_state="awake"}} {float(not self.asleep)}',
                "# TYPE vllm:lora_requests_info gauge",
                "",
            ]
        )


def cards(adapters: Mapping[str, str]) -> list[dict[str, object]]:
    """The base model's card, and one for each adapter."""
    places = [(BASE, "/models/base", None), *((name, path, BASE) for name, path in adapters.items())]
    return [{"id": name, "object": "model", "root": root, "parent": parent} for name, root, parent in places]


async def _read(reader: Reader) -> Request | None:
    """The next request; None: the other side is done."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.split("\r\n")
    method, target, _ = first.split(" ", 2)
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(fields.get("content-length", "0")))
    return Request(method, target.partition("?")[0], body)


async def listen(port: int, on_order: Callable[[StrangeEngine, str], None]) -> None:
    """Serves on a port of the loopback until it is ended."""
    engine = StrangeEngine()
    engine.on_order = lambda name: on_order(engine, name)
    async with await asyncio.start_server(engine.serve, "127.0.0.1", port) as server:
        await server.serve_forever()
