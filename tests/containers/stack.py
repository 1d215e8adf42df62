"""The containers of a compose file as tests play on them: by name, with a tiny model, ended without a trace."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterable

from registry.tools.devstack.tiny_adapters import write_adapter
from registry.tools.devstack.tiny_model import write_model
from tests.containers.images import compose
from tests.containers.podman import FOLDER, PROJECT, podman

# Docker gives a container with a read-only root no places to write to, unless they are named; podman would.
AS_DOCKER = ("--in-pod=false", "--podman-run-args=--read-only-tmpfs=false")
BEGAN = time.monotonic()


def name_of(service: str) -> str:
    return f"{PROJECT}_{service}_1"


def say(text: str) -> None:
    sys.stdout.write(f"{time.monotonic() - BEGAN:5.0f} s  {text}\n")
    sys.stdout.flush()


def tiny_settings() -> dict[str, str]:
    """The variables that compose.yaml names, for a tiny model and its adapters in folders of this machine."""
    folder = FOLDER / "play"
    shutil.rmtree(folder, ignore_errors=True)
    write_model(folder / "models" / "tiny")
    for adapter in ("one", "two"):
        write_adapter(folder / "adapters" / adapter, seed=adapter, model=folder / "models" / "tiny")
    return {
        "LORAPLANE_BASE_MODEL": "/models/tiny",
        "LORAPLANE_MODELS_DIR": str(folder / "models"),
        "LORAPLANE_ADAPTERS_DIR": str(folder / "adapters"),
        "LORAPLANE_CPU_KVCACHE_GB": "1",
    }


def is_healthy(service: str) -> bool:
    """Runs the service's own health check, as Docker does in intervals."""
    podman("healthcheck", "run", name_of(service))
    return True


def down(files: list[str], names: Iterable[str], settings: dict[str, str]) -> None:
    """Removes every container, network and volume that was started, and nothing else."""
    for service in names:  # first, by name: what is started again and again slips through `down`
        remove(name_of(service))
    compose(files, *AS_DOCKER, "down", "--volumes", **settings)
    assert podman("ps", "--all", "--quiet") == ""
    assert podman("volume", "ls", "--quiet") == ""


def remove(container: str) -> None:
    """Ends a container and removes it; where its restart came between the two, once more."""
    for _ in range(4):
        try:
            podman("rm", "--force", "--ignore", "--volumes", "--time", "0", container)
        except AssertionError:
            continue
        return
    podman("rm", "--force", "--ignore", "--volumes", "--time", "0", container)


def keep_logs(names: Iterable[str]) -> None:
    folder = FOLDER / "logs"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for service in names:
        with (folder / f"{service}.log").open("wb") as log:
            command = [str(FOLDER / "podman"), "logs", name_of(service)]
            subprocess.run(command, stdout=log, stderr=log, check=False, timeout=60)
