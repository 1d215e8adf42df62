"""What can be seen in the compose file without running it: mistakes that would show only in production."""

from __future__ import annotations

import re

import pytest
import yaml

from registry.tools.devstack.engine_environment import PLUGIN_VARIABLES
from sidecar.settings import DRAIN_SECONDS
from tests.integration.compose.compose_file import (
    FOLDER,
    arguments,
    copied,
    engine_file,
    gateway_file,
    let_through,
    mounts,
    prometheus_targets,
    services,
    targets,
    with_grafana,
    without_gpus,
)

SERVICES = services()
ETCD = [SERVICES[f"etcd-{n}"] for n in (1, 2, 3)]
REPLICAS = (1, 2)
PICKERS = [SERVICES[f"picker-{n}"] for n in (1, 2)]
SIDECARS_AND_ADMINS = [SERVICES[f"{part}-{n}"] for part in ("admin", "sidecar") for n in (1, 2)]
PINNED = re.compile(r".+:v?\d+\.\d+(\.\d+)?(-[a-z0-9-]+)?(@sha256:[0-9a-f]{64})?$")
each_replica = pytest.mark.parametrize(
    ("engine", "sidecar"), [(SERVICES[f"engine-{n}"], SERVICES[f"sidecar-{n}"]) for n in REPLICAS], ids=REPLICAS
)


GATEWAYS = [*PICKERS, SERVICES["gateway"]]


def test_images_are_pinned_and_built_of_what_they_name():
    """A file that the ignore file leaves out ends a build, with a message that it does not exist."""
    images = [service.settings["image"] for service in SERVICES.values()]
    images += [*arguments("Dockerfile").values(), *arguments("Dockerfile.engine").values()]
    assert [image for image in images if not PINNED.match(image)] == []
    assert "@sha256:" in arguments("Dockerfile")["PYTHON_IMAGE"]
    assert "@sha256:" in SERVICES["prometheus"].settings["image"]
    for name in ("etcd-1", "admin-1", "sidecar-1", "engine-1"):
        build = SERVICES[name].settings["build"]
        assert arguments(build["dockerfile"].removeprefix("compose/")).items() <= build["args"].items()
    for file in ("Dockerfile", "Dockerfile.engine"):
        assert copied(file) == let_through(file)
        assert [path for path in copied(file) if not (FOLDER.parent / path).exists()] == []


@pytest.mark.parametrize("service", SERVICES.values(), ids=lambda service: service.name)
def test_containers_have_no_more_rights_than_they_need(service):
    """Prometheus' own image is that of a user. Who lives in the network of another is left in none once it restarts."""
    assert service.settings["read_only"] is True
    assert service.settings["cap_drop"] == ["ALL"]
    assert service.settings["security_opt"] == ["no-new-privileges:true"]
    assert service.settings["pids_limit"] > 0
    assert "max-size" in service.settings["logging"]["options"]
    assert "network_mode" not in service.settings
    assert ("healthcheck" in service.settings) == (service.name != "prometheus")
    if service.target is not None:
        assert int(targets()[service.target].last("USER").partition(":")[0]) > 0
    if "engine" not in service.name:  # how much a model needs is not known here
        assert service.settings["mem_limit"]


def test_nothing_is_published_beyond_this_host():
    published = [port for service in SERVICES.values() for port in service.settings.get("ports", [])]
    assert len(published) == len(set(published)) == 7
    assert all(port.startswith("127.0.0.1:") for port in published)


@each_replica
def test_an_engine_reaches_its_sidecar_and_neither_etcd_nor_an_admin_service(engine, sidecar):
    """Whoever reaches those may change everything, and an engine runs code of models."""
    met = {name for name, service in SERVICES.items() if service.networks & engine.networks}
    assert met == {engine.name, sidecar.name, "prometheus", *(one.name for one in GATEWAYS)}
    assert sidecar.flags["engine"] == f"http://{engine.name}:{engine.flags['port']}"
    assert sidecar.name in engine.settings["depends_on"]


@each_replica
def test_a_sidecar_has_the_time_to_hand_over_before_it_is_killed(engine, sidecar):
    """R20 drain: its own time limit is the default."""
    assert int(sidecar.settings["stop_grace_period"].removesuffix("s")) >= DRAIN_SECONDS + 5


