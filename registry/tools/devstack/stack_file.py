"""Layout of a local stack, in ``stack.json`` of its folder."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from registry.runtime import own_paths
from registry.tools.devstack.processes import MAX_BYTES, free_ports, recall

FILE = "stack.json"
DEFAULT_FOLDER = Path(".loraplane")


class StackError(Exception):
    """The stack cannot be as it was asked for; the message says what to do."""


class FolderNotTrusted(StackError):
    """Others could have written what a folder says of a stack."""


class EngineKind(StrEnum):
    """Kind of engine that a stack runs."""

    VLLM = "vllm"
    SIM = "sim"


@dataclass(frozen=True, slots=True)
class StackLayout:
    """A stack as it was set up. `ports` holds a port for each of `port_names`; `secure`: with TLS, users and roles."""

    engine: EngineKind
    replicas: tuple[str, ...]
    ports: Mapping[str, int]
    secure: bool = False

    def address(self, port_name: str) -> str:
        """HOST:PORT of one of its ports."""
        return f"127.0.0.1:{self.ports[port_name]}"

    def url(self, port_name: str) -> str:
        return f"http://{self.address(port_name)}"

    def service_url(self, port_name: str) -> str:
        """The address of a port that has TLS in a secure stack."""
        return f"https://{self.address(port_name)}" if self.secure else self.url(port_name)


def port_names(replicas: Iterable[str], *, secure: bool = False) -> list[str]:
    """Names of all ports that a stack with these replicas needs."""
    per_replica = [f"{part}-{replica}" for replica in replicas for part in ("engine", "sidecar")]
    # etcd answers nobody without a certificate at its own port, also not about its health.
    of_etcd = ["etcd", "etcd-peer", *(["etcd-health"] if secure else [])]
    return [*of_etcd, "admin", "admin-http", *per_replica]


def make_layout(
    engine: EngineKind, replica_count: int, ports: Mapping[str, int], *, secure: bool = False
) -> StackLayout:
    """A layout with replicas r1, r2, …; ports that are known already are kept, the others are free ones."""
    replicas = tuple(f"r{number}" for number in range(1, replica_count + 1))
    names = port_names(replicas, secure=secure)
    fresh = iter(free_ports(len(names), taken=set(ports.values())))
    return StackLayout(engine, replicas, {name: ports.get(name) or next(fresh) for name in names}, secure)


def save(folder: Path, layout: StackLayout) -> None:
    """Writes the layout, whole or not at all; nobody else may change it, whatever the umask."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    own_paths.write_whole(folder / FILE, (json.dumps(asdict(layout), indent=2) + "\n").encode())


def load(folder: Path) -> StackLayout | None:
    """The remembered layout; None: there is none, or it cannot be read."""
    try:
        with (folder / FILE).open("rb") as file:
            found = json.loads(file.read(MAX_BYTES))
        ports = {str(name): int(port) for name, port in found["ports"].items()}
        secure = found.get("secure", False) is True  # stacks of earlier releases do not say
        layout = StackLayout(EngineKind(found["engine"]), tuple(found["replicas"]), ports, secure)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    return layout if set(port_names(layout.replicas, secure=layout.secure)) <= set(ports) else None


def pid_file(folder: Path, part: str) -> Path:
    """File in which the process of a part is written down."""
    return folder / "run" / f"{part}.json"


def check_own(folder: Path) -> None:
    """Refuses a folder that is there and not ours alone: it says which processes to end, and whom to tell everything.

    Raises:
        FolderNotTrusted: it, its layout or a link to them is another user's, or others may write there.
    """
    for path in (folder, folder / FILE):
        if os.path.lexists(path):
            check_own_path(path)


def check_own_path(path: Path) -> None:
    """The same for one file or folder, which must be there."""
    try:
        own_paths.check_own(path)
    except own_paths.NotOwn as error:
        raise FolderNotTrusted(str(error)) from error


def secrets_folder(folder: Path) -> Path:
    """Folder of a secure stack's certificates and access file."""
    return folder / "secrets"


@dataclass(frozen=True, slots=True)
class StackAdmin:
    """Admin service of a stack: HOST:PORT, and the folder of its secrets; None: it asks nobody who they are."""

    address: str
    secrets: Path | None


def admin_of_stack(folder: Path) -> StackAdmin | None:
    """The admin service of the stack in `folder`; None: no stack was ever set up there.

    Raises:
        FolderNotTrusted: see `check_own`.
        StackError: its admin service does not run.
    """
    check_own(folder)
    if not os.path.lexists(folder / FILE):
        return None
    layout, process = load(folder), recall(pid_file(folder, "admin"))
    if layout is None or process is None or not process.is_running():
        raise StackError(f"the admin service of the stack in {folder} does not run; start it with: loraplane dev up")
    return StackAdmin(layout.address("admin"), secrets_folder(folder) if layout.secure else None)
