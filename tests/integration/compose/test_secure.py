"""compose.secure.yaml after compose.yaml: its form, and its services as processes, each with exactly its command.

There need not be a container engine: names of hosts, paths and volumes are mapped to this machine's.
"""

from __future__ import annotations

import os
import re
import shutil
import ssl
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPSConnection
from pathlib import Path

import pytest

from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdPermissionDenied
from registry.etcd3.ops import Put, Txn
from registry.etcd3.options import ClientOptions, TlsFiles
from registry.model.keys import DEFAULT_PREFIX, Keys
from registry.tools.devstack import secure
from registry.tools.devstack.processes import child_environment, find_etcd
from registry.tools.devstack.secure import SecretFolder
from registry.tools.devstack.shared_secrets import shares
from sidecar.vllm_plugin.guard import CONTROL_HEADER, WITHOUT_TOKEN
from tests.integration.compose.compose_file import (
    Service,
    mounts,
    prometheus_targets,
    scrape_jobs,
    secured,
    services,
    targets,
)
from tests.integration.compose.test_running import BIN, Machine
from tests.support.adapters import write_adapter
from tests.support.etcd import find_etcdctl
from tests.support.http_client import http_client
from tests.support.waiting import eventually

PLAIN, SECURED = services(), secured()
MEMBERS, REPLICAS = ("etcd-1", "etcd-2", "etcd-3"), ("replica-1", "replica-2")
FOLDER = SecretFolder(Path("/secrets"))
ONE_SHOTS = ("secrets", "etcd-users")
_HOST_AND_PORT = re.compile(r"(?<![\w.-])(0\.0\.0\.0|127\.0\.0\.1|[a-z]+(?:-\d)?):(\d{4})\b")


def given(flags: list[str]) -> dict[str, str]:
    return {name.removeprefix("--"): value for name, value in zip(flags[::2], flags[1::2], strict=True)}


def test_each_part_is_told_its_secrets_by_the_flags_of_a_secure_stack():
    """One derivation: the form is that of `loraplane dev up --secure`, and all else is as without."""
    expected = {name: {**secure.etcd_flags(FOLDER, name), **secure.etcd_peer_flags(FOLDER, name)} for name in MEMBERS}
    expected |= {f"admin-{n}": given(secure.admin_flags(FOLDER)) for n in (1, 2)}
    expected |= {f"picker-{n}": given(secure.picker_flags(FOLDER)) for n in (1, 2)}
    for one in REPLICAS:
        token = {"control-token-file": f"{FOLDER.control_token(one)}"}
        expected[f"sidecar-{one[-1]}"] = {**given(secure.sidecar_flags(FOLDER, one)), **token}
    for name, more in expected.items():
        before = {flag: value.replace("http://etcd", "https://etcd") for flag, value in PLAIN[name].flags.items()}
        if name in MEMBERS:
            more["listen-metrics-urls"] = "http://0.0.0.0:2381"
            before["listen-client-urls"] = "https://0.0.0.0:2379"
            before["listen-peer-urls"] = "https://0.0.0.0:2380"
        if not name.startswith("picker"):
            before.pop("insecure", None)
        assert SECURED[name].flags == {**before, **more}, name
    for one in REPLICAS:
        assert SECURED[f"engine-{one[-1]}"].environment["LORAPLANE_CONTROL_TOKEN_FILE"] == str(
            FOLDER.control_token(one)
        )
    operator = given(secure.operator_flags(FOLDER))
    variables = {f"LORAPLANE_{name.upper().replace('-', '_')}": value for name, value in operator.items()}
    assert SECURED["cli"].environment == {"LORAPLANE_ADMIN": "admin:7600", **variables}


