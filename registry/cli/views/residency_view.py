"""Adapters with their residency, as table rows and plain values. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from registry.cli.views.messages import state_name, state_text
from registry.cli.views.replica_view import cell, replica_view
from registry.cli.views.standing import (
    NOTHING_STANDS,
    PartStanding,
    StandingCounts,
    counts_of,
    standing_of,
    standing_of_part,
)
from registry.model.messages import Plain
from registry.model.replica_reasons import LEAVING
from registry.v1 import registry_pb2 as pb

TITLES = ("REPLICA", "MODEL", "GENERATION", "STATE", "REASON", "LOADED", "LAST USED", "ENGINE")

_BAD = {pb.RolloutReplica.FAILED, pb.RolloutReplica.UNKNOWN}
# What a replica waits for that nothing but somebody's change brings.
STUCK = frozenset({"over_capacity"})


@dataclass(frozen=True, slots=True)
class AdapterRow:
    """An adapter, and where it is; `residency` None: that is not known, or was not asked for."""

    record: pb.Adapter
    residency: pb.AdapterResidency | None = None


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """State of a pool.

    Attributes:
        state: ``Degraded``: an adapter is, or is halted, or a replica that is expected does not live. ``Progressing``:
            an adapter is still to be served, or a replica is not ready. Else ``Healthy``.
        ready: so many replicas are.
        replicas: so many are to be: those that live and do not drain, and those that are expected and do not live.
        served: so many adapters some replica answers to; that all should which are to serve them is what `state` says.
        adapters: so many there are.
    """

    state: str
    ready: int
    replicas: int
    served: int
    adapters: int


@dataclass(frozen=True, slots=True)
class PoolRow:
    """A pool, and how it is; None: that was not asked for."""

    record: pb.Pool
    status: PoolStatus | None = None


def pool_status(found: pb.ListReplicasResponse, adapters: Sequence[pb.AdapterResidency]) -> PoolStatus:
    """State of a pool of these replicas and adapters; `adapters` with their replicas counted."""
    staying = [one for one in map(replica_view, found.replicas) if not one.leaving]
    states = Counter(map(_state_there, adapters))
    ready = sum(one.is_ready for one in staying)
    if states["Degraded"] or states["Halted"] or found.lacking:
        state = "Degraded"
    else:
        state = "Progressing" if states["Progressing"] or ready < len(staying) else "Healthy"
    served = sum(counts(one).serving > 0 for one in adapters)
    return PoolStatus(state, ready, len(staying) + found.lacking, served, len(adapters))


def residency_dict(one: pb.AdapterResidency) -> Plain:
    """Places of an adapter, for programs; as ``/v1/residency`` has it."""
    return {
        "name": one.name,
        "generation": one.generation,
        "load": one.load,
        "replicas": [_part_dict(part) for part in one.replicas],
        "note": one.note,
    }


def _part_dict(part: pb.Residence) -> Plain:
    return {
        "replica": part.replica,
        "engine_url": part.engine_url,
        "labels": dict(sorted(part.labels.items())),
        "model": part.model,
        "generation": part.generation,
        "state": state_name(part),
        "reason": part.reason,
        "loaded": part.loaded,
        "last_used": part.last_used,
        "wanted": _wanted_dict(part) if part.wanted_state else None,
    }


def _wanted_dict(part: pb.Residence) -> Plain:
    return {
        "generation": part.wanted_generation,
        "state": state_text(part.wanted_state),
        "reason": part.wanted_reason,
    }


def rows(one: pb.AdapterResidency) -> list[Sequence[str]]:
    """A row for each replica, below `TITLES`."""
    return [
        (
            part.replica,
            part.model,
            str(part.generation or "?"),
            state_name(part),
            _wanted_told(part) or cell(part.reason),
            cell(part.loaded),
            cell(part.last_used),
            cell(part.engine_url),
        )
        for part in one.replicas
    ]


def _standings(one: pb.AdapterResidency) -> list[PartStanding]:
    """Replicas by how they stand to it; of an admin service that does not count, those that live."""
    return list(map(standing_of, one.counts) if one.counts else map(standing_of_part, one.replicas))


def counts(one: pb.AdapterResidency) -> StandingCounts:
    """Numbers of replicas that are to serve it, and that do."""
    return counts_of(_standings(one))


def state(row: AdapterRow) -> str:
    """``Disabled``, ``Halted``, ``Degraded``, ``Progressing`` or ``Healthy``; empty: it is not known.

    Disabled: it is to be served nowhere. Halted: its rollout is. Degraded: a replica failed, is out of reach, does not
    live, or waits for what nothing but somebody's change brings. Progressing: one is still to serve it. Else Healthy.
    """
    if row.record.spec.HasField("enabled") and not row.record.spec.enabled:
        return "Disabled"
    if row.record.rollout.halted:
        return "Halted"
    if row.residency is None:
        return ""
    found = _state_there(row.residency)
    is_of_it = row.residency.generation == row.record.generation  # else it was looked at just before a change
    return "Progressing" if found == "Healthy" and not is_of_it else found


def _state_there(one: pb.AdapterResidency) -> str:
    """The same of the generation that residency speaks of."""
    if one.halted:
        return "Halted"
    staying = [standing for standing in _standings(one) if standing.is_staying]
    if any(_is_bad(standing) for standing in staying):
        return "Degraded"
    is_served = all(standing.outcome == pb.RolloutReplica.SERVING for standing in staying)
    return "Healthy" if staying and is_served else "Progressing"


def _is_bad(one: PartStanding) -> bool:
    return bool({one.state, one.wanted_state} & _BAD or {one.reason, one.wanted_reason} & STUCK)


def reasons(one: pb.AdapterResidency) -> dict[str, int]:
    """Why replicas do not serve what they are to serve, and how many of them for each reason; the most first."""
    found = Counter[str]()
    for standing in _standings(one):
        if standing.outcome != pb.RolloutReplica.SERVING or standing.wanted_state:
            found[standing.wanted_reason or standing.reason or state_text(standing.state)] += standing.number
    return dict(sorted(found.items(), key=lambda one: (-one[1], one[0])))


def status_dict(row: AdapterRow) -> Plain | None:
    """State of an adapter, for programs; None: it is not known."""
    if row.residency is None:
        return None
    found = counts(row.residency)
    return {
        "state": state(row),
        "serving": found.serving,
        "replicas": found.wanted,
        "reasons": reasons(row.residency),
        "note": row.residency.note,
    }


def serving_cell(row: AdapterRow) -> str:
    """E.g. ``2/2``, and where the placement chooses among more that live, ``6/6 of 8``."""
    if row.residency is None:
        return "-"
    found, pool = counts(row.residency), row.residency.pool_replicas
    share = f"{found.serving}/{found.wanted}"
    return f"{share} of {pool}" if pool > found.wanted else share


def behind_told(row: AdapterRow) -> str:
    """Number of replicas that answer with an earlier generation; empty: none is known of."""
    behind = counts(row.residency).behind if row.residency is not None else 0
    return f"{behind} of them an earlier generation" if behind else ""


def served_share(row: AdapterRow) -> str:
    """Sort key of SERVING: per thousand, 0 where nobody is to serve it."""
    found = NOTHING_STANDS if row.residency is None else counts(row.residency)
    return str(1000 * found.serving // max(1, found.wanted))


def reasons_cell(row: AdapterRow) -> str:
    """Each reason once, ``8 × over_capacity``; where there is none the note, such as that nobody lives."""
    if row.residency is None:
        return "-"
    told = [f"{count} × {reason}" for reason, count in reasons(row.residency).items()]
    halted = row.record.rollout.halted
    return cell([halted, *told] if halted else told or row.residency.note)


def where_cell(row: AdapterRow) -> str:
    """E.g. ``r1, r2@4, r3 pending: staging``: only what is not as it should be is spelled out."""
    found = row.residency
    return "-" if found is None else cell([_place(part, found.generation) for part in found.replicas])


def _place(part: pb.Residence, generation: int) -> str:
    place = part.replica if part.generation == generation else f"{part.replica}@{part.generation or '?'}"
    if part.wanted_state:
        return f"{place} ({_wanted_told(part)})"
    if part.state != pb.RolloutReplica.SERVING:
        return f"{place} {state_name(part)}: {part.reason}"
    if part.reason == LEAVING:
        return f"{place} {LEAVING}"
    return f"{place} used {part.last_used}" if part.last_used else place


def _wanted_told(part: pb.Residence) -> str:
    """State of the wanted generation where a replica serves another; else empty."""
    if not part.wanted_state:
        return ""
    return f"generation {part.wanted_generation} {state_text(part.wanted_state)}: {part.wanted_reason}"
