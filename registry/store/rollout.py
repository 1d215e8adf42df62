"""How far a generation has come, derived whole from records, presences and statuses. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import assert_never

from registry.errors import RegistryError
from registry.model.assignment import Assignment, Selector, assign, looks_at_room, rate
from registry.model.names import name_key
from registry.model.placement import members_digest, weights_digest
from registry.model.records import AdapterRecord, CanaryRollout, Strategy
from registry.store.judgement import Asked, ReplicaState, agreed, judge
from registry.store.pool_facts import Facts, known
from registry.transactions.stored import read_adapter

_BEHIND = {ReplicaState.PENDING, ReplicaState.UNKNOWN}


class Failure(Enum):
    """Why a rollout is over without success."""

    REPLICAS_FAILED = "replicas_failed"
    SUPERSEDED = "superseded"
    DELETED = "deleted"
    HALTED = "halted"


class Stage(Enum):
    """How far a rollout that canaries began is."""

    HALTED = auto()
    WAITING = auto()
    REFUSED = auto()
    SERVED = auto()


@dataclass(frozen=True, slots=True)
class ReplicaRollout:
    """One replica, and why it does not serve yet.

    `generation` is the one that it is to serve; `canary`: it takes new weights first, and they are not for all yet.
    """

    replica: str
    state: ReplicaState
    reason: str = ""
    message: str = ""
    canary: bool = False
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Rollout:
    """How far a generation is. `waiting` says what for; empty once it is done. `note` is what else is to be known.

    `canary` and `stage` None: the generation is for all replicas.
    """

    name: str
    generation: int
    replicas: tuple[ReplicaRollout, ...] = ()
    done: bool = False
    failure: Failure | None = None
    waiting: str = ""
    canary: CanaryRollout | None = None
    stage: Stage | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """Which generation is asked about; 0: the one that is found first."""

    pool: str
    name: str
    generation: int


def needs_rooms(question: Question, facts: Facts) -> bool:
    """True if nobody can tell who serves the adapter without what else its pool serves, and that was not looked at."""
    record = facts.record
    if record is None:
        return False
    behind = facts.rooms is None or facts.rooms.seen_revision < record.mod_revision
    try:
        return behind and looks_at_room(read_adapter(question.pool, record).spec)
    except RegistryError:
        return False


def derive_rollout(question: Question, facts: Facts) -> Rollout:
    """The rollout as the facts have it; where an adapter is placed by number they must have `rooms`."""
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
    members = facts.members.values() if _is_for_all(record) else known(facts.members.values())
    assigned = assign(record.pool, name_key(record.name), record.spec, members, _everywhere(facts))
    canaries = assigned.canaries if record.rollout else frozenset()
    found = [
        *_stand(canaries, _asked(record, revision, facts), facts, is_canary=True),
        *_stand(set(assigned.serving) - canaries, _asked_of_others(record, revision, facts), facts, is_canary=False),
    ]
    replicas = tuple(sorted(found, key=lambda one: one.replica))
    rollout = Rollout(record.name, record.generation, replicas, canary=record.rollout, note=_note(record, assigned))
    if record.rollout is None:
        return _for_all(rollout, facts)
    if record.spec.strategy is None:
        return replace(rollout, waiting="its record has no strategy, so nobody is a canary; apply it again")
    return _for_canaries(rollout, record.rollout, record.spec.strategy, facts)


def _is_for_all(record: AdapterRecord) -> bool:
    """True if who serves which generation does not depend on who else lives."""
    return record.rollout is None and not looks_at_room(record.spec)


def _asked(record: AdapterRecord, revision: int, facts: Facts) -> Asked:
    """What canaries have to prove, or all if there is no rollout."""
    weighed, members = looks_at_room(record.spec), known(facts.members.values())
    return Asked(
        key=name_key(record.name),
        generation=record.generation,
        revision=revision,
        lazy=record.spec.load == "lazy",
        pinned=record.spec.source.digest is not None,
        members=None if _is_for_all(record) else members_digest(members),
        weights=weights_digest(rate(members, _everywhere(facts))) if weighed else None,
    )


def _everywhere(facts: Facts) -> Mapping[Selector, int]:
    return facts.rooms.counts if facts.rooms else {}


def _asked_of_others(record: AdapterRecord, revision: int, facts: Facts) -> Asked:
    """What all but canaries have to prove: of the stable spec only what decides about the weights counts."""
    asked, rollout = _asked(record, revision, facts), record.rollout
    if rollout is None:
        return asked
    pinned = rollout.stable_spec.source.digest is not None
    return replace(asked, generation=rollout.stable_generation, pinned=pinned)


def _stand(replicas: Collection[str], asked: Asked, facts: Facts, *, is_canary: bool) -> list[ReplicaRollout]:
    """How replicas stand that are to serve the same."""
    names = sorted(replicas)
    judged = agreed([judge(facts.statuses.get(name), asked) for name in names])
    return [
        ReplicaRollout(name, one.state, one.reason, one.message, is_canary, asked.generation)
        for name, one in zip(names, judged, strict=True)
    ]


def _note(record: AdapterRecord, assigned: Assignment) -> str:
    wanted, found = record.spec.placement.replicas, len(assigned.serving)
    if wanted == "all" or found >= wanted:
        return ""
    that = " that match" if record.spec.placement.selector else ""
    return f"placed on {wanted} replicas, {found}{that} are alive: served by all of them"


def _for_all(rollout: Rollout, facts: Facts) -> Rollout:
    behind = [one for one in rollout.replicas if one.state in _BEHIND]
    waiting = _nobody(rollout.replicas, facts)
    if behind:
        waiting = f"{len(behind)} of {len(rollout.replicas)} replicas do not serve it yet"
    failed = any(one.state is ReplicaState.FAILED for one in rollout.replicas)
    failure = Failure.REPLICAS_FAILED if failed and not waiting else None
    return replace(rollout, done=not waiting, failure=failure, waiting=waiting)


def _nobody(replicas: Sequence[ReplicaRollout], facts: Facts) -> str:
    if replicas:
        return ""
    return "no live replica of the pool matches its selector" if facts.members else "no replica of the pool is alive"


def _for_canaries(rollout: Rollout, canary: CanaryRollout, strategy: Strategy, facts: Facts) -> Rollout:
    """Only canaries count: the others serve what they served before."""
    canaries = [one for one in rollout.replicas if one.canary]
    stage = _stage(canaries, canary, strategy)
    rollout = replace(rollout, stage=stage)
    match stage:
        case Stage.HALTED:
            return replace(rollout, done=True, failure=Failure.HALTED)
        case Stage.WAITING:
            behind = sum(one.state in _BEHIND for one in canaries)
            waiting = f"{behind} of {len(canaries)} canaries do not serve it yet"
            return replace(rollout, waiting=_nobody(rollout.replicas, facts) or waiting)
        case Stage.REFUSED:
            return replace(rollout, waiting=f"{refusals(rollout)}; it is about to be halted")
        case Stage.SERVED if strategy.promote == "manual":
            return replace(rollout, done=True, note=_joined(rollout.note, _by_hand(rollout, canary)))
        case Stage.SERVED:
            waiting = f"its canaries serve it; it comes to all once they have for {strategy.soak_seconds} seconds"
            return replace(rollout, waiting=waiting)
    assert_never(stage)


def _stage(canaries: Sequence[ReplicaRollout], canary: CanaryRollout, strategy: Strategy) -> Stage:
    refused = sum(one.state is ReplicaState.FAILED for one in canaries)
    if canary.halted:
        return Stage.HALTED
    if refused > strategy.max_failures or (refused and refused == len(canaries)):
        return Stage.REFUSED
    if not canaries or any(one.state in _BEHIND for one in canaries):
        return Stage.WAITING
    return Stage.SERVED


def refusals(rollout: Rollout) -> str:
    """How many canaries refuse it, and why, in one sentence."""
    canaries = [one for one in rollout.replicas if one.canary]
    refused = [one for one in canaries if one.state is ReplicaState.FAILED]
    told = "; ".join(f"{one.replica} {_joined(one.reason, one.message, by=' - ')}" for one in refused)
    return f"{len(refused)} of {len(canaries)} canaries refuse it: {told}"


def _by_hand(rollout: Rollout, canary: CanaryRollout) -> str:
    served = sum(one.canary and one.state is ReplicaState.SERVING for one in rollout.replicas)
    return (
        f"{served} of {len(rollout.replicas)} replicas, its canaries, serve it, the others generation "
        f"{canary.stable_generation}, until it is promoted by hand"
    )


def _joined(*parts: str, by: str = "; ") -> str:
    return by.join(part for part in parts if part)
