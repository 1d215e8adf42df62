"""Where an adapter is put: never over another, never half, and what is told of a place that does not take it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import MemoryStore

from registry.client.upload import destination as destinations
from registry.client.upload import objects as bucket
from registry.client.upload.destination import DestinationTaken, Unfinished, destination, put
from registry.lora.digest import CONFIG_FILE, FILES, WEIGHTS_FILE
from registry.lora.findings import CannotPublish
from registry.sources.credentials import HeldCredential
from registry.sources.credentials_file import NoSecret
from tests.corpus.drafts import LLAMA

OURS, OTHERS = LLAMA.draft().files(), LLAMA.draft(seed=1).files()
URI = "s3://bucket/sql/v1"


@pytest.fixture
def folder(tmp_path) -> Path:
    return LLAMA.draft().write(tmp_path / "made")


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def opened_below(folder: Path) -> list[Path]:
    found = list[Path]()
    for one in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # it was closed since it was listed
            found.append(one.readlink())
    return [one for one in found if one.is_relative_to(folder)]


def test_a_path_of_this_machine_needs_no_scheme_and_a_bucket_may_be_in_any_cloud(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for uri in ("out", str(tmp_path / "out"), (tmp_path / "out").as_uri()):
        there = destination(uri)
        assert (there.uri, there.place) == ((tmp_path / "out").as_uri(), tmp_path / "out")
    for scheme in ("s3", "gs", "az"):
        place = destination(f"{scheme}://bucket/a/b").place
        assert not isinstance(place, Path)
        assert (place.scheme, place.authority, place.path) == (scheme, "bucket", ("a", "b"))


def test_a_folder_arrives_whole_and_once(folder, tmp_path):
    """W6: the same again is as good as done."""
    out = tmp_path / "quite" / "deep" / "out"
    assert put(folder, destination(str(out)), None) is True
    assert content(out) == OURS
    assert put(folder, destination(str(out)), None) is False
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_what_has_its_name_is_on_the_disk(folder, tmp_path, monkeypatch):
    """R4: after a crash of the machine there is all of it or nothing."""
    did: list[str] = []
    sync, rename = os.fsync, Path.rename

    def synced(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        did.append(re.sub("[0-9a-f]{32}", "*", str(path)))
        assert path.is_dir() or path.read_bytes() == OURS[path.name], "whole by then"
        sync(descriptor)

    def renamed(self: Path, target: Path) -> Path:
        did.append("renamed")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    put(folder, destination(str(tmp_path / "out")), None)
    assert opened_below(tmp_path) == []
    arriving = f"{tmp_path}/.out.*"
    assert did == [*(f"{arriving}/{name}" for name in FILES), arriving, "renamed", str(tmp_path)]


def _of_others(out: Path) -> None:
    LLAMA.draft(seed=1).write(out)


def _half(out: Path) -> None:
    out.mkdir()
    (out / WEIGHTS_FILE).write_bytes(OURS[WEIGHTS_FILE])


@pytest.mark.parametrize("make", [_of_others, _half, Path.touch, Path.mkdir], ids=["other", "half", "file", "empty"])
@pytest.mark.parametrize("meanwhile", [False, True])
def test_what_is_there_stays(folder, tmp_path, monkeypatch, make, meanwhile):
    """W6, R4: also where somebody else was quicker by a moment."""
    out = tmp_path / "out"
    if meanwhile:
        _quicker(monkeypatch, make)
    else:
        make(out)
    if make is Path.mkdir and meanwhile:
        # An empty directory is nobody's yet, and a rename takes its place.
        assert put(folder, destination(str(out)), None) is True
        assert content(out) == OURS
        return
    with pytest.raises(DestinationTaken, match=str(out)):
        put(folder, destination(str(out)), None)
    if out.is_dir():
        assert content(out) == {_of_others: OTHERS, _half: {WEIGHTS_FILE: OURS[WEIGHTS_FILE]}}.get(make, {})
    assert {path.name for path in tmp_path.iterdir()} == {"made", "out"}


def _quicker(monkeypatch, make: Callable[[Path], object]) -> None:
    """Somebody makes the target just before our folder takes its name."""
    rename = Path.rename

    def second(self: Path, target: Path) -> Path:
        make(target)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", second)


def test_the_same_by_somebody_quicker_is_as_good(folder, tmp_path, monkeypatch):
    _quicker(monkeypatch, LLAMA.draft().write)
    assert put(folder, destination(str(tmp_path / "out")), None) is False
    assert content(tmp_path / "out") == OURS


@pytest.mark.parametrize("fails", ["pathlib.Path.rename", f"{destinations.__name__}._copy"])
def test_a_disk_that_does_not_take_it_is_told_and_nothing_is_left(folder, tmp_path, monkeypatch, fails):
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(fails, full)
        with pytest.raises(OSError, match="No space left"):
            put(folder, destination(str(tmp_path / "out")), None)
    assert {path.name for path in tmp_path.iterdir()} == {"made"}
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        destinations.sync_directory(tmp_path)
    assert opened_below(tmp_path) == []


@pytest.fixture
def store(monkeypatch) -> MemoryStore:
    """The bucket behind every URI."""
    made = MemoryStore()
    monkeypatch.setattr(bucket, "open_store", lambda *_: made)
    return made


def objects(store: MemoryStore) -> dict[str, bytes]:
    keys = [one["path"] for batch in obstore.list(store) for one in batch]
    return {key.removeprefix("sql/v1/"): bytes(obstore.get(store, key).bytes()) for key in keys}


def hold(store: MemoryStore, **files: bytes) -> None:
    for name, data in files.items():
        obstore.put(store, f"sql/v1/{name}", data)


def test_an_object_is_created_in_one_request(folder, store, monkeypatch):
    """W6: one in parts cannot be made to fail where somebody else's is there."""
    asked, real = list[dict[str, object]](), obstore.put

    def spied(*where: object, **how: object) -> object:
        asked.append(how)
        return real(*where, **how)  # type: ignore[call-overload]

    monkeypatch.setattr(obstore, "put", spied)
    assert put(folder, destination(URI), None) is True
    assert asked == [{"mode": "create", "use_multipart": False}] * 2
    assert (put(folder, destination(URI), None), len(asked)) == (False, 2), "what is there is not sent again"