@each_replica
def test_the_engine_sees_what_the_sidecar_has_where_it_has_it_and_cannot_write_to_it(engine, sidecar):
    """R7 files-pinned: it opens files by the path that it is given. Lazy adapters are asked for on a socket."""
    store, socket = sidecar.flags["store"], sidecar.environment["LORAPLANE_RESOLVER_SOCKET"]
    assert (mounts(sidecar)[store], mounts(engine)[store]) == (("store", False), ("store", True))
    assert engine.environment["LORAPLANE_RESOLVER"] == socket
    assert socket == f"/run/loraplane/{engine.name.replace('engine', 'replica')}.sock"
    assert mounts(sidecar)["/run/loraplane"] == ("sockets", False)
    assert mounts(engine)["/run/loraplane"] == ("sockets", True)
    made = targets()["sidecar"].last("RUN")
    assert f"--owner=loraplane --group=loraplane --mode=2750 {store}" in made
    assert " /run/loraplane" in made
    assert mounts(sidecar)[sidecar.flags["allow-source"].removeprefix("file://")][1], "sources are read-only"


@each_replica
def test_the_engine_is_built_and_started_so_that_it_can_be_driven(engine, sidecar):
    """Without these variables vLLM leaves the plugin alone."""
    build = engine.settings["build"]
    assert (build["dockerfile"], build["context"]) == ("compose/Dockerfile.engine", "..")
    assert PINNED.match(build["args"]["ENGINE_IMAGE"])
    assert engine.environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    assert ("enable-lora" in engine.flags, engine.flags["api-server-count"]) == (True, "1")
    assert set(re.findall(r"(\w+)=(\S+)", engine_file().rpartition("ENV ")[2])) == {
        ("PYTHONPATH", "/opt/loraplane-plugin"),
        *PLUGIN_VARIABLES.items(),
    }


def test_engines_are_of_a_user_in_the_group_that_may_read_the_store():
    user = re.findall(r"^USER (\d+)$", engine_file(), re.MULTILINE)[-1]
    assert f"--uid {user} --gid 10001 " in engine_file()
    assert "--gid 10001 loraplane" in next(text for word, text in targets()["sidecar"].instructions if word == "RUN")
    assert user != targets()["sidecar"].last("USER")


def test_the_file_for_cpus_changes_what_it_must_and_nothing_else():
    for name, service in without_gpus().items():
        whole = SERVICES[name]
        assert whole.flags.items() <= service.flags.items()
        assert set(service.settings) == {"deploy", "build", "environment", "command"}
        assert service.settings["deploy"] == "reset"
        assert whole.settings["deploy"]["resources"]["reservations"]["devices"]
    assert set(without_gpus()) == {"engine-1", "engine-2"}


def test_grafana_has_the_dashboards_and_asks_prometheus_and_nobody_changes_anything_by_it():
    grafana = with_grafana()
    part = ("read_only", "cap_drop", "security_opt", "pids_limit", "logging", "restart")
    alike = SERVICES["prometheus"].settings
    assert {name: grafana.settings[name] for name in part} == {name: alike[name] for name in part}
    assert PINNED.match(grafana.settings["image"])
    assert [port for port in grafana.settings["ports"] if not port.startswith("127.0.0.1:")] == []
    assert grafana.networks <= SERVICES["prometheus"].networks
    places = {source: target for target, (source, read_only) in mounts(grafana).items() if read_only}
    (source,) = yaml.safe_load((FOLDER / "grafana/datasources.yml").read_text())["datasources"]
    (provider,) = yaml.safe_load((FOLDER / "grafana/dashboards.yml").read_text())["providers"]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    assert provider["options"]["path"] == places["../deploy/helm/loraplane/files/dashboards"]
    assert [*(FOLDER / "../deploy/helm/loraplane/files/dashboards").glob("*.json")]
    assert places["./grafana/datasources.yml"].startswith("/etc/grafana/provisioning/datasources/")
    assert places["./grafana/dashboards.yml"].startswith("/etc/grafana/provisioning/dashboards/")