def test_each_part_sees_its_own_secrets_alone_and_cannot_write_them():
    """A4 own-keys: with the keys of others a sidecar that is taken over could be anybody."""
    made = shares(FOLDER, REPLICAS, MEMBERS)
    of_parts = {f"/shares/{part}": (f"secrets-{part}", False) for part in made}
    assert mounts(SECURED["secrets"]) == {"/secrets": ("secrets", False), **of_parts}
    seen = {name: mounts(one)["/secrets"] for name, one in SECURED.items() if "/secrets" in mounts(one)}
    parts = dict.fromkeys(MEMBERS, "etcd") | {"prometheus": "prometheus", "cli": "operator"}
    parts |= {f"{part}-{n}": part for part in ("admin", "picker") for n in (1, 2)}
    parts |= {f"sidecar-{n}": f"replica-{n}" for n in (1, 2)} | {f"engine-{n}": f"engine-replica-{n}" for n in (1, 2)}
    assert {name: one for name, one in seen.items() if name not in ONE_SHOTS} == {
        name: (f"secrets-{part}", True) for name, part in parts.items()
    }
    assert seen["etcd-users"] == ("secrets", True)
    alone = {file.name for file in made["replica-1"]} & {file.name for file in made["replica-2"]}
    assert alone == {"etcd-ca.pem", "services-ca.pem", "operators-ca.pem"}
    assert [file for files in made.values() for file in files if file.name.endswith("-ca.key")] == []
    folders = next(text for word, text in targets()["admin"].instructions if word == "RUN")
    assert all(f" /shares/{part} " in f"{folders} " for part in made), "a new volume takes its owner from these folders"
    readers = {name for name, one in SECURED.items() if one.settings.get("group_add") == ["10001"]}
    assert readers == {*MEMBERS, "prometheus"}, "whose images have users in no group of ours"


def test_nothing_starts_before_it_has_its_secrets_and_etcd_asks_for_users():
    """And who makes them ends by himself, with no more rights than others."""
    for name, service in SECURED.items():
        after = {one: how["condition"] for one, how in service.settings.get("depends_on", {}).items()}
        if name.startswith(("admin", "sidecar", "picker")):
            assert after == {"etcd-users": "service_completed_successfully"}
        elif name in {*MEMBERS, "prometheus"} or name.startswith("engine"):
            assert after["secrets"] == "service_completed_successfully"
    assert SECURED["engine-1"].settings["depends_on"]["sidecar-1"] == {"condition": "service_started"}
    assert {*SECURED["etcd-users"].settings["depends_on"]} == {*MEMBERS}
    admin = PLAIN["admin-1"].settings
    for name in (*ONE_SHOTS, "cli"):
        settings = SECURED[name].settings
        for one in ("read_only", "cap_drop", "security_opt", "pids_limit", "logging", "image", "build"):
            assert settings[one] == admin[one]
        assert "restart" not in settings
        assert settings["mem_limit"]
        assert "ports" not in settings
    assert SECURED["secrets"].settings["network_mode"] == "none"
    assert SECURED["cli"].settings["profiles"] == ["cli"]


def test_prometheus_scrapes_the_same_with_a_certificate():
    file = "prometheus.secure.yml"
    assert {one.replace(":2381", ":2379") for one in prometheus_targets(file)} == prometheus_targets()
    assert SECURED["prometheus"].flags["config.file"] == f"/etc/prometheus/{file}"
    named = [{**job, "job_name": job["static_configs"][0].get("labels", job)} for job in scrape_jobs(file)]
    names = {(one["job_name"].get("job") or one["job_name"]["job_name"]) for one in named}
    assert names == {job["job_name"] for job in scrape_jobs()}, "alerts name jobs"