@pytest.mark.parametrize("name", FILES)
def test_half_is_completed_where_it_is_ours_alone(folder, store, name):
    """R4."""
    hold(store, **{name: OURS[name]})
    assert put(folder, destination(URI), None) is True
    assert objects(store) == OURS


@pytest.mark.parametrize(
    ("files", "is_ours"),
    [(OURS, True), (OTHERS, False), ({WEIGHTS_FILE: OTHERS[WEIGHTS_FILE]}, False)],
    ids=["the same", "another", "another that is not done yet"],
)
def test_who_is_quicker_by_a_moment_wins_whole(folder, store, monkeypatch, files, is_ours):
    """R4: both have seen an empty prefix."""
    create = bucket._create

    def second(store: MemoryStore, key: str, path: Path) -> None:
        if key.endswith(WEIGHTS_FILE):
            hold(store, **files)
        create(store, key, path)

    monkeypatch.setattr(bucket, "_create", second)
    if is_ours:
        assert put(folder, destination(URI), None) is True
    else:
        with pytest.raises(DestinationTaken):
            put(folder, destination(URI), None)
    assert objects(store) == files


ERRORS = {
    "denied": (PermissionDeniedError, CannotPublish, "may not be written, or not read again; name a --credential"),
    "unknown": (UnauthenticatedError, CannotPublish, "may not be written, or not read again; name a --credential"),
    "away": (BaseError, Unfinished, "was not reached, or broke off; repeat it"),
}


@pytest.mark.parametrize("at", ["get", "put"])
@pytest.mark.parametrize("error", ERRORS)
def test_a_store_that_does_not_take_it_is_told(folder, store, monkeypatch, error, at):
    """X1: what it answered is not repeated. One that cannot be asked is not taken for empty."""
    raised, expected, words = ERRORS[error]

    def fail(*_: object, **__: object) -> None:
        raise raised("secretCANARY")

    monkeypatch.setattr(obstore, at, fail)
    with pytest.raises(expected) as refused:
        put(folder, destination(URI), None)
    assert words in str(refused.value)
    assert "CANARY" not in str(refused.value)
    with pytest.raises(expected) as refused:
        put(folder, destination(URI), HeldCredential("acme", NoSecret(kind="none", prefixes=("s3://bucket",))))
    assert words.replace("name a --credential", "check the secret, and what it may do") in str(refused.value)
    assert "CANARY" not in str(refused.value)
    monkeypatch.undo()
    assert objects(store) == {}


def test_what_is_taken_away_meanwhile_is_not_published(folder, store, monkeypatch):
    """R4: only what was read again is there."""
    create = bucket._create

    def undone(store: MemoryStore, key: str, path: Path) -> None:
        create(store, key, path)
        if key.endswith(CONFIG_FILE):
            obstore.delete(store, f"sql/v1/{WEIGHTS_FILE}")

    monkeypatch.setattr(bucket, "_create", undone)
    with pytest.raises(CannotPublish, match=f"sql/v1/{WEIGHTS_FILE} is gone since it was written"):
        put(folder, destination(URI), None)
