"""Commands backup and restore: desired state in a file, and back."""

from __future__ import annotations

import os
from collections.abc import Container, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import click

from registry.cli import options
from registry.cli.apply import ApplyOrder
from registry.cli.backup import (
    Name,
    RestoredQuota,
    RestorePlan,
    StoredState,
    backup_text,
    check_places,
    plan_restore,
    records_of,
    state_of,
)
from registry.cli.change.sets import Change, ChangeBatch, NotApplied, Outcome, apply_split, step_id, step_of_changes
from registry.cli.client import AdminClient
from registry.cli.failure import CliError, CommandFailure, Exit, refused, usage
from registry.cli.removal import agree
from registry.cli.session import READ_SECONDS, Session, request_id_or_new, session_of
from registry.cli.views.get import note
from registry.cli.views.report import check_applied, print_table
from registry.client import admin_api as api
from registry.model.errors import Reason
from registry.model.messages import pool_message, spec_message
from registry.model.names import name_key, name_of_key
from registry.runtime.own_paths import write_whole
from registry.v1 import registry_pb2 as pb

_POOL_FIELDS = ("base_models", "limits", "base", "engine", "engine_names")
File = Annotated[Path, options.argument(metavar="FILE", help="The backup.")]


def backup(
    context: click.Context,
    file: File,
    *,
    force: Annotated[bool, options.flag("--force", help="Replace the file if it is there.")] = False,
    timeout: options.Timeout = None,
) -> None:
    """Write pools, tenants, adapters and their history, as they are at one revision, into a file.

    Statuses, presences, audit records and the answers to requests are not in it.
    """
    session = session_of(context)
    if str(file) == "-":
        raise usage("a backup is written whole or not at all, so not to standard output; name a file")
    if os.path.lexists(file) and not force:
        raise usage(f"{file} is there already; choose another name, or give --force")
    with session.client(timeout or READ_SECONDS) as client:
        found = client.whole(api.READ_BACKUP)
    misplaced = state_of(found.records).misplaced
    if misplaced:
        told = ", ".join([*misplaced][:10])
        note(f"left out, since they stand under another key than their own: {told}; apply or delete them")
    records = [one for one in found.records if one.key not in misplaced]
    now = datetime.now(UTC).isoformat(timespec="seconds")
    _write(file, backup_text(records, found.revision, now))
    counts = _counts(state_of(records))
    if session.printer().is_plain:
        session.printer().plain({"file": str(file), "revision": found.revision, **counts})
    else:
        told = ", ".join(f"{count} {what}" for what, count in counts.items())
        session.printer().lines([f"{file}: revision {found.revision}, {told}"])


def _counts(state: StoredState) -> dict[str, int]:
    generations = sum(map(len, state.history.values()))
    counts = {"pools": len(state.pools), "tenants": len(state.tenants), "adapters": len(state.adapters)}
    return {**counts, "earlier generations": generations, "unreadable": len(state.unreadable)}


def _write(file: Path, text: bytes) -> None:
    try:
        write_whole(file, text)
    except OSError as error:
        remedy = "name a file in a folder that is there, and yours to write in"
        raise usage(f"cannot write {file}: {error.strerror}; {remedy}") from error


def restore(
    context: click.Context,
    file: File,
    *,
    delete_others: Annotated[
        bool, options.flag("--delete-others", help="Delete adapters that the backup does not have.")
    ] = False,
    delete_limit: options.DeleteLimit = 10,
    yes: options.Yes = False,
    dry_run: options.DryRun = False,
    timeout: options.Timeout = None,
    request_id: options.RequestId = None,
) -> None:
    """Restore pools, tenants and adapters from a backup, after a look at the plan.

    Each change holds only for what the plan was made from: what somebody else changes meanwhile is refused, and the
    same command goes on from there. An adapter that is gone comes back as the generation after its last.
    """
    session, order = session_of(context), ApplyOrder(request_id, timeout, dry_run, no_atomic=True)
    saved = _read(file)
    with session.client(order.write_seconds) as client:
        now = state_of(client.whole(api.READ_BACKUP).records)
        plan = plan_restore(saved, now)
        if not delete_others:
            plan, left = replace(plan, others=()), len(plan.others)
            if left:
                note(f"{left} adapters that the backup does not have stay; --delete-others deletes them")
        if len(plan.others) > delete_limit:
            message = f"{len(plan.others)} adapters would be deleted, more than {delete_limit}; give --delete-limit"
            raise refused(Reason.TOO_MANY_CHANGES, message, field="--delete-limit")
        _tell_plan(session, saved, plan)
        if dry_run:
            return
        agree(session, _lines(plan), yes=yes, what="restore:")
        _carry_out(session, client, saved, plan, order)


