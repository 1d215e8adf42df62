"""What can be seen in the compose file without running it: mistakes that would show only in production."""

from __future__ import annotations

import re

import pytest

from registry.tools.devstack.engine_environment import PLUGIN_VARIABLES
from sidecar.settings import DRAIN_SECONDS
from tests.integration.compose.compose_file import (
    FOLDER,
    Service,
    arguments,
    copied,
    engine_file,
    let_through,
    prometheus_targets,
    services,
    targets,
    without_gpus,
)

SERVICES = services()
ETCD = [SERVICES[f"etcd-{n}"] for n in (1, 2, 3)]
OURS = [service for service in SERVICES.values() if service.target is not None]
REPLICAS = (1, 2)
SIDECARS_AND_ADMINS = [service for service in OURS if not service.name.startswith("etcd")]
PINNED = re.compile(r".+:v?\d+\.\d+(\.\d+)?(-[a-z0-9-]+)?(@sha256:[0-9a-f]{64})?$")


def mounts(service: Service) -> dict[str, tuple[str, bool]]:
    """Source and whether it is read-only, by the path in the container."""
    found: dict[str, tuple[str, bool]] = {}
    for volume in service.settings.get("volumes", []):
        if isinstance(volume, str):
            source, path, *mode = volume.split(":")
            found[path] = (source, mode == ["ro"])
        else:
            found[volume["target"]] = (volume["source"], volume.get("read_only", False))
    return found


def test_every_image_is_pinned():
    images = [service.settings["image"] for service in SERVICES.values()]
    images += [*arguments("Dockerfile").values(), *arguments("Dockerfile.engine").values()]
    assert [image for image in images if not PINNED.match(image)] == []
    assert "@sha256:" in arguments("Dockerfile")["PYTHON_IMAGE"]
    assert "@sha256:" in SERVICES["prometheus"].settings["image"]


@pytest.mark.parametrize("name", ["etcd-1", "admin-1", "sidecar-1", "engine-1"])
def test_the_file_and_the_dockerfiles_name_the_same_images(name):
    build = SERVICES[name].settings["build"]
    there = arguments(build["dockerfile"].removeprefix("compose/"))
    assert there.items() <= build["args"].items()


@pytest.mark.parametrize("file", ["Dockerfile", "Dockerfile.engine"])
def test_a_build_sees_what_it_copies_and_nothing_else(file):
    """A file that the ignore file leaves out ends a build, with a message that it does not exist."""
    assert copied(file) == let_through(file)
    assert [path for path in copied(file) if not (FOLDER.parent / path).exists()] == []


@pytest.mark.parametrize("number", REPLICAS)
def test_engines_are_built_with_the_plugin_on_a_pinned_image(number):
    """Without these variables vLLM leaves the plugin alone."""
    build = SERVICES[f"engine-{number}"].settings["build"]
    assert (build["dockerfile"], build["context"]) == ("compose/Dockerfile.engine", "..")
    assert PINNED.match(build["args"]["ENGINE_IMAGE"])
    assert set(re.findall(r"(\w+)=(\S+)", engine_file().rpartition("ENV ")[2])) == {
        ("PYTHONPATH", "/opt/loraplane-plugin"),
        *PLUGIN_VARIABLES.items(),
    }


@pytest.mark.parametrize("service", SERVICES.values(), ids=lambda service: service.name)
def test_containers_have_no_more_rights_than_they_need(service):
    """Prometheus' own image is that of a user."""
    assert service.settings["read_only"] is True
    assert service.settings["cap_drop"] == ["ALL"]
    assert service.settings["security_opt"] == ["no-new-privileges:true"]
    assert service.settings["pids_limit"] > 0
    assert "max-size" in service.settings["logging"]["options"]
    if service.target is not None:
        assert int(targets()[service.target].last("USER").partition(":")[0]) > 0
    if "engine" not in service.name:  # how much a model needs is not known here
        assert service.settings["mem_limit"]


