"""A store whose artifacts come from a registry of containers: one of ours, and a real one where there is one."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest

from sidecar.artifacts.store import LocalStore
from tests.integration.sources.conftest import CONFIG, WEIGHTS, content, ref, refusal
from tests.support.container_registry import (
    FILE_PATH,
    IMAGE_TAR_GZIP,
    MODEL_CONFIG_RAW,
    MODEL_RAW,
    PASSWORD,
    USER,
    ContainerRegistry,
    PushedLayer,
    basic,
    packed,
    push_over_http,
)
from tests.support.waiting import eventually
from tests.support.web import serving

MODELPACK = [
    PushedLayer(MODEL_CONFIG_RAW, CONFIG, {FILE_PATH: "adapter_config.json"}),
    PushedLayer(MODEL_RAW, WEIGHTS, {FILE_PATH: "adapter_model.safetensors"}),
]
IMAGE = [
    PushedLayer(
        IMAGE_TAR_GZIP,
        packed({"models/adapter_config.json": CONFIG, "models/adapter_model.safetensors": WEIGHTS}, is_gzipped=True),
    )
]
LOGIN = {"kind": "env", "variable": "SECRET"}


@pytest.fixture
def login(monkeypatch) -> dict[str, object]:
    monkeypatch.setenv("SECRET", f'{{"username": "{USER}", "password": "{PASSWORD}"}}')
    return dict(LOGIN)


async def test_an_artifact_is_staged_by_its_tag_and_by_its_digest(open_store, login):
    with serving(ContainerRegistry(asks="token")) as registry:
        assert isinstance(registry, ContainerRegistry)
        digest = registry.push("acme/sql", "v1", MODELPACK)
        there = f"oci://{registry.url.partition('://')[2]}/acme/sql"
        assert (await refusal(open_store("oci://elsewhere"), f"{there}:v1")).reason == "source_not_allowed"
        await staged_by_both(open_store(there, credentials={"team": login | {"prefixes": [there]}}), there, digest)
        assert len([path for path in registry.paths if "/blobs/" in path]) == 2 * len(MODELPACK)


HTPASSWD = f"{USER}:$2b$04$abcdefghijklmnopqrstuuDlwEjrjuS6qq82iEFt8xl3YVCDVVwd2\n"  # cheap to check
CONFIGURATION = """
version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {folder}/data}}}}
http: {{addr: 127.0.0.1:{port}}}
auth: {{htpasswd: {{realm: it, path: {folder}/htpasswd}}}}
"""


@pytest.fixture
def real(tmp_path) -> Iterator[str]:
    """HOST:PORT of a registry as Debian has it."""
    program = os.environ.get("DOCKER_REGISTRY") or shutil.which("docker-registry")
    if program is None:
        pytest.skip("DOCKER_REGISTRY names no docker-registry, as .ci/run unpacks it from Debian's package")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "htpasswd").write_text(HTPASSWD)
    (tmp_path / "config.yml").write_text(CONFIGURATION.format(folder=tmp_path, port=port))
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([program, "serve", f"{tmp_path}/config.yml"], stdout=log, stderr=log)
    try:
        asyncio.run(eventually(lambda: _answers(port, process)))
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _answers(port: int, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "it ended; see its log"
    try:
        return httpx.get(f"http://127.0.0.1:{port}/v2/", trust_env=False).status_code == 401
    except httpx.HTTPError:
        return False


@pytest.mark.parametrize("layers", [MODELPACK, IMAGE], ids=["ModelPack", "image"])
async def test_a_real_registry_is_read(open_store, login, real, layers):
    """Debian's docker-registry, filled as its clients fill it."""
    digest = push_over_http(f"http://{real}", "acme/sql", "v1", layers, {"Authorization": basic()})
    there = f"oci://{real}/acme/sql"
    assert (await refusal(open_store(there), f"{there}:v1")).reason == "source_denied"
    store = open_store(there, credentials={"team": login | {"prefixes": [there]}})
    assert (await refusal(store, f"{there}:v2", "team")).reason == "source_missing"
    await staged_by_both(store, there, digest)


async def staged_by_both(store: LocalStore, there: str, digest: str) -> None:
    """The artifact by its tag, and by its digest, for which it is read once more."""
    for reference in (":v1", f"@{digest}"):
        asked = replace(ref(there + reference, "team"), pin_key=f"p/a{len(reference)}@1")
        assert content((await store.ensure(asked)).path) == (CONFIG, WEIGHTS)
