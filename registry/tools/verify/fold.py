"""Folds a history revision by revision; checks W2, W3, W5, W6, W7, R10. Pure.

It knows nothing of how transactions are built, and reads values as plain JSON: it only looks at what stands in etcd.
Each revision costs in proportion to its change.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

from registry.etcd3.ops import Event, KeyValue
from registry.model.keys import Keys
from registry.tools.verify.history import (
    Document,
    HistoryBase,
    Revision,
    Step,
    Violation,
    count_of,
    document,
    objects_of,
    part_of,
    presence_faults,
    status_faults,
    tenant_of_key,
)
from registry.tools.verify.removals import LoggedRemoval, Removals, claims_of

# Of a spec: changes of these alone make no generation.
_LIFE = ("ttl_seconds", "ttl_from", "keep")
# Of a record of one generation.
_MAY_CHANGE = {"rollout", "retry", "spec", "expires_at", "kept", "scaled"}


def same_generation(old: Document | None, new: Document | None) -> bool:
    """True if a record was replaced by one of its own generation, so that history has nothing to keep."""
    return old is not None and new is not None and "generation" in old and old["generation"] == new.get("generation")


def generation_faults(before: int, old: Document | None, new: Document) -> Iterator[str]:
    """Findings on a record that was put.

    Args:
        before: the last generation of that name.
        old: the record that it replaces; None: there was none.
        new: the record.
    """
    now = new.get("generation")
    yield from kept_faults(old, new)
    if same_generation(old, new):
        yield from _rewritten(old or {}, new)
        return
    if now != before + 1:
        yield f"generation {now} follows {before}"
    if old is not None and _of_generation(old) == _of_generation(new):
        yield f"generation {now} has the same spec as the one before"
    if new.get("rollout") and _stable(new) != _served_by_all(old or {}):
        yield f"generation {now} says that others serve {_stable(new)!r:.200}, and they serve another"


def _rewritten(old: Document, new: Document) -> Iterator[str]:
    """A generation stays what it is but for its rollout, which may be halted or end, a retry, life, and replicas."""
    now = new.get("generation")
    others = old.keys() | new.keys()
    is_same = _of_generation(old) == _of_generation(new)
    if not is_same or any(old.get(key) != new.get(key) for key in others - _MAY_CHANGE):
        yield f"generation {now} follows {now}, and is not the same"
    if old.get("rollout") == new.get("rollout"):
        if _moves(old) == _moves(new):
            yield f"generation {now} was written twice"
    elif not old.get("rollout") or (new.get("rollout") and _stable(new) != _stable(old)):
        yield f"generation {now} was for all replicas, or for others than its canaries to serve another"


def _moves(record: Document) -> tuple[object, ...]:
    """All that makes a record of the same generation another one, but for its rollout."""
    return record.get("retry"), _life(record), record.get("scaled")


def _of_generation(record: Document) -> Document:
    """Spec of a generation, without how long the adapter and its generations live, which is none of it."""
    return {key: value for key, value in part_of(record, "spec").items() if key not in _LIFE}


def _life(record: Document) -> tuple[object, ...]:
    return tuple(part_of(record, "spec").get(key) for key in _LIFE)


def _kept(record: Document) -> dict[int, object]:
    """Sources of the earlier generations that a record keeps."""
    return {count_of(one, "generation"): part_of(one, "spec").get("source") for one in objects_of(record, "kept")}


def kept_faults(old: Document | None, new: Document) -> Iterator[str]:
    """Findings on the earlier generations that a record keeps: as they were served, and none that is too old."""
    now, keep = count_of(new, "generation"), max(1, count_of(part_of(new, "spec"), "keep"))
    known = _kept(old or {})
    if old is not None:
        known[count_of(old, "generation")] = part_of(old, "spec").get("source")
    for generation, source in _kept(new).items():
        if not now - keep < generation < now:
            yield f"generation {now} keeps {generation}, with keep {keep}"
        elif generation not in known or known[generation] != source:
            yield f"generation {now} keeps {generation}, which was not served before"


def _stable(record: Document) -> tuple[object, object]:
    rollout = part_of(record, "rollout")
    return rollout.get("stable_generation"), rollout.get("stable_spec")


def _served_by_all(record: Document) -> tuple[object, object]:
    """Generation and spec that all but canaries serve."""
    return _stable(record) if record.get("rollout") else (record.get("generation"), record.get("spec"))


Values = dict[bytes, tuple[bytes | None, bytes | None]]
Told = tuple[str, Document | None, Document | None]
# How many parts a key of each kind has; another is nobody's. Some requests are below the space of their caller.
_PARTS: dict[str, tuple[int, ...]] = {
    "adapters": (2,),
    "audit": (2,),
    "drains": (2,),
    "history": (3,),
    "pools": (1,),
    "replicas": (2,),
    "requests": (1, 2),
    "status": (2,),
    "tenants": (1,),
}


class Fold:
    """The state up to `revision`, and what was found on the way there.

    Attributes:
        findings: in the order of the revisions, then deletions past the admin service that nobody repaired.
        changing: revisions that changed desired state, with the keys of their audit records.
        requests: request, as its key names it, to the revision and the value of its record, also of one that has
            expired since.
        stored: the present state.
        has_pool: whether there was any pool.

    Args:
        keys: of the registry in etcd.
        has_requests: False: the history lacks request records, since whoever read it may not read them.
    """

    def __init__(self, keys: Keys, *, has_requests: bool = True) -> None:
        self._has_requests = has_requests
        self._prefix = keys.prefix + "/"
        self._findings: list[Violation] = []
        self._removals = Removals()
        self.revision = self.first_revision = 0
        self.has_pool = False
        self.stored: dict[bytes, KeyValue] = {}
        self.changing: dict[int, str] = {}
        self.requests: dict[str, tuple[int, Document]] = {}
        self._generations: dict[tuple[str, str], int] = defaultdict(int)
        self._late: list[LoggedRemoval] = []
        self._restored: dict[bytes, Document] = {}
        self._counts: Counter[str] = Counter()

    @property
    def findings(self) -> list[Violation]:
        return [*self._findings, *self._removals.findings(self.first_revision)]

    def replay(self, steps: Iterable[Step]) -> Self:
        """Folds a whole history in."""
        for step in steps:
            match step:
                case HistoryBase(revision, kvs):
                    self.begin(revision, kvs)
                case Revision(revision, events):  # pragma: no branch - mypy knows that this is the last case
                    self.take(revision, events)
        return self

    def begin(self, revision: int, kvs: Iterable[KeyValue]) -> None:
        """Starts from what stood at a revision, where what came before is no longer kept."""
        self.revision = self.first_revision = revision
        for kv in kvs:
            self.stored[kv.key] = kv
            kind, rest = self.kind(kv.key)
            self.has_pool = self.has_pool or kind == "pools"
            if kind == "adapters":
                self._counts[tenant_of_key(rest[1])] += 1
            if kind in {"adapters", "history"} and (record := document(kv.value)):
                used = _used_by(record) if kind == "history" else count_of(record, "generation")
                self._knows_generation((rest[0], rest[1]), used)
            if kind == "tenants":
                self._removals.off_at_start[rest[0]] += count_of(document(kv.value), "adapters")
            if kind == "requests":
                self.requests["/".join(rest)] = (kv.mod_revision, document(kv.value) or {})
        self._removals.off_at_start.subtract(self._counts)

    def take(self, revision: int, events: Iterable[Event]) -> None:
        """Folds one revision in."""
        changed: Values = {}
        for event in events:
            old = self.stored.pop(event.key, None)
            if event.kv is not None:
                self.stored[event.key] = event.kv
            changed[event.key] = (old.value if old else None, event.kv.value if event.kv else None)
            self._note(revision, event, old)
        self.revision = revision
        self._note_removals(revision, changed)
        self._note_restored(revision, changed)
        self._check_counters(revision, changed)
        self._check_generations(revision, changed)
        self._check_owners(revision, changed)
        self._check_set(revision, changed)

    def _find(self, guarantee: str, revision: int, where: object, message: str) -> None:
        shown = where.decode(errors="backslashreplace") if isinstance(where, bytes) else str(where)
        self._findings.append(Violation(guarantee, revision, shown, message))

    def kind(self, key: bytes) -> tuple[str, list[str]]:
        """Kind of a key, and its other parts; empty: nobody's."""
        kind, *rest = key.decode(errors="backslashreplace").removeprefix(self._prefix).split("/")
        return (kind, rest) if len(rest) in _PARTS.get(kind, ()) else ("", [])

    def _note(self, revision: int, event: Event, old: KeyValue | None) -> None:
        kind, rest = self.kind(event.key)
        self.has_pool = self.has_pool or kind == "pools"
        if kind == "adapters":
            self._counts[tenant_of_key(rest[1])] += (event.kv is not None) - (old is not None)
        elif kind == "requests" and event.kv is not None:
            request = "/".join(rest)
            if request in self.requests:
                self._find("W3", revision, request, f"this request was settled before, at {self.requests[request][0]}")
            self.requests[request] = (revision, document(event.kv.value) or {})

    def _history_key(self, name: tuple[str, str], record: Document) -> bytes:
        return "/".join((f"{self._prefix}history", *name, str(record.get("generation")))).encode()

    def _note_removals(self, revision: int, changed: Values) -> None:
        """Deletions that come alone wait for an audit record that names them."""
        self._late = []
        if all(self.kind(key)[0] == "adapters" and new is None for key, (_, new) in changed.items()):
            for key, (old, _) in changed.items():
                pool, name = self.kind(key)[1]
                shown = key.decode(errors="backslashreplace")
                self._removals.waiting.append(LoggedRemoval(revision, (pool, name), shown, document(old) or {}))
        audits = [document(new) or {} for key, (_, new) in changed.items() if self.kind(key)[0] == "audit"]
        prefix = f"{self._prefix}adapters/"
        for claim in (claim for audit in audits for claim in claims_of(audit, changed, prefix, revision)):
            if self._removals.settle(claim):
                self._late.append(claim)
                self._knows_generation(claim.name, count_of(claim.record, "generation"))
            else:
                self._find("W7", revision, claim.key, "its audit record tells of a deletion that was not made")

    def _note_restored(self, revision: int, changed: Values) -> None:
        """History that comes alone is of a backup: of a name that does not exist, where nothing stood."""
        self._restored = {}
        kinds = {self.kind(key)[0] for key in changed}
        if "history" not in kinds or "adapters" in kinds or self._late:
            return
        for key, (old, new) in changed.items():
            kind, rest = self.kind(key)
            if kind != "history" or new is None:
                continue
            self._restored[key] = record = document(new) or {}
            self._knows_generation((rest[0], rest[1]), _used_by(record))
            standing = "/".join((f"{self._prefix}adapters", *rest[:2])).encode() in self.stored
            if old is not None or standing:
                self._find("W6", revision, key, "history of what exists was written anew")

    def _knows_generation(self, name: tuple[str, str], generation: int) -> None:
        self._generations[name] = max(self._generations[name], generation)

    def _check_counters(self, revision: int, changed: Values) -> None:
        """W5: a tenant's count equals its counter and is within its quota."""
        parts = [self.kind(key) for key in changed]
        tenants = {tenant_of_key(rest[1]) for kind, rest in parts if kind == "adapters"}
        tenants |= {rest[0] for kind, rest in parts if kind == "tenants"}
        for tenant in sorted(tenants):
            kv, count = self.stored.get(f"{self._prefix}tenants/{tenant}".encode()), self._counts[tenant]
            record = (document(kv.value) if kv else None) or {}
            counter, quota = record.get("adapters", 0), record.get("max_adapters")
            if counter == count:
                self._removals.recounted(tenant)
            if counter != count + self._removals.off_by(tenant):
                self._find("W5", revision, f"tenant {tenant}", f"its counter says {counter}, it has {count} adapters")
            if type(quota) is int and count > quota:
                self._find("W5", revision, f"tenant {tenant}", f"it has {count} adapters, its quota is {quota}")

    def _check_generations(self, revision: int, changed: Values) -> None:
        """W6: one more if and only if the spec changed; a name that comes back goes on; what others serve is told."""
        for key, (old, new) in changed.items():
            kind, rest = self.kind(key)
            record = document(new) if kind == "adapters" else None
            if record is None:
                continue
            before, now = self._generations[rest[0], rest[1]], record.get("generation")
            self._generations[rest[0], rest[1]] = now if isinstance(now, int) else before
            for message in generation_faults(before, document(old), record):
                self._find("W6", revision, key, message)

    def _check_owners(self, revision: int, changed: Values) -> None:
        """R10: who writes a replica's keys is the one who has its id."""
        for key, (old, new) in changed.items():
            kind, rest = self.kind(key)
            if new is None or kind not in {"replicas", "status"}:
                continue
            presence = self.stored.get("/".join((f"{self._prefix}replicas", *rest)).encode())
            faults = status_faults(self.stored[key], presence) if kind == "status" else presence_faults(old, new)
            for message in faults:
                self._find("R10", revision, key, message)

    def _check_set(self, revision: int, changed: Values) -> None:
        """W2 and W7: a change, its history, its request record and its audit record share the revision."""
        by_kind: dict[str, Values] = defaultdict(dict)
        for key, values in changed.items():
            by_kind[self.kind(key)[0]][key] = values
        audits = {key: new for key, (_, new) in by_kind["audit"].items() if new is not None}
        if by_kind.keys() == {"adapters", "audit"} and all(new is None for _, new in changed.values()):
            return  # noted among the removals
        wanted = _audited(by_kind, self._late)
        wanted += [("history", None, record) for record in self._restored.values()]
        if len(audits) != (1 if wanted else 0):
            keys = ", ".join(sorted(key.decode(errors="backslashreplace") for key in changed))
            self._find("W7", revision, keys, f"{len(audits)} audit records for {len(wanted)} changes")
            return
        if not wanted:
            return
        ((audit_key, audit),) = audits.items()
        self.changing[revision] = audit_key.decode(errors="backslashreplace")
        requests = [self.kind(key)[1][-1] for key, (_, new) in by_kind["requests"].items() if new is not None]
        if not self._has_requests:
            self._check_audit(revision, audit_key, document(audit) or {}, None, wanted)
        elif len(requests) != 1:
            self._find("W2", revision, audit_key, f"{len(requests)} request records in the revision")
        else:
            self._check_audit(revision, audit_key, document(audit) or {}, requests[0], wanted)
        self._check_retired(revision, by_kind)

    def _check_audit(
        self, revision: int, key: bytes, audit: Document, request_id: str | None, wanted: list[Any]
    ) -> None:
        if request_id is not None and audit.get("request_id") != request_id:
            self._find("W7", revision, key, f"it names request {audit.get('request_id')!r}, not {request_id!r}")
        if not audit.get("principal") or not audit.get("role"):
            self._find("W7", revision, key, "it does not say who, or in which role")
        told = [
            (one.get("kind"), _readable(one.get("before")), one.get("after")) for one in objects_of(audit, "changes")
        ]
        if sorted(told, key=repr) != sorted(wanted, key=repr):
            self._find("W7", revision, key, f"it tells {told!r:.300}, what changed is {wanted!r:.300}")

    def _check_retired(self, revision: int, by_kind: Mapping[str, Values]) -> None:
        """W2: what was replaced or deleted is in history, from this revision on."""
        retired = {key: document(new) or {} for key, (_, new) in by_kind["history"].items() if new is not None}
        expected = {self._history_key(one.name, one.record): one.record for one in self._late} | self._restored
        for key, (old, new) in by_kind["adapters"].items():
            if (record := document(old)) is not None and not same_generation(record, document(new)):
                pool, name = self.kind(key)[1]
                expected[self._history_key((pool, name), record)] = record
        for key in retired.keys() ^ expected.keys():
            self._find("W2", revision, key, "history and what was replaced are not the same")
        for key in retired.keys() & expected.keys():
            # What was served beside it is none of an earlier generation's.
            told = {name: value for name, value in expected[key].items() if name != "kept"}
            if not told.items() <= retired[key].items():
                self._find("W2", revision, key, "history has another record than the one that was replaced")


def _used_by(retired: Document) -> int:
    """The last generation that is used: what was replaced, and not deleted, was followed by a generation more."""
    return count_of(retired, "generation") + int(retired.get("deleted") is False)


def _audited(by_kind: Mapping[str, Values], late: Sequence[LoggedRemoval]) -> list[Told]:
    """Content that the audit record of a revision must have: (kind, before, after), counters left out."""
    told = [("adapter", document(old), document(new)) for old, new in by_kind["adapters"].values()]
    told += [("pool", document(old), document(new)) for old, new in by_kind["pools"].values()]
    told += [("adapter", removal.record, None) for removal in late]
    # Where it goes, that is with its lease.
    told += [("replica", document(old), document(new)) for old, new in by_kind["drains"].values() if new is not None]
    if by_kind["adapters"] or late:
        return told
    return told + [("tenant", document(old), document(new)) for old, new in by_kind["tenants"].values()]


def _readable(before: object) -> object:
    """Reads what an audit record quotes: although it could not be followed, it may be JSON."""
    quoted = before.get("unreadable") if isinstance(before, dict) else None
    return document(quoted.encode()) if isinstance(quoted, str) else before
