"""What becomes of a rollout that canaries began: promoted, halted, or looked at again later. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import assert_never

from registry.model.names import name_key
from registry.model.records import AdapterRecord, Strategy
from registry.store.rollout import Rollout, Stage, refusals

_LONGEST_REASON = 600
_LONGEST_POOL = 64


@dataclass(frozen=True, slots=True)
class Soak:
    """That canaries serve a generation without interruption.

    `identity` tells what they serve, who they are, and how often the sight of them was lost; `since` is monotonic.
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
    """Nothing is to be done unless something changes, or it is that late on the monotonic clock."""

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
        losses: how often the sight of the replicas was lost, so that an interruption may have gone unseen; None: it is
            lost now.
        now: on the monotonic clock.
    """
    if rollout.stage is not Stage.SERVED or losses is None:
        return None
    identity = (etag, losses, frozenset(one.replica for one in rollout.replicas if one.canary))
    return before if before is not None and before.identity == identity else Soak(identity, now)


def decide(strategy: Strategy, rollout: Rollout, soak: Soak | None, now: float) -> Decision:
    """What is to be done with a rollout. `soak` as `soaking` has it."""
    match rollout.stage:
        case Stage.REFUSED:
            return Halt(refusals(rollout)[:_LONGEST_REASON])
        case Stage.SERVED if soak is not None and strategy.promote == "auto":
            due = soak.since + strategy.soak_seconds
            return Promote() if now >= due else LookAgain(due)
        case Stage.SERVED | Stage.WAITING | Stage.HALTED | None:
            return Leave()
    assert_never(rollout.stage)


def conductor_request_id(verb: str, record: AdapterRecord, attempt: int) -> str:
    """The request id of what is done, the same for every admin service, so that it is done once.

    `attempt` counts the ids that are used up: one whose request was refused can never be settled otherwise.
    """
    name = hashlib.sha256(f"{record.pool}\0{name_key(record.name)}".encode()).hexdigest()[:16]
    again = f"-{attempt}" if attempt else ""
    return f"{verb}-{record.pool[:_LONGEST_POOL]}-{name}-{record.generation}{again}"
