"""Any answer of an engine, to each question and call of its driver."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import get_args
from unittest import mock

from prometheus_client import generate_latest

from registry.model.status import ReplicaStatus
from sidecar.engines.driver import Deadlines, Engine, EngineError, EngineOptions, make_engine
from sidecar.engines.observed import Outcome
from sidecar.engines.simulated import pages
from sidecar.engines.simulated.engine import SimulatedVllm
from tests.fuzz.fuzzer import SECRET, Run, Target, must_say
from tests.fuzz.mutation import Case, as_json, choice, metrics, raw
from tests.support.rig import Rig, running
from tests.support.waiting import eventually

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
# Replies to each page, in the order of a case's parts; then those to everything that is posted.
_PAGES = (
    *("/metrics", "/v1/models", "/version", "/v1/loraplane/plugin", "/v1/loraplane/uses", "/v1/loraplane/state"),
    *("/v1/loraplane/coverage", "/v1/loraplane/changes", "/get_server_info", "/health/"),
)
_NONE = b""
_OUTCOMES = get_args(Outcome)
_QUICK = Deadlines(0.5, 0.5, 0.5, 0.5, 0.5, 0.5, lull_seconds=0)


def _case(kind: str, posted: object, replies: Mapping[str, object]) -> Case:
    told = (replies.get(page, _NONE) for page in _PAGES)
    bodies = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in (*told, posted)]
    return (kind.encode(), _HEAD, *bodies)


@lru_cache
def _replies() -> tuple[Case, ...]:
    """Those of an engine of each kind that has one adapter, and of vLLM with our plugin."""
    life = {"schema": 1, "incarnation": "e1"}
    cards = [
        {"id": "tiny", "object": "model", "root": "/models/tiny", "parent": None},
        {"id": "a", "object": "model", "root": "/store/a", "parent": "tiny"},
    ]
    models = {"object": "list", "data": cards}
    sample = b'vllm:lora_requests_info{max_lora="4",running_lora_adapters="a",waiting_lora_adapters=""} 1.5e9\n'
    metrics = pages.metrics(SimulatedVllm()).encode() + sample
    vllm = {"/metrics": metrics, "/v1/models": models, "/version": {"version": "0.32.0"}}
    can = ["swap", "unload", "state", "uses", "changes", "coverage", "resolve"]
    coverage = {"architecture": "LlamaForCausalLM", "applied": ["m.{0-1}.q_proj"], "taken": [], "renames": [{}, {}, {}]}
    row = {"name": "a", "int_id": 1, "path": "/store/a", "requests": 0}
    plugin = {
        "/v1/loraplane/plugin": {**life, "capabilities": can, "limits": {"max_loras": 4}},
        "/v1/loraplane/uses": {**life, "changes": 3, "last_used": {"a": 1.5}},
        "/v1/loraplane/state": {**life, "adapters": [row], "resident": [1]},
        "/v1/loraplane/coverage": {**life, **coverage},
        "/v1/loraplane/changes": {**life, "changes": 4},
    }
    info = {"version": "0.5.9", "max_loaded_loras": 8, "max_lora_rank": 16, "enable_lora": True}
    counts = b'sglang:num_running_reqs{m="x"} 0.0\nsglang:num_queue_reqs{m="x"} 1.0\n'
    sglang = {"/get_server_info": info, "/v1/models": models, "/metrics": counts}
    plain = {"object": "list", "data": [{"id": "tiny"}, {"id": "a"}]}
    theirs = {"object": "list", "data": [{"id": "tiny", "owned_by": "axolotl"}]}
    said = {"error": {"message": "no", "type": "BadRequestError", "param": None, "code": 400}}
    return (
        _case("vllm", b"ok", vllm),
        _case("vllm", said, vllm | {"/version": {"version": "0.25.1"}}),
        _case("vllm", {**life, "lora_name": "a"}, vllm | plugin),
        _case("sglang", {"success": True, "error_message": "", "loaded_adapters": {"a": "/store/a"}}, sglang),
        _case("pegainfer", {"error": "no"}, {"/v1/models": plain}),
        _case("axolotl", {"status": "ok"}, {"/v1/models": theirs, "/health/": {"status": "ok"}}),
    )


class _Replying:
    """A server that answers by the case."""

    def __init__(self) -> None:
        self.case: Case = ()
        self.asked = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(1):
                self.asked += 1
                asked = await reader.read(1 << 16)  # a driver writes all of its requests at once
                for line in asked.split(b"\r\n"):
                    method, _, rest = line.partition(b" ")
                    if method in {b"GET", b"POST"} and rest.endswith(b"HTTP/1.1"):
                        writer.write(self._reply(method, rest.partition(b" ")[0].decode()))
                await writer.drain()
        writer.close()

    def _reply(self, method: bytes, path: str) -> bytes:
        head, bodies = self.case[1], self.case[2:]
        body = bodies[_PAGES.index(path)] if path in _PAGES and method == b"GET" else bodies[-1]
        if method == b"GET" and path not in _PAGES:
            head, body = b"HTTP/1.1 405 No\r\n", b""  # a route for POST
        elif body == _NONE:
            head = b"HTTP/1.1 404 No\r\n"
        return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


@asynccontextmanager
async def _driving(folder: Path) -> AsyncIterator[Run]:
    """Each driver, all of its methods one after another."""
    replying, number = _Replying(), count()
    server = await asyncio.start_server(replying.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    key = folder / "key"
    key.write_text(SECRET)
    (folder / "a").mkdir()

    async def play(case: Case) -> None:
        replying.case = case
        state = folder / f"{next(number)}"
        state.mkdir()
        options = EngineOptions(url, api_key_file=key, control_token_file=key, state=state)
        engine = make_engine(case[0].decode(), options)
        engine._deadlines = _QUICK  # type: ignore[attr-defined]
        await _asked(engine, str(folder / "a"))
        for file in state.iterdir():
            file.unlink()

    # Whose socket it is the kernel says, and no answer.
    with mock.patch("sidecar.engines.listeners.listener_identity", return_value="boot:1"):
        async with server:
            yield play


async def _asked(engine: Engine, path: str) -> None:
    """What may be raised is raised, what must come back comes back."""
    for question in (engine.observe, engine.has_changed, engine.incarnation, engine.drain_evidence, engine.observe):
        try:
            await question()
        except EngineError as error:
            must_say(str(error))
    for told in (await engine.is_busy(), await engine.turns(), await engine.pulse()):
        assert told in {True, False, None}
    for outcome in (
        await engine.load("a", path, request_id="r"),
        await engine.swap("a", path, f"{path}/", request_id="r"),
        await engine.unload("a", request_id="r"),
    ):
        assert isinstance(outcome, _OUTCOMES)
        assert SECRET not in str(outcome), "a secret in an outcome"


@asynccontextmanager
async def _believing(folder: Path) -> AsyncIterator[Run]:
    """A whole sidecar over such an engine, and what it tells others of it."""
    replying = _Replying()
    replying.case = next(case for case in _replies() if case[0] == b"vllm")
    server = await asyncio.start_server(replying.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, running(Rig(folder, SimulatedVllm(), url, deadlines=_QUICK)) as rig:
        rig.desire(1, a="a")
        await eventually(lambda: rig.statuses)

        async def play(case: Case) -> None:
            replying.case = (b"vllm", *case[1:])
            replying.asked = 0
            rounds = len(rig.statuses)
            rig.mailbox.wake()
            # A single odd answer is not told yet.
            await eventually(lambda: len(rig.statuses) > rounds or (replying.asked and rig.sidecar.observer.problem))
            status = ReplicaStatus.parse(rig.status.to_bytes())
            assert status.ready or status.note or status.pending or status.failed or status.degraded or status.stale
            rig.sidecar.reporting.status.refresh_metrics()
            generate_latest()
            rig.statuses[:] = rig.statuses[-1:]

        yield play


_JSON = (as_json,) * len(_PAGES)
TARGETS = (
    Target("engine-answers", (choice, raw, metrics, *_JSON), _replies, _driving, runs=150),
    Target("engine-rounds", (choice, choice, metrics, *_JSON), _replies, _believing, runs=30),
)
