"""compose.secure.yaml after compose.yaml, started with podman in its own order, and who may do what in it.

podman-compose hands `depends_on` on as podman's --requires: podman then starts again what has ended, and refuses to
start what needs it. So the containers are made by podman-compose and started here, each once what the files make it
wait for is so, as Docker Compose does.
"""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator, Sequence
from graphlib import TopologicalSorter
from pathlib import Path

import httpx
import pytest

from registry.tools.devstack.secure import ROUTER
from tests.containers.images import build_ours, compose, make_stand_ins
from tests.containers.podman import FOLDER, PROJECT, environment, missing, places, podman, set_up
from tests.containers.stack import AS_DOCKER, down, is_healthy, keep_logs, name_of, say, tiny_settings
from tests.integration.compose.compose_file import mounts, secured
from tests.support.waiting import eventually

WHY_NOT = missing() if os.environ.get("CONTAINERS") else "containers are started by make containers"
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=f"Skipped: {WHY_NOT}")

FILES = [
    *(f"compose/compose{kind}.yaml" for kind in ("", ".cpu", ".secure")),
    "tests/containers/compose.test.yaml",
]
PLAYED = {name: one for name, one in secured().items() if "profiles" not in one.settings}
MEMBERS = ("etcd-1", "etcd-2", "etcd-3")
ENGINES = {"engine-1": "http://127.0.0.1:8001", "engine-2": "http://127.0.0.1:8002"}
ADMIN = "127.0.0.1:7600"
START_SECONDS, SECONDS = 900, 300


@pytest.fixture(scope="module")
def settings() -> dict[str, str]:
    return tiny_settings()


@pytest.fixture(scope="module")
def made(settings: dict[str, str]) -> Iterator[None]:
    """All containers of the files, none of which is started yet."""
    set_up()
    say("stand-ins for the images of registries")
    make_stand_ins()
    say("our images, by the build sections of the files")
    build_ours(FILES, **settings)
    down(FILES, PLAYED, settings)
    try:
        compose(FILES, *AS_DOCKER, "up", "--no-start", "--no-deps", "--no-build", **settings)
        yield
    finally:
        keep_logs(PLAYED)
        down(FILES, PLAYED, settings)


@pytest.mark.timeout(3600)
async def test_the_secured_file_starts_serves_and_refuses_whoever_is_nobody(made, settings):
    """A1 named, A2 deny-by-default, A4 own-keys: the main job by the operator's `cli`; others are told no."""
    await start_in_order()
    etcd_asks_for_users()
    the_operator_may(settings)
    whoever_is_nobody_may_nothing()
    await a_viewer_sees_and_may_not_write(settings)
    nothing_changes_by_a_second_start()
    say("all steps held")


async def start_in_order() -> None:
    """Starts each container once what it waits for is so; those that end do so well."""
    waits = {name: one.settings.get("depends_on", {}) for name, one in PLAYED.items()}
    for name in TopologicalSorter(waits).static_order():
        for other, how in waits[name].items():
            await is_so(other, how["condition"])
        podman("start", name_of(name))
        say(f"{name} was started")
    for name in [name for name, one in PLAYED.items() if "healthcheck" in one.settings]:
        await eventually(lambda name=name: is_healthy(name), timeout_seconds=START_SECONDS)
    say("every part is healthy")


async def is_so(name: str, condition: str) -> None:
    """Waits for a condition of depends_on; what was started before runs."""
    if condition == "service_completed_successfully":
        assert podman("wait", name_of(name), timeout=SECONDS).strip() == "0", podman("logs", name_of(name))
    elif condition == "service_healthy":
        await eventually(lambda: is_healthy(name), timeout_seconds=SECONDS)
    else:
        assert condition == "service_started"


def etcd_asks_for_users() -> None:
    """Three members know each other, and a member's own certificate, which is no user, reads nothing."""
    listed = json.loads(podman("exec", name_of("etcd-1"), "etcdctl", "member", "list", "--write-out=json"))
    assert {one["name"] for one in listed["members"]} == {*MEMBERS}
    assert all(url.startswith("https:") for one in listed["members"] for url in one["clientURLs"] + one["peerURLs"])
    refused = program("exec", name_of("etcd-1"), "etcdctl", "get", "--prefix", "/", "--keys-only")
    assert refused.returncode != 0, refused.stdout
    assert "permission denied" in refused.stderr, refused.stderr
    say("etcd has three members with TLS, and asks for users")


