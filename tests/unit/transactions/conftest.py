"""An author of changes, and what stands and is refused."""

from __future__ import annotations

from typing import Any

import pytest

from registry.etcd3.ops import Put, Txn
from registry.model.audit import AuditRecord
from registry.model.errors import RegistryError
from registry.model.records import AdapterRecord
from registry.model.status import Presence
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


def audits(author: Author) -> list[AuditRecord]:
    """The audit records, the newest last."""
    found = [kv for key, kv in author.etcd.kvs.items() if key.startswith(KEYS.audits())]
    return [AuditRecord.parse(kv.value) for kv in sorted(found, key=lambda kv: kv.mod_revision)]


def lives(
    author: Author, name: str, *, reports: bool = True, readable: bool = True, lease: int = 7, **says: Any
) -> None:
    """A presence, and beside it a status that is under its lease, or is not."""
    told = {"incarnation": "i", "owner": "o", "started_at": "t", "by_reports": True} | says
    value = Presence(pool=POOL, replica=name, **told).to_bytes() if readable else b"?"
    status = Put(KEYS.status(POOL, name), b"{}", lease if reports else lease + 1)
    author.etcd.txn(Txn((), (Put(KEYS.replica(POOL, name), value, lease), status)))


def refused(author: Author, change: Change, request_id: str = "") -> RegistryError:
    """The refusal of a change; nothing is written."""
    before = author.etcd.revision
    with pytest.raises(RegistryError) as told:
        author.change(change, request_id)
    assert author.etcd.revision == before
    return told.value
