"""Attacks on what lies in the store: no engine is given bytes that this process has not proven."""

from __future__ import annotations

import json
import os
import shutil
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from registry.lora.base import BaseModules
from registry.sources.base import ArtifactError, Stop
from sidecar.artifacts import proof
from sidecar.artifacts.layout import open_layout
from sidecar.artifacts.requests import stage_request_of
from sidecar.artifacts.types import ArtifactRef
from tests.support.adapters import digest_of, write_adapter
from tests.unit.artifacts.conftest import CONFIG, WEIGHTS, flip, pinned, recalled, release

BASE = BaseModules({f"base.layers.0.self_attn.{name}": (16, 16) for name in ("q_proj", "v_proj")}, ("tiny",))


def plant(root: Path, ref: ArtifactRef, files: Path, base: BaseModules | None = None) -> Path:
    """Puts other files where those of `ref` are looked for, with the report that the release before would write."""
    order = stage_request_of(ref, base)
    artifact, layout = order.artifact(str(ref.digest)), open_layout(root, "attacker")
    shutil.copytree(files, layout.adapter(artifact))
    report = {
        "schema": 1,
        "id": artifact,
        "source": ref.digest,
        "prepared": digest_of(files),
        "base": order.fingerprint,
        "base_model": "tiny",
        "registry_base_model": None,
        "policy": order.policy.as_dict(),
    }
    layout.report(artifact).write_text(json.dumps(report))
    return layout.adapter(artifact)


@pytest.mark.parametrize("is_leased", [False, True])
async def test_a_directory_planted_under_a_computable_id_is_not_handed_out(open_store, sources, tmp_path, is_leased):
    """R4, R21: not even with a fitting report, nor with a lease of ours; what was asked for is fetched."""
    adapter, evil = write_adapter(sources / "a"), write_adapter(tmp_path / "evil", seed=9)
    planted = plant(tmp_path / "store", pinned(adapter), evil.directory)
    if is_leased:
        (tmp_path / "store/leases/r1").write_text(planted.name.removeprefix("sha256-") + "\n")
    store = open_store()
    found = recalled(store, pinned(adapter))
    assert found is None or not found.is_proven
    assert not store.is_intact(str(planted))
    staged = await store.ensure(pinned(adapter))
    assert staged.is_proven
    assert store.is_intact(staged.path)
    assert digest_of(Path(staged.path)) == adapter.digest
    assert (staged.path == str(planted)) is not is_leased


async def test_a_planted_directory_is_refused_where_the_source_is_gone(open_store, sources, tmp_path):
    """R21: what cannot be proven is not given to an engine."""
    adapter, evil = write_adapter(sources / "a"), write_adapter(tmp_path / "evil", seed=9)
    plant(tmp_path / "store", pinned(adapter), evil.directory)
    shutil.rmtree(adapter.directory)
    with pytest.raises(ArtifactError):
        await open_store().ensure(pinned(adapter))


async def test_the_source_itself_is_not_enough_where_it_has_to_be_changed_for_the_base(open_store, sources, tmp_path):
    """R5, R21: engines answer from the base where they know no name of the adapter."""
    adapter = write_adapter(sources / "a")
    planted = plant(tmp_path / "store", pinned(adapter), adapter.directory, BASE)
    store = open_store(base=BASE)
    staged = await store.ensure(pinned(adapter))
    assert staged.path == str(planted)
    assert b"base.layers.0" in (planted / WEIGHTS).read_bytes()


async def test_what_the_release_before_staged_is_taken_over_without_the_source(open_store, sources, tmp_path):
    """R13: its report proves nothing; its bytes do, if they are the source's and fit the base as they are."""
    adapter = write_adapter(sources / "a")
    planted = plant(tmp_path / "store", pinned(adapter), adapter.directory)
    shutil.rmtree(adapter.directory)
    staged = await open_store().ensure(pinned(adapter))
    assert staged.path == str(planted)
    assert staged.is_proven


