"""axolotl's own server of one adapter, on vLLM's CPU build: started in the engine's environment, its packages behind.

Arguments: folder of what that environment does not have, folder of the base model, port.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import httpx

from registry.tools.devstack.engine_environment import find_engine_python, vllm_environment
from registry.tools.devstack.processes import free_ports
from tests.support.http_client import http_client
from tests.support.waiting import eventually

PROJECT = Path(__file__).parents[2]
PACKAGES = PROJECT / ".venv-axolotl"
MAX_RANK = 16
START_SECONDS = 600
# At its end it kills each process of the host that is named as vLLM's core is: it may see its own alone.
_ALONE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
_SERVE = """
import sys
sys.path.append(sys.argv[1])
from axolotl.scripts.vllm_serve_lora import LoRAScriptArguments, main
main(LoRAScriptArguments(
    model=sys.argv[2], host="127.0.0.1", port=int(sys.argv[3]), dtype="float32", lora_dtype="auto",
    enforce_eager=True, max_model_len=512, max_lora_rank=int(sys.argv[4]), gpu_memory_utilization=0.05,
))
"""


@dataclass
class AxolotlServer:
    """One server at an address that survives restarts."""

    model: Path
    folder: Path
    port: int = 0
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Starts it and waits until it answers."""
        self.port = self.port or free_ports(1)[0]
        environment = vllm_environment() | {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
        del environment["VLLM_ENABLE_V1_MULTIPROCESSING"]  # its core is a process of its own, as its users have it
        arguments = [str(PACKAGES), str(self.model), str(self.port), str(MAX_RANK)]
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "axolotl.log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: ASYNC220 - as all engines of tests are
                [*_ALONE, str(find_engine_python()), "-c", _SERVE, *arguments],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        await eventually(self.is_healthy, timeout_seconds=START_SECONDS, every_seconds=0.5)

    async def is_healthy(self) -> bool:
        """RuntimeError: it ended."""
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"axolotl's server ended:\n{self.log()[-4000:]}")
        return await self.health() == 200

    async def health(self) -> int:
        """Status of its page; 0 while nobody listens."""
        try:
            async with http_client(base_url=self.url, timeout=30) as client:
                return (await client.get("/health/")).status_code
        except httpx.TransportError:
            return 0

    def kill(self) -> None:
        """Ends it with all that it started."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(60)

    def log(self) -> str:
        return (self.folder / "axolotl.log").read_text(errors="replace")

    async def generate(self, prompt: str, tokens: int = 8) -> httpx.Response:
        """Its answer to one prompt, greedy."""
        body = {"prompts": [prompt], "max_tokens": tokens, "temperature": 0}
        async with http_client(base_url=self.url, timeout=START_SECONDS) as client:
            return await client.post("/generate/", json=body)

    async def answer(self, prompt: str = "Hello") -> list[int]:
        """Tokens with which it answers any request. AssertionError: it does not."""
        reply = await self.generate(prompt)
        assert reply.status_code == 200, reply.text
        return list(reply.json()["completion_ids"][0])


def is_possible() -> bool:
    """Whether it can be kept from other processes here: that takes root."""
    return sys.platform == "linux" and os.geteuid() == 0 and PACKAGES.is_dir()