def _read(file: Path) -> StoredState:
    try:
        text = file.read_bytes()
    except OSError as error:
        raise usage(f"cannot read {file}: {error.strerror}; name one that loraplane backup wrote") from error
    records = records_of(text, str(file))[1]
    saved = state_of(records)
    check_places(saved, records, str(file))
    if saved.unreadable:
        note(f"values of the backup that cannot be read, and are left out: {', '.join(saved.unreadable[:10])}")
    return saved


def _lines(plan: RestorePlan) -> list[str]:
    """Each change of the plan in a line."""
    lines = [f"+ pool {one.name}" for one in plan.create_pools]
    lines += [f"~ pool {one.name}" for one, *_ in plan.update_pools]
    lines += [f"~ tenant {one.tenant}: quota {one.found or 'none'} -> {one.wanted or 'none'}" for one in plan.tenants]
    lines += [f"+ history {pool}/{key}" for pool, key in plan.histories]
    lines += [f"+ adapter {one.pool}/{one.name}" for one in plan.creates]
    lines += [f"~ adapter {one.pool}/{one.name}" for one in plan.updates]
    return lines + [f"- adapter {pool}/{name}" for pool, name, _ in plan.others]


def _tell_plan(session: Session, saved: StoredState, plan: RestorePlan) -> None:
    counts = {"created": len(plan.creates), "updated": len(plan.updates), "deleted": len(plan.others)}
    printer, lines = session.printer(), _lines(plan)
    if plan.canaries:
        note(f"only canaries had the newest generation of {', '.join(plan.canaries)}; restored is what all others had")
    if plan.too_high:
        told = ", ".join(plan.too_high)
        note(f"the history of {told} is left out: it begins more than 1,000 generations above the newest known here")
    if unsaid := sorted(plan.unsaid()):
        told = ", ".join(unsaid[:10])
        note(f"fields that this release does not know, and are left out: {told}; restore with the one that knows them")
    if printer.is_plain:
        printer.plain({"plan": lines, "summary": {**counts, "unchanged": plan.same}, "backup": _counts(saved)})
    else:
        told = f"summary: +{counts['created']} ~{counts['updated']} -{counts['deleted']} ={plan.same} adapters"
        printer.lines([*lines, told])


def _carry_out(session: Session, client: AdminClient, saved: StoredState, plan: RestorePlan, order: ApplyOrder) -> None:
    """Quotas that rise come first, those that fall come last: in between more must have room."""
    request_id = request_id_or_new(order.request_id)
    for quota in [one for one in plan.tenants if one.rises]:
        _set_quota(client, quota, quota.etag, request_id)
    _restore_pools(client, plan, request_id)
    refused = {name: one for name in plan.histories if (one := _refused_history(client, saved, name, request_id))}
    outcomes = _send(client, "others", _deletions(plan), request_id)
    check_applied(outcomes)
    outcomes += [*refused.values(), *_send(client, "adapters", _upserts(plan, refused), request_id, apart=True)]
    if session.printer().is_table:
        print_table(session.printer(), outcomes, dry_run=False)
    check_applied(one for one in outcomes if not _is_refused(one))
    for quota in [one for one in plan.tenants if not one.rises]:
        _set_quota(client, quota, _unchanged(client, quota), request_id)
    check_applied(outcomes)


def _is_refused(one: Outcome) -> bool:
    """True for what no other run would do either before somebody mends it: all else is restored without it."""
    return isinstance(one, NotApplied) and one.failure.is_of_request