@pytest.mark.parametrize("is_true", [True, False])
async def test_what_the_release_before_prepared_is_compared_with_its_source(open_store, sources, tmp_path, is_true):
    """R7, R21: an engine may be reading it, so that it stays; if it is what comes of the source it is also given."""
    adapter, evil = write_adapter(sources / "a"), write_adapter(tmp_path / "evil", seed=9)
    made = await open_store(base=BASE).ensure(pinned(adapter))
    if not is_true:
        shutil.rmtree(made.path)
        shutil.copytree(evil.directory, made.path)
    (report,) = (tmp_path / "store" / "reports").iterdir()
    content = json.loads(report.read_text())
    del content["mac"]
    report.write_text(json.dumps(content))
    store = open_store(base=BASE)
    recalled(store, pinned(adapter))
    store.maintenance.scrub(Stop())  # the engine serves it: nobody waits
    assert store.lookup(pinned(adapter)) is None
    staged = await store.ensure(pinned(adapter))
    assert (staged == made) is is_true
    assert made.id in store._layout.staged_ids()
    assert b"base.layers.0" in (Path(staged.path) / WEIGHTS).read_bytes()


@pytest.fixture
def hashed(monkeypatch) -> list[Path]:
    """What was hashed, in order."""
    found, whole = list[Path](), proof.hash_directory
    monkeypatch.setattr(proof, "hash_directory", lambda path, *more: found.append(path) or whole(path, *more))
    return found


@pytest.mark.parametrize("when", ["while it runs", "between two processes", "between two, of a large one"])
async def test_a_bit_that_was_flipped_is_found_before_the_load(open_store, sources, monkeypatch, when):
    """R4, R21: with the times of the file set back, too."""
    monkeypatch.setattr("sidecar.artifacts.stored.MAX_AT_ONCE_BYTES", 0 if "large" in when else 1 << 30)
    adapter, store = write_adapter(sources / "a"), open_store()
    staged = await store.ensure(pinned(adapter))
    assert store.is_intact(staged.path)
    flip(staged.path)
    if "between" in when:
        store = open_store()
    else:
        assert not store.is_intact(staged.path)
    assert recalled(store, pinned(adapter)) == replace(staged, is_proven=False)
    assert not store.is_intact(staged.path)
    copy = await store.ensure(pinned(adapter))
    assert copy.path != staged.path
    assert digest_of(Path(copy.path)) == adapter.digest
    assert recalled(store, pinned(adapter)) == copy


def spoil(directory: Path, how: str, elsewhere: Path) -> None:
    weights = directory / WEIGHTS
    if how == "another file":
        (directory / "adapter_model.bin").write_bytes(b"code")
    elif how == "a pipe":
        weights.unlink()
        os.mkfifo(weights)
    elif how == "a link":
        weights.rename(elsewhere)
        weights.symlink_to(elsewhere)
    else:
        directory.rename(elsewhere)
        directory.touch() if how == "a file" else directory.symlink_to(elsewhere)


@pytest.mark.parametrize("is_leased", [False, True])
@pytest.mark.parametrize("how", ["another file", "a pipe", "a link", "another directory", "a file"])
async def test_what_is_no_directory_of_ours_is_not_handed_out(open_store, sources, tmp_path, how, is_leased):
    """R21, X2: an engine reads other files too if they are there; whoever opens a pipe waits."""
    adapter = write_adapter(sources / "a")
    store = open_store()
    staged = await store.ensure(pinned(adapter))
    spoil(Path(staged.path), how, tmp_path / "elsewhere")
    assert not store.is_intact(staged.path)
    if not is_leased:
        release(store, staged)
    for replica in ("r1", "r2"):
        found = await open_store(replica).ensure(pinned(adapter))
        assert (found.path != staged.path) is is_leased
        assert digest_of(Path(found.path)) == adapter.digest
        open_store(replica).maintenance.round(Stop())


