"""docs/examples/fetch-wandb with wandb's own SDK, on a double of the service that answers what it asks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from registry.sources.base import ArtifactError
from tests.integration.sources.conftest import CONFIG, WEIGHTS, content, left_behind, ref
from tests.support.wandb_service import WandbService
from tests.support.web import Exchange, serving

PROJECT = Path(__file__).parents[3]
PYTHON = PROJECT / ".venv-wandb/bin/python"
FETCH = PROJECT / "docs/examples/fetch-wandb"
KEY = "CANARY" + "0" * 34
FILES = {"adapter_config.json": CONFIG, "adapter_model.safetensors": WEIGHTS, "optimizer.pt": b"x" * 1000}

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="make .venv-wandb/.installed brings wandb")


@pytest.fixture
def service(tmp_path, monkeypatch) -> Iterator[WandbService]:
    """The service, for a sidecar whose user has nothing of wandb yet."""
    with serving(WandbService(key=KEY, content=FILES)) as service:
        assert isinstance(service, WandbService)
        for variable, name in (("HOME", "home"), ("TMPDIR", "t")):
            (tmp_path / name).mkdir()
            monkeypatch.setenv(variable, str(tmp_path / name))
        monkeypatch.setenv("WANDB_BASE_URL", service.url)
        monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
        yield service


@pytest.fixture
def store(open_store, tmp_path):
    """A store that fetches by the example as it stands in docs/, with the key in a file of the host."""
    (tmp_path / "key").write_text(KEY)
    held = {"kind": "file", "path": str(tmp_path / "key"), "prefixes": ["wandb-artifact:///team"]}
    fetchers = (f"wandb-artifact={PYTHON} {FETCH}",)
    return open_store("wandb-artifact:///team", credentials={"team": held}, fetchers=fetchers)


async def test_an_artifact_is_fetched_and_its_key_is_seen_nowhere(service, store, tmp_path):
    """R4 digest-true, X1 secret-free: no process has the key in arguments or variables; nothing is left of wandb's."""
    shown: list[int] = []

    def looked_at(exchange: Exchange) -> None:
        shown.extend(processes_that_show(KEY))
        service.serve(exchange)

    service.answers["/storage/adapter_model.safetensors"] = looked_at
    staged = await store.ensure(ref("wandb-artifact:///team/project/sql:v7", "team"))
    assert content(staged.path) == (CONFIG, WEIGHTS)
    assert "/storage/adapter_model.safetensors" in service.paths
    assert shown == []
    assert "/storage/optimizer.pt" not in service.paths
    assert [*(tmp_path / "home").iterdir(), *(tmp_path / "t").iterdir()] == []
    assert [folder.name for folder in left_behind(store)] == [Path(staged.path).name]


def processes_that_show(secret: str) -> list[int]:
    """Processes of this host that have it in their arguments or in the variables that they were started with."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            said = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:  # no process, or one that has ended
            continue
        if secret.encode() in said:
            found.append(int(entry.name))
    return found


@pytest.mark.parametrize(
    ("uri", "key", "words"),
    [
        ("wandb-artifact:///team/project/sql:v8", KEY, "'sql:v8' not found in 'team/project'"),
        ("wandb-artifact:///team/project/sql:v7", "CANARY" + "1" * 34, "user is not logged in"),
    ],
)
async def test_what_is_not_given_is_one_error_with_wandbs_reason(service, store, tmp_path, uri, key, words):
    """X1: the log has wandb's last words, without the key."""
    (tmp_path / "key").write_text(key)
    with pytest.raises(ArtifactError) as refused:
        await store.ensure(ref(uri, "team"))
    assert (refused.value.reason, refused.value.permanent) == ("fetcher_failed", False)
    assert words in refused.value.detail
    assert key not in refused.value.message + refused.value.detail
    assert left_behind(store) == []
