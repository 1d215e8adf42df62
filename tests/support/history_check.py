"""Checks W2, W5, W6 and W7 by folding a history of etcd, revision by revision.

It knows nothing of how transactions are built: it only looks at what stands in etcd.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from registry.etcd3.client import Client
from registry.etcd3.ops import Event, Put, Txn, prefix_end
from registry.etcd3.reflections import Changed, Listed, Resume
from registry.etcd3.reflector import Reflector
from registry.keys import Keys

Document = dict[str, Any]
Values = dict[bytes, tuple[bytes | None, bytes | None]]
History = Iterable[tuple[int, tuple[Event, ...]]]


@dataclass
class Fold:
    """The state up to a revision. Values are parsed as plain JSON, not by the models.

    `changing` holds the revisions that changed desired state, with the keys of their audit records.
    """

    keys: Keys
    kvs: dict[bytes, bytes] = field(default_factory=dict)
    generations: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    changing: dict[int, str] = field(default_factory=dict)

    def take(self, revision: int, events: tuple[Event, ...]) -> None:
        """Folds one revision in and checks what it promises."""
        before = dict(self.kvs)
        for event in events:
            if event.kv is None:
                self.kvs.pop(event.key, None)
            else:
                self.kvs[event.key] = event.kv.value
        changed = {event.key: (before.get(event.key), self.kvs.get(event.key)) for event in events}
        self._check_counters(revision)
        self._check_generations(revision, changed)
        self._check_set(revision, changed)

    def _kind(self, key: bytes) -> tuple[str, list[str]]:
        kind, *rest = key.decode().removeprefix(self.keys.prefix + "/").split("/")
        return kind, rest

    def _check_counters(self, revision: int) -> None:
        """W5: a tenant's count equals its counter and is within its quota."""
        counted: Counter[str] = Counter()
        tenants: dict[str, Document] = {}
        for key, value in self.kvs.items():
            kind, rest = self._kind(key)
            if kind == "adapters":
                counted[tenant_of_key(rest[1])] += 1
            elif kind == "tenants":
                tenants[rest[0]] = json.loads(value)
        for tenant in counted.keys() | tenants.keys():
            record = tenants.get(tenant, {"adapters": 0, "max_adapters": None})
            assert record["adapters"] == counted[tenant], f"W5 at {revision}: {tenant} {record} has {counted[tenant]}"
            assert record["max_adapters"] is None or counted[tenant] <= record["max_adapters"], f"W5 at {revision}"

    def _check_generations(self, revision: int, changed: Values) -> None:
        """W6: one more if and only if the spec changed; a name that comes back goes on."""
        for key, (old, new) in changed.items():
            kind, rest = self._kind(key)
            if kind != "adapters" or new is None:
                continue
            name, record = "/".join(rest), json.loads(new)
            assert record["generation"] == self.generations[name] + 1, f"W6 at {revision}: {name} {record}"
            assert old is None or json.loads(old)["spec"] != record["spec"], f"W6 at {revision}: same spec of {name}"
            self.generations[name] = record["generation"]

    def _check_set(self, revision: int, changed: Values) -> None:
        """W2 and W7: a change, its history, its request record and its audit record share the revision."""
        by_kind: dict[str, Values] = defaultdict(dict)
        for key, values in changed.items():
            by_kind[self._kind(key)[0]][key] = values
        wanted = _audited(by_kind)
        assert len(by_kind["audit"]) == (1 if wanted else 0), f"W7 at {revision}: {list(changed)}"
        if not wanted:
            return
        assert len(by_kind["requests"]) == 1, f"W2 at {revision}: no request record"
        (request_key,) = by_kind["requests"]
        ((audit_key, (_, audit)),) = by_kind["audit"].items()
        _check_audit(revision, json.loads(audit or b""), self._kind(request_key)[1][0], wanted)
        self._check_retired(revision, by_kind)
        self.changing[revision] = audit_key.decode()

    def _check_retired(self, revision: int, by_kind: Mapping[str, Values]) -> None:
        """W2: what was replaced or deleted is in history, from this revision on."""
        retired = {key: new for key, (_, new) in by_kind["history"].items() if new is not None}
        expected = {}
        for key, (old, _) in by_kind["adapters"].items():
            if old is not None:
                pool, name = self._kind(key)[1]
                record = json.loads(old)
                expected[f"{self.keys.prefix}/history/{pool}/{name}/{record['generation']}".encode()] = record
        assert set(retired) == set(expected), f"W2 at {revision}: history"
        for key, record in expected.items():
            assert record.items() <= json.loads(retired[key]).items(), f"W2 at {revision}: history changed {key!r}"


def _audited(by_kind: Mapping[str, Values]) -> list[tuple[str, Document | None, Document | None]]:
    """What the audit record of a revision must tell: (kind, before, after), counters left out."""
    told = [("adapter", _parsed(old), _parsed(new)) for old, new in by_kind["adapters"].values()]
    told += [("pool", _parsed(old), _parsed(new)) for old, new in by_kind["pools"].values()]
    if by_kind["adapters"]:
        return told
    return told + [("tenant", _parsed(old), _parsed(new)) for old, new in by_kind["tenants"].values()]


def _check_audit(
    revision: int, audit: Document, request_id: str, wanted: list[tuple[str, Document | None, Document | None]]
) -> None:
    assert audit["request_id"] == request_id, f"W7 at {revision}"
    assert audit["principal"], f"W7 at {revision}"
    assert audit["role"], f"W7 at {revision}"
    told = [(one["kind"], one["before"], one["after"]) for one in audit["changes"]]
    assert sorted(told, key=repr) == sorted(wanted, key=repr), f"W7 at {revision}"


def tenant_of_key(key: str) -> str:
    """The tenant of a name key."""
    tenant, slash, _ = key.partition("%2F")
    return tenant if slash else "default"


def _parsed(value: bytes | None) -> Document | None:
    return None if value is None else json.loads(value)


def check_history(keys: Keys, history: History) -> Fold:
    """Folds a whole history and checks every revision of it.

    Raises:
        AssertionError: a guarantee does not hold; the message names it and the revision.
    """
    fold = Fold(keys)
    for revision, events in history:
        fold.take(revision, events)
    return fold


async def read_history(client: Client, prefix: str, start_revision: int) -> list[tuple[int, tuple[Event, ...]]]:
    """All revisions of a prefix from `start_revision` on until now, by a watch of our own."""
    key = f"{prefix}/".encode()
    end = await client.txn(Txn((), (Put(key + b"~end", b""),)))
    watch = Reflector(client, key, prefix_end(key), resume=Resume(start_revision - 1, 0), rng=random.Random(0))
    history: list[tuple[int, tuple[Event, ...]]] = []
    async with asyncio.timeout(60), aclosing(watch.stream()) as reflections:
        async for reflection in reflections:
            assert not isinstance(reflection, Listed), "the history is compacted"
            if isinstance(reflection, Changed):
                if reflection.revision >= end.revision:
                    break
                history.append((reflection.revision, reflection.events))
    return history
