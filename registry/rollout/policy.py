"""Policy for rollouts that canaries began, and the list of the open ones. Pure."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import assert_never

from registry.etcd3.ops import KeyValue
from registry.model.names import name_key
from registry.model.records import AdapterRecord, Strategy
from registry.rollout.index import AdapterIndex
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


@dataclass(frozen=True, slots=True)
class OpenRollout:
    """A record with a rollout, as it stands."""

    kv: KeyValue
    record: AdapterRecord


class OpenRollouts(AdapterIndex[OpenRollout]):
    """Records with a rollout."""

    _mark = re.compile(rb'"stable_generation"')

    def _entry(self, kv: KeyValue, record: AdapterRecord, _before: object, _now: float) -> OpenRollout | None:
        return OpenRollout(kv, record) if record.rollout else None