def test_engines_are_of_a_user_in_the_group_that_may_read_the_store():
    user = re.findall(r"^USER (\d+)$", engine_file(), re.MULTILINE)[-1]
    assert f"--uid {user} --gid 10001 " in engine_file()
    assert "--gid 10001 loraplane" in targets()["sidecar"].instructions[1][1]
    assert user != targets()["sidecar"].last("USER")


def test_there_are_two_admins_and_a_sidecar_beside_each_engine():
    names = [service.name for service in SIDECARS_AND_ADMINS]
    assert sorted(names) == ["admin-1", "admin-2", "sidecar-1", "sidecar-2"]
    for number in REPLICAS:
        engine, sidecar = SERVICES[f"engine-{number}"], SERVICES[f"sidecar-{number}"]
        assert sidecar.flags["engine"] == f"http://engine-{number}:{engine.flags['port']}"
    replicas = {SERVICES[f"sidecar-{number}"].environment["LORAPLANE_REPLICA"] for number in REPLICAS}
    assert len(replicas) == len(REPLICAS)


@pytest.mark.parametrize("number", REPLICAS)
def test_an_engine_reaches_its_sidecar_and_neither_etcd_nor_an_admin_service(number):
    """Whoever reaches those may change everything, and an engine runs code of models."""
    engine = SERVICES[f"engine-{number}"]
    met = {name for name, service in SERVICES.items() if service.networks & engine.networks}
    assert met == {f"engine-{number}", f"sidecar-{number}", "prometheus"}


def test_no_container_lives_in_the_network_of_another():
    """It would be left in a network that is no more, once the other restarts."""
    assert [name for name, service in SERVICES.items() if "network_mode" in service.settings] == []


@pytest.mark.parametrize("number", REPLICAS)
def test_a_sidecar_has_the_time_to_hand_over_before_it_is_killed(number):
    """R20 drain: its own time limit is the default."""
    grace = SERVICES[f"sidecar-{number}"].settings["stop_grace_period"]
    assert int(grace.removesuffix("s")) >= DRAIN_SECONDS + 5


def test_the_file_for_cpus_changes_what_it_must_and_nothing_else():
    for name, service in without_gpus().items():
        whole = SERVICES[name]
        assert whole.flags.items() <= service.flags.items()
        assert set(service.settings) == {"deploy", "build", "environment", "command"}
        assert service.settings["deploy"] == "reset"
        assert whole.settings["deploy"]["resources"]["reservations"]["devices"]
    assert set(without_gpus()) == {"engine-1", "engine-2"}


@pytest.mark.parametrize("number", REPLICAS)
def test_the_engine_sees_the_store_where_the_sidecar_has_it_and_cannot_write_to_it(number):
    """R7 files-pinned: the engine opens files by the path that the sidecar gives it."""
    engine, sidecar = mounts(SERVICES[f"engine-{number}"]), SERVICES[f"sidecar-{number}"]
    store = sidecar.flags["store"]
    assert mounts(sidecar)[store] == ("store", False)
    assert engine[store] == ("store", True)
    assert f"--owner=loraplane --group=loraplane --mode=2750 {store}" in targets()["sidecar"].last("RUN")


@pytest.mark.parametrize("number", REPLICAS)
def test_the_engine_asks_the_sidecar_beside_it_on_a_socket_that_both_see(number):
    """Lazy adapters are loaded at their first request."""
    engine, sidecar = SERVICES[f"engine-{number}"], SERVICES[f"sidecar-{number}"]
    socket = sidecar.environment["LORAPLANE_RESOLVER_SOCKET"]
    assert engine.environment["LORAPLANE_RESOLVER"] == socket == f"/run/loraplane/replica-{number}.sock"
    assert mounts(sidecar)["/run/loraplane"] == ("sockets", False)
    assert mounts(engine)["/run/loraplane"] == ("sockets", True)
    assert " /run/loraplane" in targets()["sidecar"].last("RUN")


@pytest.mark.parametrize("number", REPLICAS)
def test_sources_are_mounted_where_the_sidecar_may_read_them_and_read_only(number):
    sidecar = SERVICES[f"sidecar-{number}"]
    path = sidecar.flags["allow-source"].removeprefix("file://")
    assert mounts(sidecar)[path][1]


