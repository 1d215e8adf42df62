"""Parts of a local stack: their commands and their readiness."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from registry.tools.devstack import secure
from registry.tools.devstack.certificates import make_token
from registry.tools.devstack.engine_environment import (
    PLUGIN_VARIABLES,
    RESOLVER_VARIABLE,
    RUNTIME_LORA_VARIABLE,
    STORE_VARIABLE,
    TOKEN_VARIABLE,
    find_engine_python,
    plugin_folder,
    vllm_command,
    vllm_environment,
)
from registry.tools.devstack.processes import child_environment, find_etcd
from registry.tools.devstack.secure import SecretFolder
from registry.tools.devstack.stack_file import EngineKind, StackLayout, secrets_folder

POOL = "dev"
BASE_MODEL = "tiny"
MAX_TXN_OPS = 1024
MAX_SOCKET_PATH_BYTES = 107
_OUR_PREFIX = "LORAPLANE_"
_ZONES = ("a", "b")


class Role(StrEnum):
    """Kind of program that a part is."""

    ETCD = "etcd"
    ADMIN = "admin"
    ENGINE = "engine"
    SIDECAR = "sidecar"


@dataclass(frozen=True, slots=True)
class StackPart:
    """A process of the stack. `ready_url` answers 200 once it is ready; `address` is what users connect to."""

    name: str
    role: Role
    address: str
    ready_url: str
    replica: str = ""


@dataclass(frozen=True, slots=True)
class Command:
    """Command of a process."""

    arguments: Sequence[str]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Folder:
    """Folders of a stack. `root` is absolute."""

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
    def plugin(self) -> Path:
        return self.root / "plugin"

    @property
    def control_token(self) -> Path:
        return self.root / "control-token"

    @property
    def etcd(self) -> Path:
        return self.root / "etcd"

    @property
    def secrets(self) -> SecretFolder:
        return SecretFolder(secrets_folder(self.root))

    def log(self, part: str) -> Path:
        return self.root / "logs" / f"{part}.log"

    def socket(self, replica: str) -> Path:
        """Path of a replica's resolver socket, here unless too long for the kernel."""
        beside = self.root / "sockets" / replica
        if len(os.fsencode(beside)) <= MAX_SOCKET_PATH_BYTES:
            return beside
        digest = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:12]
        return Path(tempfile.gettempdir()) / f"loraplane-{digest}-{replica}.sock"


def parts(layout: StackLayout) -> list[StackPart]:
    """All parts of a stack. Pure."""
    health = layout.url("etcd-health" if layout.secure else "etcd")
    etcd = StackPart("etcd", Role.ETCD, layout.address("etcd"), f"{health}/health")
    admin = StackPart("admin", Role.ADMIN, layout.address("admin"), f"{layout.service_url('admin-http')}/readyz")
    engines = [_of_replica(Role.ENGINE, "health", replica, layout) for replica in layout.replicas]
    sidecars = [_of_replica(Role.SIDECAR, "readyz", replica, layout) for replica in layout.replicas]
    return [etcd, admin, *engines, *sidecars]


def _of_replica(role: Role, ready: str, replica: str, layout: StackLayout) -> StackPart:
    name = f"{role}-{replica}"
    url = layout.service_url(name) if role is Role.SIDECAR else layout.url(name)
    return StackPart(name, role, layout.address(name), f"{url}/{ready}", replica)


def command_of(part: StackPart, folder: Folder, layout: StackLayout) -> Command:
    """The command that starts a part.

    Raises:
        EtcdNotFound: there is no etcd on this machine.
        EngineNotFound: there is no engine environment on this machine.
    """
    match part.role:
        case Role.ETCD:
            return _etcd(folder, layout)
        case Role.ADMIN:
            return _admin(folder, layout)
        case Role.ENGINE:
            command = engine_command(folder, layout.engine, layout.ports[part.name])
            plugin = {
                RESOLVER_VARIABLE: str(folder.socket(part.replica)),
                STORE_VARIABLE: str(folder.store),
                TOKEN_VARIABLE: str(_control_token(folder)),
            }
            return Command(command.arguments, {**command.environment, **plugin})
        case Role.SIDECAR:
            return _sidecar(folder, layout, part)


