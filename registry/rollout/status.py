"""Status of a rollout, derived from a record and a snapshot of its pool. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import assert_never

from registry.etcd3.ops import KeyValue
from registry.model.errors import RegistryError
from registry.model.names import label_text, matches, name_key
from registry.model.placement import (
    Assignment,
    assign,
    declinable,
    decline_note,
    decliners,
    looks_at_room,
    rate_evenly,
    roles_lacking,
    spec_now,
)
from registry.model.records import AdapterRecord, CanaryRollout, Strategy
from registry.model.replica_reasons import is_nowhere
from registry.model.replica_state import Expectation, ReplicaState, compare_digests, evaluate
from registry.rollout.expected import ROLE_NOT_SERVED, NamelessReplicas, not_alive, role_not_served
from registry.rollout.pool import PoolSnapshot
from registry.transactions.decode import read_adapter

# The reason of a replica that is expected and does not live; and what stands for those of which no name is known.
NOT_ALIVE = "not_alive"
NAMELESS = "others"
_BEHIND = {ReplicaState.PENDING, ReplicaState.UNKNOWN}


class ReplicaFailure(Enum):
    """Why a rollout is over without success."""

    REPLICAS_FAILED = "replicas_failed"
    SUPERSEDED = "superseded"
    DELETED = "deleted"
    HALTED = "halted"


class RolloutStage(Enum):
    """The stage of a rollout that canaries began."""

    HALTED = auto()
    WAITING = auto()
    REFUSED = auto()
    SERVED = auto()


@dataclass(frozen=True, slots=True)
class ReplicaRollout:
    """One replica, and why it does not serve yet.

    `generation` is the one that it is to serve; `canary`: it takes new weights first, and they are not for all yet.
    `kept` is the generation that it answers with meanwhile, as in `Verdict`. `count`: it stands for so many.
    """

    replica: str
    state: ReplicaState
    reason: str = ""
    message: str = ""
    canary: bool = False
    generation: int = 0
    kept: int | None = None
    count: int = 1


@dataclass(frozen=True, slots=True)
class Rollout:
    """The progress of a generation.

    `waiting`: what for; empty once it is done. `note` is what else is to be known.

    `canary` and `stage` None: the generation is for all replicas.
    """

    name: str
    generation: int
    replicas: tuple[ReplicaRollout, ...] = ()
    done: bool = False
    failure: ReplicaFailure | None = None
    waiting: str = ""
    canary: CanaryRollout | None = None
    stage: RolloutStage | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """The generation whose rollout is to be known; 0: the one that is found first."""

    pool: str
    name: str
    generation: int


DISABLED = "it is disabled, so no replica is to serve it"


def needs_room(question: Question, record: KeyValue | None, pool: PoolSnapshot) -> bool:
    """True if an adapter is placed by number, and the room of its pool is not known."""
    if record is None or pool.revision >= record.mod_revision:
        return False
    try:
        return looks_at_room(read_adapter(question.pool, record).spec)
    except RegistryError:
        return False


def derive_rollout(question: Question, kv: KeyValue | None, pool: PoolSnapshot) -> Rollout:
    """The rollout of a record, in a pool of which all that it needs is known."""
    if kv is None:
        return Rollout(question.name, question.generation, done=True, failure=ReplicaFailure.DELETED)
    try:
        record = read_adapter(question.pool, kv)
    except RegistryError as error:
        waiting = f"the record cannot be read, so replicas keep the generation before: {error.message}"
        return Rollout(question.name, question.generation, waiting=waiting)
    if question.generation and record.generation > question.generation:
        return Rollout(record.name, question.generation, done=True, failure=ReplicaFailure.SUPERSEDED)
    if record.generation < question.generation:
        waiting = f"generation {record.generation} is the present one, {question.generation} does not exist yet"
        return Rollout(record.name, question.generation, waiting=waiting)
    return _present_rollout(record, kv.mod_revision, pool)


def _present_rollout(record: AdapterRecord, revision: int, pool: PoolSnapshot) -> Rollout:
    if not record.spec.enabled:
        return Rollout(record.name, record.generation, done=True, canary=record.rollout, note=DISABLED)
    assigned = _assigned(record, pool)
    canaries = assigned.canaries if record.rollout else frozenset()
    found = [
        *_replica_rollouts(canaries, _expected(record, revision, pool), pool, is_canary=True),
        *_replica_rollouts(
            set(assigned.serving) - canaries, _expected_of_others(record, revision, pool), pool, is_canary=False
        ),
    ]
    if record.rollout is None and not looks_at_room(record.spec):
        found += _absent_replicas(record, pool)
    if record.rollout is None and assigned.serving:
        found += _absent_roles(record, assigned, pool)
    replicas = tuple(sorted(found, key=lambda one: one.replica))
    rollout = Rollout(
        record.name, record.generation, replicas, canary=record.rollout, note=_note(record, assigned, pool)
    )
    if record.rollout is None:
        return _for_all(rollout, pool)
    if record.spec.strategy is None:
        return replace(rollout, waiting="its record has no strategy, so nobody is a canary; apply it again")
    return _for_canaries(rollout, record.rollout, record.spec.strategy, pool)


def _absent_replicas(record: AdapterRecord, pool: PoolSnapshot) -> list[ReplicaRollout]:
    """Replicas that would have to serve it too, if they lived."""
    lacking, selector = pool.lacking, record.spec.placement.selector
    found = [
        ReplicaRollout(
            one.name, ReplicaState.UNKNOWN, NOT_ALIVE, not_alive(one, record.pool), generation=record.generation
        )
        for one in lacking.named
        if matches(selector, one.labels)
    ]
    return found + [_nameless(one, record) for one in lacking.nameless if matches(selector, one.labels)]


def _absent_roles(record: AdapterRecord, assigned: Assignment, pool: PoolSnapshot) -> list[ReplicaRollout]:
    """Roles of which a replica would have to serve it, and none is to."""
    serving = (pool.replicas[name].member.labels for name in assigned.serving)
    return [
        ReplicaRollout(
            *(f"{NAMELESS} of role {role}", ReplicaState.UNKNOWN, ROLE_NOT_SERVED, role_not_served(role)),
            generation=record.generation,
        )
        for role in roles_lacking(pool.expected.roles, serving)
    ]


def _nameless(one: NamelessReplicas, record: AdapterRecord) -> ReplicaRollout:
    name, those = NAMELESS, "replicas"
    if one.labels:
        labels = label_text(one.labels)
        name, those = f"{NAMELESS} of {labels}", f"replicas of {labels}"
    message = f"{one.count} more of the {one.expected} {those} that its pool expects do not live"
    return ReplicaRollout(name, ReplicaState.UNKNOWN, NOT_ALIVE, message, generation=record.generation, count=one.count)


def _is_for_all(record: AdapterRecord) -> bool:
    """True if no other replica decides whether a replica serves it, and how."""
    return record.rollout is None and not looks_at_room(record.spec)


def _assigned(record: AdapterRecord, pool: PoolSnapshot) -> Assignment:
    """The replicas that are to serve it; a stranger serves what all do."""
    key, spec = name_key(record.name), spec_now(record)
    if _is_for_all(record):
        return assign(record.pool, key, spec, rate_evenly(one.member for one in pool.replicas.values()))
    candidates = pool.inputs_now(by_room=looks_at_room(spec)).candidates
    return assign(record.pool, key, spec, candidates, declinable(record.generation, record.rollout))


def _expected(record: AdapterRecord, revision: int, pool: PoolSnapshot) -> Expectation:
    """The expectation of canaries, or of all replicas if there is no rollout."""
    inputs = None if _is_for_all(record) else pool.inputs_now(by_room=looks_at_room(record.spec))
    return Expectation(
        key=name_key(record.name),
        generation=record.generation,
        revision=revision,
        lazy=record.spec.load == "lazy",
        pinned=record.spec.source.digest is not None,
        members=inputs.members if inputs else None,
        weights=inputs.weights if inputs else None,
    )


def _expected_of_others(record: AdapterRecord, revision: int, pool: PoolSnapshot) -> Expectation:
    """The expectation of all but canaries: the stable generation, and its digest."""
    expected, rollout = _expected(record, revision, pool), record.rollout
    if rollout is None:
        return expected
    pinned = rollout.stable_spec.source.digest is not None
    return replace(expected, generation=rollout.stable_generation, pinned=pinned)


def _replica_rollouts(
    replicas: Collection[str], expected: Expectation, pool: PoolSnapshot, *, is_canary: bool
) -> list[ReplicaRollout]:
    """The state of replicas that are to serve the same."""
    names = sorted(replicas)
    verdicts = compare_digests([evaluate(pool.replicas[name].reading, expected) for name in names])
    return [
        ReplicaRollout(name, one.state, one.reason, one.message, is_canary, expected.generation, one.kept)
        for name, one in zip(names, verdicts, strict=True)
    ]


def _note(record: AdapterRecord, assigned: Assignment, pool: PoolSnapshot) -> str:
    wanted, found = spec_now(record).placement.replicas, len(assigned.serving)
    generation = declinable(record.generation, record.rollout)
    declined = decliners(name_key(record.name), record.spec, generation, next(reversed(pool.known.values())))
    if wanted == "all" or found >= wanted:
        return decline_note(declined)
    if declined:
        return f"placed on {wanted} replicas, {found} take it: served by all of them; {decline_note(declined)}"
    that = " that match" if record.spec.placement.selector else ""
    return f"placed on {wanted} replicas, {found}{that} are alive: served by all of them"


def _for_all(rollout: Rollout, pool: PoolSnapshot) -> Rollout:
    behind = sum(one.count for one in rollout.replicas if one.state in _BEHIND)
    failed = sum(one.state is ReplicaState.FAILED for one in rollout.replicas)
    waiting = _nobody(rollout.replicas, pool)
    if behind:
        refused = f", and {failed} failed" if failed else ""
        of_all = sum(one.count for one in rollout.replicas)
        waiting = f"{behind} of {of_all} replicas do not serve it yet{refused}{_nowhere(rollout.replicas)}"
    failure = ReplicaFailure.REPLICAS_FAILED if failed and not waiting else None
    return replace(rollout, done=not waiting, failure=failure, waiting=waiting)


def _nowhere(replicas: Sequence[ReplicaRollout]) -> str:
    """Says that the files are not to be had, as long as nobody puts them back; empty: somebody may have them."""
    if not is_nowhere(one.reason for one in replicas):
        return ""
    return "; none of them has its files, and neither has its source: put them back, or go to another generation"


def _nobody(replicas: Sequence[ReplicaRollout], pool: PoolSnapshot) -> str:
    if replicas:
        return ""
    return "no live replica of the pool matches its selector" if pool.replicas else "no replica of the pool is alive"


def _for_canaries(rollout: Rollout, canary: CanaryRollout, strategy: Strategy, pool: PoolSnapshot) -> Rollout:
    """Only canaries count: the others serve what they served before."""
    canaries = [one for one in rollout.replicas if one.canary]
    stage = _stage(canaries, canary, strategy)
    rollout = replace(rollout, stage=stage)
    match stage:
        case RolloutStage.HALTED:
            return replace(rollout, done=True, failure=ReplicaFailure.HALTED)
        case RolloutStage.WAITING:
            behind = sum(one.state in _BEHIND for one in canaries)
            waiting = f"{behind} of {len(canaries)} canaries do not serve it yet{_nowhere(canaries)}"
            return replace(rollout, waiting=_nobody(rollout.replicas, pool) or waiting)
        case RolloutStage.REFUSED:
            return replace(rollout, waiting=f"{refusals(rollout)}; it is about to be halted")
        case RolloutStage.SERVED if strategy.promote == "manual":
            return replace(rollout, done=True, note=_joined(rollout.note, _by_hand(rollout, canary)))
        case RolloutStage.SERVED:
            waiting = f"its canaries serve it; it comes to all once they have for {strategy.soak_seconds} seconds"
            return replace(rollout, waiting=waiting)
    assert_never(stage)


def _stage(canaries: Sequence[ReplicaRollout], canary: CanaryRollout, strategy: Strategy) -> RolloutStage:
    refused = sum(one.state is ReplicaState.FAILED for one in canaries)
    if canary.halted:
        return RolloutStage.HALTED
    if refused > strategy.max_failures or (refused and refused == len(canaries)):
        return RolloutStage.REFUSED
    if not canaries or any(one.state in _BEHIND for one in canaries):
        return RolloutStage.WAITING
    return RolloutStage.SERVED


def refusals(rollout: Rollout) -> str:
    """The number of canaries that refuse it, and their reasons, in one sentence."""
    canaries = [one for one in rollout.replicas if one.canary]
    refused = [one for one in canaries if one.state is ReplicaState.FAILED]
    reasons = "; ".join(f"{one.replica} {_joined(one.reason, one.message, by=' - ')}" for one in refused)
    return f"{len(refused)} of {len(canaries)} canaries refuse it: {reasons}"


def _by_hand(rollout: Rollout, canary: CanaryRollout) -> str:
    served = sum(one.canary and one.state is ReplicaState.SERVING for one in rollout.replicas)
    return (
        f"{served} of {len(rollout.replicas)} replicas, its canaries, serve it, the others generation "
        f"{canary.stable_generation}, until it is promoted by hand"
    )


def _joined(*parts: str, by: str = "; ") -> str:
    return by.join(part for part in parts if part)
