"""How a store with a budget finds out whether there is room, and what is removed when it is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from registry.sources.base import ArtifactError, Stop
from sidecar.artifacts.types import Staged
from tests.support.adapters import write_adapter
from tests.unit.artifacts.conftest import GRACE, age, contents, pinned, release, stage


def size_of(staged: Staged) -> int:
    return sum(path.stat().st_size for path in Path(staged.path).iterdir())


async def test_what_was_used_of_late_stays_and_what_was_let_go_of_may_go_at_once(open_store, sources, adapters):
    """R16: the disk keeps what somebody may ask for again; a use is noted whoever of the host it was."""
    first, second = await stage(open_store(), sources, 1, 2)
    store = open_store(budget_bytes=1, grace_seconds=GRACE)
    for one in (first, second):
        age(store, one)
    await open_store("r2").ensure(pinned(write_adapter(sources / "s1", seed=1)))
    (store._layout.leases / "r2").unlink()
    (store._layout.leases / "r1").unlink()
    assert store.maintenance.round(Stop()).artifacts == 1
    assert contents(adapters) == [Path(first.path).name]
    again = open_store(budget_bytes=1, grace_seconds=GRACE)
    again.lease({first.id})
    release(again, first)
    assert again.maintenance.round(Stop()).artifacts == 0


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
