"""Placement of a pool's adapters on its live replicas, and their order. Pure.

Ranks are found once, and amended as records change and as replicas come and go.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from immutables import Map

from registry.model.expected_answers import Expect
from registry.model.names import name_of_key
from registry.model.placement import (
    Candidate,
    Member,
    Rank,
    Selector,
    best,
    heeded,
    members_digest,
    place,
    ranks,
    rate,
    rate_evenly,
    spec_now,
    takers,
    weights_digest,
)
from registry.model.records import AdapterRecord, AdapterSpec, Canary, Placement, Prepare
from sidecar.artifacts.types import ArtifactRef
from sidecar.vllm_plugin.protocol import ExpectedAnswers, PromptedAnswer, write_expected

OrderKey = tuple[int, str]  # -priority, name key
Order = tuple[OrderKey, ...]
# Above so many changes at once, sorting anew is cheaper than inserting one by one.
_SORT_ANEW = 64


def reorder(order: Order, gone: Collection[OrderKey], come: Collection[OrderKey]) -> Order:
    """The order without ranks that are in it, and with some that are not."""
    if not gone and not come:
        return order
    if len(gone) + len(come) > _SORT_ANEW:
        former = set(gone)
        return tuple(sorted([*(rank for rank in order if rank not in former), *come]))
    ranks = list(order)
    for rank in gone:
        del ranks[bisect_left(ranks, rank)]
    for rank in come:
        insort(ranks, rank)
    return tuple(ranks)


def is_in(order: Order, rank: OrderKey) -> bool:
    """True if the rank is in the order."""
    at = bisect_left(order, rank)
    return at < len(order) and order[at] == rank


@dataclass(frozen=True, slots=True)
class Stable:
    """The generation that those keep who are not canaries, and what it is made of."""

    generation: int
    ref: ArtifactRef


@dataclass(frozen=True, slots=True)
class PlacementSpec:
    """On which replicas an adapter is served, and which of them take its generation first.

    Attributes:
        placement: what the record asks for.
        selector: that of the placement, to be counted by.
        stable: while a rollout is on, what its other replicas serve; None: there is none.
        canary: who takes the new generation; None: nobody, where a rollout does not say.
        per_replica: requests that one replica is to have at once, where their number follows these; 0: it does not.
    """

    placement: Placement = field(hash=False)
    selector: Selector
    stable: Stable | None = None
    canary: Canary | None = field(default=None, hash=False)
    per_replica: int = 0

    @property
    def is_counted(self) -> bool:
        """True if it is served by a number of replicas, and not by all that match."""
        return self.placement.replicas != "all"

    @property
    def needs_members(self) -> bool:
        """True if only who knows all live replicas can tell what one of them serves."""
        return self.is_counted or self.stable is not None

    def declinable(self, generation: int) -> int:
        """The generation that replicas may decline, of a record of this one; as in `registry.model.placement`."""
        return generation if self.stable is None else self.stable.generation


@dataclass(frozen=True, slots=True)
class Tally:
    """Demand of a pool's eager adapters on its replicas, in numbers.

    Attributes:
        everywhere: how many take room on each replica that has the labels of a selector.
        with_terms: how many are not simply served by all.
        by_members: how many need to know the live replicas.
    """

    everywhere: Map[Selector, int] = field(default_factory=Map)
    with_terms: int = 0
    by_members: int = 0

    def after(self, gone: Iterable[PlacementSpec | None], come: Iterable[PlacementSpec | None]) -> Tally:
        """The tally once the adapters with some terms are gone and others have come."""
        change: Counter[Selector] = Counter()
        with_terms, by_members = self.with_terms, self.by_members
        for sign, many in ((-1, gone), (1, come)):
            for terms in many:
                with_terms += sign * (terms is not None)
                by_members += sign * (terms is not None and terms.needs_members)
                if terms is None or not terms.is_counted:
                    change[_selector(terms)] += sign
        return Tally(_added(self.everywhere, change), with_terms, by_members)


NO_TALLY = Tally()


def _selector(terms: PlacementSpec | None) -> Selector:
    return frozenset() if terms is None else terms.selector


def _added(counts: Map[Selector, int], change: Counter[Selector]) -> Map[Selector, int]:
    """The same map where nothing changes, so that it can be told at a glance."""
    for selector, number in change.items():
        left = counts.get(selector, 0) + number
        if left and number:
            counts = counts.set(selector, left)
        elif number:
            counts = counts.delete(selector)
    return counts


def placement_spec_of(pool: str, key: str, record: AdapterRecord) -> PlacementSpec | None:
    """A record's terms; None: it is served by all replicas alike. `key` is its name key."""
    placement, rollout = spec_now(record).placement, record.rollout
    if rollout is None and placement.replicas == "all" and not placement.selector:
        return None
    per_replica = placement.by_load.per_replica if placement.by_load else 0
    terms = _shared(placement.replicas, frozenset(placement.selector.items()), per_replica)
    if rollout is None:
        return terms
    strategy, stable = record.spec.strategy, rollout.stable_spec
    ref = ref_of(pool, key, rollout.stable_generation, stable)
    return replace(terms, stable=Stable(rollout.stable_generation, ref), canary=strategy.canary if strategy else None)


