"""Which adapter a step is about, and the conditions on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from registry.errors import Conflict, Reason
from registry.etcd3.ops import Compare, absent, mod_is, unwritten_since
from registry.keys import Keys
from registry.model.records import AdapterRecord, PoolSpec
from registry.transactions.stored import Absent, Damaged, Present, RecordT

AdapterState = Present[AdapterRecord] | Damaged | Absent


@dataclass(frozen=True, slots=True)
class Target:
    """Which adapter a step is about, how it stands, and where the caller wrote it.

    `read_revision`: history was read at this revision or later.
    """

    pool: PoolSpec
    name: str
    etag: int | None
    state: AdapterState
    read_revision: int
    name_field: str
    etag_field: str
    spec_field: str


def check_etag(etag: int | None, state: Present[RecordT] | Damaged | Absent, *, field: str) -> None:
    """Raises Conflict unless the record still has the etag that the caller read."""
    if etag is not None and etag != state.revision:
        raise stale_etag(etag, state.revision, field=field)


def stale_etag(etag: int, present: int, *, field: str) -> Conflict:
    """The refusal of an etag that is not `present`, the record's (0: there is no record)."""
    now = f"it is {present} now" if present else "there is no such record"
    return Conflict(
        Reason.ETAG_MISMATCH,
        f"etag {etag} does not hold: {now}; read it again and decide anew",
        field=field,
        metadata={"etag": str(present)},
    )


def as_it_stands(target: Target, keys: Keys) -> tuple[Compare, ...]:
    """That nothing happened since the reading.

    Where the next generation depends on history, history must not have grown either: a record that was made and
    deleted meanwhile is absent again, but its generation is used.
    """
    history = unwritten_since(keys.history_of(target.pool.name, target.name), target.read_revision)
    match target.state:
        case Present(revision=revision):
            return (mod_is(adapter_key(target, keys), revision),)
        case Damaged(revision=revision):
            return (mod_is(adapter_key(target, keys), revision), history)
        case Absent():
            return (absent(adapter_key(target, keys)), history)
    assert_never(target.state)


def adapter_key(target: Target, keys: Keys) -> bytes:
    """Where the record stands."""
    return keys.adapter(target.pool.name, target.name)
