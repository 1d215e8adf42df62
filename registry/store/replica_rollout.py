"""Where one replica is with the generation that it is to serve, as its status proves it. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from enum import Enum, auto

from registry.model.names import name_key
from registry.model.records import AdapterSpec
from registry.model.status import ReplicaStatus
from registry.store.pool_facts import Status, Unreadable


class ReplicaState(Enum):
    """Where one replica is with a generation."""

    PENDING = auto()
    SERVING = auto()
    FAILED = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class ReplicaRollout:
    """One replica, and why it does not serve yet. `digest`: what it found where the record says none; else empty.

    `generation` is the one that it is to serve; `canary`: it takes new weights first, and they are not for all yet.
    """

    replica: str
    state: ReplicaState
    reason: str = ""
    message: str = ""
    digest: str = ""
    canary: bool = False
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Expected:
    """What a status has to prove.

    Attributes:
        name: of the adapter.
        spec: which weights, and how they are loaded.
        generation: theirs.
        revision: up to which the replica must have seen the store.
        members: digest of the live replicas that it must have reckoned with; None: they do not matter.
        canary: it is one of the canaries.
    """

    name: str
    spec: AdapterSpec
    generation: int
    revision: int
    members: str | None
    canary: bool


def replica_rollout(replica: str, status: Status | None, expected: Expected) -> ReplicaRollout:
    """How one replica stands to what it is to serve; `status` None: it has not reported."""
    found = _judged(replica, status, expected)
    return replace(found, canary=expected.canary, generation=expected.generation)


def _judged(replica: str, status: Status | None, expected: Expected) -> ReplicaRollout:
    if status is None:
        return ReplicaRollout(replica, ReplicaState.PENDING, "no_status", "it has not reported yet")
    if isinstance(status, Unreadable):
        return ReplicaRollout(replica, ReplicaState.UNKNOWN, "unreadable_status", status.why)
    return _settled(replica, status, expected) or _exception(replica, status, expected)


def _settled(replica: str, status: ReplicaStatus, expected: Expected) -> ReplicaRollout | None:
    """What the status says as a whole; None: only the names that are listed in it can tell."""
    if status.stale:
        return ReplicaRollout(
            replica, ReplicaState.UNKNOWN, "stale", status.held or status.note or "its status is stale"
        )
    if not (status.ready or status.engine.incarnation):
        return ReplicaRollout(
            replica, ReplicaState.UNKNOWN, "engine_unreachable", status.note or "its engine is out of reach"
        )
    if status.observed_revision < expected.revision:
        message = f"it has seen revision {status.observed_revision} of {expected.revision}"
        return ReplicaRollout(replica, ReplicaState.PENDING, "not_seen", message)
    if expected.members not in {None, status.members}:
        message = "it has not seen yet which replicas live"
        return ReplicaRollout(replica, ReplicaState.PENDING, "membership_not_seen", message)
    if expected.spec.load == "lazy":
        return _lazy(replica, status)
    return None


def _lazy(replica: str, status: ReplicaStatus) -> ReplicaRollout:
    """A lazy adapter is served as soon as the replica could load it at the first request."""
    if status.lazy.servable:
        return ReplicaRollout(replica, ReplicaState.SERVING, "lazy", "it is loaded at the first request")
    return ReplicaRollout(
        replica, ReplicaState.FAILED, status.lazy.reason or "lazy", "this replica cannot load at the first request"
    )


def _exception(replica: str, status: ReplicaStatus, expected: Expected) -> ReplicaRollout:
    key = name_key(expected.name)
    for failed in status.failed:
        if name_key(failed.name) == key:
            state = ReplicaState.FAILED if failed.retry_at is None else ReplicaState.PENDING
            return ReplicaRollout(replica, state, failed.reason, failed.message)
    for pending in status.pending:
        if name_key(pending.name) == key:
            return ReplicaRollout(replica, ReplicaState.PENDING, pending.reason)
    if status.omitted:
        message = f"its status leaves out {status.omitted} names"
        return ReplicaRollout(replica, ReplicaState.UNKNOWN, "omitted", message)
    return ReplicaRollout(replica, ReplicaState.SERVING, digest=_found_digest(status, expected))


def _found_digest(status: ReplicaStatus, expected: Expected) -> str:
    """The digest that a replica found of its generation; empty where the record says it, or it was left out."""
    if expected.spec.source.digest is not None:
        return ""
    key = name_key(expected.name)
    named = (one for one in status.found if name_key(one.name) == key and one.generation == expected.generation)
    return next((one.digest for one in named), "")


def agreed(replicas: tuple[ReplicaRollout, ...]) -> tuple[ReplicaRollout, ...]:
    """Replicas that found different files under one generation do not serve it: nobody knows which is meant."""
    found = Counter((one.generation, one.digest) for one in replicas if one.digest)
    return tuple(_against(one, found) for one in replicas)


def _against(one: ReplicaRollout, found: Counter[tuple[int, str]]) -> ReplicaRollout:
    same = {digest: count for (generation, digest), count in found.items() if generation == one.generation}
    if not one.digest or len(same) < 2:
        return one
    told = ", ".join(f"{digest} on {count}" for digest, count in sorted(same.items()))
    return replace(
        one,
        state=ReplicaState.FAILED,
        reason="digests_differ",
        message=f"it found {one.digest}; found in all: {told}; apply the digest that is meant",
    )
