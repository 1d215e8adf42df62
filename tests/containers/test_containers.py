"""compose.yaml as it is shipped: built, started whole with podman, played on, and hurt. `make containers` runs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.containers.images import build_ours, compose, make_stand_ins
from tests.containers.podman import inspect, main_pid, missing, podman, set_up
from tests.containers.stack import AS_DOCKER, down, is_healthy, keep_logs, name_of, say, tiny_settings
from tests.integration.compose.compose_file import prometheus_targets, services
from tests.support.waiting import eventually

WHY_NOT = missing() if os.environ.get("CONTAINERS") else "containers are started by make containers"
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=f"Skipped: {WHY_NOT}")

FILES = ["compose/compose.yaml", "compose/compose.cpu.yaml", "tests/containers/compose.test.yaml"]
ENGINES = {"engine-1": "http://127.0.0.1:8001", "engine-2": "http://127.0.0.1:8002"}
PROMETHEUS = "http://127.0.0.1:9090"
ADMINS = ("127.0.0.1:7600", "127.0.0.1:7610")
START_SECONDS = 900
SECONDS = 300


@pytest.fixture(scope="module")
def settings() -> dict[str, str]:
    return tiny_settings()


@pytest.fixture(scope="module")
def running(settings: dict[str, str]) -> Iterator[None]:
    """All containers of compose.yaml, as they are started by whoever follows the head of the file."""
    set_up()
    say("stand-ins for the images of registries")
    make_stand_ins()
    say("our images, by the build sections of compose.yaml")
    build_ours(FILES, **settings)
    down(FILES, services(), settings)
    try:
        say("podman-compose up")
        compose(FILES, *AS_DOCKER, "up", "--detach", "--no-build", **settings)
        yield
    finally:
        keep_logs(services())
        down(FILES, services(), settings)


def loraplane(*arguments: str, admin: str) -> str:
    """The command line of this host, through a published port."""
    command = [str(Path(sys.executable).with_name("loraplane")), "--admin", admin, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def in_admin(*arguments: str) -> str:
    """The command line in the container of an admin service, as the head of compose.yaml says."""
    return podman("exec", name_of("admin-1"), "loraplane", *arguments, timeout=300)


def models(engine: str) -> set[str]:
    answer = httpx.get(f"{ENGINES[engine]}/v1/models", timeout=30)
    return {card["id"] for card in answer.json()["data"] if card.get("parent")}


def answer(engine: str, model: str) -> str:
    body = {"model": model, "prompt": "once", "max_tokens": 8, "temperature": 0}
    reply = httpx.post(f"{ENGINES[engine]}/v1/completions", json=body, timeout=120)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["text"])


def asked(path: str) -> dict[str, object]:
    return dict(httpx.get(f"{PROMETHEUS}/api/v1/{path}", timeout=30).json()["data"])


def up_targets() -> set[str]:
    targets = asked("targets")["activeTargets"]
    return {target["labels"]["instance"] for target in targets if target["health"] == "up"}  # type: ignore[attr-defined]


def firing() -> set[tuple[str, str]]:
    alerts = asked("alerts")["alerts"]
    return {
        (alert["labels"]["alertname"], alert["labels"].get("instance", ""))
        for alert in alerts  # type: ignore[attr-defined]
        if alert["state"] == "firing"
    }


async def reachable() -> None:
    """Waits for every part to answer, by its own health check."""
    checked = [name for name, service in services().items() if "healthcheck" in service.settings]
    for service in checked:
        await eventually(lambda service=service: is_healthy(service), timeout_seconds=SECONDS)


async def serves(wanted: set[str], seconds: float = SECONDS) -> None:
    """Waits for both engines to list exactly that."""
    for engine in ENGINES:
        await eventually(lambda engine=engine: retried(lambda: models(engine) == wanted), timeout_seconds=seconds)


def retried(check: object) -> bool:
    """What cannot be reached yet counts as not yet."""
    try:
        return bool(check())  # type: ignore[operator]
    except httpx.HTTPError as error:
        raise AssertionError(str(error)) from error


@pytest.mark.timeout(3600)
async def test_what_is_shipped_starts_serves_and_comes_back(running, settings):
    """R3 converge, R12 crash-only: the main job on containers, each of which is killed once."""
    await starts()
    await plays_the_main_job()
    holds_what_compose_says()
    await is_watched_by_prometheus()
    await tells_prometheus_of_an_outage()
    await comes_back_from_each_kill()
    say("all steps held")


async def starts() -> None:
    for engine in ENGINES:
        await eventually(lambda engine=engine: retried(lambda: answers(engine)), timeout_seconds=START_SECONDS)
        say(f"{engine} answers")
    await reachable()
    say("every part is healthy")


def answers(engine: str) -> bool:
    return httpx.get(f"{ENGINES[engine]}/health", timeout=30).is_success


async def plays_the_main_job() -> None:
    """The commands at the head of the file, then requests and changes through the published ports."""
    in_admin("pool", "create", "main", "--base-model", "base", "--from", "/models/tiny")
    for name in ("one", "two"):
        in_admin("add", f"acme/{name}", "--pool", "main", "--source", f"file:///adapters/{name}", "--wait")
    await serves({"acme/one", "acme/two"})
    said = {engine: [answer(engine, model) for model in ("base", "acme/one", "acme/two")] for engine in ENGINES}
    assert said["engine-1"] == said["engine-2"]
    assert len(set(said["engine-1"])) == 3, "each adapter answers otherwise than the base and the other"
    in_admin("add", "acme/lazy", "--pool", "main", "--source", "file:///adapters/one", "--lazy")
    for engine in ENGINES:
        await eventually(lambda engine=engine: answer(engine, "acme/lazy") == said[engine][1], timeout_seconds=SECONDS)
    for admin in ADMINS:
        assert {"acme/one", "acme/two", "acme/lazy"} <= set(loraplane("get", "adapters", admin=admin).split())
    loraplane("delete", "adapter", "acme/lazy", "--pool", "main", admin=ADMINS[1])
    await serves({"acme/one", "acme/two"})
    say("the main job was played through the published ports")


def holds_what_compose_says() -> None:
    """No root, a root that cannot be written, limits; and from an engine no way to etcd or an admin service."""
    for service in services():
        found = inspect(name_of(service))
        assert found["Config"]["User"] not in {"", "0", "root"}, service
        assert found["HostConfig"]["ReadonlyRootfs"], service
        assert found["HostConfig"]["PidsLimit"] > 0, service
        assert found["EffectiveCaps"] in (None, []), service
    podman("exec", name_of("engine-1"), "python3", "-c", REACH, *beyond_reach(), timeout=300)
    say("users, roots, limits and networks are those of the file")


REACH = """import socket, sys
for place in sys.argv[1:]:
    try:
        socket.create_connection(place.rsplit(":", 1), 3)
        sys.exit(f"{place} can be reached")
    except OSError:
        pass
