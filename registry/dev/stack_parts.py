"""The parts of a local stack: which command starts each, and how it is known to be ready."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from registry.dev.etcd_binary import child_environment, find_etcd
from registry.dev.stack_file import EngineKind, Layout
from registry.dev.vllm_process import RUNTIME_LORA_VARIABLE, vllm_command, vllm_environment

POOL = "dev"
BASE_MODEL = "tiny"
MAX_TXN_OPS = 1024
_OUR_PREFIX = "LORAPLANE_"


class Role(StrEnum):
    """What a part is."""

    ETCD = "etcd"
    ADMIN = "admin"
    ENGINE = "engine"
    SIDECAR = "sidecar"


@dataclass(frozen=True, slots=True)
class Part:
    """A process of the stack. `ready_url` answers 200 once it is ready; `address` is what users connect to."""

    name: str
    role: Role
    command: Sequence[str]
    environment: Mapping[str, str]
    address: str
    ready_url: str


@dataclass(frozen=True, slots=True)
class Folder:
    """Where a stack keeps what. `root` is absolute."""

    root: Path

    @property
    def model(self) -> Path:
        return self.root / "model"

    @property
    def adapters(self) -> Path:
        return self.root / "adapters"

    @property
    def store(self) -> Path:
        return self.root / "store"

    @property
    def etcd(self) -> Path:
        return self.root / "etcd"

    def log(self, part: str) -> Path:
        return self.root / "logs" / f"{part}.log"


def parts(folder: Folder, layout: Layout, engine_python: Path | None) -> list[Part]:
    """All parts in the order in which they are started.

    Args:
        folder: of the stack.
        layout: engine, replicas and ports.
        engine_python: interpreter of the engine environment; None where the engines are simulated.

    Raises:
        EtcdNotFound: there is no etcd on this machine.
    """
    engines = [
        engine_part(folder, layout.engine, name, layout.ports[name], engine_python)
        for name in (f"engine-{replica}" for replica in layout.replicas)
    ]
    sidecars = [_sidecar(folder, layout, replica) for replica in layout.replicas]
    return [_etcd(folder, layout), *engines, _admin(layout), *sidecars]


def _etcd(folder: Folder, layout: Layout) -> Part:
    peer = layout.url("etcd-peer")
    flags = {
        "name": "dev",
        "data-dir": folder.etcd,
        "listen-client-urls": layout.url("etcd"),
        "advertise-client-urls": layout.url("etcd"),
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"dev={peer}",
        "max-txn-ops": MAX_TXN_OPS,
        "log-level": "warn",
    }
    command = [str(find_etcd().resolve()), *(f"--{name}={value}" for name, value in flags.items())]
    ready_url = f"{layout.url('etcd')}/health"
    return Part("etcd", Role.ETCD, command, child_environment(), layout.address("etcd"), ready_url)


def _admin(layout: Layout) -> Part:
    command = [
        *(sys.executable, "-m", "registry.admin.main"),
        *("--etcd", layout.address("etcd"), "--max-txn-ops", str(MAX_TXN_OPS)),
        *("--listen", layout.address("admin"), "--http", layout.address("admin-http")),
    ]
    ready_url = f"{layout.url('admin-http')}/readyz"
    return Part("admin", Role.ADMIN, command, our_environment(), layout.address("admin"), ready_url)


def engine_part(folder: Folder, kind: EngineKind, name: str, port: int, python: Path | None) -> Part:
    """One engine, which serves the base model of the stack on `port`."""
    address = f"127.0.0.1:{port}"
    match kind:
        case EngineKind.VLLM:
            interpreter = python or Path(sys.executable)
            command = vllm_command(interpreter, folder.model, port=port, served_model_name=BASE_MODEL)
            environment = vllm_environment()
        case EngineKind.SIM:
            flags = ("--host", "127.0.0.1", "--port", str(port), "--served-model-name", BASE_MODEL)
            command = [sys.executable, "-m", "sidecar.engines.simulated", *flags]
            environment = {**our_environment(), RUNTIME_LORA_VARIABLE: "1"}
    return Part(name, Role.ENGINE, command, environment, address, f"http://{address}/health")


def _sidecar(folder: Folder, layout: Layout, replica: str) -> Part:
    name = f"sidecar-{replica}"
    command = [
        *(sys.executable, "-m", "sidecar.main"),
        *("--etcd", layout.address("etcd"), "--pool", POOL, "--replica", replica),
        *("--engine", layout.url(f"engine-{replica}"), "--store", str(folder.store)),
        *("--http", layout.address(name), "--allow-source", f"{folder.adapters.as_uri()}/"),
        *(("--base-model", str(folder.model)) if layout.engine is EngineKind.VLLM else ()),
    ]
    return Part(name, Role.SIDECAR, command, our_environment(), layout.address(name), f"{layout.url(name)}/readyz")


def our_environment() -> dict[str, str]:
    """Our environment without LORAPLANE_*, which our programs would read as flags."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_OUR_PREFIX)}
