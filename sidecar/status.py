"""What a replica says of itself, derived whole from one plan and one look at the engine. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from heapq import nsmallest

from registry.model.base import MAX_STATUS_BYTES
from registry.model.names import name_key
from registry.model.records import EngineNames
from registry.model.status import (
    MAX_FOUND,
    MAX_LEAVING,
    EngineLimits,
    EngineStatus,
    Failed,
    Found,
    Lazy,
    Leaving,
    Pending,
    ReplicaStatus,
    Resident,
    Served,
    Warned,
)
from sidecar.lazy.wanted import LazySituation
from sidecar.observed import EngineFacts, Observed
from sidecar.plan import FailedAdapter, PendingAdapter, Plan, ServedAdapter, WarnedAdapter

MAX_MESSAGE_CHARACTERS = 500
MAX_RESIDENT = 256


@dataclass(frozen=True, slots=True)
class Replica:
    """Who reports. `answers`: it has a socket on which the engine may ask it for adapters."""

    replica: str
    pool: str
    engine_kind: str
    engine_url: str
    answers: bool = False


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that a status is derived from.

    Attributes:
        revision: etcd's revision that it speaks about.
        observed: the engine as it was last seen whole; None: it is out of reach or cannot be driven.
        plan: made from that look; None where there was none or no desired state.
        ready: the first plan since the engine started has been carried out.
        stale: etcd is out of reach.
        lazy: of the lazy adapters.
        note: why the replica is not ready; empty if it is.
        held: why the newest list is not followed; empty if it is.
        last_request_id: request of the newest change that the plan is made from.
        names: what the engine calls an adapter.
    """

    revision: int
    observed: Observed | None
    plan: Plan | None
    ready: bool
    stale: bool
    lazy: LazySituation
    note: str
    held: str
    last_request_id: str
    names: EngineNames = "plain"


@dataclass(frozen=True, slots=True)
class Moment:
    """Now on both clocks: `monotonic` in seconds, `wall` in UTC."""

    monotonic: float
    wall: datetime

    def wall_of(self, monotonic: float) -> str:
        """A monotonic time as RFC 3339."""
        return rfc3339(self.wall + timedelta(seconds=monotonic - self.monotonic))


def rfc3339(when: datetime) -> str:
    """A UTC time to the millisecond."""
    return when.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def served_hash(served: tuple[ServedAdapter, ...]) -> str:
    """sha256 over the sorted (name, generation, digest) of what is served: equal sets, equal hashes."""
    lines = sorted(f"{adapter.name}\0{adapter.generation}\0{adapter.digest}\n" for adapter in served)
    return "sha256:" + hashlib.sha256("".join(lines).encode()).hexdigest()


def derive_status(replica: Replica, situation: Situation, moment: Moment) -> ReplicaStatus:
    """The whole status; of the pending and failed names as many as fit, the rest is counted in `omitted`."""
    plan = situation.plan
    pending = [_pending(entry) for entry in plan.pending] if plan else []
    failed = [_failed(entry, moment) for entry in plan.failed] if plan else []
    still_served = plan.still_served if plan else ()
    unpinned = [one for one in (*plan.served, *still_served) if not one.is_pinned] if plan else []
    status = ReplicaStatus(
        replica=replica.replica,
        pool=replica.pool,
        engine=_engine(replica, situation),
        observed_revision=situation.revision,
        ready=situation.ready,
        stale=situation.stale,
        served=Served(count=len(plan.served) if plan else 0, hash=served_hash(plan.served if plan else ())),
        pending=pending,
        failed=failed,
        warnings=[_warned(entry) for entry in plan.warnings] if plan else [],
        omitted=plan.omitted if plan else 0,
        found=[_found(entry) for entry in nsmallest(MAX_FOUND, unpinned, key=lambda one: one.name)],
        found_omitted=max(0, len(unpinned) - MAX_FOUND),
        leaving=[_leaving(entry) for entry in nsmallest(MAX_LEAVING, still_served, key=lambda one: one.name)],
        lazy=_lazy(replica, situation, moment),
        members=plan.among.members if plan else "",
        weights=plan.among.weights if plan else "",
        note=situation.note,
        held=situation.held,
        last_request_id=situation.last_request_id,
        updated_at=rfc3339(moment.wall),
    )
    return _fit(status)


def says_the_same(one: ReplicaStatus, other: ReplicaStatus) -> bool:
    """True if the two differ in nothing but the time of writing."""
    return one.model_copy(update={"updated_at": other.updated_at}) == other


