"""Our services of the compose file, each with exactly its command and environment, against a real etcd.

There need not be a container engine: names of hosts and paths of containers are mapped to this machine's.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx
import pytest

from registry.tools.devstack.engine_environment import PLUGIN_VARIABLES
from registry.tools.devstack.processes import free_ports
from tests.integration.compose.compose_file import Service, alert_metrics, gateway_file, services, targets
from tests.support.adapters import write_adapter
from tests.support.envoy import ENVOY
from tests.support.etcd import Cluster, make_cluster
from tests.support.http_client import http_client
from tests.support.waiting import eventually

SERVICES = services()
BIN = Path(sys.executable).parent
# Flags of etcd that say where it is; its tests have places of their own.
PLACES = {"name", "data-dir"}
# Told by admin services with an access file, which these are without.
OF_ACCESS = {"loraplane_admin_access_stale", "loraplane_admin_access_info"}
# Flags of vLLM that a simulated engine has too.
ENGINE_FLAGS = ("served-model-name", "max-cpu-loras")


@dataclass
class Machine:
    """This machine, standing in for the containers' network and file systems."""

    folder: Path
    etcd: Cluster
    sockets: str
    ports: dict[tuple[str, str], int] = field(default_factory=dict)
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def port(self, host: str, port: str) -> int:
        """The local port for a container's."""
        if (host, port) not in self.ports:
            (self.ports[host, port],) = free_ports(1)
        return self.ports[host, port]

    def translate(self, service: Service, text: str) -> str:
        """The text with the names of containers replaced, and nothing else."""
        text = re.sub(r"etcd-\d:2379", self.etcd.endpoints[0], text)
        text = text.replace("=admin:7600", "=admin-1:7600")
        for port in ("7600", "7601", "7602", "7603", "7604", "8000"):
            for address in ("0.0.0.0", "127.0.0.1"):  # noqa: S104 - what stands in the file, replaced here
                text = text.replace(f"{address}:{port}", f"127.0.0.1:{self.port(service.name, port)}")
            for other in SERVICES:
                if f"{other}:{port}" in text:
                    text = text.replace(f"{other}:{port}", f"127.0.0.1:{self.port(other, port)}")
        text = text.replace("/var/lib/loraplane", f"{self.folder}/volume").replace("/run/loraplane", self.sockets)
        return text.replace("file:///adapters", (self.folder / "adapters").as_uri())

    def start(self, service: Service) -> None:
        """Starts a service as its container would."""
        of_image = [] if "entrypoint" in service.settings else targets()[str(service.target)].entrypoint
        program, *rest = [*of_image, *service.command]
        command = [self.translate(service, word) for word in rest]
        environment = {name: self.translate(service, value) for name, value in service.environment.items()}
        self.spawn(service.name, [str(BIN / program), *command], {"PATH": os.environ["PATH"], **environment})

    def start_engine(self, service: Service) -> None:
        """A simulated engine in place of vLLM, told what the file tells vLLM of its name, port and limits."""
        flags = ["--host", "127.0.0.1", "--port", str(self.port(service.name, service.flags["port"]))]
        flags += [word for name in ENGINE_FLAGS for word in (f"--{name}", service.flags[name])]
        command = [sys.executable, "-m", "sidecar.engines.simulated", *flags]
        environment = {name: self.translate(service, value) for name, value in service.environment.items()}
        self.spawn(service.name, command, {"PATH": os.environ["PATH"], **PLUGIN_VARIABLES, **environment})

    def start_gateway(self, service: Service) -> None:
        """The real Envoy with the file of the gateway, which it may read from anywhere."""
        text = gateway_file().replace(
            "0.0.0.0, port_value: 8080", f"127.0.0.1, port_value: {self.port(service.name, '')}"
        )
        for picker in ("picker-1", "picker-2"):
            here = f"127.0.0.1, port_value: {self.port(picker, '7603')}"
            text = text.replace(f"{picker}, port_value: 7603", here)
        file = self.folder / "envoy.yaml"
        file.write_text(text)
        flags = [word.replace("/etc/envoy/envoy.yaml", str(file)) for word in service.settings["command"]]
        self.spawn(service.name, [str(ENVOY), *flags, "--concurrency", "1"], {"PATH": os.environ["PATH"]})

    def spawn(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self.running.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))

    def is_healthy(self, service: Service, command: list[str]) -> bool:
        """Runs a health check as the container engine would."""
        program, *rest = command
        assert program == "python"
        words = [sys.executable, *(self.translate(service, word) for word in rest)]
        done = subprocess.run(words, env={}, capture_output=True, check=False, timeout=60)
        assert done.returncode == 0, (done.stderr.decode(), self.log(service))
        return True

    def log(self, service: Service) -> str:
        return (self.folder / f"{service.name}.log").read_text()[-3000:]

    def run(self, service: Service, *arguments: str) -> None:
        """Runs the CLI as `docker compose exec` would, in the container of a service."""
        admin = f"127.0.0.1:{self.port(service.name, '7600')}"
        words = [str(BIN / "loraplane"), "--admin", admin, *(self.translate(service, word) for word in arguments)]
        # Who gives a time waits for an etcd that stands still for a moment.
        environment = {"PATH": os.environ["PATH"], "LORAPLANE_TIMEOUT": "180"}
        done = subprocess.run(words, env=environment, capture_output=True, check=False, timeout=200)
        assert done.returncode == 0, done.stderr.decode()

    def stop(self) -> None:
        for process in self.running:
            process.kill()
            process.wait()