def the_operator_may(settings: dict[str, str]) -> None:
    """The commands at the head of the file; both replicas then serve."""
    operator(settings, "pool", "create", "main", "--base-model", "base", "--from", "/models/tiny")
    operator(settings, "add", "acme/one", "--pool", "main", "--source", "file:///adapters/one", "--wait")
    for url in ENGINES.values():
        body = {"model": "acme/one", "prompt": "once", "max_tokens": 4}
        assert httpx.post(f"{url}/v1/completions", json=body, timeout=120).status_code == 200
    assert "security" in operator(settings, "auth", "whoami")
    say("the operator's adapter is served by both replicas")


def operator(settings: dict[str, str], *arguments: str) -> str:
    return compose(FILES, *AS_DOCKER, "--profile", "cli", "run", "--rm", "--no-deps", "cli", *arguments, **settings)


def whoever_is_nobody_may_nothing() -> None:
    """From this host: without TLS, without a certificate, and with one that etcd's authority signed."""
    trusted = FOLDER / "services-ca.pem"
    trusted.write_text(podman("exec", name_of("admin-1"), "cat", "/secrets/services-ca.pem"))
    assert "TLS" in refused_here()
    assert "--tls-cert" in refused_here("--tls-ca", str(trusted))
    own = {}
    for kind in ("pem", "key"):
        own[kind] = FOLDER / f"etcd-admin.{kind}"
        own[kind].write_text(podman("exec", name_of("admin-1"), "cat", f"/secrets/etcd-admin.{kind}"))
    refused_here("--tls-ca", str(trusted), "--tls-cert", str(own["pem"]), "--tls-key", str(own["key"]))
    with httpx.Client(verify=ssl.create_default_context(cafile=trusted), timeout=30) as client:
        for path in ("/metrics", "/page/stream"):
            assert client.get(f"https://127.0.0.1:7601{path}").status_code == 401, path
    say("who shows nothing, or what is not for this door, is refused")


def refused_here(*flags: str) -> str:
    """The one error of a command of this host; it fails."""
    command = [str(Path(sys.executable).with_name("loraplane")), "--admin", ADMIN, *flags, "get", "adapters"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode != 0, done.stdout
    assert done.stderr.startswith("error: "), done.stderr
    return done.stderr


async def a_viewer_sees_and_may_not_write(settings: dict[str, str]) -> None:
    """The access file is changed as the head of the file says; the pickers' certificate stands for a viewer's."""
    change = f'\n  - {{role: viewer, users: ["{ROUTER}"], tenants: [acme]}}\n'
    in_secrets = ("--profile", "cli", "run", "--rm", "--no-deps", "-T", "--entrypoint")
    before = compose(FILES, *AS_DOCKER, *in_secrets, "cat", "secrets", "/secrets/access.yaml", **settings)
    assert "bindings:" in before
    written = f"printf %s '{change}' >>/secrets/access.yaml"
    compose(FILES, *AS_DOCKER, *in_secrets, "sh", "secrets", "-c", written, **settings)
    podman("start", "--attach", name_of("secrets"))
    await eventually(lambda: "acme/one" in router("get", "adapters").stdout, timeout_seconds=SECONDS)
    refused = router("delete", "adapter", "acme/one", "--pool", "main")
    assert refused.returncode == 4, (refused.stdout, refused.stderr)
    assert "PERMISSION_DENIED" in refused.stderr
    assert "publisher" in refused.stderr, "the role that would do is named"
    assert "acme/one" in operator(settings, "get", "adapters")
    say("a viewer sees its tenant and may not write")


def router(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line with the pickers' secrets, which the operator's container does not see."""
    share = mounts(secured()["picker-1"])["/secrets"][0]
    words = ["--rm", "--network", f"{PROJECT}_control", "--volume", f"{PROJECT}_{share}:/secrets:ro"]
    flags = [f"--tls-{kind}=/secrets/{file}" for kind, file in (("cert", "router.pem"), ("key", "router.key"))]
    return program(
        "run",
        *words,
        "--entrypoint=loraplane",
        "localhost/loraplane/admin:0.2.0",
        *("--admin=admin:7600", "--tls-ca=/secrets/services-ca.pem", *flags, *arguments),
    )


def program(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Podman, whatever its end."""
    command: Sequence[str] = ["podman", *places(), *arguments]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=SECONDS)


def nothing_changes_by_a_second_start() -> None:
    """Both containers that end do so again, and have nothing to do."""
    for name in ("secrets", "etcd-users"):
        podman("start", "--attach", name_of(name), timeout=SECONDS)
    said = podman("logs", "--tail", "1", name_of("secrets")).strip()
    assert said == "made 0 secrets, gave 0 files to their parts"
