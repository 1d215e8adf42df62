"""How one replica stands to one generation of an adapter, as far as its status proves it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import assert_never

from registry.errors import RegistryError
from registry.etcd3.ops import KeyValue
from registry.model.names import name_key
from registry.model.status import Failed, Found, Leaving, Pending, ReplicaStatus, Resident

# Said, without a name, by a replica that does nothing with its engine although it may look ready.
BLOCKED = "blocked"


class ReplicaState(Enum):
    """Where one replica is with a generation."""

    PENDING = auto()
    SERVING = auto()
    FAILED = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class Asked:
    """What a replica is to serve: `revision` is etcd's of the record, `pinned` says that the record has a digest.

    `members` and `weights` are digests of the live replicas that it must have reckoned with, and of the room that they
    have; None: these do not matter.
    """

    key: str
    generation: int
    revision: int
    lazy: bool
    pinned: bool
    members: str | None = None
    weights: str | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """Where a replica is, and why. `digest`: what it found of the generation where the record says none; else empty."""

    state: ReplicaState
    reason: str = ""
    message: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Told:
    """A status that can be read, with its names by name key."""

    status: ReplicaStatus
    failed: Mapping[str, Failed]
    pending: Mapping[str, Pending]
    found: Mapping[str, Found]
    resident: Mapping[str, Resident]
    leaving: Mapping[str, Leaving]


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A status that cannot be read, and why."""

    message: str


Said = Told | Unreadable | None  # None: it has not reported yet


def said(kv: KeyValue | None) -> Said:
    """What a replica says of itself."""
    if kv is None:
        return None
    try:
        status = ReplicaStatus.parse(kv.value)
    except RegistryError as error:
        return Unreadable(error.message)
    return Told(
        status,
        {name_key(one.name): one for one in status.failed},
        {name_key(one.name): one for one in status.pending},
        {name_key(one.name): one for one in status.found},
        {name_key(one.name): one for one in status.lazy.resident},
        {name_key(one.name): one for one in status.leaving},
    )


def judge(told: Said, asked: Asked) -> Judged:
    """Where the replica is: serving only if its status as a whole proves it (guarantee R9)."""
    match told:
        case None:
            return Judged(ReplicaState.PENDING, "no_status", "it has not reported yet")
        case Unreadable(message):
            return Judged(ReplicaState.UNKNOWN, "unreadable_status", message)
        case Told():
            return _settled(told.status, asked) or _exception(told, asked)
    assert_never(told)


def _settled(status: ReplicaStatus, asked: Asked) -> Judged | None:
    """What the status says as a whole; None: only the names that are listed in it can tell."""
    if status.stale:
        return Judged(ReplicaState.UNKNOWN, "stale", status.held or status.note or "its status is stale")
    if not (status.ready or status.engine.incarnation):
        return Judged(ReplicaState.UNKNOWN, "engine_unreachable", status.note or "its engine is out of reach")
    if any(one.reason == BLOCKED and not one.name for one in status.warnings):
        return Judged(ReplicaState.UNKNOWN, BLOCKED, status.note or "it does nothing with its engine")
    if status.observed_revision < asked.revision:
        seen = f"it has seen revision {status.observed_revision} of {asked.revision}"
        return Judged(ReplicaState.PENDING, "not_seen", seen)
    if asked.members not in {None, status.members}:
        return Judged(ReplicaState.PENDING, "membership_not_seen", "it has not seen yet which replicas live")
    if asked.weights not in {None, status.weights}:
        return Judged(ReplicaState.PENDING, "room_not_seen", "it reckons with other room than replicas have now")
    if asked.lazy and not status.lazy.servable:
        reason = status.lazy.reason or "lazy"
        return Judged(ReplicaState.FAILED, reason, "this replica cannot load at the first request")
    return None


def _exception(told: Told, asked: Asked) -> Judged:
    failed, pending = told.failed.get(asked.key), told.pending.get(asked.key)
    if failed is not None:
        state = ReplicaState.FAILED if failed.retry_at is None else ReplicaState.PENDING
        return Judged(state, failed.reason, failed.message)
    if pending is not None:
        return Judged(ReplicaState.PENDING, pending.reason)
    if told.status.omitted:
        return Judged(ReplicaState.UNKNOWN, "omitted", f"its status leaves out {told.status.omitted} names")
    if asked.lazy:
        return Judged(ReplicaState.SERVING, "lazy", "it is loaded at the first request")
    return Judged(ReplicaState.SERVING, digest=_found_digest(told, asked))


def _found_digest(told: Told, asked: Asked) -> str:
    """The digest that a replica found of this generation; empty where the record says it, or it was left out."""
    found = told.found.get(asked.key)
    if asked.pinned or found is None or found.generation != asked.generation:
        return ""
    return found.digest


def agreed(judged: Sequence[Judged]) -> list[Judged]:
    """Replicas that found different files under one generation do not serve it: nobody knows which is meant."""
    found = Counter(one.digest for one in judged if one.digest)
    if len(found) < 2:
        return list(judged)
    told = ", ".join(f"{digest} on {count}" for digest, count in sorted(found.items()))
    return [
        replace(
            one,
            state=ReplicaState.FAILED,
            reason="digests_differ",
            message=f"it found {one.digest}; found in all: {told}; apply the digest that is meant",
        )
        if one.digest
        else one
        for one in judged
    ]
