"""An operator vouches for lists of a pool, so that sidecars follow what they hold (guarantee R15)."""

from __future__ import annotations

from registry.errors import InvalidArgument, Reason
from registry.etcd3.ops import Range, mod_is
from registry.keys import Keys
from registry.model.records import AuditChange, ChangeReply
from registry.transactions.changes import ConfirmRemovals
from registry.transactions.context import Context
from registry.transactions.draft import Draft, Planned, finish, put_record, request_read
from registry.transactions.stored import present_pool, shown
from registry.transactions.target import check_etag
from registry.transactions.view import View


def confirm_reads(change: ConfirmRemovals, keys: Keys, request_id: str) -> tuple[Range, ...]:
    """What a confirmation is planned from."""
    return (request_read(keys, request_id), Range(keys.pool(change.name)))


def plan_confirm_removals(change: ConfirmRemovals, view: View, context: Context) -> Planned:
    """The transaction that writes a confirmation into the pool's record; a lower one than before changes nothing.

    Raises:
        NotFound: there is no such pool.
        Conflict: the etag is stale.
        InvalidArgument: the revision is still to come; what nobody has seen, nobody can vouch for.
        FailedPrecondition: the record cannot be read.
    """
    state = present_pool(view, context.keys, change.name, field="name")
    check_etag(change.etag, state, field="etag")
    if change.revision > view.revision:
        message = f"etcd is at revision {view.revision}, so that there is no list at {change.revision} yet"
        raise InvalidArgument(Reason.INVALID_FIELD, f"{message}; give the one that the replica names", field="revision")
    before = state.record
    revision = max(change.revision, before.removals_confirmed_revision)
    same = revision == before.removals_confirmed_revision
    wanted = before.model_copy(update={"removals_confirmed_revision": revision})
    audit = AuditChange(kind="pool", name=wanted.name, before=shown(before), after=shown(wanted))
    draft = Draft(
        scope=wanted.name,
        method="ConfirmRemovals",
        compare=(mod_is(context.keys.pool(wanted.name), state.revision),),
        success=() if same else (put_record(context.keys.pool(wanted.name), wanted.to_bytes(), field="pool"),),
        audit=() if same else (audit,),
        reply=ChangeReply(pool=wanted, etag=state.revision if same else None),
    )
    return finish(draft, view, context)
