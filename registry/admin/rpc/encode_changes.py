"""Changes and refusals on the wire, made from audit records. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from registry.etcd3.ops import KeyValue
from registry.model.audit import AuditChange, AuditRecord, DenialRecord
from registry.model.errors import InvalidArgument, Reason
from registry.model.keys import last_part
from registry.transactions.rollouts import TTL_REASON
from registry.v1 import registry_pb2 as pb

_MOST_INT64, _MOST_UINT32 = 2**63 - 1, 2**32 - 1
# Told by the columns of a change; what else changes is a field of it.
_BOOKKEEPING = frozenset(
    "schema name pool tenant generation updated_at updated_by request_id rollout spec expires_at".split()
)
# Of a change, for who looks at many; the audit has all values whole.
_MOST_VALUES, _MOST_CHARACTERS, _DEPTH = 20, 300, 4
Value = Mapping[str, object]


def first_id(since: str) -> str:
    """Start of the ids of audit records from this time on; empty: at the first.

    Raises:
        InvalidArgument: that is no RFC 3339 time.
    """
    if not since:
        return ""
    try:
        return f"{datetime.fromisoformat(since).astimezone(UTC):%Y%m%dT%H%M%S.%fZ}"
    except (ValueError, OverflowError) as error:
        message = "use a time such as 2026-01-31T12:00:00Z"
        raise InvalidArgument(Reason.INVALID_FIELD, message, field="since") from error


def recorded_changes(value: bytes) -> Iterator[pb.RecordedChange]:
    """The changes of an audit record.

    Raises:
        FailedPrecondition: it cannot be read.
    """
    audit = AuditRecord.parse(value)
    for one in audit.changes:
        before, after = one.before or {}, one.after or {}
        action, note = _action(one)
        yield pb.RecordedChange(
            at=audit.at,
            principal=audit.principal,
            role=audit.role,
            request_id=audit.request_id,
            method=audit.method,
            kind=one.kind,
            name=one.name,
            action=action,
            generation=_generation(after or before),
            fields=_fields(before, after) if before and after else [],
            note=note or _why(audit, before),
            values=_values(one.kind, before, after) if before and after else [],
        )


def done_entry(kv: KeyValue, pool: str) -> pb.AuditEntry:
    """Entry of an audit record. Raises FailedPrecondition: it cannot be read."""
    audit = AuditRecord.parse(kv.value)
    return pb.AuditEntry(
        id=last_part(kv.key),
        revision=kv.mod_revision,
        at=audit.at,
        pool=pool,
        principal=audit.principal,
        credential=audit.credential,
        fingerprint=audit.fingerprint,
        peer=audit.peer,
        user_agent=audit.user_agent,
        role=audit.role,
        bindings=[min(one, _MOST_UINT32) for one in audit.bindings],
        request_id=audit.request_id,
        method=audit.method,
        changes=map(_audited, audit.changes),
        reason=audit.reason,
    )


def _audited(one: AuditChange) -> pb.AuditedChange:
    return pb.AuditedChange(
        kind=one.kind,
        name=one.name,
        action=_action(one)[0],
        before_json=json.dumps(one.before) if one.before is not None else "",
        after_json=json.dumps(one.after) if one.after is not None else "",
    )


def denied_entry(kv: KeyValue) -> pb.AuditEntry:
    """Entry of the record of a refusal. Raises FailedPrecondition: it cannot be read."""
    denial = DenialRecord.parse(kv.value)
    told = pb.AuditDenial(reason=denial.reason, message=denial.message, tenant=denial.tenant, times=denial.times)
    return pb.AuditEntry(
        id=last_part(kv.key),
        revision=kv.mod_revision,
        at=denial.at,
        pool=denial.pool,
        principal=denial.principal,
        credential=denial.credential,
        fingerprint=denial.fingerprint,
        peer=denial.peer,
        user_agent=denial.user_agent,
        method=denial.method,
        denial=told,
    )


def _action(one: AuditChange) -> tuple[str, str]:
    before, after = one.before or {}, one.after or {}
    if one.kind == "replica":
        return ("drain" if after.get("drain") is True else "undrain"), ""
    if not before or not after:
        return ("created" if after else "deleted"), ""
    was, now = _part(before, "rollout"), _part(after, "rollout")
    halted = now.get("halted")
    if isinstance(halted, str) and halted and halted != was.get("halted"):
        return "halted", halted
    is_promoted = was and not now and _generation(before) == _generation(after)
    return ("promoted" if is_promoted else "updated"), ""


def _why(audit: AuditRecord, before: Value) -> str:
    """Reason for which the admin service did it by itself; empty: it did not."""
    if audit.reason != TTL_REASON:
        return audit.reason
    spec = _part(before, "spec")
    what = "a use or a change" if spec.get("ttl_from") == "use" else "a change"
    return f"{audit.reason}: {spec.get('ttl_seconds')} s without {what}"


def _fields(before: Value, after: Value) -> list[str]:
    """Names of fields, without their values; those of the spec stand alone."""
    return sorted({*_differing(before, after, _BOOKKEEPING), *_differing(_part(before, "spec"), _part(after, "spec"))})


def _values(kind: str, before: Value, after: Value) -> Iterator[pb.ChangedValue]:
    """Old and new of what somebody set: of an adapter its spec, of a pool and a quota all but what columns tell."""
    if kind == "adapter":
        before, after = _part(before, "spec"), _part(after, "spec")
    elif kind not in {"pool", "tenant"}:
        return
    old, new = dict(_leaves(before)), dict(_leaves(after))
    differing = sorted(path for path in {*old, *new} if old.get(path) != new.get(path))
    for path in differing[:_MOST_VALUES]:
        yield pb.ChangedValue(path=path, before_json=_told(old.get(path)), after_json=_told(new.get(path)))


def _leaves(value: Value, path: str = "", depth: int = _DEPTH) -> Iterator[tuple[str, object]]:
    for field, part in value.items():
        if not path and field in _BOOKKEEPING:
            continue
        if isinstance(part, dict) and depth:
            yield from _leaves(part, f"{path}{field}.", depth - 1)
        elif part is not None:
            yield f"{path}{field}", part


def _told(value: object) -> str:
    """JSON of a value; of one that is long, of the beginning of its text."""
    text = json.dumps(value, ensure_ascii=False) if value is not None else ""
    if len(text) <= _MOST_CHARACTERS:
        return text
    whole = value if isinstance(value, str) else text
    return json.dumps(f"{whole[:_MOST_CHARACTERS]}…", ensure_ascii=False)


def _differing(before: Value, after: Value, besides: frozenset[str] = frozenset()) -> Iterator[str]:
    return (key for key in {*before, *after} - besides if before.get(key) != after.get(key))


def _part(value: Value, key: str) -> Value:
    found = value.get(key)
    return found if isinstance(found, dict) else {}


def _generation(value: Value) -> int:
    found = value.get("generation")
    return found if type(found) is int and 0 < found <= _MOST_INT64 else 0
