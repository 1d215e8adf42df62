"""What a replica says of itself, read leniently: a sidecar of another release may say more or less. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from registry.cli.wire import Plain
from registry.v1 import registry_pb2 as pb


def cell(value: object) -> str:
    """A value as people read it; "-" is nothing."""
    match value:
        case None | "" | []:
            return "-"
        case bool():
            return "yes" if value else "no"
        case list():
            return ", ".join(map(str, value))
        case _:
            return str(value)


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """A replica and its status; `status` is empty while it has not reported or cannot be read."""

    name: str
    pool: str
    labels: dict[str, str]
    incarnation: str
    started_at: str
    status: Plain

    def text(self, *path: str) -> str:
        """The value at `path` of the status as text; "-" where there is none."""
        value: object = self.status
        for part in path:
            value = value.get(part) if isinstance(value, dict) else None
        return cell(value)

    def items(self, key: str) -> list[Plain]:
        """The entries of a list of the status, e.g. of ``failed``."""
        found = self.status.get(key)
        return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []

    def resident(self) -> list[Plain]:
        """Lazy adapters that it has loaded since they were asked for: name, generation, last use."""
        lazy = self.status.get("lazy")
        found = lazy.get("resident") if isinstance(lazy, dict) else None
        return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []

    def as_dict(self) -> Plain:
        return {
            "name": self.name,
            "pool": self.pool,
            "labels": self.labels,
            "incarnation": self.incarnation,
            "started_at": self.started_at,
            "status": self.status or None,
        }


@dataclass(frozen=True, slots=True)
class Disagreement:
    """An adapter of which replicas found different files under one generation: digest to the replicas that have it."""

    name: str
    generation: str
    digests: dict[str, list[str]]

    def line(self) -> str:
        """The disagreement in one line, with the remedy."""
        found = "; ".join(f"{digest} on {', '.join(replicas)}" for digest, replicas in sorted(self.digests.items()))
        return (
            f"error: digests_differ: {self.name} generation {self.generation}: {found}; apply the digest that is meant"
        )

    def as_dict(self) -> Plain:
        return {"name": self.name, "generation": self.generation, "digests": self.digests}


def disagreements(replicas: Sequence[ReplicaView]) -> list[Disagreement]:
    """What the replicas of a pool do not agree about."""
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for replica in replicas:
        for one in replica.items("found"):
            key = (str(one.get("name")), str(one.get("generation")))
            found.setdefault(key, {}).setdefault(str(one.get("digest")), []).append(replica.name)
    return [Disagreement(*key, digests) for key, digests in sorted(found.items()) if len(digests) > 1]


def replica_view(replica: pb.Replica) -> ReplicaView:
    """A replica's message as it is shown."""
    return ReplicaView(
        replica.name,
        replica.pool,
        dict(sorted(replica.labels.items())),
        replica.incarnation,
        replica.started_at,
        _status(replica.status_json),
    )


def _status(text: str) -> Plain:
    try:
        status = json.loads(text) if text else {}
    except ValueError:
        return {"note": "its status is not JSON"}
    return status if isinstance(status, dict) else {"note": "its status is not a JSON object"}
