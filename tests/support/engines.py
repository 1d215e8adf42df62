"""Engines for tests: real vLLM as a process, and questions that can be put to it and to a simulated one alike."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx

from registry.tools.devstack.engine_environment import (
    MAX_LORAS,
    RESOLVER_VARIABLE,
    RUNTIME_LORA_VARIABLE,
    find_engine_python,
    plugin_folder,
    vllm_command,
    vllm_environment,
)
from registry.tools.devstack.processes import free_ports
from sidecar.engines.driver import Deadlines
from sidecar.engines.vllm.driver import VllmEngine
from sidecar.vllm_plugin.entry import GAUGES_VARIABLE, HIDE_VARIABLE, PROVE_ON_CPU_VARIABLE
from sidecar.vllm_plugin.guard import CONTROL_HEADER, STORE_VARIABLE, TOKEN_VARIABLE, WITHOUT_TOKEN
from tests.support.engine_install import frontend_environment
from tests.support.http_client import http_client
from tests.support.waiting import eventually

BASE_MODEL = "tiny"
START_SECONDS = 600
END_SECONDS = 180
# For drivers in tests that are not about deadlines: no machine stands still for so long.
PATIENT = Deadlines(
    probe_seconds=60, list_seconds=60, load_seconds=60, unload_seconds=60, turn_seconds=60, pulse_seconds=60
)
# A server may close a connection that is kept just as the next request is sent on it.
FRESH_CONNECTIONS = httpx.Limits(max_keepalive_connections=0)


@dataclass(frozen=True)
class VllmFlags:
    """What real vLLM is started with, as far as tests vary it."""

    runtime_lora: bool = True
    api_key: str | None = None
    plugin: bool = False
    resolver: str | None = None
    store: str | None = None
    control_token_file: str | None = None
    max_loras: int = MAX_LORAS
    more: tuple[str, ...] = ()
    import_path: str | None = None
    proves: bool = False
    hide_seconds: str = "0"  # so that a test sees at once that a name is gone
    rust_frontend: Path | None = None  # folder of `tests.support.engine_install.install_frontend`


def token_of(flags: VllmFlags) -> str:
    """The token that its plugin asks for; without one, what is sent in its place."""
    file = flags.control_token_file
    return Path(file).read_text().strip() if file else WITHOUT_TOKEN


@dataclass
class RealVllm:
    """A real vLLM server on the CPU. It takes a core for 20 s to start, and 1 GB."""

    model: Path
    folder: Path
    url: str = ""
    _flags: VllmFlags | None = None
    _process: subprocess.Popen[bytes] | None = None

    async def ensure(self, flags: VllmFlags = VllmFlags()) -> None:
        """Starts it with these flags unless it runs with them, and waits until it is healthy."""
        if self._process is None or self._process.poll() is not None or self._flags != flags:
            self.stop()
            self._start(flags)
        await eventually(self._is_healthy, timeout_seconds=START_SECONDS, every_seconds=0.5)

    async def again(self, flags: VllmFlags | None = None) -> None:
        """Starts it at the same address after it was killed, with the same flags unless others are given."""
        assert self._process is not None
        assert self._flags is not None
        self._process.wait(END_SECONDS)
        self._start(flags or self._flags, int(self.url.rpartition(":")[2]))
        await eventually(self._is_healthy, timeout_seconds=START_SECONDS, every_seconds=0.5)

    def stop(self) -> None:
        """Ends the process and whatever it started."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGCONT)  # a test that failed may have left it stopped
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its own session, so that its workers are in the group
            process.wait(END_SECONDS)

    def asker(self) -> Asker:
        """Raw requests to it, with the token that its plugin asks for."""
        return Asker(self.url, token_of(self._flags or VllmFlags()))

    def driver(self) -> VllmEngine:
        """A patient driver of it, with the token that its plugin asks for."""
        file = self._token_file
        return VllmEngine(self.url, deadlines=PATIENT, control_token_file=Path(file) if file else None)

    def flags_of_sidecar(self) -> tuple[str, ...]:
        """What a sidecar beside it needs to be obeyed."""
        return ("--control-token-file", self._token_file) if self._token_file else ()

    @property
    def _token_file(self) -> str | None:
        return self._flags.control_token_file if self._flags else None

    async def clear(self) -> None:
        """See `Asker.clear`."""
        asker = self.asker()
        await asker.clear()
        await asker.client.aclose()

    def rss_bytes(self) -> int:
        """Resident memory of the API server and of the engine's core, which are two processes of one session."""
        assert self._process is not None
        found = subprocess.run(
            ["ps", "-o", "rss=", "--sid", str(self._process.pid)], capture_output=True, text=True, check=True
        )
        return sum(map(int, found.stdout.split())) * 1024

    def signal(self, number: signal.Signals, *, is_core: bool = False) -> None:
        """Sends a signal to all of its processes; `is_core`: to the engine's core alone, beside which HTTP goes on."""
        assert self._process is not None
        found = subprocess.run(
            ["ps", "-o", "pid=,comm=", "--sid", str(self._process.pid)], capture_output=True, text=True, check=True
        )
        processes = [line.split(None, 1) for line in found.stdout.splitlines()]
        sent = [int(pid) for pid, name in processes if not is_core or "EngineCor" in name]
        assert sent, found.stdout
        for pid in sent:
            os.kill(pid, number)

    def log(self) -> str:
        return (self.folder / "vllm.log").read_text(errors="replace")

    def _start(self, flags: VllmFlags, port: int = 0) -> None:
        port = port or free_ports(1)[0]
        self.url, self._flags = f"http://127.0.0.1:{port}", flags
        command = vllm_command(
            find_engine_python(),
            self.model,
            port=port,
            served_model_name=BASE_MODEL,
        )
        key = ["--api-key", flags.api_key] if flags.api_key else []
        self.folder.mkdir(parents=True, exist_ok=True)
        plugin = plugin_folder(self.folder / "plugin") if flags.plugin else None
        environment = vllm_environment(plugin=plugin)
        if not flags.runtime_lora:
            del environment[RUNTIME_LORA_VARIABLE]
        environment |= {"VLLM_SERVER_DEV_MODE": "1"}  # without which nobody can pause it
        environment |= {"PYTHONPATH": flags.import_path} if flags.import_path else {}
        ours = {
            RESOLVER_VARIABLE: flags.resolver,
            STORE_VARIABLE: flags.store,
            TOKEN_VARIABLE: flags.control_token_file,
            PROVE_ON_CPU_VARIABLE: "1" if flags.proves else "",
            HIDE_VARIABLE: flags.hide_seconds,
            GAUGES_VARIABLE: "1" if flags.plugin else "",
        }
        environment |= {name: value for name, value in ours.items() if value}
        if flags.rust_frontend:
            # Only `vllm serve` hands over to it, and takes the model as a word.
            serve = [str(find_engine_python().with_name("vllm")), "serve", str(self.model)]
            command = serve + command[command.index("--served-model-name") :]
            environment |= frontend_environment(flags.rust_frontend)
        with (self.folder / "vllm.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--max-loras", str(flags.max_loras), *key, *flags.more],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def _is_healthy(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"vLLM ended at its start:\n{self.log()[-4000:]}")
        try:
            async with http_client(timeout=30) as client:
                return (await client.get(f"{self.url}/health")).status_code == 200
        except httpx.TransportError:
            return False


