"""Who serves an adapter, and who of them its canaries are, from its spec and the live replicas. Pure.

Sidecars and the admin service both ask here, so that they find the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from registry.model.placement import Candidate, Member, canaries, candidate, matches, placed
from registry.model.records import AdapterSpec

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


def assign(
    pool: str, key: str, spec: AdapterSpec, members: Iterable[Member], everywhere: Mapping[Selector, int]
) -> Assignment:
    """Who serves an adapter.

    Args:
        pool: of the adapter.
        key: its name key.
        spec: what its record asks for.
        members: all live replicas of the pool.
        everywhere: how many adapters of the pool take room by each selector (`room_taken`); where the adapter is not
            placed by number it is not looked at.
    """
    rated = rate(members, everywhere) if looks_at_room(spec) else rate_evenly(members)
    serving = placed(pool, key, spec.placement, rated)
    return Assignment(serving, canaries(spec.strategy.canary, serving) if spec.strategy else frozenset())


def rate(members: Iterable[Member], everywhere: Mapping[Selector, int]) -> tuple[Candidate, ...]:
    """The replicas with the room that they have for what is placed by number."""
    return tuple(candidate(one, _on(one, everywhere)) for one in members)


def rate_evenly(members: Iterable[Member]) -> tuple[Candidate, ...]:
    """The replicas for what is served by all that match."""
    return tuple(Candidate(one, _EVEN) for one in members)


def _on(member: Member, everywhere: Mapping[Selector, int]) -> int:
    return sum(count for selector, count in everywhere.items() if matches(dict(selector), member.labels))
