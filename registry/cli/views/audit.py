"""Entries of the audit for `loraplane audit`, with old and new values. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping

from registry.cli.views.differences import short
from registry.cli.views.output import OutputView
from registry.client.audit import AuditedChange, AuditEntry

# Told by other columns, or by the service itself.
_BOOKKEEPING = frozenset({"schema", "name", "pool", "tenant", "updated_at", "updated_by", "request_id", "at", "by"})


def rows_of(entry: AuditEntry) -> Iterator[AuditEntry]:
    """The entry once for each of its changes; a refusal has one row, too."""
    if not entry.changes:
        yield entry
    for change in entry.changes:
        yield dataclasses.replace(entry, changes=(change,))


def _subject(one: AuditEntry) -> str:
    if one.denial is not None:
        return one.denial.tenant or "-"
    return ", ".join(change.name for change in one.changes)


def _what(one: AuditEntry) -> str:
    if one.denial is not None:
        times = f" ({one.denial.times} times)" if one.denial.times > 1 else ""
        return f"denied {one.method}{times}"
    return ", ".join(dict.fromkeys(f"{change.action} {change.kind}" for change in one.changes))


def _changed(one: AuditEntry) -> str:
    if one.denial is not None:
        return one.denial.message
    return "; ".join(filter(None, map(_values, one.changes))) or "-"


def _values(change: AuditedChange) -> str:
    """Old and new of each field that differs; of what was made or deleted where it comes from."""
    before, after = dict(_leaves(change.before or {})), dict(_leaves(change.after or {}))
    if change.before is None or change.after is None:
        return (after or before).get("spec.source.uri", "")
    differing = [field for field in {**before, **after} if before.get(field) != after.get(field)]
    return "; ".join(
        f"{field.removeprefix('spec.')}: {before.get(field, '-')} → {after.get(field, '-')}" for field in differing
    )


def _leaves(value: Mapping[str, object], path: str = "") -> Iterator[tuple[str, str]]:
    for field, part in value.items():
        if not path and field in _BOOKKEEPING:
            continue
        if isinstance(part, dict) and part:
            yield from _leaves(part, f"{path}{field}.")
        elif part is not None:
            text = part if isinstance(part, str) else json.dumps(part, ensure_ascii=False)
            yield f"{path}{field}", short(text)


AUDIT: OutputView[AuditEntry] = OutputView(
    name=lambda one: one.id,
    plain=dataclasses.asdict,
    columns={
        "TIME": lambda one: one.at,
        "PRINCIPAL": lambda one: one.principal or "-",
        "ROLE": lambda one: one.role or "-",
        "ACTION": _what,
        "POOL": lambda one: one.pool or "-",
        "NAME": _subject,
        "CHANGED": _changed,
    },
    more={
        "CREDENTIAL": lambda one: one.credential or "-",
        "FINGERPRINT": lambda one: one.fingerprint or "-",
        "PEER": lambda one: one.peer or "-",
        "USER AGENT": lambda one: one.user_agent or "-",
        "BINDINGS": lambda one: ", ".join(map(str, one.bindings)) or "-",
        "REQUEST": lambda one: one.request_id or "-",
        "REASON": lambda one: one.reason or "-",
    },
)
