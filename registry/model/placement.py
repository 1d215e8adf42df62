"""Placement of adapters by rendezvous hashing, and canaries. Pure.

By rendezvous hashing: each replica has a score for each adapter, and the highest scores serve it. A replica that comes
or goes therefore changes nothing but its own share. Scores grow with the room that a replica has for adapters that are
placed by number (weighted rendezvous hashing, J. Schindelhauer and G. Schomaker, 2005).

Sidecars and the admin service both ask here, so that they find the same answer.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from registry.model.names import matches
from registry.model.records import AdapterSpec, Canary, Placement

# Of a replica that does not say how many adapters it can hold, and of one that has no room left.
UNKNOWN_CAPACITY = 100
LEAST_WEIGHT = 0.01
# Of a replica whose engine is away, and which says that it holds nothing: so little that all others come before it.
AWAY_WEIGHT = 2.0**-100
# Steps of weight to a doubling of room: a small change of room moves nothing, and makes nobody look at all shares anew.
_STEPS = 4
_SCALE = float(1 << 53)
_BELOW_ONE = math.nextafter(1.0, 0.0)
# A replica's score for an adapter with the sign turned, so that the best comes first, and its name.
Rank = tuple[float, str]


@dataclass(frozen=True, slots=True)
class Member:
    """A live replica: what its presence says. `capacity` None: it does not say; 0: its engine is away.

    `leaving`: it drains; nothing is placed on it, so no set of members that something is placed among holds it.
    """

    replica: str
    labels: Mapping[str, str]
    capacity: int | None = None
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """A live replica, with the room that it has for adapters that are placed by number."""

    member: Member
    weight: float


def members_digest(members: Iterable[Member]) -> str:
    """Equal for equal sets of live replicas; 32 hex digits."""
    lines = sorted(
        f"{one.replica}\0{sorted(one.labels.items())}\0{'' if one.capacity is None else one.capacity}\n"
        for one in members
    )
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:32]


def weights_digest(candidates: Iterable[Candidate]) -> str:
    """Equal where all replicas have the same weights; 32 hex digits."""
    lines = sorted(f"{one.member.replica}\0{one.weight!r}\n" for one in candidates)
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:32]


def candidate(member: Member, everywhere: int) -> Candidate:
    """`everywhere`: how many adapters the replica serves because all that match do; these leave less room."""
    if member.capacity == 0:
        return Candidate(member, AWAY_WEIGHT)
    capacity = UNKNOWN_CAPACITY if member.capacity is None else member.capacity
    return Candidate(member, _weight(capacity - everywhere))


def _weight(room: int) -> float:
    return LEAST_WEIGHT if room < 1 else 2.0 ** (round(_STEPS * math.log2(room)) / _STEPS)


def placed(pool: str, key: str, placement: Placement, candidates: Iterable[Candidate]) -> tuple[str, ...]:
    """The replicas that serve an adapter, the highest score first: fewer than it asks for where fewer match.

    Args:
        pool: of the adapter.
        key: its name key.
        placement: what its record asks for.
        candidates: all live replicas of the pool.
    """
    return tuple(replica for _, replica in best(ranks(pool, key, placement, candidates), placement))


def ranks(pool: str, key: str, placement: Placement, candidates: Iterable[Candidate]) -> Iterator[Rank]:
    """The ranks of the replicas that may serve an adapter, in no order."""
    salt = f"{pool}\0{key}\0"
    return (_rank(salt, one) for one in candidates if matches(placement.selector, one.member.labels))


def best(ranked: Iterable[Rank], placement: Placement) -> tuple[Rank, ...]:
    """Of some ranks those that serve, the best first."""
    return tuple(sorted(ranked))[: None if placement.replicas == "all" else placement.replicas]


def canaries(canary: Canary, serving: tuple[str, ...]) -> frozenset[str]:
    """Those of the replicas that serve an adapter, as `placed` orders them, that take a new version first."""
    return frozenset(serving[: canary_count(canary, len(serving))])


def canary_count(canary: Canary, serving: int) -> int:
    """How many of so many replicas are canaries: at least one, at most all."""
    if isinstance(canary.replicas, int):
        return min(canary.replicas, serving)
    return -(-int(canary.replicas.removesuffix("%")) * serving // 100)


def _rank(salt: str, one: Candidate) -> Rank:
    digest = hashlib.sha256((salt + one.member.replica).encode()).digest()
    # Within (0, 1), both ends left out, so that the logarithm is finite and not 0: the last number would be rounded up.
    clock = min(((int.from_bytes(digest[:8], "big") >> 11) + 0.5) / _SCALE, _BELOW_ONE)
    return one.weight / math.log(clock), one.member.replica


Selector = frozenset[tuple[str, str]]
# Where nothing is placed by number nobody looks at room: canaries then stay the same whatever else a pool serves.
_EVEN = 1.0


@dataclass(frozen=True, slots=True)
class Assignment:
    """The replicas that serve an adapter, the highest score first, and those of them that take new versions first."""

    serving: tuple[str, ...]
    canaries: frozenset[str]


def room_taken(spec: AdapterSpec) -> Selector | None:
    """The selector of an adapter that takes room on each replica that matches; None: lazy, or placed by number."""
    if spec.load == "lazy" or spec.placement.replicas != "all":
        return None
    return frozenset(spec.placement.selector.items())


def looks_at_room(spec: AdapterSpec) -> bool:
    """True if who serves the adapter depends on what else the pool serves."""
    return spec.placement.replicas != "all"


def assign(pool: str, key: str, spec: AdapterSpec, candidates: Iterable[Candidate]) -> Assignment:
    """The replicas that serve an adapter.

    Args:
        pool: of the adapter.
        key: its name key.
        spec: what its record asks for.
        candidates: all live replicas of the pool; with their room if the adapter is placed by number.
    """
    serving = placed(pool, key, spec.placement, candidates)
    return Assignment(serving, canaries(spec.strategy.canary, serving) if spec.strategy else frozenset())


def rate(members: Iterable[Member], everywhere: Mapping[Selector, int]) -> tuple[Candidate, ...]:
    """The replicas with the room that they have for what is placed by number.

    It is told by the least, so that nothing is new where the room of all of them changes alike.
    """
    rated = tuple(candidate(one, _on(one, everywhere)) for one in members)
    least = min((one.weight for one in rated), default=1.0)
    return tuple(Candidate(one.member, one.weight / least) for one in rated)


def rate_evenly(members: Iterable[Member]) -> tuple[Candidate, ...]:
    """The replicas for what is served by all that match."""
    return tuple(Candidate(one, _EVEN) for one in members)


def _on(member: Member, everywhere: Mapping[Selector, int]) -> int:
    return sum(count for selector, count in everywhere.items() if matches(dict(selector), member.labels))
