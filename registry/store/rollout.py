"""How far a generation has come, derived whole from records, presences and statuses. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from registry.errors import RegistryError
from registry.etcd3.ops import KeyValue
from registry.keys import last_part
from registry.model.names import name_key
from registry.model.records import AdapterRecord
from registry.store.judgement import Asked, ReplicaState, agreed, judge, said
from registry.transactions.stored import read_adapter


class Failure(Enum):
    """Why a rollout is over without success."""

    REPLICAS_FAILED = "replicas_failed"
    SUPERSEDED = "superseded"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class ReplicaRollout:
    """One replica, and why it does not serve yet."""

    replica: str
    state: ReplicaState
    reason: str = ""
    message: str = ""


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
    spec = record.spec
    asked = Asked(
        name_key(record.name), record.generation, revision, spec.load == "lazy", spec.source.digest is not None
    )
    names = sorted(facts.presences)
    judged = agreed([judge(said(facts.statuses.get(name)), asked) for name in names])
    replicas = tuple(
        ReplicaRollout(name, one.state, one.reason, one.message) for name, one in zip(names, judged, strict=True)
    )
    waiting = _waiting(replicas)
    failed = any(one.state is ReplicaState.FAILED for one in replicas)
    failure = Failure.REPLICAS_FAILED if failed and not waiting else None
    return Rollout(record.name, record.generation, replicas, not waiting, failure, waiting)


def _waiting(replicas: tuple[ReplicaRollout, ...]) -> str:
    if not replicas:
        return "no replica of the pool is alive"
    behind = [one for one in replicas if one.state in {ReplicaState.PENDING, ReplicaState.UNKNOWN}]
    return f"{len(behind)} of {len(replicas)} replicas do not serve it yet" if behind else ""


def facts_of(ranges: Sequence[Sequence[KeyValue]]) -> Facts:
    """Facts from the values of the adapter's key, of all presences and of all statuses, in this order."""
    records, presences, statuses = ranges
    return Facts(next(iter(records), None), _by_replica(presences), _by_replica(statuses))


def _by_replica(kvs: Sequence[KeyValue]) -> dict[str, KeyValue]:
    return {last_part(kv.key): kv for kv in kvs}
