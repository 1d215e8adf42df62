"""Records deleted past the admin service, until a repair accounts for them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from registry.model.names import name_key
from registry.tools.verify.history import Document, Violation, objects_of, part_of, tenant_of_key, text_of

Name = tuple[str, str]


@dataclass(frozen=True, slots=True)
class LoggedRemoval:
    """A record that was deleted alone: no history, no audit record, no counter. `name` is (pool, name key)."""

    revision: int
    name: Name
    key: str
    record: Document

    @property
    def tenant(self) -> str:
        return tenant_of_key(self.name[1])


@dataclass
class Removals:
    """Those that nobody has accounted for yet.

    Attributes:
        waiting: in the order of their revisions.
        off_at_start: by how much each tenant's counter differed from its adapters where the history begins.
    """

    waiting: list[LoggedRemoval] = field(default_factory=list)
    off_at_start: Counter[str] = field(default_factory=Counter)

    def settle(self, claim: LoggedRemoval) -> bool:
        """Accounts for the removal that an audit record names; False: there is none."""
        found = [one for one in self.waiting if (one.name, one.record) == (claim.name, claim.record)]
        if found:
            self.waiting.remove(found[-1])
        elif self.off_at_start[claim.tenant] > 0:
            self.off_at_start[claim.tenant] -= 1
        else:
            return False
        return True

    def recounted(self, tenant: str) -> None:
        """Accounts for all of a tenant whose counter was found to be right."""
        self.waiting = [one for one in self.waiting if one.tenant != tenant]
        del self.off_at_start[tenant]

    def off_by(self, tenant: str) -> int:
        """By how much that tenant's counter is too high for now."""
        return self.off_at_start[tenant] + sum(one.tenant == tenant for one in self.waiting)

    def findings(self, first_revision: int) -> Iterator[Violation]:
        """Findings on those that wait: W5 and W7."""
        for removal in self.waiting:
            at, tenant = removal.revision, f"tenant {removal.tenant}"
            yield Violation("W7", at, removal.key, "deleted past the admin service, and not repaired since")
            yield Violation("W5", at, tenant, "its counter still has what was deleted")
        for tenant, off in self.off_at_start.items():
            if off:
                yield Violation("W5", first_revision, f"tenant {tenant}", f"its counter is off by {off}")


def claims_of(audit: Document, changed: Mapping[bytes, object], prefix: str, revision: int) -> Iterator[LoggedRemoval]:
    """Deletions that an audit record tells of and its own revision did not make.

    Args:
        audit: the record.
        changed: keys of its revision.
        prefix: of the keys of adapters, with a slash at its end.
        revision: its own.
    """
    for change in objects_of(audit, "changes"):
        before = part_of(change, "before")
        if change.get("kind") != "adapter" or change.get("after") is not None or not text_of(before, "name"):
            continue
        name = (text_of(before, "pool"), name_key(text_of(before, "name")))
        key = prefix + "/".join(name)
        if key.encode(errors="backslashreplace") not in changed:
            yield LoggedRemoval(revision, name, key, before)
