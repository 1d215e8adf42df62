"""Residency of adapters as table rows and plain values. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from registry.cli.client import AdminClient
from registry.cli.views.output import OutputView
from registry.cli.views.replica_view import cell
from registry.model.messages import Plain
from registry.v1 import registry_pb2 as pb

TITLES = ("REPLICA", "MODEL", "GENERATION", "STATE", "REASON", "LOADED", "LAST USED", "ENGINE")

# The reason of who serves an adapter only until others do.
_LEAVING = "leaving"


@dataclass(frozen=True, slots=True)
class ResidencyRow:
    """Where an adapter of a pool is."""

    pool: str
    residency: pb.AdapterResidency


def residency_rows(client: AdminClient, pool: str, name: str) -> list[ResidencyRow]:
    """Where a pool's adapters are; `name` empty: all of them.

    Raises:
        CliError: there is no such pool or adapter, or the admin service does not answer.
    """
    return [ResidencyRow(pool, one) for one in client.residency(pool, name)]


def residency_dict(one: pb.AdapterResidency) -> Plain:
    """Where an adapter is, for programs; as ``/v1/residency`` has it."""
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
        "state": _state(part),
        "reason": part.reason,
        "loaded": part.loaded,
        "last_used": part.last_used,
        "wanted": _wanted_dict(part) if part.wanted_state else None,
    }


def _wanted_dict(part: pb.Residence) -> Plain:
    return {
        "generation": part.wanted_generation,
        "state": _name(part.wanted_state),
        "reason": part.wanted_reason,
    }


def rows(one: pb.AdapterResidency) -> list[Sequence[str]]:
    """A row for each replica, below `TITLES`."""
    return [
        (
            part.replica,
            part.model,
            str(part.generation or "?"),
            _state(part),
            _wanted_told(part) or cell(part.reason),
            cell(part.loaded),
            cell(part.last_used),
            cell(part.engine_url),
        )
        for part in one.replicas
    ]


def _serving(one: pb.AdapterResidency) -> str:
    """Of those that are to serve it."""
    states = [part.state for part in one.replicas if part.reason != _LEAVING]
    return f"{states.count(pb.RolloutReplica.SERVING)} of {len(states)}"


def _whole_state(one: pb.AdapterResidency) -> str:
    """``Healthy``, ``Degraded`` where some replica failed, ``Progressing`` where some are still to serve it."""
    parts = [part for part in one.replicas if part.reason != _LEAVING]
    if any(pb.RolloutReplica.FAILED in {part.state, part.wanted_state} for part in parts):
        return "Degraded"
    is_served = all(part.state == pb.RolloutReplica.SERVING and not part.wanted_state for part in parts)
    return "Healthy" if parts and is_served else "Progressing"


def _reasons(one: pb.AdapterResidency) -> str:
    """Why replicas do not serve what they are to serve, each reason once: ``8 x over_capacity``."""
    serving = pb.RolloutReplica.SERVING
    parts = [part for part in one.replicas if part.wanted_state or part.state != serving]
    reasons = Counter(part.wanted_reason or part.reason or _state(part) for part in parts)
    return ", ".join(f"{count} x {reason}" for reason, count in reasons.most_common())


def _where(one: pb.AdapterResidency) -> str:
    """E.g. ``r1, r2@4, r3 pending: staging``: only what is not as it should be is spelled out."""
    return cell([_place(part, one.generation) for part in one.replicas])


def _place(part: pb.Residence, generation: int) -> str:
    place = part.replica if part.generation == generation else f"{part.replica}@{part.generation or '?'}"
    if part.wanted_state:
        return f"{place} ({_wanted_told(part)})"
    if part.state != pb.RolloutReplica.SERVING:
        return f"{place} {_state(part)}: {part.reason}"
    if part.reason == _LEAVING:
        return f"{place} {_LEAVING}"
    return f"{place} used {part.last_used}" if part.last_used else place


def _wanted_told(part: pb.Residence) -> str:
    """How a replica stands to what it is to serve, where it serves something else; or empty."""
    if not part.wanted_state:
        return ""
    return f"generation {part.wanted_generation} {_name(part.wanted_state)}: {part.wanted_reason}"


def _state(part: pb.Residence) -> str:
    return _name(part.state)


def _name(state: pb.RolloutReplica.State) -> str:
    return pb.RolloutReplica.State.Name(state).lower()


RESIDENCY: OutputView[ResidencyRow] = OutputView(
    name=lambda one: one.residency.name,
    plain=lambda one: {"pool": one.pool, **residency_dict(one.residency)},
    columns={
        "NAME": lambda one: one.residency.name,
        "POOL": lambda one: one.pool,
        "GENERATION": lambda one: str(one.residency.generation),
        "LOAD": lambda one: one.residency.load,
        "STATE": lambda one: _whole_state(one.residency),
        "SERVING": lambda one: _serving(one.residency),
        "REASONS": lambda one: cell(_reasons(one.residency)),
        "REPLICAS": lambda one: _where(one.residency),
        "NOTE": lambda one: cell(one.residency.note),
    },
)
