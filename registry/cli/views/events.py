"""Events, and entries of the audit with old and new values, for output. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from registry.cli.views.differences import short
from registry.cli.views.output import OutputView
from registry.cli.views.replica_view import ReplicaView, cell
from registry.client.audit import AuditedChange, AuditEntry
from registry.model.messages import Plain
from registry.v1 import registry_pb2 as pb

# What an adapter is to a replica, by the list of its status.
_CONDITIONS = {"failed": "failing", "pending": "pending"}


@dataclass(frozen=True, slots=True)
class ShownValue:
    """A field before and after a change; "-": it was not there, or is no more."""

    path: str
    before: str
    after: str

    @property
    def line(self) -> str:
        return f"{self.path}: {short(self.before)} → {short(self.after)}"


@dataclass(frozen=True, slots=True)
class ShownEvent:
    """Something that happened, or that is so since the replica's status said it (`current`).

    `at` is RFC 3339; empty: not known. `kind`: of what `name` is a name, as ``adapter``; `generation` 0: none.
    """

    at: str
    event: str
    kind: str
    name: str
    replica: str = ""
    generation: int = 0
    reason: str = ""
    message: str = ""
    by: str = ""
    request_id: str = ""
    current: bool = False
    values: tuple[ShownValue, ...] = ()

    @property
    def key(self) -> ShownEvent:
        """Equal for two tellings of one thing: a status says again what still is so."""
        return dataclasses.replace(self, at="", message="") if self.current else self

    def is_about(self, name: str | None, replica: str | None) -> bool:
        """True for an event of that adapter, and on that replica; None: of any."""
        is_named = name is None or (self.kind in {"adapter", "history"} and self.name.lower() == name.lower())
        return is_named and replica in {None, self.replica}

    def why(self) -> str:
        """Reason and message in one cell."""
        return ": ".join(part for part in (self.reason, self.message) if part) or "-"


EVENTS: OutputView[ShownEvent] = OutputView(
    name=lambda one: one.name,
    plain=dataclasses.asdict,
    columns={
        "TIME": lambda one: one.at or "-",
        "EVENT": lambda one: one.event,
        "KIND": lambda one: one.kind,
        "NAME": lambda one: one.name,
        "REPLICA": lambda one: one.replica or "-",
        "GENERATION": lambda one: str(one.generation or "-"),
        "BY": lambda one: one.by or "-",
        "REQUEST": lambda one: one.request_id or "-",
        "WHY": ShownEvent.why,
    },
)


def folded(found: Iterable[ShownEvent]) -> Iterator[ShownEvent]:
    """The same for people: what one request did alike to several adapters is one event, which says what opens it."""
    kinds: dict[tuple[str, ...], list[ShownEvent]] = {}
    for one in found:
        is_alike = one.kind == "adapter" and one.request_id and not one.current
        key = (one.request_id, one.event, one.by) if is_alike else (str(len(kinds)),)
        kinds.setdefault(key, []).append(one)
    for same in kinds.values():
        yield same[0] if len(same) == 1 else _of_several(same)


def _of_several(same: Sequence[ShownEvent]) -> ShownEvent:
    first = same[0]
    others = "" if all(one.message == first.message for one in same) else " and more"
    opens = f"loraplane events --request {first.request_id} names them"
    message = f"{first.message}{others}; {opens}"
    return dataclasses.replace(first, name=f"{len(same)} adapters", generation=0, message=message)


def change_event(one: pb.RecordedChange) -> ShownEvent:
    """A change that the audit trail has."""
    values = tuple(ShownValue(each.path, _value(each.before_json), _value(each.after_json)) for each in one.values)
    return ShownEvent(
        at=one.at,
        event=one.action,
        kind=one.kind,
        name=one.name,
        replica=one.name if one.kind == "replica" else "",
        generation=one.generation,
        message=one.note or _how(one, values),
        by=one.principal,
        request_id=one.request_id,
        values=values,
    )


def _how(one: pb.RecordedChange, values: Sequence[ShownValue]) -> str:
    """Old and new values, and the names of fields that have none, first; the method last, if there are values."""
    told = {value.path.partition(".")[0] for value in values}
    fields = ", ".join(field for field in one.fields if field not in told)
    if values:
        return f"{'; '.join([*(value.line for value in values), *([fields] if fields else [])])} ({one.method})"
    return f"{one.method}: {fields}" if fields else one.method


def _value(text: str) -> str:
    try:
        return cell(json.loads(text)) if text else cell(None)
    except (ValueError, RecursionError):
        return text


def replica_events(replica: ReplicaView, *, with_pending: bool) -> Iterator[ShownEvent]:
    """Times at which a replica's sidecar started or was lost, and what is wrong there now."""
    if replica.missing:
        yield ShownEvent(replica.last_seen, "missing", "replica", replica.name, replica.name, current=True)
        return
    version = f"version {replica.version}" if replica.version else ""
    if replica.started_at:
        yield ShownEvent(replica.started_at, "started", "replica", replica.name, replica.name, message=version)
    at = _text(replica.status, "updated_at")
    for event, message in _troubles(replica):
        yield ShownEvent(at, event, "replica", replica.name, replica.name, message=message, current=True)
    for key in ("failed", "pending") if with_pending else ("failed",):
        for one in replica.items(key):
            yield ShownEvent(
                at=at,
                event=_CONDITIONS[key],
                kind="adapter",
                name=_text(one, "name"),
                replica=replica.name,
                generation=_number(one),
                reason=_text(one, "reason"),
                message=_text(one, "message"),
                request_id=_text(one, "request_id"),
                current=True,
            )


def _troubles(replica: ReplicaView) -> Iterator[tuple[str, str]]:
    if replica.leaving:
        yield "drains", ""
    if replica.status.get("ready") is False:
        yield "not_ready", _text(replica.status, "note")
    for key in ("held", "degraded"):
        if said := _text(replica.status, key):
            yield key, said


def ring_events(ring: Plain) -> Iterator[ShownEvent]:
    """The events of a sidecar's ``/events``, of any release."""
    found, replica = ring.get("events"), _text(ring, "replica")
    for one in found if isinstance(found, list) else []:
        if isinstance(one, dict):
            name = _text(one, "name")
            yield ShownEvent(
                at=_text(one, "at"),
                event=_text(one, "event"),
                kind="adapter" if name else "replica",
                name=name or replica,
                replica=replica,
                generation=_number(one),
                reason=_text(one, "reason"),
                message=_text(one, "message"),
            )


def _text(value: Plain, key: str) -> str:
    found = value.get(key)
    return found if isinstance(found, str) else ""


def _number(value: Plain) -> int:
    found = value.get("generation")
    return found if type(found) is int else 0


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