@pytest.mark.parametrize("number", REPLICAS)
def test_the_engine_is_started_so_that_it_can_be_driven(number):
    engine = SERVICES[f"engine-{number}"]
    assert engine.environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    assert "enable-lora" in engine.flags
    assert engine.flags["api-server-count"] == "1"
    assert f"sidecar-{number}" in engine.settings["depends_on"]


def test_etcd_is_one_cluster_of_three():
    expected = {f"etcd-{n}": f"http://etcd-{n}:2380" for n in (1, 2, 3)}
    for member in ETCD:
        flags = member.flags
        assert dict(part.split("=") for part in flags["initial-cluster"].split(",")) == expected
        assert flags["name"] == member.name
        assert flags["initial-advertise-peer-urls"] == expected[member.name]
        assert flags["advertise-client-urls"] == f"http://{member.name}:2379"
        assert mounts(member)[flags["data-dir"]] == (member.name, False)


def test_the_members_differ_in_their_names_alone():
    commands = [[word.replace(member.name, "SELF") for word in member.command] for member in ETCD]
    without_cluster = [[word for word in command if "initial-cluster=" not in word] for command in commands]
    assert without_cluster[0] == without_cluster[1] == without_cluster[2]
    assert {member.settings["image"] for member in ETCD} == {ETCD[0].settings["image"]}
    assert targets()["etcd"].last("COPY").endswith("--chown=10003:10003 /folders /var/lib/loraplane")
    assert all(member.flags["data-dir"] == "/var/lib/loraplane/etcd" for member in ETCD)


def test_etcd_is_recent_enough_and_bounded():
    """Earlier releases let a revoked permission stand; without a quota and compaction the disk fills up."""
    version = tuple(map(int, arguments("Dockerfile")["ETCD_IMAGE"].rpartition(":v")[2].split(".")))
    assert version >= (3, 6, 14)
    for member in ETCD:
        assert int(member.flags["quota-backend-bytes"]) >= 2 << 30
        assert (member.flags["auto-compaction-mode"], member.flags["auto-compaction-retention"]) == ("periodic", "1h")


def test_no_web_page_writes_to_etcd():
    """X2: its gateway takes text of any page for JSON."""
    assert {member.flags["enable-grpc-gateway"] for member in ETCD} == {"false"}


def test_the_admins_know_how_many_operations_a_transaction_takes():
    """W2 atomic-set: a limit above etcd's would be refused by etcd, in etcd's words."""
    limits = {member.flags["max-txn-ops"] for member in ETCD}
    limits |= {SERVICES[f"admin-{number}"].flags["max-txn-ops"] for number in (1, 2)}
    assert limits == {"1024"}


@pytest.mark.parametrize("service", SIDECARS_AND_ADMINS, ids=lambda service: service.name)
def test_our_services_ask_every_member(service):
    addresses = {f"{member.name}:2379" for member in ETCD}
    assert set(service.environment["LORAPLANE_ETCD"].split(",")) == addresses


def test_nothing_is_published_beyond_this_host():
    published = [port for service in SERVICES.values() for port in service.settings.get("ports", [])]
    assert len(published) == len(set(published)) == 5
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_prometheus_scrapes_every_part():
    expected = {f"{member.name}:2379" for member in ETCD}
    expected |= {f"admin-{n}:7601" for n in (1, 2)}
    expected |= {f"{part}-{n}:{port}" for part, port in (("sidecar", 7602), ("engine", 8000)) for n in REPLICAS}
    assert prometheus_targets() == expected | {"127.0.0.1:9090"}
    for target in expected:
        assert SERVICES[target.partition(":")[0]].networks & SERVICES["prometheus"].networks


def test_every_part_but_prometheus_has_a_health_check():
    unchecked = {name for name, service in SERVICES.items() if "healthcheck" not in service.settings}
    assert unchecked == {"prometheus"}
    for name in ("admin", "sidecar"):
        assert targets()[name].healthcheck[0] == "python"