async def test_each_process_hashes_once(open_store, sources, hashed):
    """R21: and what it wrote itself not at all."""
    adapter = write_adapter(sources / "a")
    staged = await open_store().ensure(pinned(adapter))
    assert not hashed
    for count, replica in enumerate(["r1", "r2"], 1):
        store = open_store(replica)
        for _ in range(3):
            assert await store.ensure(pinned(adapter)) == staged
            assert store.lookup(pinned(adapter)) == staged
            assert store.is_intact(staged.path)
        assert len(hashed) == count


async def test_what_the_engine_served_before_is_proven_while_nobody_waits(open_store, sources, hashed):
    """R13, R21: a restart with a thousand artifacts reads none of them before it says what is served."""
    adapters = [write_adapter(sources / f"a{seed}", seed=seed) for seed in range(3)]
    staged = [await open_store().ensure(pinned(adapter)) for adapter in adapters]
    store = open_store()
    assert [recalled(store, pinned(adapter)) for adapter in adapters] == [
        replace(one, is_proven=False) for one in staged
    ]
    assert not hashed
    flip(staged[1].path)
    store.maintenance.scrub(Stop())
    assert len(hashed) == len(staged)
    assert recalled(store, pinned(adapters[0])) == staged[0]
    assert store.lookup(pinned(adapters[1])) is None
    assert store.maintenance.round(Stop()).damaged == 1
    store.maintenance.scrub(Stop())
    assert len(hashed) == len(staged)


def modes(root: Path) -> dict[str, int]:
    found = {path.relative_to(root).as_posix(): stat.S_IMODE(path.stat().st_mode) for path in root.rglob("*")}
    return {name: mode & 0o777 for name, mode in found.items()} | {".": stat.S_IMODE(root.stat().st_mode) & 0o777}


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
async def test_folders_are_closed_whatever_the_umask_is(open_store, sources, tmp_path, umask):
    """R21: engines read `adapters/` as members of its group, and nobody else reads or writes anything."""
    before = os.umask(umask)
    try:
        staged = await open_store().ensure(pinned(write_adapter(sources / "a")))
    finally:
        os.umask(before)
    found, name = modes(tmp_path / "store"), Path(staged.path).name
    folders = {one: found[one] for one in found if (tmp_path / "store" / one).is_dir()}
    assert folders == {
        ".": 0o750,
        "adapters": 0o750,
        f"adapters/{name}": 0o750,
        **dict.fromkeys(("bundles", "damaged", "leases", "locks", "pins", "reports", "state", "tmp"), 0o700),
    }
    assert found["key"] == 0o600
    assert found[f"adapters/{name}/{CONFIG}"] == found[f"adapters/{name}/{WEIGHTS}"] == 0o444
    assert not [one for one, mode in found.items() if mode & 0o022 and one.startswith("adapters")]


async def test_a_group_that_the_root_is_given_to_reads_the_adapters(open_store, sources, tmp_path):
    """Deployment: an engine that is another user than its sidecar."""
    root = tmp_path / "store"
    root.mkdir()
    os.chown(root, -1, 4242) if os.geteuid() == 0 else pytest.skip("only root gives folders away")
    root.chmod(0o2750)
    staged = await open_store().ensure(pinned(write_adapter(sources / "a")))
    for path in (root, root / "adapters", Path(staged.path), Path(staged.path) / WEIGHTS):
        assert path.stat().st_gid == 4242
        assert path.stat().st_mode & 0o040


@pytest.mark.parametrize("is_in_use", [True, False])
def test_a_store_of_the_release_before_keeps_its_readers_and_loses_its_writers(tmp_path, is_in_use):
    """R7: an engine that reads it as another user would end if it could not any more."""
    root = tmp_path / "store"
    for folder in ("", "adapters", "leases", "tmp"):
        (root / folder).mkdir(exist_ok=True)
        (root / folder).chmod(0o777)
    if is_in_use:
        (root / "leases" / "r1").write_text("0" * 64 + "\n")
    open_layout(root, "r1")
    found = modes(root)
    assert found["."] == found["adapters"] == (0o755 if is_in_use else 0o750)
    assert found["leases"] == found["tmp"] == 0o700
