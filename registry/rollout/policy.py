"""Policy for rollouts that canaries began, and the list of the open ones. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import assert_never

from registry.etcd3.ops import Event, KeyValue
from registry.model.names import name_key
from registry.model.records import AdapterRecord, Strategy
from registry.rollout.status import Rollout, RolloutStage, refusals

_LONGEST_REASON = 600
_LONGEST_POOL = 64


@dataclass(frozen=True, slots=True)
class Soak:
    """An uninterrupted time in which canaries serve a generation.

    `identity`: of the record, the canaries, and the losses of their informers; `since` is monotonic.
    """

    identity: tuple[object, ...]
    since: float


@dataclass(frozen=True, slots=True)
class Promote:
    """The generation is to come to all."""


@dataclass(frozen=True, slots=True)
class Halt:
    """It is to go no further by itself, and why."""

    why: str


@dataclass(frozen=True, slots=True)
class LookAgain:
    """Nothing is to be done before a change, or this time on the monotonic clock."""

    at: float


@dataclass(frozen=True, slots=True)
class Leave:
    """Nothing is to be done unless something changes."""


Decision = Promote | Halt | LookAgain | Leave


def soaking(before: Soak | None, rollout: Rollout, etag: int, losses: int | None, now: float) -> Soak | None:
    """Since when canaries serve what they serve now; None: they do not all serve it.

    Args:
        before: what was known at the look before this.
        rollout: how it is now.
        etag: of its record.
        losses: how often the replicas were out of sight, so that an interruption may have gone unseen; None: it is
            lost now.
        now: on the monotonic clock.
    """
    if rollout.stage is not RolloutStage.SERVED or losses is None:
        return None
    identity = (etag, losses, frozenset(one.replica for one in rollout.replicas if one.canary))
    return before if before is not None and before.identity == identity else Soak(identity, now)


def decide(strategy: Strategy, rollout: Rollout, soak: Soak | None, now: float) -> Decision:
    """The next step of a rollout; `soak` as `soaking` has it."""
    match rollout.stage:
        case RolloutStage.REFUSED:
            return Halt(refusals(rollout)[:_LONGEST_REASON])
        case RolloutStage.SERVED if soak is not None and strategy.promote == "auto":
            due = soak.since + strategy.soak_seconds
            return Promote() if now >= due else LookAgain(due)
        case RolloutStage.SERVED | RolloutStage.WAITING | RolloutStage.HALTED | None:
            return Leave()
    assert_never(rollout.stage)


def conductor_request_id(verb: str, record: AdapterRecord, attempt: int) -> str:
    """The request id of a change, equal in all admin services: it is done once.

    `attempt` counts the ids that are used up: one whose request was refused can never be settled otherwise.
    """
    return _request_id(verb, record.pool, record.name, record.generation, attempt)


def expiry_request_id(pool: str, name: str, etag: int, attempt: int) -> str:
    """The request id of an adapter's end, likewise: with the etag of the record whose time is over."""
    return _request_id("expire", pool, name, etag, attempt)


def scaling_request_id(pool: str, name: str, etag: int, step: str, attempt: int) -> str:
    """The request id of a step of a number of replicas, likewise; `step`: where it leads."""
    return _request_id(f"scale-{step}", pool, name, etag, attempt)


def _request_id(verb: str, pool: str, name: str, number: int, attempt: int) -> str:
    digest = hashlib.sha256(f"{pool}\0{name_key(name)}".encode()).hexdigest()[:16]
    again = f"-{attempt}" if attempt else ""
    return f"{verb}-{pool[:_LONGEST_POOL]}-{digest}-{number}{again}"


# A record without it has no rollout; one with it is read as a whole by those who look.
_MARK = b'"stable_generation"'


class OpenRollouts:
    """Records with a rollout, by pool; of all other records nothing is kept.

    Args:
        prefix: of the adapters of all pools.
    """

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._records: dict[str, dict[bytes, KeyValue]] = {}

    @property
    def pools(self) -> frozenset[str]:
        """Pools with a rollout."""
        return frozenset(self._records)

    def of(self, pool: str) -> Mapping[bytes, KeyValue]:
        """The records of a pool by their keys."""
        return self._records.get(pool, {})

    def listed(self, kvs: Iterable[KeyValue]) -> frozenset[str]:
        """Takes a whole list; returns the pools that may have changed."""
        before = self.pools
        self._records = {}
        for kv in kvs:
            self._put(kv.key, kv)
        return before | self.pools

    def changed(self, events: Iterable[Event]) -> frozenset[str]:
        """Takes all changes of one revision; returns the pools that have changed."""
        return frozenset(pool for event in events for pool in self._put(event.key, event.kv))

    def _put(self, key: bytes, kv: KeyValue | None) -> tuple[str, ...]:
        """Returns the pool, if anything of it changed."""
        pool = key.removeprefix(self._prefix).partition(b"/")[0].decode(errors="backslashreplace")
        if kv is not None and _MARK in kv.value:
            self._records.setdefault(pool, {})[key] = kv
            return (pool,)
        if self._records.get(pool, {}).pop(key, None) is None:
            return ()
        if not self._records[pool]:
            del self._records[pool]
        return (pool,)
