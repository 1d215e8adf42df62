"""Health of adapters and pools: one word, a share, and reasons. Pure.

All views of residency take it from here: tables of the command line, and the page of the admin service.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from registry.residency.standing import PartStanding, StandingCounts, counts_of, standing_of, standing_of_part
from registry.v1 import registry_pb2 as pb

_BAD = {pb.RolloutReplica.FAILED, pb.RolloutReplica.UNKNOWN}
# What a replica waits for that nothing but somebody's change brings.
STUCK = frozenset({"over_capacity"})


@dataclass(frozen=True, slots=True)
class AdapterRow:
    """An adapter, and where it is; `residency` None: that is not known, or was not asked for."""

    record: pb.Adapter
    residency: pb.AdapterResidency | None = None


def _standings(one: pb.AdapterResidency) -> list[PartStanding]:
    """Replicas by how they stand to it; of an admin service that does not count, those that live."""
    return list(map(standing_of, one.counts) if one.counts else map(standing_of_part, one.replicas))


def counts(one: pb.AdapterResidency) -> StandingCounts:
    """Numbers of replicas that are to serve it, and that do."""
    return counts_of(_standings(one))


def is_disabled(record: pb.Adapter) -> bool:
    """True if it is to be served nowhere."""
    return record.spec.HasField("enabled") and not record.spec.enabled


def state(row: AdapterRow) -> str:
    """``Disabled``, ``Halted``, ``Degraded``, ``Progressing`` or ``Healthy``; empty: it is not known.

    Disabled: it is to be served nowhere. Halted: its rollout is. Degraded: a replica failed, is out of reach, does not
    live, or waits for what nothing but somebody's change brings. Progressing: one is still to serve it. Else Healthy.
    """
    if is_disabled(row.record):
        return "Disabled"
    if row.record.rollout.halted:
        return "Halted"
    if row.residency is None:
        return ""
    found = state_there(row.residency)
    is_of_it = row.residency.generation == row.record.generation  # else it was looked at just before a change
    return "Progressing" if found == "Healthy" and not is_of_it else found


def state_there(one: pb.AdapterResidency) -> str:
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
            word = pb.RolloutReplica.State.Name(standing.state).lower()
            found[standing.wanted_reason or standing.reason or word] += standing.number
    return dict(sorted(found.items(), key=lambda one: (-one[1], one[0])))


def pool_state(states: Mapping[str, int], ready: int, staying: int, lacking: int) -> str:
    """``Degraded``, ``Progressing`` or ``Healthy``.

    Args:
        states: numbers of its adapters by their state.
        ready: so many of its replicas are.
        staying: so many live and do not drain.
        lacking: so many are expected and do not live.
    """
    if states.get("Degraded") or states.get("Halted") or lacking:
        return "Degraded"
    return "Progressing" if states.get("Progressing") or ready < staying else "Healthy"
