"""Numbers of adapters and replicas, the one count behind every view. Pure.

The admin service derives residency, and counts it in two ways: for each adapter how many replicas stand to it how, and
for each replica how many adapters. Both are the same parts, each of which is counted once here: as served well, as
pending, as failed or as unknown. So a number of one view cannot differ from that of another.

- A part is of the generation that a replica is to serve. Where it answers with another one meanwhile, it is served,
  too, and among those that are `behind`.
- Who serves an adapter only until others do (`LEAVING`) is not among those that are to serve it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from registry.model.messages import Plain
from registry.model.replica_reasons import LEAVING
from registry.v1 import registry_pb2 as pb

_SERVING = pb.RolloutReplica.SERVING


@dataclass(frozen=True, slots=True)
class PartStanding:
    """So many parts that stand alike; `wanted_state` 0: what is served is what is to be."""

    number: int
    state: pb.RolloutReplica.State
    reason: str = ""
    wanted_state: pb.RolloutReplica.State = pb.RolloutReplica.STATE_UNSPECIFIED
    wanted_reason: str = ""

    @property
    def is_staying(self) -> bool:
        """True if it is to be served there from now on, too."""
        return self.reason != LEAVING

    @property
    def outcome(self) -> pb.RolloutReplica.State:
        """State of what is to be served."""
        return self.wanted_state or self.state


@dataclass(frozen=True, slots=True)
class StandingCounts:
    """Numbers of parts: `wanted` are all, and each is well served, pending, failed or unknown.

    Attributes:
        serving: so many are answered, of whichever generation.
        behind: so many of these with another generation than they are to be.
        loaded: so many are loaded in an engine now; 0 where that is not counted.
    """

    wanted: int
    serving: int
    behind: int
    pending: int
    failed: int
    unknown: int
    loaded: int = 0

    @property
    def share(self) -> str:
        """E.g. ``12/13``, or ``13/13 (1 not as desired)``."""
        return f"{self.serving}/{self.wanted}" + (f" ({self.behind} not as desired)" if self.behind else "")

    def as_dict(self) -> Plain:
        """The same for programs."""
        return asdict(self)


def standing_of(count: pb.ResidenceCount | pb.AdapterCount) -> PartStanding:
    """A count of the admin service."""
    number = count.replicas if isinstance(count, pb.ResidenceCount) else count.adapters
    return PartStanding(number, count.state, count.reason, count.wanted_state, count.wanted_reason)


def standing_of_part(part: pb.Residence) -> PartStanding:
    """One part."""
    return PartStanding(1, part.state, part.reason, part.wanted_state, part.wanted_reason)


def counts_of(standings: Iterable[PartStanding], loaded: int = 0) -> StandingCounts:
    """The numbers of some parts."""
    staying = [one for one in standings if one.is_staying]
    by_outcome = Counter[int]()
    for one in staying:
        by_outcome[one.outcome] += one.number
    serving = sum(one.number for one in staying if one.state == _SERVING)
    behind = sum(one.number for one in staying if one.state == _SERVING and one.wanted_state)
    wanted = sum(by_outcome.values())
    pending, failed = by_outcome[pb.RolloutReplica.PENDING], by_outcome[pb.RolloutReplica.FAILED]
    # A state that only a newer admin service knows is none that this program does.
    unknown = wanted - by_outcome[_SERVING] - pending - failed
    return StandingCounts(wanted, serving, behind, pending, failed, unknown, loaded)


def counts_by_replica(responses: Iterable[pb.WatchResidencyResponse]) -> dict[str, StandingCounts]:
    """The numbers of each replica; of an admin service that does not count by replica, from the parts that it tells."""
    found: dict[str, list[PartStanding]] = {}
    loaded = Counter[str]()
    for response in responses:
        for one in response.replicas:
            found[one.replica] = list(map(standing_of, one.counts))
            loaded[one.replica] = one.loaded
        for part in (part for adapter in response.adapters for part in adapter.replicas):
            found.setdefault(part.replica, []).append(standing_of_part(part))
            loaded[part.replica] += part.loaded
    return {name: counts_of(standings, loaded[name]) for name, standings in found.items()}


NOTHING_STANDS = counts_of(())
