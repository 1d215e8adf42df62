"""A store whose artifacts a command of the host fetches."""

from __future__ import annotations

from pathlib import Path

import pytest

from registry.sources.base import Stop
from sidecar.artifacts.files import fetching_folder
from sidecar.artifacts.layout import StoreLayout, open_layout
from sidecar.artifacts.types import ArtifactRef
from tests.integration.sources.conftest import CONFIG, WEIGHTS, content, left_behind, ref, refusal
from tests.unit.artifacts.test_signature_policies import policy, sign

URI = "wandb-artifact:///team/run/sql:v7"
PREFIX = "wandb-artifact:///team"


@pytest.fixture
def fetcher(tmp_path) -> Path:
    """A program that fetches the adapter, and takes down how often."""
    there = tmp_path / "there"
    there.mkdir()
    (there / "adapter_config.json").write_bytes(CONFIG)
    (there / "adapter_model.safetensors").write_bytes(WEIGHTS)
    path = tmp_path / "fetch"
    path.write_text(f'#!/bin/sh\necho run >> {tmp_path}/runs\ncp {there}/* "$2"\n')
    path.chmod(0o755)
    return path


async def test_what_a_command_fetches_is_checked_and_kept_as_any_source(open_store, fetcher, tmp_path):
    """R4 digest-true: fetched once, and nothing is left of the folder that the command wrote to."""
    store = open_store(PREFIX, fetchers=(f"wandb-artifact={fetcher}",))
    staged = await store.ensure(ref(URI))
    assert content(staged.path) == (CONFIG, WEIGHTS)
    assert (await store.ensure(ref(URI))).path == staged.path
    assert (tmp_path / "runs").read_text() == "run\n"
    assert not list((tmp_path / "store" / "tmp").iterdir())


async def test_one_run_brings_the_files_and_the_bundle_that_a_policy_asks_for(open_store, fetcher, tmp_path):
    """R21 proven-here."""
    sign(tmp_path / "there")
    store = open_store(PREFIX, fetchers=(f"wandb-artifact={fetcher}",))
    store.trust.signatures.enforce(policy(), "p")
    staged = await store.ensure(ArtifactRef(URI, None, pin_key="p/acme/sql@1", name="acme/sql"))
    assert staged.is_proven
    assert (tmp_path / "runs").read_text() == "run\n"


def test_no_more_locks_stay_than_folders_were_had_at_once(tmp_path):
    """R16 bounded: however many sources there are."""
    layout = open_layout(tmp_path / "store", "r1")
    with fetching_folder(layout) as one, fetching_folder(layout) as other:
        assert one.is_dir()
        assert other.is_dir()
    for _ in range(3):
        with fetching_folder(layout):
            pass
    assert sorted(path.name for path in (layout.root / "locks").iterdir()) == ["fetched-0", "fetched-1"]


async def test_who_gives_a_sidecar_a_fetcher_has_it_try_again(open_store, fetcher):
    """R8: what was refused for want of it waits for a change, and this is one."""
    without = open_store(PREFIX)
    assert (await refusal(without, URI)).reason == "unsupported_scheme"
    having = open_store(PREFIX, fetchers=(f"wandb-artifact={fetcher}",), replica="r2")
    assert having.reads != without.reads


def test_what_a_killed_sidecar_left_of_it_is_tidied(open_store, fetcher, tmp_path):
    """R12 crash-only."""
    store = open_store(PREFIX, fetchers=(f"wandb-artifact={fetcher}",))
    left = StoreLayout(tmp_path / "store").temporary("fetched-1", "2")
    left.mkdir()
    (left / "part").touch()
    store.maintenance.collector.tidy(Stop())
    assert left_behind(store) == []
