"""How a store with a budget finds out whether there is room, and what is removed when it is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from registry.sources.base import ArtifactError, Stop
from sidecar.artifacts.files import locked
from sidecar.artifacts.types import Staged
from tests.support.adapters import digest_of
from tests.unit.artifacts.conftest import GRACE, age, contents, release, stage


def size_of(staged: Staged) -> int:
    return sum(path.stat().st_size for path in Path(staged.path).iterdir())


@pytest.mark.parametrize("why", ["leased", "leased by another", "young", "locked", "leases damaged"])
async def test_what_must_not_be_removed_stays_whatever_the_budget(open_store, sources, adapters, tmp_path, why):
    """R7 files-pinned, R16: leased ones are never removed."""
    (staged,) = await stage(open_store("r2" if why == "leased by another" else "r1"), sources, 1)
    store = open_store(budget_bytes=1)
    if why not in {"leased", "leased by another"}:
        release(store, staged)
    age(store, staged, 0.0 if why == "young" else 2 * GRACE)
    if why == "leases damaged":
        (tmp_path / "store" / "leases" / "r3").write_bytes(b"\x00\x00")
    with locked(store._layout.lock(staged.id if why == "locked" else "other"), Stop()):
        store.maintenance.round(Stop())
    assert digest_of(Path(staged.path)) == staged.digest


async def test_what_has_no_room_is_refused_for_now_and_what_is_leased_stays(open_store, sources, adapters):
    """R16, R8: under pressure new adapters wait."""
    (staged,) = await stage(open_store(), sources, 1)
    store = open_store(budget_bytes=size_of(staged) + 100)
    with pytest.raises(ArtifactError) as refused:
        await stage(store, sources, 2)
    assert (refused.value.reason, refused.value.permanent) == ("store_full", False)
    assert "--store-budget" in refused.value.message
    assert contents(adapters) == [Path(staged.path).name]
    assert not contents(adapters.parent / "tmp")
    release(store, staged)
    age(store, staged)
    (later,) = await stage(store, sources, 2)  # room is made for it on the way
    assert contents(adapters) == [Path(later.path).name]
    assert not contents(adapters.parent / "tmp"), "only files that are gone make room"
