"""Links, pipes, sockets, devices, archives and names: what we say, and that it never waits."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from registry.lora.base_directory import read_base
from registry.model.errors import InvalidArgument
from registry.model.names import check_adapter_name
from registry.sources.base import ArtifactError
from sidecar.artifacts.store import LocalStore, ReadingEngine
from sidecar.artifacts.types import ArtifactRef
from tests.corpus.drafts import LLAMA, PLAYED, Architecture
from tests.corpus.hostile import ARCHIVES, FOLDERS, NAMES, HostileArchive, HostileFolder, archive, files, twice
from tests.support.web import Site, serving

SECONDS = 120


@pytest.fixture(scope="module")
def bases(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("bases")
    return {one.name: one.write_base(folder / one.name) for one in PLAYED}


@pytest.fixture(scope="module")
def site():
    with serving(Site()) as site:
        yield site


async def staged(folder: Path, base: Path, uri: str, allowed: str) -> str:
    """The directory that a store makes of a source, or its error; always within the deadline."""
    store = LocalStore(folder / "store", "r1", [allowed], engine=ReadingEngine(base=read_base(base)))
    try:
        async with asyncio.timeout(SECONDS):
            return (await store.ensure(ArtifactRef(uri, None))).path
    finally:
        store.close()


def left(folder: Path) -> list[Path]:
    return [*(folder / "store" / "adapters").iterdir(), *(folder / "store" / "tmp").iterdir()]


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("architecture", PLAYED, ids=lambda one: one.name)
@pytest.mark.parametrize("hostile", FOLDERS, ids=lambda one: one.name)
async def test_a_hostile_folder_is_refused_by_name_and_leaves_nothing(
    tmp_path, bases, architecture: Architecture, hostile: HostileFolder
):
    """R4, R8, R16: a pipe or a device is never read, a link never followed."""
    (tmp_path / "allowed").mkdir()
    hostile.write(tmp_path / "allowed" / "a", architecture.draft())
    uri, allowed = (tmp_path / "allowed" / "a").as_uri(), (tmp_path / "allowed").as_uri()
    with pytest.raises(ArtifactError) as refused:
        await staged(tmp_path, bases[architecture.name], uri, allowed)
    assert (refused.value.reason, refused.value.permanent) == (hostile.reason, hostile.permanent), refused.value
    assert left(tmp_path) == []


@pytest.mark.parametrize("architecture", PLAYED, ids=lambda one: one.name)
@pytest.mark.parametrize("hostile", ARCHIVES, ids=lambda one: one.name)
async def test_a_hostile_archive_is_refused_by_name_and_leaves_nothing(
    tmp_path, bases, site, architecture: Architecture, hostile: HostileArchive
):
    """R4, R8, R16: nothing is written by a name that stands in it."""
    site.files = {f"/a{hostile.suffix}": hostile.pack(architecture.draft())}
    with pytest.raises(ArtifactError) as refused:
        await staged(tmp_path, bases[architecture.name], f"{site.url}/a{hostile.suffix}", site.url)
    assert (refused.value.reason, refused.value.permanent) == (hostile.reason, hostile.permanent), refused.value
    assert left(tmp_path) == []


@pytest.mark.parametrize("pack", [lambda draft: archive(*files(draft)), twice], ids=["plain", "twice"])
async def test_of_a_name_that_comes_twice_the_first_counts(tmp_path, bases, site, pack):
    site.files = {"/a.tar": pack(LLAMA.draft())}
    path = await staged(tmp_path, LLAMA.write_base(tmp_path / "base"), f"{site.url}/a.tar", site.url)
    assert contents(Path(path)) == LLAMA.draft().files()


def test_a_hostile_name_never_becomes_a_record():
    """Fail closed: the engine takes any of them."""
    for name in NAMES:
        with pytest.raises(InvalidArgument) as refused:
            check_adapter_name(name, field="metadata.name")
        assert refused.value.field == "metadata.name"
