"""What is remembered of a local stack: its engine, its replicas and its ports. ``stack.json`` in the stack's folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from registry.dev.ports import free_ports
from registry.dev.processes import recall

FILE = "stack.json"
DEFAULT_FOLDER = Path(".loraplane")


class EngineKind(StrEnum):
    """Which engine a stack runs."""

    VLLM = "vllm"
    SIM = "sim"


@dataclass(frozen=True, slots=True)
class Layout:
    """A stack as it was set up. `ports` holds a port for each of `port_names`."""

    engine: EngineKind
    replicas: tuple[str, ...]
    ports: Mapping[str, int]

    def address(self, port_name: str) -> str:
        """HOST:PORT of one of its ports."""
        return f"127.0.0.1:{self.ports[port_name]}"

    def url(self, port_name: str) -> str:
        return f"http://{self.address(port_name)}"


def port_names(replicas: Iterable[str]) -> list[str]:
    """Names of all ports that a stack with these replicas needs."""
    per_replica = [f"{part}-{replica}" for replica in replicas for part in ("engine", "sidecar")]
    return ["etcd", "etcd-peer", "admin", "admin-http", *per_replica]


def make_layout(engine: EngineKind, replica_count: int, ports: Mapping[str, int]) -> Layout:
    """A layout with replicas r1, r2, …; ports that are known already are kept, the others are free ones."""
    replicas = tuple(f"r{number}" for number in range(1, replica_count + 1))
    names = port_names(replicas)
    fresh = iter(free_ports(len(names), taken=set(ports.values())))
    return Layout(engine, replicas, {name: ports.get(name) or next(fresh) for name in names})


def save(folder: Path, layout: Layout) -> None:
    """Writes the layout, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    written = folder / f"{FILE}.new"
    written.write_text(json.dumps(asdict(layout), indent=2) + "\n")
    written.replace(folder / FILE)


def load(folder: Path) -> Layout | None:
    """The remembered layout; None: there is none, or it cannot be read."""
    try:
        found = json.loads((folder / FILE).read_text())
        ports = {str(name): int(port) for name, port in found["ports"].items()}
        layout = Layout(EngineKind(found["engine"]), tuple(found["replicas"]), ports)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return layout if set(port_names(layout.replicas)) <= set(ports) else None


def pid_file(folder: Path, part: str) -> Path:
    """Where the process of a part is written down."""
    return folder / "run" / f"{part}.json"


def admin_of_running_stack(folder: Path) -> str | None:
    """HOST:PORT of the admin service of the stack in `folder`; None: no stack runs there."""
    layout, process = load(folder), recall(pid_file(folder, "admin"))
    running = layout is not None and process is not None and process.is_running()
    return layout.address("admin") if layout and running else None
