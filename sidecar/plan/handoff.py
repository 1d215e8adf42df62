"""Handoff of adapters to the replicas that are to serve them, once proven. Pure.

There is no scheduler. Each replica finds its own share from the records and the live replicas. One that finds that an
adapter in its engine is others' to serve goes on with it until they have taken it over: load comes before unload.

- An adapter is let go of only if the status of each owner proves that it serves it (R24), by the same function by
  which rollouts and residency judge a status (`registry.model.replica_state`, R9). Two proofs would differ one day.
- The proof is of the same record: the record's revision is read after the statuses. A replica that is ahead of us could
  otherwise speak of a record that we have not seen.
- For what is placed by number, the proof is of the same live replicas with the same room. An owner that knows of
  others may hold this replica to be the one that serves. Equal digests mean that the same pure function had the same
  arguments.
- Where owners found different files under one generation without a digest, none of them proves anything.
- A verdict counts only as long as the handoff is open: an owner that took over may be gone, and come back without it.
- What cannot be taken over is kept, and a warning says why (R24). A failure that will be tried again is waited for.
- What was taken over is kept a moment more, and told no more: requests are still on their way here.
- A deletion waits for nobody, and needs no handoff (R6).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from registry.model.names import matches
from registry.model.placement import Selector, canaries
from registry.model.replica_state import Expectation, ReplicaState, StatusReading, Verdict, compare_digests
from registry.model.replica_state import evaluate as evaluate_replica
from sidecar.desired.placement import MembershipDigest, PlacementSpec

# The reason why an adapter is pending for which its replica has no room.
OVER_CAPACITY = "over_capacity"


@dataclass(frozen=True, slots=True)
class Handoff:
    """An adapter that the engine lists and that others are to serve.

    Attributes:
        key: its name key.
        name: the name that the engine lists.
        revision: etcd's of its record.
        generation: of its record.
        pinned: its record has a digest.
        terms: on which replicas it is to be served, and which of them serve another generation.
        owners: the replicas that are to serve it, the best first; None: all live ones that have the labels.
        among: the live replicas that the owners were found among.
    """

    key: str
    name: str
    revision: int
    generation: int
    pinned: bool
    terms: PlacementSpec
    owners: tuple[str, ...] | None
    among: MembershipDigest


@dataclass(frozen=True, slots=True)
class Taken:
    """All replicas that are to serve it prove that they do.

    `routers_know` False: that is news, so it is told no more, and kept a moment for requests that are on their way.
    """

    routers_know: bool = True


@dataclass(frozen=True, slots=True)
class Waiting:
    """A replica that is to serve it does not prove it yet. `elsewhere`: another one that is to, does."""

    elsewhere: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Stuck:
    """A replica that is to serve it cannot, or there is none. `elsewhere`: as of `Waiting`."""

    message: str
    elsewhere: bool = field(default=False, compare=False)


HandoffVerdict = Taken | Waiting | Stuck


class Need(Enum):
    """Need for a replica that leaves; the value is the text for people.

    NOTHING: others serve all of it. TAKEOVER: others are about to. NOBODY: there is an adapter that no other can serve.
    """

    NOTHING = "nothing is needed here any more"
    TAKEOVER = "others do not serve yet what it serves"
    NOBODY = "no other replica can serve all that it serves"


def need_of_placed(leaving: Iterable[Handoff], verdicts: Mapping[Handoff, HandoffVerdict]) -> Need:
    """The need for what is handed over to certain replicas."""
    found = [verdicts.get(one, Waiting()) for one in leaving]
    if any(isinstance(one, Waiting) for one in found):
        return Need.TAKEOVER
    return Need.NOBODY if any(isinstance(one, Stuck) for one in found) else Need.NOTHING


@dataclass(frozen=True, slots=True)
class OtherReplica:
    """A live replica that does not leave: its labels, and whether its status says that it is ready."""

    labels: Mapping[str, str]
    ready: bool


def need_of_common(selectors: Collection[Selector], others: Collection[OtherReplica]) -> Need:
    """The need for what all replicas that match serve: of each selector another one has to be ready."""
    fitting = [[one for one in others if matches(dict(selector), one.labels)] for selector in selectors]
    if all(any(one.ready for one in some) for some in fitting):
        return Need.NOTHING
    return Need.TAKEOVER if all(fitting) else Need.NOBODY


def evaluate_handoff(
    leaving: Handoff, owners: tuple[str, ...], statuses: Mapping[str, StatusReading], record_revision: int
) -> HandoffVerdict:
    """The verdict on an adapter that others are to serve: may it be let go of?

    Args:
        leaving: the adapter.
        owners: the live replicas that are to serve it.
        statuses: theirs, as far as there are any, read while the record stood at `record_revision` or before.
        record_revision: of the record now; 0: it is gone.
    """
    if not owners:
        return Stuck("no live replica has the labels that its placement selects")
    if record_revision != leaving.revision:
        return Waiting()  # the statuses may be about another record
    verdicts = compare_digests(
        [evaluate_replica(statuses.get(owner), expected) for owner, expected in _expectations(leaving, owners)]
    )
    serving = [one.state is ReplicaState.SERVING for one in verdicts]
    for owner, verdict in zip(owners, verdicts, strict=True):
        if obstacle := _obstacle(verdict):
            return Stuck(f"{owner} is to serve it and {obstacle}", elsewhere=any(serving))
    return Taken() if all(serving) else Waiting(elsewhere=any(serving))


def _obstacle(verdict: Verdict) -> str:
    """The reason why a replica cannot serve it before something changes; or empty."""
    if verdict.state is ReplicaState.FAILED:
        return f"cannot: {verdict.reason}"
    return "has no room" if verdict.reason == OVER_CAPACITY else ""


def _expectations(leaving: Handoff, owners: tuple[str, ...]) -> Iterator[tuple[str, Expectation]]:
    """The expectation of each owner: its own generation, in the same pool as ours."""
    terms, is_for_all = leaving.terms, leaving.owners is None
    firsts = canaries(terms.canary, owners) if terms.canary else frozenset()
    for owner in owners:
        generation, pinned = leaving.generation, leaving.pinned
        if terms.stable is not None and owner not in firsts:
            generation, pinned = terms.stable.generation, terms.stable.ref.digest is not None
        yield (
            owner,
            Expectation(
                key=leaving.key,
                generation=generation,
                revision=leaving.revision,
                lazy=False,  # a lazy adapter is placed on all replicas, so it is never handed over
                pinned=pinned,
                members=None if is_for_all else leaving.among.members,
                weights=None if is_for_all else leaving.among.weights,
            ),
        )
