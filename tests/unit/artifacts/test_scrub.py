"""Artifacts that are not as they were written."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from registry.sources.errors import ArtifactError
from registry.sources.stop import Stop
from sidecar.artifacts import scrub
from sidecar.artifacts.store import LocalStore
from sidecar.artifacts.types import Staged
from sidecar.artifacts.upkeep import Holdings
from tests.support.adapters import digest_of, write_adapter
from tests.unit.artifacts.conftest import WEIGHTS, contents, pinned, release, stage


@pytest.fixture
def at_once(monkeypatch) -> None:
    """Everything is read again in every round."""
    monkeypatch.setattr(scrub, "PERIOD_SECONDS", -1.0)
    monkeypatch.setattr(scrub, "BYTES_PER_SECOND", 1 << 60)


def look_after(store: LocalStore) -> Holdings:
    store.upkeep.scrub(Stop())
    return store.upkeep.round(Stop())


def damage(staged: Staged) -> None:
    """Flips a bit of a number, which only a digest finds."""
    path = Path(staged.path) / WEIGHTS
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.chmod(0o644)
    path.write_bytes(content)


@pytest.mark.usefixtures("at_once")
async def test_a_damaged_artifact_that_nobody_leases_is_fetched_again(store, sources, adapters):
    """R4 digest-true."""
    adapter = write_adapter(sources / "s")
    staged = await store.ensure(pinned(adapter))
    damage(staged)
    release(store, staged)
    assert look_after(store).damaged == 0
    assert not contents(adapters)
    assert digest_of(Path((await store.ensure(pinned(adapter))).path)) == adapter.digest


@pytest.mark.usefixtures("at_once")
async def test_a_damaged_artifact_that_is_leased_is_told_and_not_touched(store, sources):
    """R4, R7: an engine may be reading it; no engine is given it anew."""
    adapter = write_adapter(sources / "s")
    staged = await store.ensure(pinned(adapter))
    damage(staged)
    before = (Path(staged.path) / WEIGHTS).read_bytes()
    for _ in range(3):
        assert look_after(store).damaged == 1
    assert (Path(staged.path) / WEIGHTS).read_bytes() == before
    assert store.lookup(pinned(adapter)) is None
    with pytest.raises(ArtifactError) as refused:
        await store.ensure(pinned(adapter))
    assert (refused.value.reason, refused.value.permanent) == ("artifact_damaged", False)
    release(store, staged)
    assert await store.ensure(pinned(adapter)) == staged
    assert digest_of(Path(staged.path)) == adapter.digest
    assert look_after(store).damaged == 0


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("missing", ["report", "nothing"])
async def test_what_is_as_it_was_written_or_not_known_stays(store, sources, missing):
    (staged,) = await stage(store, sources, 1)
    release(store, staged)
    if missing == "report":
        store._layout.report(staged.id).write_bytes(b"{}")
    for _ in range(3):
        assert look_after(store).artifacts == 1
    assert digest_of(Path(staged.path)) == staged.digest


async def test_what_was_read_of_late_is_not_read_again(store, sources, monkeypatch):
    """R16: once a day, whichever of the host's sidecars does it."""
    (staged,) = await stage(store, sources, 1)
    read: list[Path] = []
    monkeypatch.setattr(scrub, "_read", lambda path, _stop: str(read.append(path)))
    look_after(store)
    assert not read
    long_ago = time.time() - scrub.PERIOD_SECONDS - 1
    os.utime(store._layout.report(staged.id), (long_ago, long_ago))
    store._scrub._next_at = 0.0
    look_after(store)
    assert read == [Path(staged.path)]


@pytest.mark.parametrize("is_shared", [False, True])
async def test_a_torn_directory_makes_room_for_a_new_copy_unless_another_engine_reads_it(
    open_store, sources, is_shared
):
    """R4, R7: the lease is new, so our own engine does not read it."""
    adapter = write_adapter(sources / "s")
    staged = await open_store("r2").ensure(pinned(adapter))
    if not is_shared:
        release(open_store("r2"), staged)
    (Path(staged.path) / WEIGHTS).unlink()
    store = open_store("r1")
    if is_shared:
        with pytest.raises(ArtifactError):
            await store.ensure(pinned(adapter))
    else:
        assert await store.ensure(pinned(adapter)) == staged
        assert digest_of(Path(staged.path)) == adapter.digest
