"""A history that is written key by key, to be checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from registry.etcd3.ops import Event, KeyValue
from registry.tools.verify.fold import Fold
from registry.tools.verify.history import HistoryBase, Revision, Step
from tests.support.changes import KEYS
from tests.support.checkers.index import HistoryIndex

ONE, TWO = {"uri": "file:///1"}, {"uri": "file:///2"}
POOL_RECORD = {"name": "p", "base_models": ["base", 7]}


def adapter(name: str = "acme/a", generation: int = 1, spec: object = None, **more: object) -> dict[str, Any]:
    """A record, as the fold reads it."""
    return {"pool": "p", "name": name, "generation": generation, "spec": spec or ONE, **more}


def rollout(generation: object, spec: object, **more: object) -> dict[str, Any]:
    return {"rollout": {"stable_generation": generation, "stable_spec": spec, **more}}


class Written:
    """A history of whole changes, each with all that belongs to it, and of what somebody writes besides."""

    def __init__(self, *, pool: bool = True) -> None:
        """Revision 1 has the pool."""
        self.steps: list[Step] = []
        self.stands: dict[bytes, KeyValue] = {}
        self.revision = self.changes = 0
        if pool:
            self.write({"pools/p": POOL_RECORD, **self.books("pool", "p", None, POOL_RECORD)})

    def write(self, values: Mapping[str, object], *, lease: int = 0) -> int:
        """One revision of any keys below the prefix: JSON values, bytes, or None: it is deleted."""
        self.revision += 1
        events = []
        for below, value in values.items():
            key, kv = f"{KEYS.prefix}/{below}".encode(), None
            if value is not None:
                told = value if isinstance(value, bytes) else json.dumps(value).encode()
                kv = KeyValue(key, told, self.revision, self.revision, 1, lease)
            events.append(Event(key, self.revision, kv))
            self.stands.pop(key, None)
            self.stands |= {key: kv} if kv else {}
        self.steps.append(Revision(self.revision, tuple(events)))
        return self.revision

    def books(self, kind: str, name: str, before: object, after: object, **audit: object) -> dict[str, object]:
        """The audit record and the request record of a change."""
        self.changes += 1
        request = f"q{self.changes}"
        told = {"kind": kind, "name": name, "before": before, "after": after}
        who = {"request_id": request, "principal": "alice", "role": "operator", "changes": [told]}
        return {f"audit/p/{request}": who | audit, f"requests/{request}": {"reply": {}}}

    def whole(
        self, before: dict[str, Any] | None, after: dict[str, Any] | None, count: int = 1, quota: int | None = None
    ) -> dict[str, object]:
        """All that belongs to a change of one adapter of acme, which has so many then."""
        record = after or before or {}
        name = record["name"].replace("/", "%2F")
        retired = before and {f"history/p/{name}/{before['generation']}": before | {"deleted": after is None}}
        counted = {} if before and after else {"tenants/acme": {"adapters": count, "max_adapters": quota}}
        books = self.books("adapter", record["name"], before, after)
        return {f"adapters/p/{name}": after, **(retired or {}), **counted, **books}

    def fold(self) -> Fold:
        return Fold(KEYS).replay(self.steps)

    def index(self) -> HistoryIndex:
        return HistoryIndex(KEYS).replay(self.steps)

    def base(self) -> HistoryBase:
        """What stands now, as a history that begins here has it."""
        return HistoryBase(self.revision, tuple(self.stands.values()))

    def found(self, base: HistoryBase | None = None, since: int = 0) -> list[tuple[str, int, str]]:
        """Guarantee, revision and message of each finding."""
        steps = [base, *self.steps[since:]] if base else self.steps
        return [(one.guarantee, one.revision, one.message) for one in Fold(KEYS).replay(steps).findings]
