"""The README's lines for people's own vLLM work as they stand there, to a doctor that finds nothing."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from registry.tools.devstack import tiny_adapters, tiny_model
from registry.tools.devstack.engine_environment import (
    KV_CACHE_BYTES,
    MAX_MODEL_LENGTH,
    find_engine_python,
    vllm_environment,
)
from registry.tools.devstack.processes import free_ports
from tests.conftest import EtcdForTest

ROOT = Path(__file__).parents[2]
SECTION = re.compile(r"^## Beside your own vLLM\n(.*?)^## ", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"^```\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# What a shell waits for is one command: joined lines, or lines up to the end of a here-document.
COMMAND = re.compile(r"(?:[^\n]*<<(\w+)\n.*?^\1\n)|(?:(?:[^\n]*\\\n)*[^\n]+\n)", re.DOTALL | re.MULTILINE)
DAEMON = re.compile(r"(?:[A-Z_]+=\S+\s+(?:\\\n\s*)?)*(loraplane-admin|loraplane-sidecar|python -m vllm)\b")
# What this project's engine environment takes beside, so that it starts on a small machine.
SMALL = f"--dtype float32 --enforce-eager --max-model-len {MAX_MODEL_LENGTH} --kv-cache-memory-bytes {KV_CACHE_BYTES}"


def commands() -> list[str]:
    """All commands of the section, in their order."""
    section = SECTION.search((ROOT / "README.md").read_text())
    assert section is not None
    return [found[0] for block in BLOCK.findall(section[1]) for found in COMMAND.finditer(block)]


def with_ones_own(text: str, own: Mapping[str, str]) -> str:
    """The same with addresses and folders of this machine, and nothing else."""
    for there, here in own.items():
        assert there in text, f"the README says no longer {there}"
        text = text.replace(there, here)
    return text


def script() -> str:
    """The commands, of which those that do not end go on beside the others."""
    lines = ["set -euo pipefail\n"]
    daemons = []
    for command in commands():
        found = DAEMON.match(command)
        lines.append(f"{command.rstrip()} > {found[1].replace(' ', '')}.log 2>&1 &\n" if found else command)
        daemons += [found[1]] if found else []
    assert daemons == ["loraplane-admin", "python -m vllm", "loraplane-sidecar"]
    return "".join(lines)


def program(file: Path, text: str) -> None:
    file.write_text(f"#!/bin/bash\nset -euo pipefail\n{text}\n")
    file.chmod(0o755)


def simulated(folder: Path) -> dict[str, str]:
    """Programs for a machine without vLLM; installations are tried by name alone."""
    program(folder / "pip", f'[ "$1" = install ] && [ -f "{ROOT}/${{2%%[*}}/pyproject.toml" ]')
    program(
        folder / "python",
        '[ "$1 $2" = "-m vllm.entrypoints.openai.api_server" ] && shift 2\n'
        f'exec {sys.executable} -m sidecar.engines.simulated "${{@/#--enable-lora/--vllm-version=0.32.0}}"',
    )
    return {}


def real(folder: Path) -> dict[str, str]:
    """Programs of the engine's environment, with the plugin as pip installs it beside."""
    built, beside = folder / "plugin", folder / "site"
    shutil.copytree(ROOT / "sidecar/vllm_plugin", built, ignore=shutil.ignore_patterns("build", "*.egg-info"))
    install = f"{sys.executable} -m pip install --quiet --no-deps --no-build-isolation --target {beside} {built}"
    program(
        folder / "pip",
        f'if [ "$2" = ./sidecar/vllm_plugin ]; then {install}; else [ "$1 ${{2%%[*}}" = "install ." ]; fi',
    )
    program(folder / "python", f'exec {find_engine_python()} "$@" {SMALL} --distributed-executor-backend uni')
    return {**vllm_environment(), "PYTHONPATH": str(beside)}


@contextmanager
def played(text: str, folder: Path, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """The script in a shell, whose processes all end with it."""
    shell = subprocess.Popen(
        ["bash", "-c", text],
        cwd=folder,
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield shell
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(shell.pid, number)
                shell.wait(30)


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    "made",
    [
        simulated,
        pytest.param(
            real,
            marks=[
                pytest.mark.engine,
                pytest.mark.skipif(not os.environ.get("NIGHTLY"), reason="real vLLM is played by make engines"),
            ],
        ),
    ],
)
def test_the_readme_beside_ones_own_vllm(made, etcd: EtcdForTest, tmp_path):
    api, pages, engine, sidecar = free_ports(4)
    programs, work = tmp_path / "bin", tmp_path / "work"
    for folder in (programs, work):
        folder.mkdir()
    tiny_model.write_model(tmp_path / "model")
    tiny_adapters.write_adapter(tmp_path / "adapters/sql", seed="sql", model=tmp_path / "model")
    own = {
        "etcd-0:2379,etcd-1:2379,etcd-2:2379": ",".join(etcd.endpoints),
        "0.0.0.0:7600": f"127.0.0.1:{api}",
        "0.0.0.0:7601": f"127.0.0.1:{pages}",
        "0.0.0.0:7602": f"127.0.0.1:{sidecar}",
        "admin:7600": f"127.0.0.1:{api}",
        "DNS:admin": "IP:127.0.0.1",
        "--port 8000": f"--port {engine}",
        "127.0.0.1:8000": f"127.0.0.1:{engine}",
        "/models/qwen": str(tmp_path / "model"),
        "/var/lib/loraplane": str(tmp_path / "store"),
        "file:///adapters/": f"{(tmp_path / 'adapters').as_uri()}/",
    }
    beside = {name: value for name, value in os.environ.items() if not name.startswith(("LORAPLANE_", "VLLM_"))}
    beside |= made(programs) | {
        "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "LORAPLANE_PREFIX": etcd.prefix,  # the tests' etcd is shared
        "LORAPLANE_TIMEOUT": "300",
        "COLUMNS": "200",
    }
    text = with_ones_own(script(), own)
    # A context of whoever plays the test is none of the README's.
    with played(text, work, beside | {"LORAPLANE_CONFIG": str(work / "config")}) as shell:
        try:
            said, _ = shell.communicate(timeout=1200)
        finally:
            logs = "".join(f"{log.name}: {log.read_text()[-2000:]}\n" for log in sorted(work.glob("*.log")))
        assert shell.returncode == 0, said + logs
        assert "1 of 1 replicas serve it" in said or "1/1 served" in said, said
        assert said.splitlines()[-1].startswith("nothing is wrong; looked at: the admin service at "), said + logs
