"""A desk at which changes are made, and what stands and is refused there."""

from __future__ import annotations

import pytest

from registry.model.errors import RegistryError
from registry.model.records import AdapterRecord
from registry.transactions.changes import Change
from tests.support.changes import KEYS, POOL, Desk, creating


@pytest.fixture
def desk() -> Desk:
    """A pool without adapters."""
    desk = Desk()
    desk.change(creating())
    return desk


def record(desk: Desk, name: str = "acme/a") -> AdapterRecord:
    return AdapterRecord.parse(desk.etcd.kvs[KEYS.adapter(POOL, name)].value)


def etag(desk: Desk, name: str = "acme/a") -> int:
    return desk.etcd.kvs[KEYS.adapter(POOL, name)].mod_revision


def refused(desk: Desk, change: Change, request_id: str = "") -> RegistryError:
    """The refusal of a change; nothing is written."""
    before = desk.etcd.revision
    with pytest.raises(RegistryError) as told:
        desk.change(change, request_id)
    assert desk.etcd.revision == before
    return told.value
