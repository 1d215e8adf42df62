"""Podman with a store, settings and networks of its own below the checkout, so that nothing of the host is touched."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".loraplane" / "containers"
COMPOSE = ROOT / ".venv-containers" / "bin" / "podman-compose"
PROJECT = "lptest"
PROGRAMS = ("podman", "buildah", "runc", "netavark", "aardvark-dns", "iptables", "mmdebstrap", "dpkg-deb")
_ELSEWHERE = "/usr/sbin:/sbin:/usr/lib/podman:/usr/libexec/podman"
_RUNTIME = Path(__file__).with_name("runc_without_rlimits.py")


def missing() -> str | None:
    """Why containers cannot be run here; None if they can."""
    if os.geteuid() != 0:
        return "containers need root here"
    path = f"{os.environ['PATH']}:{_ELSEWHERE}"
    absent = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if absent:
        return f"containers need {', '.join(absent)}: Debian has packages (.ci/podman installs them)"
    if not COMPOSE.exists():
        return "containers need podman-compose: make containers installs it"
    return None


def set_up() -> None:
    """Writes the settings; safe to run again."""
    (FOLDER / "networks").mkdir(parents=True, exist_ok=True)
    _program("podman", ["podman", *places()])
    _program("runc", [sys.executable, str(_RUNTIME)])
    (FOLDER / "containers.conf").write_text(
        "[engine]\n"
        'cgroup_manager = "cgroupfs"\n'
        'events_logger = "file"\n'
        'runtime = "plain"\n'
        f'[engine.runtimes]\nplain = ["{FOLDER / "runc"}"]\n'
        f'[network]\nnetwork_config_dir = "{FOLDER / "networks"}"\n'
    )


def _program(name: str, command: list[str]) -> None:
    """A program of that name, for those that take one and no arguments."""
    (FOLDER / name).write_text(f'#!/bin/sh\nexec {" ".join(command)} "$@"\n')
    (FOLDER / name).chmod(0o755)


def places() -> list[str]:
    return ["--root", str(FOLDER / "storage"), "--runroot", str(FOLDER / "run")]


def environment(**more: str) -> dict[str, str]:
    """That of this process, with our settings of podman."""
    path = f"{os.environ['PATH']}:{_ELSEWHERE}"
    return {**os.environ, "PATH": path, "CONTAINERS_CONF": str(FOLDER / "containers.conf"), **more}


def podman(*arguments: str, timeout: float = 120, **more: str) -> str:
    """Runs podman and returns what it printed. AssertionError with its words if it failed."""
    return run(["podman", *places(), *arguments], timeout=timeout, **more)


def run(command: list[str], *, timeout: float, **more: str) -> str:
    """Runs a command in the environment of podman. AssertionError with its words if it failed."""
    done = subprocess.run(
        command, env=environment(**more), capture_output=True, text=True, timeout=timeout, check=False, cwd=ROOT
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def build(tag: str, context: Path, *arguments: str) -> None:
    """Builds the Dockerfile of a folder."""
    podman("build", "--quiet", "--tag", tag, *arguments, str(context), timeout=1200)


def inspect(container: str) -> dict[str, Any]:
    """All that podman knows about a container."""
    found: list[dict[str, Any]] = json.loads(podman("inspect", container))
    return found[0]


def main_pid(container: str) -> int:
    """The process of the container on this host; 0 if it does not run."""
    return int(inspect(container)["State"]["Pid"])
