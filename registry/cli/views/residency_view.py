"""Adapters with their residency, as table rows and plain values. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from registry.cli.views.messages import state_name, state_text
from registry.cli.views.replica_view import cell, replica_view
from registry.model.messages import Plain
from registry.model.replica_reasons import LEAVING
from registry.residency.health import AdapterRow, counts, pool_state, reasons, state, state_there
from registry.residency.standing import NOTHING_STANDS
from registry.v1 import registry_pb2 as pb

TITLES = ("REPLICA", "MODEL", "GENERATION", "STATE", "REASON", "LOADED", "LAST USED", "ENGINE")


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
    states = Counter(map(state_there, adapters))
    ready = sum(one.is_ready for one in staying)
    served = sum(counts(one).serving > 0 for one in adapters)
    state = pool_state(states, ready, len(staying), found.lacking)
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
        "earlier_generations": list(part.earlier_generations),
    }


def _wanted_dict(part: pb.Residence) -> Plain:
    return {"generation": part.wanted_generation, "state": state_text(part.wanted_state), "reason": part.wanted_reason}


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