@pytest.fixture
async def machine(tmp_path) -> AsyncIterator[Machine]:
    flags = SERVICES["etcd-1"].flags
    shared = {name: value for name, value in flags.items() if name not in PLACES and "etcd-1" not in value}
    shared = {name: value for name, value in shared.items() if not name.startswith(("listen", "initial-cluster"))}
    assert {"max-txn-ops", "quota-backend-bytes", "auto-compaction-retention"} <= shared.keys()
    cluster = make_cluster(tmp_path / "etcd", flags=shared)
    sockets = tempfile.mkdtemp(prefix="lp-")  # a socket's path must be short
    machine = Machine(tmp_path, cluster, sockets)
    try:
        cluster.start()
        await cluster.ready()
        yield machine
    finally:
        machine.stop()
        cluster.stop()
        shutil.rmtree(sockets)


async def test_the_services_come_up_serve_an_adapter_and_export_what_the_alerts_ask_for(machine, tmp_path):
    """R3 converge: what stands at the head of the file works as written, with the sidecar started first.

    One of each: test_structure.py shows that the others are alike, and `make containers` starts all of them.
    """
    admin, sidecar, engine = (SERVICES[f"{part}-1"] for part in ("admin", "sidecar", "engine"))
    write_adapter(tmp_path / "adapters" / "sql", base="base")
    machine.start(sidecar)
    machine.start(admin)
    machine.start_engine(engine)
    for service in (admin, sidecar):  # which `up --wait` waits for
        # Each gives up after a few seconds, as containers do on a host that stands still.
        for check in {tuple(service.healthcheck), tuple(targets()[service.target].healthcheck)}:
            await eventually(partial(machine.is_healthy, service, [*check]))
    machine.run(admin, "pool", "create", "main", "--base-model", "base")
    machine.run(admin, "add", "acme/sql", "--pool", "main", "--source", "file:///adapters/sql", "--wait")
    cards = (await fetch(machine.port(engine.name, "8000"), "/v1/models")).json()["data"]
    assert {card["id"] for card in cards if card.get("parent")} == {"acme/sql"}

    async def is_ready() -> bool:
        """Whether routers may send requests to the replica."""
        return (await fetch(machine.port(sidecar.name, "7602"), "/readyz")).status_code == 200

    await eventually(is_ready)
    machine.run(admin, "add", "acme/lazy", "--pool", "main", "--source", "file:///adapters/sql", "--lazy")
    await eventually(lambda: answers(machine, engine, "acme/lazy"))
    assert alert_metrics() - await exported(machine) - OF_ACCESS == set()
    await the_gateway_sends_requests_where_they_belong(machine)


async def the_gateway_sends_requests_where_they_belong(machine: Machine) -> None:
    """The profile `picker`: one of two pickers runs; what is no path of clients is not passed on."""
    picker, gateway = SERVICES["picker-1"], SERVICES["gateway"]
    machine.start(picker)
    machine.start_gateway(gateway)
    await eventually(partial(machine.is_healthy, picker, picker.healthcheck))
    await eventually(lambda: answers(machine, gateway, "acme/sql"))
    port = machine.port(gateway.name, "")
    assert await asked(port, "nobody") == 404
    assert [card["id"] for card in (await fetch(port, "/v1/models")).json()["data"]][:1] == ["base"]
    others = ["load_lora_adapter", "loraplane/x", "/unload_lora_adapter", "models/../load_lora_adapter", "models/x"]
    assert {(await fetch(port, f"/v1/{path}")).status_code for path in [*others, "../metrics"]} == {404}
    assert (await fetch(port, "/v1%2Fload_lora_adapter")).status_code == 400


async def answers(machine: Machine, service: Service, model: str) -> bool:
    """True if the engine, or the gateway, serves a request for that model."""
    return await asked(machine.port(service.name, "8000" if service.name.startswith("engine") else ""), model) == 200


async def asked(port: int, model: str) -> int:
    """Status of the answer to a request for that model."""
    async with http_client(timeout=60) as client:
        body = {"model": model, "prompt": "x", "max_tokens": 1}
        return (await client.post(f"http://127.0.0.1:{port}/v1/completions", json=body)).status_code


async def exported(machine: Machine) -> set[str]:
    """Names of all metrics that etcd, an admin and a sidecar export."""
    ports = [machine.etcd.members[0].client_port, machine.port("admin-1", "7601"), machine.port("sidecar-1", "7602")]
    texts = [(await fetch(port, "/metrics")).text for port in ports]
    lines = [line.split()[2:3] for text in texts for line in text.splitlines() if line.startswith("# TYPE ")]
    return {name for names in lines for name in names}


async def fetch(port: int, path: str) -> httpx.Response:
    async with http_client() as client:
        return await client.get(f"http://127.0.0.1:{port}{path}", timeout=60)
