"""Context of a change: caller, time, limits, and the target of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from registry.access.decision import Grant
from registry.access.principal import NO_TRACE, CallTrace, Credential, Principal
from registry.etcd3.ops import Compare, absent, mod_is, unwritten_since
from registry.model.errors import Conflict, Reason
from registry.model.keys import Keys
from registry.model.records import AdapterRecord, PoolSpec
from registry.model.stored import MAX_TRANSACTION_BYTES
from registry.transactions.decode import Absent, Damaged, Present, RecordT


@dataclass(frozen=True, slots=True)
class TxnLimits:
    """Limits of one transaction: etcd's --max-txn-ops and a little less than its --max-request-bytes."""

    max_ops: int = 128
    max_bytes: int = MAX_TRANSACTION_BYTES


@dataclass(frozen=True, slots=True)
class Caller:
    """Caller who asks for a change.

    `grant`: all that the caller may do; None: everything, since nothing says otherwise.
    `request_id_given`: the id is the caller's own, so a replay may come, also of what changes nothing. `repeats`: this
    call may be the replay, and one before it under way at another admin service.
    """

    principal: Principal
    request_id: str
    request_id_given: bool
    repeats: bool = False
    grant: Grant | None = None
    trace: CallTrace = NO_TRACE


@dataclass(frozen=True, slots=True)
class LeaseIds:
    """Leases under which request records and audit records are put."""

    request: int = 0
    audit: int = 0


@dataclass(frozen=True, slots=True)
class Context:
    """Everything about a change but the change itself. `at` is RFC 3339; `payload_digest` as in `changes`."""

    keys: Keys
    limits: TxnLimits
    caller: Caller
    leases: LeaseIds
    at: str
    audit_id: str
    payload_digest: str

    @property
    def request_key(self) -> bytes:
        """Key of the request record."""
        return self.keys.request(self.caller.request_id, self.caller.principal.space)

    @property
    def earlier_request_key(self) -> bytes | None:
        """Key that a release before 0.2 used, whose ids were anybody's; None: nowhere else, or nobody looks there.

        The conductor does not: its changes carry etags, so that none is made twice, and its old ids can be guessed.
        """
        is_looked_for = self.caller.principal.credential is Credential.CERTIFICATE
        return self.keys.request(self.caller.request_id) if is_looked_for else None


AdapterState = Present[AdapterRecord] | Damaged | Absent


@dataclass(frozen=True, slots=True)
class StepTarget:
    """Adapter of a step, its present state, and where the caller wrote it.

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
    now = f"current is {present}" if present else "there is no such record"
    return Conflict(
        Reason.ETAG_MISMATCH,
        f"stale etag: you sent {etag}, {now}; read it again and decide anew",
        field=field,
        metadata={"etag": str(present)},
    )


def as_it_stands(target: StepTarget, keys: Keys) -> tuple[Compare, ...]:
    """Comparisons that nothing happened since the reading.

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


def adapter_key(target: StepTarget, keys: Keys) -> bytes:
    """Key of the record."""
    return keys.adapter(target.pool.name, target.name)