@dataclass
class SecuredMachine(Machine):
    """This machine, standing in for containers whose volumes are folders."""

    etcd: None = None  # type: ignore[assignment] # its members are processes as all others
    sockets: str = field(default_factory=lambda: tempfile.mkdtemp(prefix="lp-"))

    def volume(self, name: str) -> Path:
        return Path(self.sockets) if name == "sockets" else self.folder / "volumes" / name

    def translate(self, service: Service, text: str) -> str:
        """See `Machine`."""

        def address(match: re.Match[str]) -> str:
            host, port = match.groups()
            name = service.name if host[0].isdigit() else {"admin": "admin-1"}.get(host, host)
            return f"127.0.0.1:{self.port(name, port)}"

        text = _HOST_AND_PORT.sub(address, text)
        text = text.replace("file:///adapters", (self.folder / "adapters").as_uri())
        for path, (source, _) in sorted(mounts(service).items(), reverse=True):
            text = re.sub(rf"(?<![\w/.]){re.escape(path)}(?![\w-])", f"{self.volume(source)}", text)
        return text.replace("=/shares", f"={self.folder}/shares")

    def lay_shares(self) -> None:
        """A folder with the volumes of all parts in it."""
        (self.folder / "shares").mkdir()
        for path, (source, _) in mounts(SECURED["secrets"]).items():
            self.volume(source).mkdir(parents=True)
            if path.startswith("/shares/"):
                (self.folder / path[1:]).symlink_to(self.volume(source))

    def environment(self, service: Service) -> dict[str, str]:
        told = {name: self.translate(service, value) for name, value in service.environment.items()}
        return {"PATH": f"{BIN}:{os.environ['PATH']}", **told}

    def start_member(self, service: Service) -> None:
        words = [self.translate(service, word) for word in service.command[1:]]
        command = [str(find_etcd()), *words, "--unsafe-no-fsync", "--log-level=warn"]
        self.spawn(service.name, command, child_environment())

    def is_healthy(self, service: Service, command: list[str]) -> bool:
        """See `Machine`; etcd's own program too."""
        if not command[0].endswith("etcdctl"):
            return super().is_healthy(service, command)
        words = [str(find_etcdctl()), *command[1:]]
        done = self.called(words, {**self.environment(service), "ETCDCTL_API": "3"})
        assert done.returncode == 0, (done.stderr, self.log(service))
        return True

    def called(self, command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=200)

    def once(self, service: Service, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs a container that ends, with its own command or another."""
        program, *rest = [*service.settings["entrypoint"], *(arguments or service.settings["command"])]
        path = shutil.which(program, path=f"{BIN}:{os.environ['PATH']}")
        assert path is not None
        words = [path, *(self.translate(service, word) for word in rest)]
        return self.called(words, {"LORAPLANE_TIMEOUT": "180", **self.environment(service)})

    def page(self, name: str, port: str, page: str, server: str, file: str = "") -> int:
        """Status of a page for Prometheus, or with the certificate of another file of all secrets; '-': with none."""
        trusted = ssl.create_default_context(cafile=self.volume("secrets-prometheus") / "services-ca.pem")
        if file != "-":
            own = SecretFolder(self.volume("secrets"))
            trusted.load_cert_chain(own.certificate(file or "prometheus"), own.key(file or "prometheus"))
        connection = HTTPSConnection(f"127.0.0.1:{self.port(name, port)}", timeout=30, context=trusted)
        connection.connect = lambda: _connect(connection, trusted, server)  # type: ignore[method-assign]
        try:
            connection.request("GET", page)
            return connection.getresponse().status
        finally:
            connection.close()


def _connect(connection: HTTPSConnection, trusted: ssl.SSLContext, server: str) -> None:
    super(HTTPSConnection, connection).connect()
    connection.sock = trusted.wrap_socket(connection.sock, server_hostname=server)


@pytest.fixture
def machine(tmp_path) -> Iterator[SecuredMachine]:
    machine = SecuredMachine(tmp_path)
    try:
        yield machine
    finally:
        machine.stop()
        shutil.rmtree(machine.sockets)


async def test_the_services_come_up_know_each_other_and_refuse_all_others(machine, tmp_path):
    """A1 named, A4 own-keys: as the head of the file says, in its order; a second `up` changes nothing."""
    admin, sidecar, engine, picker = (SECURED[f"{part}-1"] for part in ("admin", "sidecar", "engine", "picker"))
    write_adapter(tmp_path / "adapters" / "sql", base="base")
    machine.lay_shares()
    made = machine.once(SECURED["secrets"])
    assert (made.returncode, made.stderr) == (0, "")
    for name in MEMBERS:
        machine.start_member(SECURED[name])
    for name in MEMBERS:
        healthy = partial(machine.is_healthy, SECURED[name], SECURED[name].healthcheck)
        await eventually(healthy)
    users = machine.once(SECURED["etcd-users"])
    assert users.returncode == 0, users.stderr
    for service in (sidecar, admin, picker):
        machine.start(service)
    machine.start_engine(engine)
    for service in (admin, sidecar, picker):
        await eventually(partial(machine.is_healthy, service, service.healthcheck))
    the_operator_may_and_others_may_not(machine)
    await etcd_refuses(machine)
    await the_plugin_takes_its_sidecars_calls_alone(machine)
    pages_are_for_who_shows_a_certificate(machine)
    router_ready = partial(machine.page, "picker-1", "7604", "/readyz", "picker")
    await eventually(lambda: router_ready() == 200)
    before = {file: file.read_bytes() for file in (tmp_path / "volumes").glob("secrets*/*")}
    again = machine.once(SECURED["secrets"])
    assert again.stdout == "made 0 secrets, gave 0 files to their parts\n"
    assert machine.once(SECURED["etcd-users"]).returncode == 0
    assert {file: file.read_bytes() for file in (tmp_path / "volumes").glob("secrets*/*")} == before
    for name in MEMBERS:  # which now asks for users
        machine.is_healthy(SECURED[name], SECURED[name].healthcheck)


def the_operator_may_and_others_may_not(machine: SecuredMachine) -> None:
    cli = SECURED["cli"]
    pool = machine.once(cli, "pool", "create", "main", "--base-model", "base")
    assert pool.returncode == 0, pool.stderr
    add = ("add", "acme/sql", "--pool", "main", "--source", "file:///adapters/sql")
    added = machine.once(cli, *add, "--wait")
    assert added.returncode == 0, added.stderr
    files = SecretFolder(machine.volume("secrets"))
    router = ("--tls-cert", f"{files.certificate('router')}", "--tls-key", f"{files.key('router')}")
    refused = machine.once(cli, *router, "delete", "acme/sql", "--pool", "main")
    assert (refused.returncode, "PERMISSION_DENIED" in refused.stderr) == (4, True), refused.stderr
    stranger = Service(
        "cli", {**cli.settings, "environment": {"LORAPLANE_ADMIN": "admin:7600", "LORAPLANE_TIMEOUT": "1"}}
    )
    unknown = machine.once(stranger, "get", "adapters")
    assert unknown.returncode == 6, unknown.stderr


async def etcd_refuses(machine: SecuredMachine) -> None:
    """A sidecar that writes a record, and all but members among its peers."""
    keys, files = Keys(DEFAULT_PREFIX), SecretFolder(machine.volume("secrets"))
    own = secure.etcd_file("replica-1")
    write = Txn((), (Put(keys.pool("main"), b"x"),))
    endpoint = f"127.0.0.1:{machine.port('etcd-1', '2379')}"
    tls = TlsFiles(files.authority(secure.AuthorityName.ETCD), files.certificate(own), files.key(own))
    client = Client(ClientOptions(endpoints=(endpoint,), tls=tls))
    try:
        assert (await client.list_prefix(keys.adapters("main"))).kvs
        with pytest.raises(EtcdPermissionDenied):
            await client.txn(write)
    finally:
        await client.aclose()
    trusted = ssl.create_default_context(cafile=files.authority(secure.AuthorityName.ETCD))
    for file, taken in ((secure.etcd_member("etcd-2"), True), (own, False)):
        trusted.load_cert_chain(files.certificate(file), files.key(file))
        connection = HTTPSConnection(f"127.0.0.1:{machine.port('etcd-1', '2380')}", timeout=30, context=trusted)
        try:
            connection.request("GET", "/version")
            assert (connection.getresponse().status, taken) == (200, True)
        except (ssl.SSLError, ConnectionError):
            assert not taken, file
        finally:
            connection.close()


async def the_plugin_takes_its_sidecars_calls_alone(machine: SecuredMachine) -> None:
    url = f"http://127.0.0.1:{machine.port('engine-1', '8000')}/v1"
    token = SecretFolder(machine.volume("secrets-engine-replica-1")).control_token("replica-1").read_text().strip()
    other = SecretFolder(machine.volume("secrets-replica-2")).control_token("replica-2").read_text().strip()
    answers = {}
    async with http_client(timeout=60) as client:
        for shown in (WITHOUT_TOKEN, other, token):
            reply = await client.get(f"{url}/loraplane/state", headers={CONTROL_HEADER: shown})
            answers[shown] = reply.status_code
        served = await client.post(f"{url}/completions", json={"model": "acme/sql", "prompt": "x", "max_tokens": 1})
    assert answers == {WITHOUT_TOKEN: 403, other: 403, token: 200}
    assert served.status_code == 200, served.text


def pages_are_for_who_shows_a_certificate(machine: SecuredMachine) -> None:
    """As Prometheus' own file names ports and servers."""
    jobs = [job for job in scrape_jobs("prometheus.secure.yml") if job.get("scheme") == "https"]
    assert len(jobs) == 3
    for job in jobs:
        name, _, port = job["static_configs"][0]["targets"][0].partition(":")
        if name != "sidecar-2":  # which does not run
            server = job["tls_config"]["server_name"]
            assert machine.page(name, port, "/metrics", server) == 200
            # A sidecar tells everything to its own host, which this is.
            assert machine.page(name, port, "/metrics", server, "-") == (401 if name == "admin-1" else 200)
