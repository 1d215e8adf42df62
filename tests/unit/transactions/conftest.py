"""An author of changes, and what stands and is refused."""

from __future__ import annotations

import pytest

from registry.model.errors import RegistryError
from registry.model.records import AdapterRecord
from registry.transactions.changes import Change
from tests.support.changes import KEYS, POOL, Author, creating


@pytest.fixture
def author() -> Author:
    """A pool without adapters."""
    author = Author()
    author.change(creating())
    return author


def record(author: Author, name: str = "acme/a") -> AdapterRecord:
    return AdapterRecord.parse(author.etcd.kvs[KEYS.adapter(POOL, name)].value)


def etag(author: Author, name: str = "acme/a") -> int:
    return author.etcd.kvs[KEYS.adapter(POOL, name)].mod_revision


def refused(author: Author, change: Change, request_id: str = "") -> RegistryError:
    """The refusal of a change; nothing is written."""
    before = author.etcd.revision
    with pytest.raises(RegistryError) as told:
        author.change(change, request_id)
    assert author.etcd.revision == before
    return told.value
