"""Where an adapter's record wants it, if that is not everywhere, and what of it decides about its weights. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache

from immutables import Map

from registry.model.assignment import Selector
from registry.model.records import AdapterRecord, AdapterSpec, Canary, Placement, Prepare
from sidecar.artifacts.types import ArtifactRef


@dataclass(frozen=True, slots=True)
class Stable:
    """The generation that those keep who are not canaries, and what it is made of."""

    generation: int
    ref: ArtifactRef


@dataclass(frozen=True, slots=True)
class Terms:
    """On which replicas an adapter is served, and which of them take its generation first.

    Attributes:
        placement: what the record asks for.
        selector: that of the placement, to be counted by.
        stable: while a rollout is on, what its other replicas serve; None: there is none.
        canary: who takes the new generation; None: nobody, where a rollout does not say.
    """

    placement: Placement = field(hash=False)
    selector: Selector
    stable: Stable | None = None
    canary: Canary | None = field(default=None, hash=False)

    @property
    def is_counted(self) -> bool:
        """True if it is served by a number of replicas, and not by all that match."""
        return self.placement.replicas != "all"

    @property
    def needs_members(self) -> bool:
        """True if only who knows all live replicas can tell what one of them serves."""
        return self.is_counted or self.stable is not None


@dataclass(frozen=True, slots=True)
class Tally:
    """What the eager adapters of a pool ask of its replicas, in numbers.

    Attributes:
        everywhere: how many take room on each replica that has the labels of a selector.
        with_terms: how many are not simply served by all.
        by_members: how many need to know the live replicas.
    """

    everywhere: Map[Selector, int] = field(default_factory=Map)
    with_terms: int = 0
    by_members: int = 0

    def after(self, gone: Iterable[Terms | None], come: Iterable[Terms | None]) -> Tally:
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


def _selector(terms: Terms | None) -> Selector:
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


def terms_of(pool: str, key: str, record: AdapterRecord) -> Terms | None:
    """A record's terms; None: it is served by all replicas alike. `key` is its name key."""
    placement, rollout = record.spec.placement, record.rollout
    if rollout is None and placement.replicas == "all" and not placement.selector:
        return None
    terms = _shared(placement.replicas, frozenset(placement.selector.items()))
    if rollout is None:
        return terms
    strategy, stable = record.spec.strategy, rollout.stable_spec
    ref = ref_of(pool, key, rollout.stable_generation, stable)
    return replace(terms, stable=Stable(rollout.stable_generation, ref), canary=strategy.canary if strategy else None)


@lru_cache(maxsize=1024)
def _shared(replicas: object, selector: Selector) -> Terms:
    """Very many adapters are placed alike: one object will do for all of them."""
    return Terms(Placement.model_validate({"replicas": replicas, "selector": dict(sorted(selector))}), selector)


def ref_of(pool: str, key: str, generation: int, spec: AdapterSpec) -> ArtifactRef:
    """What a spec's weights are made of."""
    digest = spec.source.digest
    return ArtifactRef(
        uri=spec.source.uri,
        digest=digest,
        prepare=_text_of(spec.prepare),
        credentials=spec.credentials,
        pin_key="" if digest else f"{pool}/{key}@{generation}",
        base_model=spec.base_model,
        signature=spec.source.signature,
    )


def _text_of(prepare: Prepare) -> str:
    return prepare.model_dump_json() if prepare.model_extra else _text_of_fields(tuple(prepare.__dict__.items()))


@lru_cache(maxsize=64)
def _text_of_fields(fields: tuple[tuple[str, str], ...]) -> str:
    """Nearly all adapters are prepared alike: one string will do for all of them."""
    return Prepare.model_validate(dict(fields)).model_dump_json()