def _fit(status: ReplicaStatus) -> ReplicaStatus:
    """Leaves out names from the end until the status is small enough: pending, then failed, resident, leaving."""
    while len(status.to_bytes()) > MAX_STATUS_BYTES and (less := _halved(status)) is not None:
        status = less
    return status


def _halved(status: ReplicaStatus) -> ReplicaStatus | None:
    """With half as many of the first kind of name that there are any of; None: there is none."""
    pending, failed, resident, leaving = status.pending, status.failed, status.lazy.resident, status.leaving
    if pending:
        fewer: dict[str, object] = {"pending": pending[: len(pending) // 2]}
        dropped = (len(pending) + 1) // 2
    elif failed:
        fewer, dropped = {"failed": failed[: len(failed) // 2]}, (len(failed) + 1) // 2
    elif resident:
        fewer, dropped = {"lazy": status.lazy.model_copy(update={"resident": resident[: len(resident) // 2]})}, 0
    elif leaving:
        fewer, dropped = {"leaving": leaving[: len(leaving) // 2]}, 0
    else:
        return None
    return status.model_copy(update={**fewer, "omitted": status.omitted + dropped})


def _engine(replica: Replica, situation: Situation) -> EngineStatus:
    observed = situation.observed
    facts = observed.facts if observed else EngineFacts(replica.engine_kind, "", replica.engine_url, "")
    return EngineStatus(
        kind=facts.kind,
        version=facts.version,
        url=facts.url,
        base_models=list(observed.base_models) if observed else [],
        incarnation=facts.incarnation,
        limits=EngineLimits(
            max_loras=facts.limits.max_loras,
            max_cpu_loras=facts.limits.max_cpu_loras,
            max_lora_rank=facts.limits.max_lora_rank,
            target_modules=None if facts.limits.target_modules is None else list(facts.limits.target_modules),
        ),
        swap=facts.swap if observed else "",
        names=situation.names,
    )


def _lazy(replica: Replica, situation: Situation, moment: Moment) -> Lazy:
    reason = _why_not_lazy(replica, situation)
    residents = situation.plan.residents if situation.plan else ()
    return Lazy(
        count=situation.lazy.count,
        servable=not reason,
        reason=reason if situation.lazy.count else "",
        resident=[
            Resident(name=one.name, generation=one.generation, last_used=_minute_of(one, situation.lazy, moment))
            for one in nsmallest(MAX_RESIDENT, residents, key=lambda one: one.name)
        ],
    )


def _why_not_lazy(replica: Replica, situation: Situation) -> str:
    """Why no lazy adapter can be served at its first request; empty: they can."""
    if situation.observed is None or situation.plan is None or situation.plan.blocked:
        return "not_ready"
    if not situation.observed.facts.resolves:
        return "needs_plugin"
    if not replica.answers:
        return "needs_socket"
    if situation.names == "versioned":
        return "names_versioned"
    return "" if situation.lazy.room else "no_room"


def _minute_of(one: ServedAdapter, lazy: LazySituation, moment: Moment) -> str:
    """When it was last used, in whole minutes, so that a status is not written anew for each request."""
    used = moment.wall + timedelta(seconds=lazy.used_at[name_key(one.name)] - moment.monotonic)
    return rfc3339(used.replace(second=0, microsecond=0))


def _pending(entry: PendingAdapter) -> Pending:
    return Pending(name=entry.name, generation=entry.generation, reason=entry.reason, request_id=entry.request_id)


def _found(entry: ServedAdapter) -> Found:
    return Found(name=entry.name, generation=entry.generation, digest=entry.digest)


def _leaving(entry: ServedAdapter) -> Leaving:
    return Leaving(name=entry.name, generation=entry.generation)


def _warned(entry: WarnedAdapter) -> Warned:
    message = entry.message[:MAX_MESSAGE_CHARACTERS]
    return Warned(name=entry.name, generation=entry.generation, reason=entry.reason, message=message)


def _failed(entry: FailedAdapter, moment: Moment) -> Failed:
    return Failed(
        name=entry.name,
        generation=entry.generation,
        reason=entry.reason,
        message=entry.message[:MAX_MESSAGE_CHARACTERS],
        attempts=entry.attempts,
        retry_at=None if entry.retry_at is None else moment.wall_of(entry.retry_at),
        request_id=entry.request_id,
    )
