"""A history of etcd step by step, and violations found in it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from registry.etcd3.ops import Event, KeyValue
from registry.model.stored import read_json


@dataclass(frozen=True, slots=True)
class Violation:
    """A guarantee that does not hold. `revision` 0: at none in particular; `where`: a key, a request, or a line."""

    guarantee: str
    revision: int
    where: str
    message: str

    def __str__(self) -> str:
        at = f" at revision {self.revision}" if self.revision else ""
        return f"{self.guarantee}{at}, {self.where}: {self.message}"


Document = dict[str, Any]


def tenant_of_key(key: str) -> str:
    """The tenant of a name key."""
    tenant, slash, _ = key.partition("%2F")
    return tenant if slash else "default"


def document(value: bytes | None) -> Document | None:
    """A value as a JSON object; None for no value. What is no JSON object is shown as the audit record shows it."""
    if value is None:
        return None
    try:
        parsed = read_json(value)
    except ValueError:
        parsed = None
    return parsed if isinstance(parsed, dict) else {"unreadable": value[:4096].decode(errors="backslashreplace")}


def part_of(of: Document | None, *path: str) -> Document:
    """The object at a path of a value; empty where something else stands there."""
    value: object = of
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def count_of(of: Document | None, name: str) -> int:
    """A count of a value; 0 where something else stands there."""
    value = (of or {}).get(name)
    return value if type(value) is int and 0 <= value < 1 << 63 else 0


def text_of(of: Document | None, name: str) -> str:
    """A text of a value; empty where something else stands there."""
    value = (of or {}).get(name)
    return value if isinstance(value, str) else ""


def objects_of(of: Document, name: str) -> list[Document]:
    """The objects in a list of a value; whatever else stands there is left out."""
    value = of.get(name)
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


@dataclass(frozen=True, slots=True)
class HistoryBase:
    """State at a revision, where the history before it is no longer kept."""

    revision: int
    kvs: tuple[KeyValue, ...]


@dataclass(frozen=True, slots=True)
class Revision:
    """All events of one revision."""

    revision: int
    events: tuple[Event, ...]


Step = HistoryBase | Revision


def presence_faults(old: bytes | None, new: bytes) -> Iterator[str]:
    """Findings on a presence that was put: a living replica's id is taken by its own owner or seat alone."""
    before, now = document(old) or {}, document(new) or {}
    has_seat = bool(before.get("seat")) and before["seat"] == now.get("seat")
    if "owner" in before and before["owner"] != now.get("owner") and not has_seat:
        yield f"{now.get('owner')!r} took the id while {before['owner']!r} had it"


def status_faults(status: KeyValue, presence: KeyValue | None) -> Iterator[str]:
    """Findings on a status that was put, where `presence` stands: both have one lease, which one process has."""
    if presence is None:
        yield "it was written by one who does not have the id: there is no presence"
    elif presence.lease != status.lease:
        yield f"it was written by one who does not have the id: lease {status.lease:x}, presence {presence.lease:x}"