def _send(
    client: AdminClient, step: str, changes: Sequence[Change], request_id: str, *, apart: bool = False
) -> list[Outcome]:
    turn = step_of_changes(request_id, step, changes)
    return apply_split(client, changes, turn, dry_run=False, apart=apart)


def _refused_history(client: AdminClient, saved: StoredState, name: Name, request_id: str) -> NotApplied | None:
    """Puts the history of a name in; the refusal, if there is one. A name without its history is not created either.

    Each call puts one generation in, and changes nothing once all are there.
    """
    generations, asked = len(saved.history.get(name, ())) + (name in saved.adapters), _history(saved, name)
    ids = [step_id(request_id, f"history{turn}", [asked]) for turn in range(generations)]
    for asked.request_id in ids:
        try:
            if not client.unary(api.RESTORE_HISTORY, asked).changed:
                return None
        except CliError as error:
            if not error.failure.is_of_request:
                raise
            where = ": ".join(filter(None, (f"history of {asked.pool}/{asked.name}", error.failure.field)))
            failure = replace(error.failure, field=where)
            return NotApplied(ChangeBatch(asked.pool, (), asked.request_id), failure)
    return None


def _restore_pools(client: AdminClient, plan: RestorePlan, request_id: str) -> None:
    for pool in plan.create_pools:
        made = pb.CreatePoolRequest(pool=pool_message(pool, 0), restored=True)
        made.request_id = step_id(request_id, "pool", [made])
        client.unary(api.CREATE_POOL, made)
    for pool, etag, is_readable in plan.update_pools:
        request = pb.UpdatePoolRequest(pool=pool_message(pool, int(etag)), restored=True)
        if is_readable:  # of what cannot be read nothing can stay, so all of it is replaced
            request.update_mask.paths.extend(_POOL_FIELDS)
        request.request_id = step_id(request_id, "pool", [request])
        client.unary(api.UPDATE_POOL, request)


def _set_quota(client: AdminClient, quota: RestoredQuota, etag: str, request_id: str) -> None:
    tenant = pb.Tenant(name=quota.tenant, max_adapters=quota.wanted or 0, etag=etag)
    asked = pb.SetTenantRequest(tenant=tenant)
    asked.request_id = step_id(request_id, "quota", [asked])
    client.unary(api.SET_TENANT, asked)


def _unchanged(client: AdminClient, quota: RestoredQuota) -> str:
    """The etag of a tenant whose quota is still what the plan was made from; its counter has changed since.

    Raises:
        CliError: somebody set another quota meanwhile.
    """
    tenants = {one.name: one for one in client.whole(api.LIST_TENANTS).tenants}
    found = tenants.get(quota.tenant, pb.Tenant())
    if found.max_adapters != (quota.found or 0):
        message = f"somebody set the quota of {quota.tenant!r} to {found.max_adapters} meanwhile; restore again"
        raise CliError(CommandFailure(Exit.CONFLICT, Reason.ETAG_MISMATCH, message))
    return found.etag


def _history(saved: StoredState, name: Name) -> pb.RestoreHistoryRequest:
    pool, key = name
    last = saved.values[f"adapters/{pool}/{key}"] if name in saved.adapters else b""
    record = saved.adapters.get(name)
    generations = saved.history.get(name, [])
    told = record.name if record is not None else name_of_key(key)
    return pb.RestoreHistoryRequest(pool=pool, name=told, generations=generations, last=last)


def _deletions(plan: RestorePlan) -> list[Change]:
    return [Change(pool, pb.AdapterChange(delete=name, etag=etag), name) for pool, name, etag in plan.others]


def _upserts(plan: RestorePlan, left_out: Container[Name]) -> list[Change]:
    found: list[Change] = []
    for one in (it for it in (*plan.updates, *plan.creates) if (it.pool, name_key(it.name)) not in left_out):
        upsert = pb.Adapter(name=one.name, pool=one.pool, spec=spec_message(one.spec))
        found.append(Change(one.pool, pb.AdapterChange(upsert=upsert, etag=one.etag), one.name))
    return found