def test_etcd_is_one_cluster_of_three_that_differ_in_their_names_alone():
    """Earlier releases let a revoked permission stand; without a quota and compaction the disk fills up.

    X2: its gateway takes text of any page for JSON.
    """
    expected = {f"etcd-{n}": f"http://etcd-{n}:2380" for n in (1, 2, 3)}
    commands = []
    for member in ETCD:
        flags = member.flags
        assert dict(part.split("=") for part in flags["initial-cluster"].split(",")) == expected
        assert flags["initial-advertise-peer-urls"] == expected[member.name]
        assert flags["advertise-client-urls"] == f"http://{member.name}:2379"
        assert (flags["name"], flags["data-dir"]) == (member.name, "/var/lib/loraplane/etcd")
        assert mounts(member)[flags["data-dir"]] == (member.name, False)
        assert int(flags["quota-backend-bytes"]) >= 2 << 30
        assert (flags["auto-compaction-mode"], flags["auto-compaction-retention"]) == ("periodic", "1h")
        assert flags["enable-grpc-gateway"] == "false"
        words = [word.replace(member.name, "SELF") for word in member.command]
        commands.append([word for word in words if "initial-cluster=" not in word])
    assert commands[0] == commands[1] == commands[2]
    assert {member.settings["image"] for member in ETCD} == {ETCD[0].settings["image"]}
    assert targets()["etcd"].last("COPY").endswith("--chown=10003:10003 /folders /var/lib/loraplane")
    assert tuple(map(int, arguments("Dockerfile")["ETCD_IMAGE"].rpartition(":v")[2].split("."))) >= (3, 6, 14)


def test_our_services_are_two_each_and_know_etcd():
    """W2 atomic-set: a limit of operations above etcd's would be refused by etcd, in etcd's words."""
    built = {one.name for one in SERVICES.values() if one.target not in {None, "etcd"}}
    assert built == {one.name for one in [*SIDECARS_AND_ADMINS, *PICKERS]}
    assert len({SERVICES[f"sidecar-{n}"].environment["LORAPLANE_REPLICA"] for n in REPLICAS}) == 2
    for service in SIDECARS_AND_ADMINS:
        assert set(service.environment["LORAPLANE_ETCD"].split(",")) == {f"{member.name}:2379" for member in ETCD}
        assert targets()[service.target].healthcheck[0] == "python"
    knowing = [*ETCD, SERVICES["admin-1"], SERVICES["admin-2"]]
    assert {one.flags["max-txn-ops"] for one in knowing} == {"1024"}


def test_pickers_and_their_gateway_come_only_where_they_are_asked_for():
    """They ask whichever admin service is there; the gateway asks both of them, and passes on what clients need."""
    assert [one.name for one in SERVICES.values() if "profiles" in one.settings] == [one.name for one in GATEWAYS]
    assert {tuple(one.settings["profiles"]) for one in GATEWAYS} == {("picker",)}
    for picker in PICKERS:
        assert "admin" in SERVICES["admin-1"].settings["networks"]["control"]["aliases"]
        assert (picker.flags["admin"], picker.flags["pool"]) == ("admin:7600", SERVICES["sidecar-1"].flags["pool"])
        assert {*GATEWAYS[-1].networks, "control"} == picker.networks
    text = gateway_file()
    assert re.findall(r"address: (picker-\d), port_value: (\d+)", text) == [("picker-1", "7603"), ("picker-2", "7603")]
    assert mounts(SERVICES["gateway"])["/etc/envoy"] == ("./envoy", True)
    passed = re.findall(r"match: {(\w+): (\S+)}", text)
    assert {kind for kind, _ in passed} == {"path"}, "a prefix would let through what nobody looked at"
    assert [path for _, path in passed if "lora" in path or "adapters" in path or "invocations" in path] == []


def test_prometheus_scrapes_every_part():
    expected = {f"{member.name}:2379" for member in ETCD}
    expected |= {f"admin-{n}:7601" for n in (1, 2)}
    expected |= {f"{part}-{n}:{port}" for part, port in (("sidecar", 7602), ("engine", 8000)) for n in REPLICAS}
    assert prometheus_targets() == expected | {"127.0.0.1:9090"}
    for target in expected:
        assert SERVICES[target.partition(":")[0]].networks & SERVICES["prometheus"].networks
