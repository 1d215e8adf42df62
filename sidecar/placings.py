"""Who serves what depends on who is alive: found once, and amended as replicas come and go. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from registry.model.assignment import Selector, rate, rate_evenly
from registry.model.placement import Candidate, Member, Rank, best, members_digest, ranks, weights_digest
from sidecar.terms import Terms

Members = Mapping[str, Member]
Ranks = tuple[Rank, ...]


@dataclass(frozen=True, slots=True)
class Among:
    """The live replicas that a share was found among, as digests; empty: nobody had to look at them."""

    members: str = ""
    weights: str = ""


NOBODY = Among()


@dataclass(frozen=True, slots=True)
class _Field:
    """The replicas that compete, by name, and what of them differs from the time before."""

    candidates: Mapping[str, Candidate]
    gone: frozenset[str] = frozenset()
    come: tuple[Candidate, ...] = ()

    def after(self, rated: Iterable[Candidate]) -> _Field:
        now, before = {one.member.replica: one for one in rated}, self.candidates
        gone = frozenset(name for name, one in before.items() if now.get(name) != one)
        return _Field(now, gone, tuple(one for name, one in now.items() if before.get(name) != one))


class Placings:
    """Places the adapters of one pool on its live replicas.

    Attributes:
        among: whom.
    """

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._members: Members = {}
        self._everywhere: Mapping[Selector, int] = {}
        self._weighted = self._even = _Field({})
        self.among = NOBODY

    def meet(self, members: Members, everywhere: Mapping[Selector, int]) -> bool:
        """Takes in who lives, and how many adapters take room by each selector; True if that makes a difference."""
        if members is self._members and everywhere is self._everywhere:
            return False
        self._members, self._everywhere = members, everywhere
        rated = rate(members.values(), everywhere)
        self._weighted = self._weighted.after(rated)
        self._even = self._even.after(rate_evenly(members.values()))
        self.among = Among(members_digest(members.values()), weights_digest(rated))
        return any(field.gone or field.come for field in (self._weighted, self._even))

    def place(self, key: str, terms: Terms) -> Ranks:
        """Who serves an adapter, the best first."""
        return best(ranks(self._pool, key, terms.placement, self._field(terms).candidates.values()), terms.placement)

    def place_again(self, key: str, terms: Terms, before: Ranks) -> Ranks:
        """The same, from who served it before the last `meet` that made a difference; `before` itself if it is so."""
        field = self._field(terms)
        if any(replica in field.gone for _, replica in before):
            return self.place(key, terms)
        now = best([*before, *ranks(self._pool, key, terms.placement, field.come)], terms.placement)
        return before if now == before else now

    def _field(self, terms: Terms) -> _Field:
        return self._weighted if terms.is_counted else self._even
