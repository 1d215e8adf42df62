"""Which paths are the store's, and when a store cannot be used."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from registry.sources.base import StoreError
from sidecar.artifacts.layout import StoreLayout, open_layout

ID = "0123456789abcdef" * 4


def test_only_an_exact_path_is_owned():
    """R11 foreign-safe: what merely looks like ours is somebody else's."""
    layout = StoreLayout(Path("/store"))
    assert layout.owns(f"/store/adapters/sha256-{ID}") == ID
    assert layout.owns(str(layout.adapter(ID))) == ID


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/store/adapters/",
        f"/store/adapters/sha256-{ID}/",
        f"/store/adapters/sha256-{ID}/x",
        f"/store/adapters/sha256-{ID[:-1]}",
        f"/store/adapters/sha256-{ID}0",
        f"/store/adapters/sha256-{ID.upper()}",
        f"/store/adapters/{ID}",
        f"/store//adapters/sha256-{ID}",
        f"/store/adapters/../adapters/sha256-{ID}",
        f"/store/tmp/sha256-{ID}",
        f"/other/store/adapters/sha256-{ID}",
        f"store/adapters/sha256-{ID}",
        f"sha256-{ID}",
        f"/store/adapters/sha256-{ID}\n",
    ],
)
def test_other_paths_are_foreign(path):
    """R11 foreign-safe."""
    assert StoreLayout(Path("/store")).owns(path) is None


def test_the_root_is_made_absolute_and_plain(tmp_path, monkeypatch):
    """The engine is given absolute paths, for it takes relative ones for names of a hub."""
    monkeypatch.chdir(tmp_path)
    assert open_layout(Path("a/../store"), "r1").root == tmp_path / "store"


def test_opening_makes_the_folders_and_may_be_repeated(tmp_path):
    for _ in range(2):
        open_layout(tmp_path / "deep" / "store", "r1")
    names = {path.name for path in (tmp_path / "deep" / "store").iterdir()}
    assert names == {"adapters", "tmp", "locks", "leases", "reports", "pins", "damaged", "state"}
    assert not list((tmp_path / "deep" / "store").glob("*/*"))


def test_a_store_that_cannot_be_used_is_named_with_the_remedy(tmp_path):
    """What is in the way of its own folders is set aside; what the operator named is not."""
    (tmp_path / "store").write_text("in the way")
    (tmp_path / "store").chmod(0o646)
    with pytest.raises(StoreError, match="--store") as refused:
        open_layout(tmp_path / "store", "r1")
    assert str(tmp_path / "store") in str(refused.value)
    assert (tmp_path / "store").read_text() == "in the way"
    assert stat.S_IMODE((tmp_path / "store").stat().st_mode) == 0o646


def test_a_store_on_a_file_system_that_takes_no_files_is_named():
    with pytest.raises(StoreError, match="/proc/loraplane"):
        open_layout(Path("/proc/loraplane"), "r1")


@pytest.mark.parametrize("replica", ["", "../r1", "a/b", ".", "r1\n"])
def test_a_replica_that_cannot_name_a_file_is_refused(tmp_path, replica):
    with pytest.raises(StoreError, match="replica"):
        open_layout(tmp_path, replica)


def test_a_fault_of_ours_is_no_wrong_name_of_a_replica(tmp_path, monkeypatch):
    """R9: whoever starts it would look for it in his own settings."""

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("sidecar.artifacts.layout.check_segment", broken)
    with pytest.raises(ZeroDivisionError):
        open_layout(tmp_path, "r1")
