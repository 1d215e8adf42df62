"""Folders that are rotated away while stores still have their files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from registry.sources.base import Stop
from sidecar.artifacts import maintenance
from sidecar.artifacts.maintenance import RotatedSources
from sidecar.artifacts.store import LocalStore
from sidecar.artifacts.types import ArtifactRef, Staged
from tests.support.adapters import write_adapter


class Clock:
    at = 100.0

    def __call__(self) -> float:
        return self.at


def staged(ref: ArtifactRef) -> dict[ArtifactRef, Staged]:
    return {ref: Staged("id", "/store/id", "sha256:0", 8)}


@pytest.fixture
def clock() -> Clock:
    return Clock()


def reasons(looks: RotatedSources, ref: ArtifactRef) -> list[str]:
    return [one.reason for one in looks.marked(staged(ref))[ref].warnings]


@pytest.mark.parametrize("kept", [[], ["adapter_config.json"]])
def test_a_folder_that_is_gone_is_told_until_it_is_back(tmp_path, clock, kept):
    """Also one of which a file is left. It is looked at once a minute."""
    folder = tmp_path / "a b"
    write_adapter(folder)
    ref = ArtifactRef(folder.as_uri(), None)
    looks = RotatedSources(lambda: [ref], clock)
    looks.look()
    assert looks.marked(staged(ref)) == staged(ref)
    for file in folder.iterdir():
        if file.name not in kept:
            file.unlink()
    if not kept:
        folder.rmdir()
    looks.look()
    assert reasons(looks, ref) == []
    clock.at += maintenance.SOURCE_PERIOD_SECONDS
    looks.look()
    assert reasons(looks, ref) == ["source_gone"]
    assert str(folder) in looks.marked(staged(ref))[ref].warnings[0].message
    write_adapter(folder)
    clock.at += maintenance.SOURCE_PERIOD_SECONDS
    looks.look()
    assert reasons(looks, ref) == []


@pytest.mark.parametrize("uri", ["s3://bucket/a", "https://host/a.tar", "file://other-host/a", "file:///" + "a" * 300])
def test_what_nobody_can_tell_is_not_told(clock, uri):
    ref = ArtifactRef(uri, None)
    looks = RotatedSources(lambda: [ref], clock)
    looks.look()
    assert reasons(looks, ref) == []


def test_of_very_many_all_have_their_turn_and_what_the_store_lost_is_forgotten(tmp_path, clock, monkeypatch):
    """R16 bounded."""
    monkeypatch.setattr(maintenance, "MOST_SOURCES", 2)
    refs = [ArtifactRef((tmp_path / f"{number}").as_uri(), None) for number in range(5)]
    there = list(refs)
    looks = RotatedSources(lambda: there, clock)
    found = []
    for _ in range(3):
        looks.look()
        clock.at += 1
        found.append(sum(bool(reasons(looks, ref)) for ref in refs))
    assert found == [2, 4, 5]
    there.clear()
    looks.look()
    assert [ref for ref in refs if reasons(looks, ref)] == []


async def test_a_store_serves_on_what_was_rotated_and_warns_of_it(tmp_path):
    """R13 static-stable: the files stay, and the status says that they are the last ones."""
    folder: Path = tmp_path / "sources" / "step-7"
    write_adapter(folder)
    store = LocalStore(tmp_path / "store", "r1", [(tmp_path / "sources").as_uri()])
    ref = ArtifactRef(folder.as_uri(), None, pin_key="p/a@1")
    before = await store.ensure(ref)
    shutil.rmtree(folder)
    store.maintenance.scrub(Stop())
    assert [one.reason for one in store.seen[ref].warnings] == [*[one.reason for one in before.warnings], "source_gone"]
    assert (store.lookup(ref), store.is_intact(before.path)) == (before, True)
    store.close()
