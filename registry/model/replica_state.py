"""Evaluation of a status: does its replica provably serve a generation? Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import assert_never

from registry.etcd3.ops import KeyValue
from registry.model.errors import RegistryError
from registry.model.names import name_key
from registry.model.status import Failed, Found, Kept, Leaving, Pending, ReplicaStatus, Resident

# Warned of, without a name, by a replica that does nothing with its engine although it may look ready.
BLOCKED = "blocked"
# The reason of a replica that has not received a change yet.
NOT_SEEN = "not_seen"


class ReplicaState(Enum):
    """The state of a generation on one replica."""

    PENDING = auto()
    SERVING = auto()
    FAILED = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class Expectation:
    """A generation that a replica is to serve.

    `revision` is etcd's of the record; `pinned`: the record has a digest. `members` and `weights` are digests of the
    live replicas, and of their room, by which the replica must have found its share; None: these do not matter.
    """

    key: str
    generation: int
    revision: int
    lazy: bool
    pinned: bool
    members: str | None = None
    weights: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The state of a replica, and the reason.

    `digest`: what the replica found of `generation` where the record has no digest; empty: nothing to compare.
    `kept`: the generation whose weights the engine answers with although this one is not served; 0: an earlier one,
    it is not known which; None: none that is known of.
    """

    state: ReplicaState
    reason: str = ""
    message: str = ""
    digest: str = ""
    generation: int = 0
    kept: int | None = None


@dataclass(frozen=True, slots=True)
class ParsedStatus:
    """A status that can be read, with its names by name key.

    `serves`: the generation of each name that is served as desired, where the status leaves out names that are not;
    None: it does not tell. `earlier`: the generations that its engine answers to beside that. `uses`: before which
    revision each was last used.
    """

    status: ReplicaStatus
    failed: Mapping[str, Failed]
    pending: Mapping[str, Pending]
    found: Mapping[str, Found]
    resident: Mapping[str, Resident]
    leaving: Mapping[str, Leaving]
    kept: Mapping[str, Kept]
    serves: Mapping[str, int] | None
    earlier: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    uses: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StatusUnreadable:
    """A status that cannot be read, and why."""

    message: str


StatusReading = ParsedStatus | StatusUnreadable | None  # None: the replica has not reported yet, see `status_of`


def status_of(presence: KeyValue | None, status: KeyValue | None) -> KeyValue | None:
    """The status that counts: one under the lease of its presence, which its sidecar alone keeps alive.

    None: there is none, or it is of an earlier process, or of somebody who is no sidecar at all.
    """
    if presence is None or status is None or not status.lease or status.lease != presence.lease:
        return None
    return status


def parse_status(kv: KeyValue | None) -> StatusReading:
    """The status in a value of etcd."""
    if kv is None:
        return None
    try:
        status = ReplicaStatus.parse(kv.value)
    except RegistryError as error:
        return StatusUnreadable(error.message)
    return ParsedStatus(
        status,
        {name_key(one.name): one for one in status.failed},
        {name_key(one.name): one for one in status.pending},
        {name_key(one.name): one for one in status.found},
        {name_key(one.name): one for one in status.lazy.resident},
        {name_key(one.name): one for one in status.leaving},
        {name_key(one.name): one for one in status.kept},
        None if status.serves is None else {name_key(name): generation for name, generation in status.serves},
        _earlier(status),
        {name_key(name): revision for name, revision in (status.uses.names if status.uses else ())},
    )


def _earlier(status: ReplicaStatus) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for name, generation in status.earlier:
        found[name_key(name)] = (*found.get(name_key(name), ()), generation)
    return found


def held_by_engine(reading: StatusReading) -> int | None:
    """Number of adapters that an engine holds, as its replica's status says; None: it does not say."""
    return reading.status.engine.limits.max_cpu_loras if isinstance(reading, ParsedStatus) else None


def evaluate(reading: StatusReading, expected: Expectation) -> Verdict:
    """The state of a replica: serving only if its status as a whole proves it (R9).

    The rollout status, residency and the sidecar's handoff all use this one answer.
    """
    match reading:
        case None:
            return Verdict(ReplicaState.PENDING, "no_status", "it has not reported yet")
        case StatusUnreadable(message):
            return Verdict(ReplicaState.UNKNOWN, "unreadable_status", message)
        case ParsedStatus():
            return _verdict_of_all(reading, expected) or _verdict_of_name(reading, expected)
    assert_never(reading)


def answered(reading: StatusReading, key: str) -> int | None:
    """The generation with which a replica says, by the name itself, that its engine answers; None: it says nothing.

    True of whatever record it follows. 0: an earlier one, it is not known which.
    """
    return said(reading, key) if isinstance(reading, ParsedStatus) and doubt(reading) is None else None