"""


def beyond_reach() -> list[str]:
    """HOST:PORT of what engine-1 must not reach, by name and by address."""
    found = []
    for name, port in (("etcd-1", 2379), ("admin-1", 7600), ("engine-2", 8000)):
        networks = inspect(name_of(name))["NetworkSettings"]["Networks"].values()
        found += [f"{name}:{port}", *(f"{network['IPAddress']}:{port}" for network in networks)]
    return found


async def is_watched_by_prometheus() -> None:
    await eventually(lambda: retried(lambda: up_targets() == prometheus_targets()), timeout_seconds=SECONDS)
    rules = [rule["name"] for group in asked("rules")["groups"] for rule in group["rules"]]  # type: ignore[attr-defined]
    assert "SidecarDown" in rules
    podman("exec", name_of("prometheus"), "promtool", "check", "config", "/etc/prometheus/prometheus.yml")
    say(f"Prometheus reaches {len(prometheus_targets())} targets and has {len(rules)} rules")


async def comes_back_from_each_kill() -> None:
    """SIGKILL for the first process of a container, as a crash is; then a change that every engine has to follow."""
    for service in sorted(services(), key=lambda name: name in ENGINES):  # those that take long to start come last
        before = main_pid(name_of(service))
        assert before > 0, service
        os.kill(before, signal.SIGKILL)
        await eventually(lambda s=service, b=before: main_pid(name_of(s)) not in {0, b}, timeout_seconds=SECONDS)
        name = f"after-{service}"
        await eventually(lambda n=name: added(n), timeout_seconds=SECONDS)
        wanted = {"acme/one", "acme/two", name}
        await serves(wanted, seconds=START_SECONDS)
        await eventually(lambda n=name: deleted(n), timeout_seconds=SECONDS)
        say(f"{service} was killed and is back; a change arrived")
    await serves({"acme/one", "acme/two"})
    await reachable()
    await eventually(lambda: retried(lambda: up_targets() == prometheus_targets()), timeout_seconds=SECONDS)


def added(name: str) -> bool:
    in_admin("add", name, "--pool", "main", "--source", "file:///adapters/one", "--request-id", f"add-{name}")
    return True


def deleted(name: str) -> bool:
    loraplane("delete", "adapter", name, "--pool", "main", "--request-id", f"delete-{name}", admin=ADMINS[0])
    return True


async def tells_prometheus_of_an_outage() -> None:
    down, instance = name_of("sidecar-2"), ("SidecarDown", "sidecar-2:7602")
    podman("stop", "--time", "30", down)
    await eventually(lambda: retried(lambda: instance in firing()), timeout_seconds=SECONDS)
    say("SidecarDown fires")
    podman("start", down)
    await eventually(lambda: retried(lambda: instance not in firing()), timeout_seconds=SECONDS)
    await serves({"acme/one", "acme/two"})
    say("SidecarDown is over")
