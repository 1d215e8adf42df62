"""Handing over: what this replica still serves although others are to, and whether they do. Pure.

An adapter is let go of only once everybody who is to serve it says so, of the same record and among the same live
replicas: whoever knows others may well count upon us. Where they cannot, it is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from registry.model.assignment import Selector
from registry.model.names import name_key
from registry.model.status import ReplicaStatus
from sidecar.placings import Among

# Said, without a name, of a replica that does nothing with its engine although it may look ready.
BLOCKED = "blocked"
# Said of what its replica has no room for.
OVER_CAPACITY = "over_capacity"


@dataclass(frozen=True, slots=True)
class Leaving:
    """An adapter that the engine lists and that others are to serve.

    Attributes:
        key: its name key.
        name: its name.
        revision: etcd's of its record.
        selector: the labels of those who are to serve it.
        owners: who is to serve it; None: whoever lives and has the labels.
        among: whom the owners were found among.
    """

    key: str
    name: str
    revision: int
    selector: Selector
    owners: tuple[str, ...] | None
    among: Among


@dataclass(frozen=True, slots=True)
class Taken:
    """Everybody who is to serve it does."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Somebody who is to serve it does not say so yet."""


@dataclass(frozen=True, slots=True)
class Stuck:
    """Somebody who is to serve it cannot, or there is nobody."""

    message: str


Verdict = Taken | Waiting | Stuck


def judge(
    leaving: Leaving, owners: tuple[str, ...], statuses: Mapping[str, ReplicaStatus], record_revision: int
) -> Verdict:
    """Whether an adapter may be let go of.

    Args:
        leaving: the adapter.
        owners: the live replicas that are to serve it.
        statuses: theirs, as far as there are any, read while the record stood at `record_revision` or before.
        record_revision: of the record now; 0: it is gone.
    """
    if not owners:
        return Stuck("no live replica has the labels that its placement selects")
    if record_revision != leaving.revision:
        return Waiting()  # what they say may be about another record
    verdicts = [_judge_one(leaving, owner, statuses.get(owner)) for owner in owners]
    stuck = [verdict for verdict in verdicts if isinstance(verdict, Stuck)]
    if stuck:
        return stuck[0]
    return Waiting() if Waiting() in verdicts else Taken()


def _judge_one(leaving: Leaving, owner: str, status: ReplicaStatus | None) -> Verdict:
    if status is None or not _speaks_of(leaving, status):
        return Waiting()
    failed = next((one for one in status.failed if name_key(one.name) == leaving.key), None)
    if failed is not None:
        return Stuck(f"{owner} is to serve it and cannot: {failed.reason}")
    pending = next((one for one in status.pending if name_key(one.name) == leaving.key), None)
    if pending is not None and pending.reason == OVER_CAPACITY:
        return Stuck(f"{owner} is to serve it and has no room")
    return Waiting() if pending is not None or status.omitted else Taken()


def _speaks_of(leaving: Leaving, status: ReplicaStatus) -> bool:
    """True if a status is the truth about the record, and its replica has the same share in mind for itself as we."""
    knows = status.observed_revision >= leaving.revision and not status.stale and bool(status.engine.incarnation)
    if not knows or any(one.reason == BLOCKED and not one.name for one in status.warnings):
        return False
    return leaving.owners is None or Among(status.members, status.weights) == leaving.among