@lru_cache(maxsize=1024)
def _shared(replicas: object, selector: Selector, per_replica: int) -> PlacementSpec:
    """Very many adapters are placed alike: one object will do for all of them."""
    placement = Placement.model_validate({"replicas": replicas, "selector": dict(sorted(selector))})
    return PlacementSpec(placement, selector, per_replica=per_replica)


def ref_of(pool: str, key: str, generation: int, spec: AdapterSpec) -> ArtifactRef:
    """Reference to the source of a spec's weights."""
    digest = spec.source.digest
    return ArtifactRef(
        uri=spec.source.uri,
        digest=digest,
        prepare=_text_of(spec.prepare),
        credentials=spec.credentials,
        pin_key="" if digest else f"{pool}/{key}@{generation}",
        base_model=spec.base_model,
        signature=spec.source.signature,
        expect=_expected(spec.expect) if spec.expect else "",
        name=name_of_key(key),
    )


def _expected(expect: Expect) -> str:
    answers = [PromptedAnswer(tuple(one.prompt), tuple(one.tokens), tuple(one.logprobs)) for one in expect.answers]
    return write_expected(ExpectedAnswers(tuple(answers), expect.tolerance))


def _text_of(prepare: Prepare) -> str:
    is_usual = not prepare.model_extra and not prepare.drop
    return _usual_text(prepare.remap, prepare.vision, prepare.dora) if is_usual else prepare.model_dump_json()


@lru_cache(maxsize=64)
def _usual_text(remap: str, vision: str, dora: str) -> str:
    """Nearly all adapters are prepared alike: one string will do for all of them."""
    return Prepare.model_validate({"remap": remap, "vision": vision, "dora": dora}).model_dump_json()


Members = Mapping[str, Member]
Ranks = tuple[Rank, ...]


@dataclass(frozen=True, slots=True)
class MembershipDigest:
    """The live replicas that a share was found among, as digests; empty: nobody had to look at them."""

    members: str = ""
    weights: str = ""


NOBODY = MembershipDigest()


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


class PlacementCache:
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
        living = heeded(members.values())
        rated = rate(living, everywhere)
        self._weighted = self._weighted.after(rated)
        self._even = self._even.after(rate_evenly(living))
        self.among = MembershipDigest(members_digest(living), weights_digest(rated))
        return any(field.gone or field.come for field in (self._weighted, self._even))

    def place(self, key: str, terms: PlacementSpec, generation: int) -> Ranks:
        """Replicas that serve an adapter of this generation, the best first."""
        candidates = self._field(terms).candidates.values()
        return place(self._pool, key, terms.placement, terms.declinable(generation), candidates)

    def place_again(self, key: str, terms: PlacementSpec, generation: int, before: Ranks) -> Ranks:
        """The same, from who served it before the last `meet` that made a difference; `before` itself if it is so."""
        field, declinable = self._field(terms), terms.declinable(generation)
        if any(replica in field.gone for _, replica in before) or not self._is_taken(key, terms, declinable, before):
            now = self.place(key, terms, generation)
        else:
            come = takers(key, terms.placement, declinable, field.come)
            now = best([*before, *ranks(self._pool, key, terms.placement, come)], terms.placement)
        return before if now == before else now

    def _is_taken(self, key: str, terms: PlacementSpec, declinable: int, before: Ranks) -> bool:
        """True if somebody served it who does not decline it, so that nobody serves it who does."""
        first = [self._field(terms).candidates[replica] for _, replica in before[:1]]
        return bool(takers(key, terms.placement, declinable, first))

    def _field(self, terms: PlacementSpec) -> _Field:
        return self._weighted if terms.is_counted else self._even
