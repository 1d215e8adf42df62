"""Removals without bookkeeping, which is all that etcd takes under NOSPACE, until they are accounted for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from registry.check.findings import Finding
from registry.check.steps import Base, Revision, Step
from registry.check.values import Document, document, tenant_of_key
from registry.model.names import name_key

Name = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Removal:
    """A record that was deleted alone: no history, no audit record, no counter. `name` is (pool, name key)."""

    revision: int
    name: Name
    key: str
    record: Document


@dataclass
class Removals:
    """Those that nobody has accounted for yet, by revision and name."""

    waiting: dict[tuple[int, Name], Removal] = field(default_factory=dict)

    def note(self, removal: Removal) -> None:
        """A deletion that came alone."""
        self.waiting[removal.revision, removal.name] = removal

    def settle(self, revision: int, name: Name) -> Removal | None:
        """Takes out the one that an audit record speaks of; None: there is none, or it is accounted for already."""
        return self.waiting.pop((revision, name), None)

    def of_tenant(self, tenant: str) -> int:
        """By how much that tenant's counter is too high for now."""
        return sum(tenant_of_key(name[1]) == tenant for _, name in self.waiting)

    def findings(self) -> Iterator[Finding]:
        """What is wrong with those that wait: W5 and W7."""
        for removal in self.waiting.values():
            tenant = tenant_of_key(removal.name[1])
            yield Finding("W7", removal.revision, removal.key, "removed without an audit record, unaccounted for since")
            yield Finding("W5", removal.revision, f"tenant {tenant}", "its counter still has what was removed")


def claimed_before(steps: Iterable[Step], base: Base) -> Iterator[Removal]:
    """Removals before a history begins that a later audit record in it accounts for."""
    for step in steps:
        if isinstance(step, Revision):
            yield from (one for one in _claims(step) if one.revision <= base.revision)


def _claims(step: Revision) -> Iterator[Removal]:
    for event in step.events:
        audit = document(event.kv.value) if event.kv and b"/audit/" in event.key else None
        if audit is not None and (claim := claim_of(audit)):
            yield claim


def claim_of(audit: Document) -> Removal | None:
    """The removal that an audit record accounts for; None: it is of a change of its own revision."""
    removed: Any = audit.get("removed")
    changes = audit.get("changes") or [{}]
    before = changes[0].get("before") or {}
    if not removed or "name" not in before:
        return None
    name = (before.get("pool", ""), name_key(before["name"]))
    return Removal(removed.get("revision", 0), name, "/".join(name), before)
