"""How far a generation has come, derived whole from records, presences and statuses. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from registry.errors import RegistryError
from registry.etcd3.ops import KeyValue
from registry.keys import last_part
from registry.model.names import name_key
from registry.model.records import AdapterRecord
from registry.model.status import ReplicaStatus
from registry.transactions.stored import read_adapter


class ReplicaState(Enum):
    """Where one replica is with a generation."""

    PENDING = auto()
    SERVING = auto()
    FAILED = auto()
    UNKNOWN = auto()


class Failure(Enum):
    """Why a rollout is over without success."""

    REPLICAS_FAILED = "replicas_failed"
    SUPERSEDED = "superseded"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class ReplicaRollout:
    """One replica, and why it does not serve yet. `digest`: what it found where the record says none; else empty."""

    replica: str
    state: ReplicaState
    reason: str = ""
    message: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Rollout:
    """How far a generation is. `waiting` says what for; empty once it is done."""

    name: str
    generation: int
    replicas: tuple[ReplicaRollout, ...] = ()
    done: bool = False
    failure: Failure | None = None
    waiting: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """Which generation is asked about; 0: the one that is found first."""

    pool: str
    name: str
    generation: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What stands in etcd: the adapter's record, and by replica presences and statuses."""

    record: KeyValue | None
    presences: Mapping[str, KeyValue]
    statuses: Mapping[str, KeyValue]


def derive_rollout(question: Question, facts: Facts) -> Rollout:
    """The rollout as the facts have it."""
    if facts.record is None:
        return Rollout(question.name, question.generation, done=True, failure=Failure.DELETED)
    try:
        record = read_adapter(question.pool, facts.record)
    except RegistryError as error:
        waiting = f"the record cannot be read, so replicas keep the generation before: {error.message}"
        return Rollout(question.name, question.generation, waiting=waiting)
    if question.generation and record.generation > question.generation:
        return Rollout(record.name, question.generation, done=True, failure=Failure.SUPERSEDED)
    if record.generation < question.generation:
        waiting = f"generation {record.generation} is the present one, {question.generation} does not exist yet"
        return Rollout(record.name, question.generation, waiting=waiting)
    return _present_rollout(record, facts.record.mod_revision, facts)


def _present_rollout(record: AdapterRecord, revision: int, facts: Facts) -> Rollout:
    replicas = _agreed(
        tuple(_replica(replica, facts.statuses.get(replica), record, revision) for replica in sorted(facts.presences))
    )
    waiting = _waiting(replicas)
    failed = any(one.state is ReplicaState.FAILED for one in replicas)
    failure = Failure.REPLICAS_FAILED if failed and not waiting else None
    return Rollout(record.name, record.generation, replicas, not waiting, failure, waiting)


def _agreed(replicas: tuple[ReplicaRollout, ...]) -> tuple[ReplicaRollout, ...]:
    """Replicas that found different files under one generation do not serve it: nobody knows which is meant."""
    found = Counter(one.digest for one in replicas if one.digest)
    if len(found) < 2:
        return replicas
    told = ", ".join(f"{digest} on {count}" for digest, count in sorted(found.items()))
    return tuple(
        replace(
            one,
            state=ReplicaState.FAILED,
            reason="digests_differ",
            message=f"it found {one.digest}; found in all: {told}; apply the digest that is meant",
        )
        if one.digest
        else one
        for one in replicas
    )


def _waiting(replicas: tuple[ReplicaRollout, ...]) -> str:
    if not replicas:
        return "no replica of the pool is alive"
    behind = [one for one in replicas if one.state in {ReplicaState.PENDING, ReplicaState.UNKNOWN}]
    return f"{len(behind)} of {len(replicas)} replicas do not serve it yet" if behind else ""


def _replica(replica: str, kv: KeyValue | None, record: AdapterRecord, revision: int) -> ReplicaRollout:
    if kv is None:
        return ReplicaRollout(replica, ReplicaState.PENDING, "no_status", "it has not reported yet")
    try:
        status = ReplicaStatus.parse(kv.value)
    except RegistryError as error:
        return ReplicaRollout(replica, ReplicaState.UNKNOWN, "unreadable_status", error.message)
    return _settled(replica, status, record, revision) or _exception(replica, status, record)


def _settled(replica: str, status: ReplicaStatus, record: AdapterRecord, revision: int) -> ReplicaRollout | None:
    """What the status says as a whole; None: only the names that are listed in it can tell."""
    if status.stale:
        return ReplicaRollout(
            replica, ReplicaState.UNKNOWN, "stale", status.held or status.note or "its status is stale"
        )
    if not (status.ready or status.engine.incarnation):
        return ReplicaRollout(
            replica, ReplicaState.UNKNOWN, "engine_unreachable", status.note or "its engine is out of reach"
        )
    if status.observed_revision < revision:
        return ReplicaRollout(
            replica, ReplicaState.PENDING, "not_seen", f"it has seen revision {status.observed_revision} of {revision}"
        )
    if record.spec.load == "lazy":
        return _lazy(replica, status)
    return None


def _lazy(replica: str, status: ReplicaStatus) -> ReplicaRollout:
    """A lazy adapter is served as soon as the replica could load it at the first request."""
    if status.lazy.servable:
        return ReplicaRollout(replica, ReplicaState.SERVING, "lazy", "it is loaded at the first request")
    return ReplicaRollout(
        replica, ReplicaState.FAILED, status.lazy.reason or "lazy", "this replica cannot load at the first request"
    )


def _exception(replica: str, status: ReplicaStatus, record: AdapterRecord) -> ReplicaRollout:
    key = name_key(record.name)
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
    return ReplicaRollout(replica, ReplicaState.SERVING, digest=_found_digest(status, record))


def _found_digest(status: ReplicaStatus, record: AdapterRecord) -> str:
    """The digest that a replica found of this generation; empty where the record says it, or it was left out."""
    key = name_key(record.name)
    named = (one for one in status.found if name_key(one.name) == key and one.generation == record.generation)
    return next((one.digest for one in named), "") if record.spec.source.digest is None else ""


def facts_of(ranges: Sequence[Sequence[KeyValue]]) -> Facts:
    """Facts from the values of the adapter's key, of all presences and of all statuses, in this order."""
    records, presences, statuses = ranges
    return Facts(next(iter(records), None), _by_replica(presences), _by_replica(statuses))


def _by_replica(kvs: Sequence[KeyValue]) -> dict[str, KeyValue]:
    return {last_part(kv.key): kv for kv in kvs}
