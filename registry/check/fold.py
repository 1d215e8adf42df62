"""Folds a history of etcd, revision by revision, and checks W2, W3, W5, W6, W7 and R10. Pure.

It knows nothing of how transactions are built, and reads values as plain JSON: it only looks at what stands in etcd.
Each revision costs in proportion to its change.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from registry.check.findings import Finding
from registry.check.generations import generation_faults, same_generation
from registry.check.owners import presence_faults, status_faults
from registry.check.removals import Removal, Removals, claim_of
from registry.check.values import Document, document, tenant_of_key
from registry.etcd3.ops import Event, KeyValue
from registry.keys import Keys
from registry.model.names import name_key

Values = dict[bytes, tuple[bytes | None, bytes | None]]
Told = tuple[str, Document | None, Document | None]
Story = list[tuple[int, Document | None]]
_HASH_SPACE = 1 << 256


class Fold:
    """The state up to `revision`, and what was found on the way there.

    Attributes:
        findings: in the order of the revisions, then what is wrong with removals that nobody accounted for.
        changing: revisions that changed desired state, with the keys of their audit records.
        requests: request id to the revision and the value of its record, also of one that has expired since.
        hashes: pool to (revision, hash of its records), a pair for each revision that changed it.
        replaced: (revision, key) to the revision of what was replaced or deleted there.
        adapters: (pool, name key) to (revision, record or None), a pair for each revision that changed it.
        pools: the same of pools, by name.
        statuses: revision to the status that a replica wrote there.
    """

    def __init__(self, keys: Keys) -> None:
        self._prefix = keys.prefix + "/"
        self._findings: list[Finding] = []
        self._removals = Removals()
        self.revision = self.first_revision = 0
        self._stored: dict[bytes, KeyValue] = {}
        self.changing: dict[int, str] = {}
        self.requests: dict[str, tuple[int, Document]] = {}
        self.hashes: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self.adapters: dict[tuple[str, str], Story] = defaultdict(list)
        self.pools: dict[str, Story] = defaultdict(list)
        self.statuses: dict[int, bytes] = {}
        self.replaced: dict[tuple[int, str], int] = {}
        self._generations: dict[tuple[str, str], int] = defaultdict(int)
        self._settled: dict[bytes, Removal] = {}
        self._counts: Counter[str] = Counter()

    @property
    def findings(self) -> list[Finding]:
        return [*self._findings, *self._removals.findings()]

    @property
    def kvs(self) -> dict[bytes, bytes]:
        """What stands."""
        return {key: kv.value for key, kv in self._stored.items()}

    def begin(self, revision: int, kvs: Iterable[KeyValue], removals: Iterable[Removal] = ()) -> None:
        """Starts from what stood at a revision, where what came before is no longer kept.

        `removals`: those before it that are accounted for later.
        """
        for removal in removals:
            self._removals.note(removal)
            self._generations[removal.name] = removal.record.get("generation", 0)
        self.revision = self.first_revision = revision
        for kv in kvs:
            self._stored[kv.key] = kv
            kind, rest = self._kind(kv.key)
            if kind == "adapters":
                self._note_adapter(kv.mod_revision, rest, None, kv)
            if kind == "pools":
                self.pools[rest[0]].append((kv.mod_revision, document(kv.value)))
            if kind in {"adapters", "history"} and (record := document(kv.value)):
                known = self._generations[rest[0], rest[1]]
                self._generations[rest[0], rest[1]] = max(known, record.get("generation", 0))
            if kind == "requests":
                self.requests[rest[0]] = (kv.mod_revision, document(kv.value) or {})

    def take(self, revision: int, events: Iterable[Event]) -> None:
        """Folds one revision in."""
        changed: Values = {}
        for event in events:
            old = self._stored.pop(event.key, None)
            if event.kv is not None:
                self._stored[event.key] = event.kv
            self.replaced[revision, event.key.decode(errors="backslashreplace")] = old.mod_revision if old else 0
            changed[event.key] = (old.value if old else None, event.kv.value if event.kv else None)
            self._note(revision, event, old)
        self.revision = revision
        self._note_removals(revision, changed)
        self._check_counters(revision, changed)
        self._check_generations(revision, changed)
        self._check_owners(revision, changed)
        self._check_set(revision, changed)

    def hash_at(self, pool: str, revision: int) -> int:
        """The state hash of a pool at a revision: sum of sha256(key, revision, value) over its records."""
        at = bisect_right(self.hashes[pool], revision, key=itemgetter(0))
        return self.hashes[pool][at - 1][1] if at else 0

    def knows(self, pool: str, key: str) -> bool:
        """Whether that name was ever in the pool. Of one that went before the history begins, its history tells."""
        return (pool, key) in self.adapters or (pool, key) in self._generations

    def adapter_at(self, pool: str, key: str, revision: int) -> Document | None:
        """An adapter's record as it stood at a revision."""
        return _at(self.adapters.get((pool, key), []), revision)

    def base_models_at(self, pool: str, revision: int) -> set[str]:
        """Name keys of the base models that a pool had at a revision."""
        names = (_at(self.pools.get(pool, []), revision) or {}).get("base_models") or []
        return {name_key(name) for name in names if isinstance(name, str)}

    def before(self, key: str, revision: int) -> int | None:
        """The etag that a key had when `revision` changed it, 0 if it was absent; None: that did not change it."""
        return self.replaced.get((revision, key))

    def _find(self, guarantee: str, revision: int, where: object, message: str) -> None:
        shown = where.decode(errors="backslashreplace") if isinstance(where, bytes) else str(where)
        self._findings.append(Finding(guarantee, revision, shown, message))

    def _kind(self, key: bytes) -> tuple[str, list[str]]:
        kind, *rest = key.decode(errors="backslashreplace").removeprefix(self._prefix).split("/")
        return kind, rest

    def _note(self, revision: int, event: Event, old: KeyValue | None) -> None:
        kind, rest = self._kind(event.key)
        if kind == "adapters":
            self._note_adapter(revision, rest, old, event.kv)
        elif kind == "pools":
            self.pools[rest[0]].append((revision, document(event.kv.value if event.kv else None)))
        elif kind == "status" and event.kv is not None:
            self.statuses[revision] = event.kv.value
        elif kind == "requests" and event.kv is not None:
            if rest[0] in self.requests:
                self._find("W3", revision, rest[0], f"this request was settled before, at {self.requests[rest[0]][0]}")
            self.requests[rest[0]] = (revision, document(event.kv.value) or {})

    def _note_adapter(self, revision: int, rest: list[str], old: KeyValue | None, new: KeyValue | None) -> None:
        pool, key = rest
        self._counts[tenant_of_key(key)] += (new is not None) - (old is not None)
        total = self.hashes[pool][-1][1] if self.hashes[pool] else 0
        total += sum(sign * _hash(key, kv) for sign, kv in ((1, new), (-1, old)) if kv is not None)
        self.hashes[pool].append((revision, total % _HASH_SPACE))
        self.adapters[pool, key].append((revision, None if new is None else document(new.value) or {}))

    def _history_key(self, name: tuple[str, str], record: Document) -> bytes:
        return "/".join((f"{self._prefix}history", *name, str(record.get("generation")))).encode()

    def _note_removals(self, revision: int, changed: Values) -> None:
        """A revision of nothing but deletions of records waits for an audit record; such a record ends the waiting."""
        self._settled = {}
        if all(self._kind(key)[0] == "adapters" and new is None for key, (_, new) in changed.items()):
            for key, (old, _) in changed.items():
                pool, name = self._kind(key)[1]
                self._removals.note(Removal(revision, (pool, name), key.decode(), document(old) or {}))
        for key, (_, new) in changed.items():
            claim = claim_of(document(new) or {}) if self._kind(key)[0] == "audit" else None
            if claim is None:
                continue
            removal = self._removals.settle(claim.revision, claim.name)
            if removal is None:
                self._find("W7", revision, key, f"no removal at {claim.revision} waits for it")
            else:
                self._settled[key] = removal

    def _check_counters(self, revision: int, changed: Values) -> None:
        """W5: a tenant's count equals its counter and is within its quota."""
        parts = [self._kind(key) for key in changed]
        tenants = {tenant_of_key(rest[1]) for kind, rest in parts if kind == "adapters"}
        tenants |= {rest[0] for kind, rest in parts if kind == "tenants"}
        for tenant in sorted(tenants):
            kv, count = self._stored.get(f"{self._prefix}tenants/{tenant}".encode()), self._counts[tenant]
            record = (document(kv.value) if kv else None) or {}
            counter, quota = record.get("adapters", 0), record.get("max_adapters")
            if counter != count + self._removals.of_tenant(tenant):
                self._find("W5", revision, f"tenant {tenant}", f"its counter says {counter}, it has {count} adapters")
            if quota is not None and count > quota:
                self._find("W5", revision, f"tenant {tenant}", f"it has {count} adapters, its quota is {quota}")

    def _check_generations(self, revision: int, changed: Values) -> None:
        """W6: one more if and only if the spec changed; a name that comes back goes on; what others serve is told."""
        for key, (old, new) in changed.items():
            kind, rest = self._kind(key)
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
            kind, rest = self._kind(key)
            if new is None or kind not in {"replicas", "status"}:
                continue
            presence = self._stored.get("/".join((f"{self._prefix}replicas", *rest)).encode())
            faults = status_faults(self._stored[key], presence) if kind == "status" else presence_faults(old, new)
            for message in faults:
                self._find("R10", revision, key, message)

    def _check_set(self, revision: int, changed: Values) -> None:
        """W2 and W7: a change, its history, its request record and its audit record share the revision."""
        by_kind: dict[str, Values] = defaultdict(dict)
        for key, values in changed.items():
            by_kind[self._kind(key)[0]][key] = values
        audits = {key: new for key, (_, new) in by_kind["audit"].items() if new is not None}
        if not audits and by_kind.keys() == {"adapters", "audit"} and not any(new for _, new in changed.values()):
            return  # noted among the removals
        late = [self._settled[key] for key in audits if key in self._settled]
        wanted = _audited(by_kind, late)
        if len(audits) != (1 if wanted else 0):
            keys = ", ".join(sorted(key.decode(errors="backslashreplace") for key in changed))
            self._find("W7", revision, keys, f"{len(audits)} audit records for {len(wanted)} changes")
            return
        if not wanted:
            return
        ((audit_key, audit),) = audits.items()
        self.changing[revision] = audit_key.decode(errors="backslashreplace")
        requests = [self._kind(key)[1][0] for key, (_, new) in by_kind["requests"].items() if new is not None]
        if len(requests) != 1:
            self._find("W2", revision, audit_key, f"{len(requests)} request records in the revision")
        else:
            self._check_audit(revision, audit_key, document(audit) or {}, requests[0], wanted)
        self._check_retired(revision, by_kind, late)

    def _check_audit(self, revision: int, key: bytes, audit: Document, request_id: str, wanted: list[Any]) -> None:
        if audit.get("request_id") != request_id:
            self._find("W7", revision, key, f"it names request {audit.get('request_id')!r}, not {request_id!r}")
        if not audit.get("principal") or not audit.get("role"):
            self._find("W7", revision, key, "it does not say who, or in which role")
        told = [(one.get("kind"), _readable(one.get("before")), one.get("after")) for one in audit.get("changes", [])]
        if sorted(told, key=repr) != sorted(wanted, key=repr):
            self._find("W7", revision, key, f"it tells {told!r:.300}, what changed is {wanted!r:.300}")

    def _check_retired(self, revision: int, by_kind: Mapping[str, Values], late: Iterable[Removal]) -> None:
        """W2: what was replaced or deleted is in history, from this revision on."""
        retired = {key: document(new) or {} for key, (_, new) in by_kind["history"].items() if new is not None}
        expected = {self._history_key(one.name, one.record): one.record for one in late}
        for key, (old, new) in by_kind["adapters"].items():
            if (record := document(old)) is not None and not same_generation(record, document(new)):
                pool, name = self._kind(key)[1]
                expected[self._history_key((pool, name), record)] = record
        for key in retired.keys() ^ expected.keys():
            self._find("W2", revision, key, "history and what was replaced are not the same")
        for key in retired.keys() & expected.keys():
            if not expected[key].items() <= retired[key].items():
                self._find("W2", revision, key, "history has another record than the one that was replaced")


def _at(story: Story, revision: int) -> Document | None:
    at = bisect_right(story, revision, key=itemgetter(0))
    return story[at - 1][1] if at else None


def _audited(by_kind: Mapping[str, Values], late: Sequence[Removal]) -> list[Told]:
    """What the audit record of a revision must tell: (kind, before, after), counters left out."""
    told = [("adapter", document(old), document(new)) for old, new in by_kind["adapters"].values()]
    told += [("pool", document(old), document(new)) for old, new in by_kind["pools"].values()]
    told += [("adapter", removal.record, None) for removal in late]
    if by_kind["adapters"] or late:
        return told
    return told + [("tenant", document(old), document(new)) for old, new in by_kind["tenants"].values()]


def _readable(before: Document | None) -> Document | None:
    """What an audit record quotes since it could not be followed may be JSON all the same."""
    quoted = before.get("unreadable") if before else None
    return document(quoted.encode()) if isinstance(quoted, str) else before


def _hash(key: str, kv: KeyValue) -> int:
    digest = hashlib.sha256(b"%s\0%d\0%s" % (key.encode(), kv.mod_revision, kv.value)).digest()
    return int.from_bytes(digest, "big")