def _etcd(folder: Folder, layout: StackLayout) -> Command:
    peer, client = layout.url("etcd-peer"), layout.service_url("etcd")
    flags = {
        "name": "dev",
        "data-dir": folder.etcd,
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"dev={peer}",
        "max-txn-ops": MAX_TXN_OPS,
        "enable-grpc-gateway": "false",  # any web page could write by it
        "log-level": "warn",
    }
    if layout.secure:
        health = {"listen-metrics-urls": layout.url("etcd-health")}
        flags = {**flags, **health, **secure.etcd_flags(folder.secrets, "dev")}
    arguments = [str(find_etcd().resolve()), *(f"--{name}={value}" for name, value in flags.items())]
    return Command(arguments, child_environment())


def _admin(folder: Folder, layout: StackLayout) -> Command:
    arguments = [
        *(sys.executable, "-m", "registry.admin.main"),
        *("--etcd", layout.address("etcd"), "--max-txn-ops", str(MAX_TXN_OPS)),
        *("--listen", layout.address("admin"), "--http", layout.address("admin-http")),
        *(secure.admin_flags(folder.secrets) if layout.secure else ()),
    ]
    return Command(arguments, our_environment())


def engine_command(folder: Folder, kind: EngineKind, port: int) -> Command:
    """The command of an engine that serves the stack's base model on `port`.

    Raises:
        EngineNotFound: there is no engine environment on this machine.
    """
    match kind:
        case EngineKind.VLLM:
            python = find_engine_python()
            arguments = vllm_command(python, folder.model, port=port, served_model_name=BASE_MODEL)
            return Command(arguments, vllm_environment(plugin=plugin_folder(folder.plugin)))
        case EngineKind.SIM:
            flags = ("--host", "127.0.0.1", "--port", str(port), "--served-model-name", BASE_MODEL)
            base = ("--model", str(folder.model))  # which the plugin reads, so that it can be compared
            arguments = [sys.executable, "-m", "sidecar.engines.simulated", *flags, *base]
            return Command(arguments, {**our_environment(), **PLUGIN_VARIABLES, RUNTIME_LORA_VARIABLE: "1"})


def _sidecar(folder: Folder, layout: StackLayout, part: StackPart) -> Command:
    socket = folder.socket(part.replica)
    socket.parent.mkdir(parents=True, exist_ok=True)
    arguments = [
        *(sys.executable, "-m", "sidecar.main"),
        *("--etcd", layout.address("etcd"), "--pool", POOL, "--replica", part.replica),
        *("--engine", layout.url(f"engine-{part.replica}"), "--store", str(folder.store)),
        *("--http", part.address, "--allow-source", f"{folder.adapters.as_uri()}/"),
        *("--labels", f"zone={_zone_of(part.replica, layout)}"),
        *("--resolver-socket", str(socket), "--control-token-file", str(_control_token(folder))),
        *(("--base-model", str(folder.model)) if layout.engine is EngineKind.VLLM else ()),
        *(secure.sidecar_flags(folder.secrets, part.replica) if layout.secure else ()),
    ]
    return Command(arguments, our_environment())


def _zone_of(replica: str, layout: StackLayout) -> str:
    """Zone that a replica has as a label, by turns, so that there is something to place adapters by."""
    return _ZONES[layout.replicas.index(replica) % len(_ZONES)]


def _control_token(folder: Folder) -> Path:
    """The file with the token that the stack's engines and sidecars share; it is made when it is first needed."""
    make_token(folder.control_token)
    return folder.control_token


def our_environment() -> dict[str, str]:
    """Our environment without LORAPLANE_*, which our programs would read as flags."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_OUR_PREFIX)}