def said(reading: ParsedStatus, key: str) -> int | None:
    """The same, whether it may be believed or not."""
    found = reading.kept.get(key) or reading.leaving.get(key) or reading.resident.get(key)
    return found.generation if found is not None else (reading.serves or {}).get(key)


def doubt(reading: ParsedStatus) -> Verdict | None:
    """The verdict on all that a status says; None: it may be believed."""
    status = reading.status
    if status.stale:
        return Verdict(ReplicaState.UNKNOWN, "stale", status.held or status.note or "its status is stale")
    if not status.engine.incarnation:
        return Verdict(ReplicaState.UNKNOWN, "engine_unreachable", status.note or "its engine is out of reach")
    if any(one.reason == BLOCKED and not one.name for one in status.warnings):
        return Verdict(ReplicaState.UNKNOWN, BLOCKED, status.note or "it makes no calls to its engine")
    return None


def _verdict_of_all(reading: ParsedStatus, expected: Expectation) -> Verdict | None:
    """The verdict on every adapter of a replica; None: it depends on the listed names."""
    verdict = doubt(reading)
    if verdict is not None:
        return verdict
    verdict = _behind(reading.status, expected)
    return None if verdict is None else replace(verdict, kept=answered(reading, expected.key))


def _behind(status: ReplicaStatus, expected: Expectation) -> Verdict | None:
    """The verdict where a replica does not know what is expected of it, or can serve no such adapter."""
    if status.observed_revision < expected.revision:
        behind = (
            f"it has not received this change yet (at revision {status.observed_revision}, needs {expected.revision})"
        )
        return Verdict(ReplicaState.PENDING, NOT_SEEN, behind)
    if expected.members not in {None, status.members}:
        return Verdict(ReplicaState.PENDING, "membership_not_seen", "it does not know yet which replicas live")
    if expected.weights not in {None, status.weights}:
        return Verdict(ReplicaState.PENDING, "room_not_seen", "it does not know yet what room the replicas have")
    if expected.lazy and not status.lazy.servable:
        reason = status.lazy.reason or "lazy"
        return Verdict(ReplicaState.FAILED, reason, "this replica cannot load at the first request")
    return None


def _verdict_of_name(reading: ParsedStatus, expected: Expectation) -> Verdict:
    """The verdict by the listed names; a failure that is tried again is pending until it has lasted."""
    failed, pending = reading.failed.get(expected.key), reading.pending.get(expected.key)
    kept = reading.kept[expected.key].generation if expected.key in reading.kept else None
    if failed is not None:
        is_final = failed.settled or failed.retry_at is None
        state = ReplicaState.FAILED if is_final else ReplicaState.PENDING
        return Verdict(state, failed.reason, failed.message, kept=kept)
    if pending is not None:
        return Verdict(ReplicaState.PENDING, pending.reason, kept=kept)
    if reading.status.omitted and not _is_told(reading, expected):
        is_lacking = reading.serves is not None and not expected.lazy
        state = ReplicaState.PENDING if is_lacking else ReplicaState.UNKNOWN
        reason = (reading.status.omitted_reason if is_lacking else "") or "omitted"
        return Verdict(state, reason, f"its report is cut: {reading.status.omitted} adapters are not in it", kept=kept)
    if expected.lazy:
        return Verdict(ReplicaState.SERVING, "lazy", "it is loaded at the first request")
    digest = _found_digest(reading, expected)
    return Verdict(ReplicaState.SERVING, digest=digest, generation=expected.generation)


def _is_told(reading: ParsedStatus, expected: Expectation) -> bool:
    """True if a status that leaves out names says that it serves this one."""
    return reading.serves is not None and reading.serves.get(expected.key) == expected.generation


def _found_digest(reading: ParsedStatus, expected: Expectation) -> str:
    """The digest that a replica found of this generation; empty: nothing to compare."""
    found = reading.found.get(expected.key)
    if expected.pinned or found is None or found.generation != expected.generation:
        return ""
    return found.digest


def compare_digests(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts on one adapter; failed where found files of a generation differ.

    Nobody knows which of the files is meant, so none of these replicas serves the generation.
    """
    found: dict[int, Counter[str]] = {}
    for one in verdicts:
        if one.digest:
            found.setdefault(one.generation, Counter())[one.digest] += 1
    return [_compared(one, found[one.generation]) if one.digest else one for one in verdicts]


def _compared(verdict: Verdict, counts: Mapping[str, int]) -> Verdict:
    """The verdict, given how many replicas found each digest of its generation."""
    if len(counts) < 2:
        return verdict
    found = ", ".join(f"{digest} on {count}" for digest, count in sorted(counts.items()))
    return replace(
        verdict,
        state=ReplicaState.FAILED,
        reason="digests_differ",
        message=f"it found {verdict.digest}; found in all: {found}; apply the digest that is meant",
    )
