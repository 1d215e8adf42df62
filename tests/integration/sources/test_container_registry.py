"""A store whose artifacts come from a registry of containers: one of ours, and a real one where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

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
from tests.support.docker_registry import by_password, docker_registry
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


@pytest.fixture
def real(tmp_path) -> Iterator[str]:
    """HOST:PORT of a registry as Debian has it."""
    with docker_registry(tmp_path / "registry", by_password(tmp_path)) as host:
        yield host


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
