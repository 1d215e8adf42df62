"""How the store finds out whether there is room."""

from __future__ import annotations

import pytest

from registry.sources.errors import ArtifactError
from sidecar.artifacts import room
from sidecar.artifacts.layout import Layout
from tests.unit.artifacts.test_upkeep import size_of, stage


@pytest.fixture(autouse=True)
def seldom(monkeypatch) -> None:
    """What was measured once is not measured again unless it has to be."""
    monkeypatch.setattr(room, "MEASURED_SECONDS", 3600.0)


async def test_a_store_with_room_is_not_listed_for_each_arrival(open_store, sources, monkeypatch):
    """R16: with thousands of artifacts that would take longer than fetching a small one."""
    listed, staged_ids = [], Layout.staged_ids

    def counted(layout):
        listed.append(layout)
        return staged_ids(layout)

    monkeypatch.setattr(Layout, "staged_ids", counted)
    store = open_store(budget_bytes=1 << 30)
    await stage(store, sources, 1)
    listed.clear()
    await stage(store, sources, 2, 3, 4)
    assert not listed


async def test_what_came_since_the_last_look_counts(open_store, sources):
    """R16: the budget holds between two looks as well."""
    store = open_store(budget_bytes=1 << 30)
    (first,) = await stage(store, sources, 1)
    store._room._budget_bytes = 2 * size_of(first) + 1
    await stage(store, sources, 2)
    with pytest.raises(ArtifactError) as refused:
        await stage(store, sources, 3)
    assert refused.value.reason == "store_full"
