"""Derives a replica's status from one plan and one observation. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from heapq import nsmallest

from registry.lora.coverage.findings import EngineEvidence
from registry.model.names import name_key
from registry.model.status import (
    MAX_EARLIER,
    MAX_FOUND,
    MAX_LEAVING,
    MAX_SERVES,
    EngineStatus,
    Failed,
    Found,
    Kept,
    Lazy,
    Leaving,
    Pending,
    ReplicaStatus,
    ReportedCertificate,
    ReportedEvent,
    ReportedEvidence,
    ReportedLimits,
    ReportedLoad,
    ReportedStore,
    ReportedUses,
    Resident,
    Served,
    Warned,
)
from registry.model.stored import MAX_STATUS_BYTES
from registry.runtime.clock import Moment, rfc3339
from sidecar.engines.observed import EngineFacts
from sidecar.plan.backoff import TRIES_UNTIL_READY
from sidecar.plan.conditions import MAX_OVER_CAPACITY_LISTED, REPLICAS_UNKNOWN
from sidecar.plan.handoff import OVER_CAPACITY
from sidecar.plan.types import (
    FailedAdapter,
    KeptAdapter,
    LazySituation,
    PendingAdapter,
    Plan,
    ServedAdapter,
    StatusInputs,
    WarnedAdapter,
)

MAX_MESSAGE_CHARACTERS = 500
MAX_RESIDENT = 256


@dataclass(frozen=True, slots=True)
class ReplicaIdentity:
    """Identity of the reporting replica; `answers`: it has a socket for the engine.

    `insecure`: what it bears unprotected on the network. `http`: HOST:PORT of its own port; empty: it is not known.
    """

    replica: str
    pool: str
    engine_kind: str
    engine_url: str
    answers: bool = False
    insecure: tuple[str, ...] = ()
    http: str = ""


def served_hash(served: tuple[ServedAdapter, ...]) -> str:
    """sha256 over the sorted (name, generation, digest) of what is served: equal sets, equal hashes."""
    lines = sorted(f"{adapter.name}\0{adapter.generation}\0{adapter.digest}\n" for adapter in served)
    return "sha256:" + hashlib.sha256("".join(lines).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class ReportedAside:
    """Parts of a status that no round brings: the store, certificates, the newest events, load and uses."""

    store: ReportedStore | None = None
    certificates: Sequence[ReportedCertificate] = ()
    events: Sequence[ReportedEvent] = ()
    load: ReportedLoad | None = None
    uses: ReportedUses | None = None


NOTHING_ASIDE = ReportedAside()


def derive_status(
    replica: ReplicaIdentity, situation: StatusInputs, moment: Moment, aside: ReportedAside = NOTHING_ASIDE
) -> ReplicaStatus:
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
        served=_served(situation),
        pending=pending,
        failed=failed,
        warnings=[_warned(entry) for entry in plan.warnings] if plan else [],
        omitted=plan.omitted if plan else 0,
        pending_count=len(pending) + plan.omitted if plan else 0,
        failed_count=len(failed),
        kept=[_kept(entry) for entry in plan.kept] if plan else [],
        earlier=_earlier(plan) if plan else [],
        found=[_found(entry) for entry in nsmallest(MAX_FOUND, unpinned, key=lambda one: one.name)],
        found_omitted=max(0, len(unpinned) - MAX_FOUND),
        removing=plan.removing if plan else 0,
        leaving=[_leaving(entry) for entry in nsmallest(MAX_LEAVING, still_served, key=lambda one: one.name)],
        lazy=_lazy(replica, situation, moment),
        members=plan.among.members if plan else "",
        weights=plan.among.weights if plan else "",
        note=situation.note,
        held=situation.held,
        degraded=situation.degraded[:MAX_MESSAGE_CHARACTERS],
        insecure=[one[:MAX_MESSAGE_CHARACTERS] for one in replica.insecure],
        http=replica.http,
        store=aside.store,
        certificates=list(aside.certificates),
        events=list(aside.events),
        load=aside.load,
        uses=aside.uses,
        last_request_id=situation.last_request_id,
        updated_at=rfc3339(moment.wall),
    )
    fitting = _fit(status, _serves(situation))
    return fitting.model_copy(update={"omitted_reason": _omitted_reason(status, fitting, plan)}) if plan else fitting


def _omitted_reason(whole: ReplicaStatus, fitting: ReplicaStatus, plan: Plan) -> str:
    """The reason of all names that are left out; empty: there is not one for all of them."""
    if len(fitting.failed) < len(whole.failed) or len(plan.chosen.undecided) > MAX_OVER_CAPACITY_LISTED:
        return ""
    reasons = {one.reason for one in whole.pending[len(fitting.pending) :]}
    if len(plan.chosen.over) > MAX_OVER_CAPACITY_LISTED:
        reasons.add(OVER_CAPACITY)
    return OVER_CAPACITY if reasons == {OVER_CAPACITY} else ""


def says_the_same(one: ReplicaStatus, other: ReplicaStatus, *, with_tries: bool = False) -> bool:
    """True if the two differ in nothing that is worth telling everybody at once.

    That are not the time of writing, events, a little room more or less in the store, and, but `with_tries`, one more
    try of what was refused before.
    """
    if one is other:
        return True
    is_same_room = not _is_other_room(one.store, other.store)
    return is_same_room and _essence(one, with_tries=with_tries) == _essence(other, with_tries=with_tries)


def tells_what_is_served(status: ReplicaStatus) -> bool:
    """True if a process that has just begun knows what its engine serves, or that it is away.

    Before, it has not heard all of etcd that it is to follow, or has made no plan by that.
    """
    if status.stale or not status.engine.incarnation:
        return not status.stale
    return status.observed_revision > 0 and all(one.reason != REPLICAS_UNKNOWN for one in status.pending)


def _essence(status: ReplicaStatus, *, with_tries: bool) -> ReplicaStatus:
    failed = [
        one.model_copy(update={"attempts": 0, "retry_at": ""})
        if not with_tries and (one.settled or one.attempts > TRIES_UNTIL_READY)
        else one
        for one in status.failed
    ]
    return status.model_copy(update={"updated_at": "", "store": None, "events": [], "failed": failed})


def _is_other_room(one: ReportedStore | None, other: ReportedStore | None) -> bool:
    """True if room, or what is in use, differs by a quarter, or what is damaged at all: `doctor` tells of them."""
    if one is None or other is None:
        return one is not other
    pairs = (one.room_bytes, other.room_bytes), (one.in_use_bytes, other.in_use_bytes)
    if one.damaged != other.damaged:
        return True
    return one.bound != other.bound or any(4 * max(pair) > 5 * min(pair) for pair in pairs)


def _serves(situation: StatusInputs) -> list[tuple[str, int]] | None:
    """Every name that is served as desired, with its generation; None: they are too many."""
    plan = situation.plan
    if plan is None or len(plan.served) + len(plan.residents) > MAX_SERVES:
        return None
    return sorted((one.name, one.generation) for one in (*plan.served, *plan.residents))


def _fit(status: ReplicaStatus, serves: list[tuple[str, int]] | None) -> ReplicaStatus:
    """Leaves out names until the status is small enough, of what is not served first.

    Once any is left out, a name's absence proves nothing: `serves` is told then, as long as there is room.
    """
    while True:
        if status.omitted and serves is not None:
            # Once: if there is no room for it, it is left out again.
            status, serves = status.model_copy(update={"serves": serves}), None
        if len(status.to_bytes()) <= MAX_STATUS_BYTES:
            return status
        less = _halved(status)
        if less is None:
            return status
        status = less


def _halved(status: ReplicaStatus) -> ReplicaStatus | None:
    """With half as many of the first kind of name that there are any of; None: there is none."""
    pending, failed, resident, leaving = status.pending, status.failed, status.lazy.resident, status.leaving
    dropped = 0
    if status.uses is not None or status.earlier:
        half = status.earlier[: len(status.earlier) // 2]
        fewer: dict[str, object] = {"earlier": half} if status.uses is None else {"uses": None}
    elif pending:
        fewer = {"pending": pending[: len(pending) // 2]}
        dropped = (len(pending) + 1) // 2
    elif failed:
        fewer, dropped = {"failed": failed[: len(failed) // 2]}, (len(failed) + 1) // 2
    elif resident:
        fewer = {"lazy": status.lazy.model_copy(update={"resident": resident[: len(resident) // 2]})}
    elif leaving:
        fewer = {"leaving": leaving[: len(leaving) // 2]}
    elif status.kept:
        fewer = {"kept": status.kept[: len(status.kept) // 2]}
    elif status.load is not None or status.serves is not None:
        fewer = {"serves" if status.load is None else "load": None}
    else:
        return None
    return status.model_copy(update={**fewer, "omitted": status.omitted + dropped})


def _served(situation: StatusInputs) -> Served:
    """Served set that the engine lists; if unreadable, the last one with its time."""
    if situation.plan is not None:
        return Served(count=len(situation.plan.served), hash=served_hash(situation.plan.served))
    seen = situation.last_seen
    return Served(count=len(seen.served), hash=served_hash(seen.served), seen_at=seen.at)


def _engine(replica: ReplicaIdentity, situation: StatusInputs) -> EngineStatus:
    observed = situation.observed
    staged = situation.plan.chosen.staged if situation.plan else {}
    facts = observed.facts if observed else EngineFacts(replica.engine_kind, "", replica.engine_url, "")
    return EngineStatus(
        kind=facts.kind,
        version=facts.version,
        url=facts.url,
        base_models=list(observed.base_models) if observed else [],
        incarnation=facts.incarnation,
        limits=ReportedLimits(
            max_loras=facts.limits.max_loras,
            max_cpu_loras=facts.limits.max_cpu_loras,
            max_lora_rank=facts.limits.max_lora_rank,
            target_modules=None if facts.limits.target_modules is None else list(facts.limits.target_modules),
        ),
        swap=facts.swap if observed else "",
        names=situation.names,
        evidence=_evidence(facts.evidence) if facts.evidence else None,
        highest_rank=max((one.rank for one in staged.values()), default=None),
        max_model_len=facts.max_model_len,
    )


def _evidence(said: EngineEvidence) -> ReportedEvidence:
    return ReportedEvidence(
        engine=said.engine,
        architecture=said.architecture,
        applied=list(said.applied),
        taken=list(said.taken),
        parts=list(said.parts),
        beginnings=list(said.beginnings),
        ends=list(said.ends),
    )


def _lazy(replica: ReplicaIdentity, situation: StatusInputs, moment: Moment) -> Lazy:
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


def _why_not_lazy(replica: ReplicaIdentity, situation: StatusInputs) -> str:
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
    """Minute of the last use; whole minutes, so that not each request writes a status."""
    used = moment.wall + timedelta(seconds=lazy.used_at[name_key(one.name)] - moment.monotonic)
    return rfc3339(used.replace(second=0, microsecond=0))


def _pending(entry: PendingAdapter) -> Pending:
    return Pending(name=entry.name, generation=entry.generation, reason=entry.reason, request_id=entry.request_id)


def _found(entry: ServedAdapter) -> Found:
    return Found(name=entry.name, generation=entry.generation, digest=entry.digest)


def _leaving(entry: ServedAdapter) -> Leaving:
    return Leaving(name=entry.name, generation=entry.generation)


def _kept(entry: KeptAdapter) -> Kept:
    return Kept(name=entry.name, generation=entry.generation, counted=entry.is_counted)


def _earlier(plan: Plan) -> list[tuple[str, int]]:
    """Names and generations, of each name the newest first, and of all of them those that are least behind."""
    told = [(one.name, one.generation) for one in plan.beside[:MAX_EARLIER]]
    return sorted(told, key=lambda one: (one[0], -one[1]))


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
        settled=entry.retry_at is None or moment.monotonic >= entry.final_at,
    )
