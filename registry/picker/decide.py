"""The one decision of the picker: an endpoint for a request, or a refusal. Pure.

The invariant: a request for a name goes to an engine that serves that very name, or nowhere. An engine that lacks an
adapter would answer with an error at best, and a router that falls back would answer with the base model (guarantee
R5); so a name that nobody serves is 404, also where its adapter exists.

Among those that serve it, a generation is chosen first, by its share of the replicas: so a canary gets the share that
its strategy says, also where it is slower. Of that generation the least loaded one is taken. Of a lazy adapter those
that have it loaded go before those that would have to; and where none has, all pickers choose the same one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from registry.client.residency import AdapterResidency
from registry.picker.served import PickEndpoint, PickPool

MODEL_NOT_FOUND, NOT_SERVED_YET, NO_ENDPOINT, NOT_KNOWN = (
    "model_not_found",
    "not_served_yet",
    "no_endpoint",
    "registry_not_known",
)


@dataclass(frozen=True, slots=True)
class PickRequest:
    """A request as far as the decision goes.

    Attributes:
        model: that it asks for; None: it has no body, and any ready engine may answer.
        subset: the addresses that the gateway allows; None: it does not say.
        least_revision: what was published up to it must be in the answer; 0: whatever is served.
    """

    model: str | None
    subset: frozenset[str] | None = None
    least_revision: int = 0


@dataclass(frozen=True, slots=True)
class Chosen:
    """An engine for a request.

    Attributes:
        endpoint: it.
        pool: its pool.
        model: what to ask it for, where that is something else; empty: what is asked for.
        candidates: the endpoints that might have been chosen, it included.
    """

    endpoint: PickEndpoint
    pool: str
    model: str = ""
    candidates: tuple[PickEndpoint, ...] = ()


@dataclass(frozen=True, slots=True)
class Denied:
    """A refusal as OpenAI's API tells it.

    Attributes:
        status: of HTTP.
        code: see `docs/picker.md`.
        message: for people.
        retry_seconds: after which to repeat it; 0: to repeat it does not help.
        is_behind: the registry is not known up to the revision that is asked for: soon it may be another answer.
    """

    status: int
    code: str
    message: str
    retry_seconds: int = 0
    is_behind: bool = False


Decision = Chosen | Denied


@dataclass(frozen=True, slots=True)
class _Found:
    """Engines for a name. `generation` None: any; `adapter` None: the name is that of the base model."""

    pool: PickPool
    adapter: AdapterResidency | None = None
    generation: int | None = None

    def endpoints(self) -> tuple[PickEndpoint, ...]:
        if self.adapter is None:
            return self.pool.base_endpoints
        if self.generation is None:
            return self.pool.endpoints(self.adapter)
        return *self.pool.endpoints(self.adapter), *self.pool.keeping(self.adapter, self.generation)


def pick(
    request: PickRequest, pools: Sequence[PickPool], loads: Mapping[str, float], chance: float, separators: str = ":|"
) -> Decision:
    """The engine for a request.

    Args:
        request: what is asked for.
        pools: what is known, in the order in which names are looked up.
        loads: requests on their way to each address, with what its engine says of its queue; 0 if it is not there.
        chance: a number from 0 to 1, without 1: of equals one is chosen by it.
        separators: characters between a base model and an adapter of it in a name such as ``BASE:NAME``.
    """
    if not pools:
        told = "the picker has not heard from the registry yet; repeat the request"
        return Denied(503, NOT_KNOWN, told, 1, is_behind=request.least_revision > 0)
    found = _Found(pools[0]) if request.model is None else _lookup(request.model, pools, separators)
    if found is None:
        message = f"The model `{(request.model or '')[:200]}` does not exist; no replica serves it."
        # It may be new in the pool of which the least is known yet.
        is_behind = request.least_revision > min(pool.revision for pool in pools)
        return Denied(404, MODEL_NOT_FOUND, message, is_behind=is_behind)
    if request.least_revision > found.pool.revision:
        return _not_yet(request, f"the picker knows the registry up to {found.pool.revision}", is_behind=True)
    candidates = _eligible(request, found)
    if isinstance(candidates, Denied):
        return candidates
    endpoint = _choose(candidates, found, loads, chance)
    model = endpoint.model if endpoint.model != request.model else ""
    return Chosen(endpoint, found.pool.name, model, candidates)


def _not_yet(request: PickRequest, why: str, *, is_behind: bool = False) -> Denied:
    message = f"what was published up to revision {request.least_revision} is not served yet: {why}; repeat the request"
    return Denied(503, NOT_SERVED_YET, message, 1, is_behind)


def _lookup(model: str, pools: Sequence[PickPool], separators: str) -> _Found | None:
    """The first pool that knows the name: as an adapter, as a generation of one, by an alias, as its base model."""
    for pool in pools:
        if (found := _adapter_of(pool, model)) is not None:
            return found
    for pool in pools:
        if (found := _by_alias(pool, model, separators)) is not None:
            return found
    return next((_Found(pool) for pool in pools if model in pool.bases), None)


def _adapter_of(pool: PickPool, name: str) -> _Found | None:
    if (adapter := pool.adapter(name)) is not None:
        return _Found(pool, adapter)
    plain, at, generation = name.rpartition("@")
    if at and generation.isascii() and generation.isdecimal() and len(generation) < 17:
        adapter = pool.adapter(plain)
        return _Found(pool, adapter, int(generation)) if adapter is not None else None
    return None


def _by_alias(pool: PickPool, model: str, separators: str) -> _Found | None:
    """The adapter that ``BASE:NAME`` means; names of base models may have such characters too.

    A request may have megabytes of them, so each base is looked for once.
    """
    for base in sorted(pool.bases, key=len):
        if model.startswith(base) and model[len(base) : len(base) + 1] in {*separators}:
            found = _adapter_of(pool, model[len(base) + 1 :])
            if found is not None:
                return found
    return None


def _eligible(request: PickRequest, found: _Found) -> tuple[PickEndpoint, ...] | Denied:
    """The endpoints that may answer, or why none may."""
    every = found.endpoints()
    served = every if found.generation is None else tuple(one for one in every if one.generation == found.generation)
    if not served:
        if found.adapter is None:
            return Denied(503, NO_ENDPOINT, f"no replica of pool {found.pool.name} is ready; repeat the request", 1)
        message = f"The model `{(request.model or '')[:200]}` exists, and no replica serves it at present."
        return Denied(404, MODEL_NOT_FOUND, message, 1)
    if found.adapter is not None and request.least_revision:
        least = found.pool.least_generation(found.adapter, request.least_revision)
        served = tuple(one for one in served if one.generation >= least)
        if not served:
            return _not_yet(request, f"no replica serves generation {least}")
    if request.subset is not None:
        served = tuple(one for one in served if one.address in request.subset)
        if not served:
            return Denied(
                503, NO_ENDPOINT, "no endpoint that the gateway allows serves the model; repeat the request", 1
            )
    return tuple(one for one in served if not one.is_leaving) or served


def _choose(
    candidates: Sequence[PickEndpoint], found: _Found, loads: Mapping[str, float], chance: float
) -> PickEndpoint:
    generations = sorted({one.generation for one in candidates})
    groups = [[one for one in candidates if one.generation == generation] for generation in generations]
    place = chance * len(candidates)
    for group in groups[:-1]:
        if place < len(group):
            break
        place -= len(group)
    else:
        group = groups[-1]
    loaded = [one for one in group if one.is_loaded]
    if not loaded and found.adapter is not None:
        name = found.adapter.name
        return max(group, key=lambda one: blake2b(f"{name}\0{one.replica}".encode(), digest_size=8).digest())
    least = min(loads.get(one.address, 0.0) for one in loaded)
    equal = [one for one in loaded if loads.get(one.address, 0.0) == least]
    return equal[int(place / len(group) * len(equal))]