@dataclass
class Asker:
    """Puts raw requests to an engine."""

    url: str
    token: str = WITHOUT_TOKEN
    client: httpx.AsyncClient = field(init=False)

    def __post_init__(self) -> None:
        headers = {CONTROL_HEADER: self.token}
        self.client = http_client(base_url=self.url, timeout=START_SECONDS, limits=FRESH_CONNECTIONS, headers=headers)

    async def load(self, name: object, path: object) -> httpx.Response:
        return await self.client.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": path})

    async def unload(self, name: object) -> httpx.Response:
        return await self.client.post("/v1/unload_lora_adapter", json={"lora_name": name})

    async def adapters(self) -> dict[str, str]:
        """Adapter names with their paths, as listed."""
        cards = (await self.client.get("/v1/models")).json()["data"]
        return {card["id"]: card["root"] for card in cards if card["parent"]}

    async def clear(self) -> None:
        """Unloads everything, and waits for the end of requests that others gave up."""
        for name in await self.adapters():
            await self.unload(name)
        await eventually(self._is_idle, timeout_seconds=START_SECONDS)  # its first request takes long

    async def _is_idle(self) -> bool:
        """What is counted is counted at the end of a step, so there has to be one."""
        await self.text(BASE_MODEL, "x", tokens=1)
        return await self.requests("running") == await self.requests("waiting") == 0

    async def requests(self, kind: Literal["running", "waiting"]) -> float:
        """How many requests there are, as the metrics count."""
        lines = (await self.client.get("/metrics")).text.splitlines()
        (line,) = (line for line in lines if line.startswith(f"vllm:num_requests_{kind}{{"))
        return float(line.rpartition(" ")[2])

    async def complete(self, model: str, prompt: str, *, tokens: int = 8) -> httpx.Response:
        body: dict[str, Any] = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "logprobs": 1}
        return await self.client.post("/v1/completions", json=body | {"return_tokens_as_token_ids": True})

    async def text(self, model: str, prompt: str, *, tokens: int = 8) -> str:
        """The greedy answer."""
        reply = await self.complete(model, prompt, tokens=tokens)
        assert reply.status_code == 200, reply.text
        text: str = reply.json()["choices"][0]["text"]
        return text


async def while_it_runs(attempt: Callable[[str], Awaitable[bool]]) -> None:
    """Makes an attempt, each time with a name of its own, until it says that a request ran for so long.

    How long a request takes is up to the machine: it may have ended before anybody looks.
    """
    for number in range(20):
        if await attempt(f"x{number}"):
            return
    raise AssertionError("no request was seen to run")
