"""Who serves adapters that not all replicas serve, remembered: to rank a hundred replicas for each takes long. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from registry.model.assignment import Assignment, Selector, looks_at_room, rate, rate_evenly
from registry.model.placement import Candidate, Member, canaries, placed
from registry.model.records import AdapterSpec

# More than this is forgotten at once, and found again.
_REMEMBERED = 200_000
Reckoning = tuple[str, int]  # the digest of the live replicas, and the number of what takes their room
_ANY_ROOM = -1


class Assignments:
    """The assignments of one pool's adapters. What is remembered changes no answer."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int, Reckoning], Assignment] = {}
        self._rated: dict[Reckoning, tuple[Candidate, ...]] = {}

    def find(
        self,
        pool: str,
        record: tuple[str, int],
        spec: AdapterSpec,
        reckoning: Reckoning,
        members: Sequence[Member],
        everywhere: Mapping[Selector, int],
    ) -> Assignment:
        """Who serves an adapter.

        Args:
            pool: of the adapter; the same for each.
            record: its name key, and etcd's revision of it.
            spec: what it asks for.
            reckoning: names `members` and `everywhere`.
            members: all live replicas.
            everywhere: see `registry.model.assignment.assign`.
        """
        is_weighted = looks_at_room(spec)
        by = reckoning if is_weighted else (reckoning[0], _ANY_ROOM)
        found = self._found.get((*record, by))
        if found is None:
            if len(self._found) >= _REMEMBERED:
                self._found.clear()
            serving = placed(pool, record[0], spec.placement, self._candidates(by, members, everywhere))
            found = Assignment(serving, canaries(spec.strategy.canary, serving) if spec.strategy else frozenset())
            self._found[*record, by] = found
        return found

    def _candidates(
        self, by: Reckoning, members: Sequence[Member], everywhere: Mapping[Selector, int]
    ) -> tuple[Candidate, ...]:
        rated = self._rated.get(by)
        if rated is None:
            if len(self._rated) >= _REMEMBERED // 1000:
                self._rated.clear()
            rated = rate_evenly(members) if by[1] == _ANY_ROOM else rate(members, everywhere)
            self._rated[by] = rated
        return rated
