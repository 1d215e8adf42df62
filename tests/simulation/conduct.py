"""R9, R25: what conductors may do with a rollout, what they may end, and when, told by what stands in etcd alone."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from registry.etcd3.ops import Event, KeyValue
from registry.model.keys import Keys, last_part
from registry.model.names import name_key
from registry.model.placement import Member, Selector, members_digest
from tests.simulation.history import Wanted, assigned, read_wanted
from tests.simulation.store import EtcdStore

# A conductor acts upon what it read so long ago at most.
ACT_SECONDS = 12.0
Document = dict[str, Any]


class Standing(Enum):
    """What canaries say, taken together."""

    SERVED = "served"
    REFUSED = "refused"
    WAITING = "waiting"


@dataclass
class Rolled:
    """A record with a rollout.

    Attributes:
        now: how its canaries stand, those counted alone that know who lives.
        last: when they stood so for the last time; infinite while they do.
        served_at: when they all served it for the first time, whomever each of them knows of; None: they never did.
    """

    kv: KeyValue
    record: Document
    wanted: Wanted
    now: Standing = Standing.WAITING
    last: dict[Standing, float] = field(default_factory=dict)
    served_at: float | None = None

    def stand(self, standing: Standing, at: float) -> None:
        """Notes how canaries stand from now on."""
        self.last[self.now] = at
        self.now = standing
        self.last[standing] = math.inf


class Conduct:
    """Follows each rollout, and holds what conductors write against it."""

    def __init__(self, store: EtcdStore, keys: Keys, pool: str, violated: Callable[[str], None]) -> None:
        self._store = store
        self._keys = keys
        self._adapters, self._replicas = keys.adapters(pool), keys.replicas(pool)
        self._pool = pool
        self._violated = violated
        self._rolled: dict[bytes, Rolled] = {}
        self._lives: dict[bytes, tuple[float, int | None]] = {}
        self.ended: list[str] = []

    def on_commit(self, revision: int, events: tuple[Event, ...]) -> None:
        """Each revision of etcd."""
        roles = {_told(event, "role") for event in events if event.key.startswith(self._keys.audits())}
        reasons = {_told(event, "reason") for event in events if event.key.startswith(self._keys.audits())}
        for event in events:
            if event.key.startswith(self._adapters):
                if "ttl" in reasons:
                    self._check_end(event)
                else:
                    self._check(event, is_conducted="conductor" in roles)
                self._note(event.key)
        self._look()

    def restore(self) -> None:
        """The store was replaced by another one: whoever conducts begins anew."""
        self._rolled.clear()
        for key in self._store.kvs:
            if key.startswith(self._adapters):
                self._note(key)
        self._look()

    def _check(self, event: Event, *, is_conducted: bool) -> None:
        before, after = self._rolled.get(event.key), _document(event.kv)
        was_halted = bool(before and before.record["rollout"]["halted"])
        is_halted = bool(((after or {}).get("rollout") or {}).get("halted"))
        name = last_part(event.key)
        if not is_conducted:
            if is_halted and not was_halted:
                self._violated(f"R9 the rollout of {name} was halted by somebody")
        elif before is None or after is None or was_halted:
            self._violated(f"R9 {name} is conducted, and no rollout of it was on")
        elif why := _too_soon(before, is_halted=is_halted):
            self._violated(f"R9 {name} is {'halted' if is_halted else 'promoted'} at {event.mod_revision}, and {why}")

    def _check_end(self, event: Event) -> None:
        """R25: it is gone, its time was over, and it had one."""
        name, (written, ttl) = last_part(event.key), self._lives.get(event.key, (math.inf, None))
        age = asyncio.get_running_loop().time() - written
        if event.kv is not None or ttl is None or age < ttl:
            self._violated(f"R25 {name} has ended at {event.mod_revision}, {age:.3f} s after it was written: ttl {ttl}")
        self.ended.append(name)

    def _note(self, key: bytes) -> None:
        """A record has changed: what was known of its rollout, if there was one, is of the past."""
        self._rolled.pop(key, None)
        kv = self._store.kvs.get(key)
        self._note_life(key, kv)
        wanted = None if kv is None else read_wanted(kv.value)
        if kv is not None and wanted is not None and wanted.stable is not None:
            self._rolled[key] = Rolled(kv, json.loads(kv.value), wanted)

    def _note_life(self, key: bytes, kv: KeyValue | None) -> None:
        if kv is None:
            self._lives.pop(key, None)
            return
        spec = (_document(kv) or {}).get("spec")
        ttl = spec.get("ttl_seconds") if isinstance(spec, dict) else None
        self._lives[key] = asyncio.get_running_loop().time(), ttl if isinstance(ttl, int) else None

    def _look(self) -> None:
        """Notes how the canaries of each rollout stand now."""
        if not self._rolled:
            return
        now, members = asyncio.get_running_loop().time(), list(self._members())
        digest, everywhere = members_digest(members), self._everywhere()
        for rolled in self._rolled.values():
            canaries = assigned(rolled.wanted, members, everywhere).canaries
            rolled.stand(self._standing(rolled, canaries, digest), now)
            if rolled.served_at is None and self._standing(rolled, canaries, None) is Standing.SERVED:
                rolled.served_at = now

    def _standing(self, rolled: Rolled, canaries: frozenset[str], digest: str | None) -> Standing:
        """`digest`: of the members that each status has to have reckoned with; None: of any."""
        said = [self._said(replica, digest, rolled) for replica in canaries]
        refused, most = said.count(Standing.REFUSED), rolled.record["spec"]["strategy"]["max_failures"]
        if refused and (refused > most or refused == len(said)):
            return Standing.REFUSED
        return Standing.SERVED if said and Standing.WAITING not in said else Standing.WAITING

    def _everywhere(self) -> dict[Selector, int]:
        """How many adapters take room on every replica."""
        wanted = [read_wanted(kv.value) for key, kv in self._store.kvs.items() if key.startswith(self._adapters)]
        return {frozenset(): sum(one is not None and one.is_eager and one.replicas is None for one in wanted)}

    def _members(self) -> Iterator[Member]:
        for key, kv in self._store.kvs.items():
            if key.startswith(self._replicas):
                presence, status = (
                    json.loads(kv.value),
                    self._store.kvs.get(self._keys.status(self._pool, last_part(key))),
                )
                if presence["leaving"] or status is None or status.lease != kv.lease:
                    continue
                yield Member(last_part(key), presence.get("labels") or {}, presence.get("capacity"))

    def _said(self, replica: str, digest: str | None, rolled: Rolled) -> Standing:
        status = _document(self._store.kvs.get(self._keys.status(self._pool, replica)))
        if status is None or status["stale"] or status["observed_revision"] < rolled.kv.mod_revision:
            return Standing.WAITING
        key = name_key(rolled.wanted.name)
        failed = [one for one in status["failed"] if name_key(one["name"]) == key]
        if digest not in {None, status["members"]} or any(name_key(one["name"]) == key for one in status["pending"]):
            return Standing.WAITING
        if failed:
            is_final = failed[0]["settled"] or failed[0]["retry_at"] is None
            return Standing.REFUSED if is_final else Standing.WAITING
        return Standing.SERVED if status["engine"]["incarnation"] else Standing.WAITING


def _too_soon(rolled: Rolled, *, is_halted: bool) -> str:
    """Why a conductor had no reason to do what it did; empty: it had."""
    now, strategy = asyncio.get_running_loop().time(), rolled.record["spec"]["strategy"]
    needed = Standing.REFUSED if is_halted else Standing.SERVED
    if rolled.last.get(needed, -math.inf) < now - ACT_SECONDS:
        return f"its canaries do not stand so: {rolled.now}"
    if is_halted:
        return ""
    if strategy["promote"] != "auto":
        return "it is to be promoted by hand"
    soaked = now - (now if rolled.served_at is None else rolled.served_at)
    return "" if soaked >= strategy["soak_seconds"] else f"its canaries serve it for {soaked:.3f} s only"


def _told(event: Event, field: str) -> str:
    return str((_document(event.kv) or {}).get(field, ""))


def _document(kv: KeyValue | None) -> Document | None:
    """A value as JSON; None: there is none, or it is no object."""
    try:
        found = json.loads(kv.value) if kv is not None else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
