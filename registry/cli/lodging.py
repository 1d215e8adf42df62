"""Where adapters are, as people read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from registry.cli.client import Client
from registry.cli.output import View
from registry.cli.replica_view import cell
from registry.cli.wire import Plain
from registry.v1 import registry_pb2 as pb

TITLES = ("REPLICA", "MODEL", "GENERATION", "STATE", "REASON", "LOADED", "LAST USED", "ENGINE")

# The reason of who serves an adapter only until others do.
_LEAVING = "leaving"


@dataclass(frozen=True, slots=True)
class Lodging:
    """Where an adapter of a pool is."""

    pool: str
    residency: pb.AdapterResidency


def lodgings(client: Client, pool: str, name: str) -> list[Lodging]:
    """Where a pool's adapters are; `name` empty: all of them.

    Raises:
        CliError: there is no such pool or adapter, or the admin service does not answer.
    """
    return [Lodging(pool, one) for one in client.residency(pool, name)]


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
    }


def rows(one: pb.AdapterResidency) -> list[Sequence[str]]:
    """A row for each replica, below `TITLES`."""
    return [
        (
            part.replica,
            part.model,
            str(part.generation),
            _state(part),
            cell(part.reason),
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


def _where(one: pb.AdapterResidency) -> str:
    """E.g. ``r1, r2@4, r3 pending: staging``: only what is not as it should be is spelled out."""
    return cell([_place(part, one.generation) for part in one.replicas])


def _place(part: pb.Residence, generation: int) -> str:
    place = part.replica if part.generation == generation else f"{part.replica}@{part.generation}"
    if part.state != pb.RolloutReplica.SERVING:
        return f"{place} {_state(part)}: {part.reason}"
    if part.reason == _LEAVING:
        return f"{place} {_LEAVING}"
    return f"{place} used {part.last_used}" if part.last_used else place


def _state(part: pb.Residence) -> str:
    return pb.RolloutReplica.State.Name(part.state).lower()


LODGINGS: View[Lodging] = View(
    name=lambda one: one.residency.name,
    plain=lambda one: {"pool": one.pool, **residency_dict(one.residency)},
    columns={
        "NAME": lambda one: one.residency.name,
        "POOL": lambda one: one.pool,
        "GENERATION": lambda one: str(one.residency.generation),
        "LOAD": lambda one: one.residency.load,
        "SERVING": lambda one: _serving(one.residency),
        "REPLICAS": lambda one: _where(one.residency),
        "NOTE": lambda one: cell(one.residency.note),
    },
)
