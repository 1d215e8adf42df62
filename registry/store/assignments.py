"""Who serves adapters that not all replicas serve, remembered: to rank a hundred replicas for each takes long. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from registry.model.assignment import Assignment, Selector, rate, rate_evenly
from registry.model.placement import Candidate, Member, canaries, placed, weights_digest
from registry.model.records import AdapterSpec

# More than this is forgotten at once, and found again.
_REMEMBERED = 200_000
_RATED_REMEMBERED = 200


@dataclass(frozen=True, slots=True)
class Room:
    """How many adapters take room on all replicas that match a selector. `number` tells it from others of its pool."""

    number: int
    everywhere: Mapping[Selector, int]


@dataclass(frozen=True, slots=True)
class Reckoning:
    """What a share is found from: the digests of the live replicas and of their weights, which tell reckonings apart.

    `weights` None: the room that replicas have does not matter.
    """

    members: str
    weights: str | None
    candidates: tuple[Candidate, ...] = field(compare=False)


class Assignments:
    """The assignments of one pool's adapters. What is remembered changes no answer."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int, str, str | None], Assignment] = {}
        self._rated: dict[tuple[str, int | None], Reckoning] = {}

    def reckoning(self, digest: str, members: Sequence[Member], room: Room | None) -> Reckoning:
        """By which replicas find their share.

        Args:
            digest: of the live replicas.
            members: the live replicas.
            room: what of their room is taken; None: of what all that match serve, where room does not matter.
        """
        by = digest, room.number if room else None
        found = self._rated.get(by)
        if found is None:
            if len(self._rated) >= _RATED_REMEMBERED:
                self._rated.clear()
            found = self._rated[by] = _reckoning(digest, members, room)
        return found

    def find(self, pool: str, record: tuple[str, int], spec: AdapterSpec, by: Reckoning) -> Assignment:
        """Who serves an adapter.

        Args:
            pool: of the adapter; the same for each.
            record: its name key, and etcd's revision of it.
            spec: what it asks for.
            by: whom to choose among.
        """
        asked = (*record, by.members, by.weights)
        found = self._found.get(asked)
        if found is None:
            if len(self._found) >= _REMEMBERED:
                self._found.clear()
            serving = placed(pool, record[0], spec.placement, by.candidates)
            found = Assignment(serving, canaries(spec.strategy.canary, serving) if spec.strategy else frozenset())
            self._found[asked] = found
        return found


def _reckoning(digest: str, members: Sequence[Member], room: Room | None) -> Reckoning:
    if room is None:
        return Reckoning(digest, None, rate_evenly(members))
    rated = rate(members, room.everywhere)
    return Reckoning(digest, weights_digest(rated), rated)
