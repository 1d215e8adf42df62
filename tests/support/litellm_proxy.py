"""LiteLLM's proxy as a process, with the files that docs/litellm.md shows, word for word but for addresses and pool."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from registry.tools.devstack.processes import free_ports
from tests.support.http_client import http_client
from tests.support.processes import child
from tests.support.waiting import eventually

PROJECT = Path(__file__).parents[2]
PROXY = PROJECT / ".venv-litellm-proxy/bin/litellm"
PAGE = PROJECT / "docs/litellm.md"
KEY = "sk-0123456789abcdef0123456789abcdef"
_START_SECONDS = 300
_BLOCK = re.compile(r"^ +```(\w+)\n(.*?)^ +```$", re.MULTILINE | re.DOTALL)


def write_files(folder: Path, admin: str, pool: str) -> None:
    """What the page has somebody write, and what the command line writes for it."""
    folder.mkdir()
    shown = {kind: textwrap.dedent(text) for kind, text in _BLOCK.findall(PAGE.read_text())}
    callbacks = shown["python"].replace("admin:7600", admin).replace("qwen-prod", pool)
    assert admin in callbacks, "the page names the admin service and the pool"
    (folder / "callbacks.py").write_text(callbacks)
    (folder / "config.yaml").write_text(shown["yaml"])
    command = [sys.executable, "-m", "registry.cli.main", "--admin", admin, "export", "litellm", "--pool", pool]
    done = subprocess.run(command, cwd=PROJECT, check=True, capture_output=True, text=True, timeout=120)
    (folder / "models.yaml").write_text(done.stdout)


@asynccontextmanager
async def litellm_proxy(folder: Path, admin: str, pool: str) -> AsyncIterator[str]:
    """The URL of a proxy that serves. It asks for `KEY`."""

    await asyncio.to_thread(write_files, folder, admin, pool)
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    # Told to look up nothing elsewhere.
    told = {"LITELLM_MASTER_KEY": KEY, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONPATH": str(PROJECT)}
    command = [str(PROXY), "--config", "config.yaml", "--host", "127.0.0.1", "--port", str(port)]
    environment = {**os.environ, **told}
    with (
        (folder / "proxy.log").open("wb") as log,
        child(command, cwd=folder, env=environment, stdout=log, stderr=log) as process,
    ):
        await eventually(lambda: is_alive(process, url), timeout_seconds=_START_SECONDS)
        yield url


async def is_alive(process: subprocess.Popen[bytes], url: str) -> bool:
    """True if it answers probes."""
    assert process.poll() is None, "the proxy ended; proxy.log says why"
    try:
        async with http_client(base_url=url) as client:
            return (await client.get("/health/liveliness")).status_code == 200
    except httpx.TransportError:
        return False
