"""Encodes a pool's residency as messages and as JSON, in bounded parts. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from registry.model.names import name_of_key
from registry.model.replica_state import ReplicaState
from registry.residency.derive import (
    CountedReplica,
    CountedResidency,
    DerivedResidence,
    DerivedResidency,
    ReplicaStanding,
    by_replica,
    counted,
    models_by_model,
    residency_of,
)
from registry.residency.hub import ResidencyUpdate
from registry.residency.shares import WantedGeneration
from registry.residency.view import AdapterView, PoolView
from registry.v1 import registry_pb2 as pb

Detail = pb.WatchResidencyRequest.Detail
_Request = pb.WatchResidencyRequest
# A replica's part in an adapter has about 100 bytes, and an adapter whose replicas are counted not much more.
_PARTS_AT_ONCE = 2000
# So many kinds of adapters that stand alike are remembered.
_KINDS = 32
Document = dict[str, Any]
STATES = {
    ReplicaState.PENDING: pb.RolloutReplica.PENDING,
    ReplicaState.SERVING: pb.RolloutReplica.SERVING,
    ReplicaState.FAILED: pb.RolloutReplica.FAILED,
    ReplicaState.UNKNOWN: pb.RolloutReplica.UNKNOWN,
}


def starts(update: ResidencyUpdate, detail: Detail) -> range:
    """Starts of the parts in which it is sent; an empty snapshot has one as well."""
    if detail == _Request.COUNTS_BY_REPLICA:
        return range(1)
    return range(0, max(1, len(update.keys)), _size(update.view, detail))


# Those who look at one pool get the same at nearly the same time.
@lru_cache(maxsize=16)
def response(update: ResidencyUpdate, start: int, detail: Detail) -> pb.WatchResidencyResponse:
    """The part of a message that begins there."""
    view = update.view
    if detail == _Request.COUNTS_BY_REPLICA:
        replicas = [_counted_replica(one) for one in by_replica(view, update.keys)]
        return pb.WatchResidencyResponse(revision=view.revision, replicas=replicas, snapshot=True)
    end = start + _size(view, detail)
    keys = update.keys[start:end]
    is_counted = detail in {_Request.COUNTS, _Request.REPLICAS_AND_COUNTS}
    found = _counted(view, keys) if is_counted else _told(view, keys)
    if detail == _Request.REPLICAS_AND_COUNTS:
        for one, whole in zip(found.values(), _told(view, keys).values(), strict=True):
            one.replicas.extend(whole.replicas)
    return pb.WatchResidencyResponse(
        revision=view.revision,
        adapters=found.values(),
        gone=[] if update.snapshot else [name_of_key(key) for key in keys if key not in found],
        snapshot=update.snapshot,
        more=end < len(update.keys),
    )


def _size(view: PoolView, detail: Detail = _Request.REPLICAS) -> int:
    each = 1 if detail == _Request.COUNTS else max(1, len(view.replicas))
    return max(1, _PARTS_AT_ONCE // each)


def _told(view: PoolView, keys: Sequence[str]) -> dict[str, pb.AdapterResidency]:
    """Those of these adapters whose records can be read, with their replicas."""
    return {adapter.key: _adapter(view, adapter) for adapter in _readable(view, keys)}


def _readable(view: PoolView, keys: Sequence[str]) -> list[AdapterView]:
    return [adapter for key in keys if (adapter := view.adapter(key)) is not None]


def _counted(view: PoolView, keys: Sequence[str]) -> dict[str, pb.AdapterResidency]:
    """The same, with their replicas counted."""
    return {key: counted_adapter(one) for key, one in counted(view, keys) if one is not None}


def _adapter(view: PoolView, adapter: AdapterView) -> pb.AdapterResidency:
    """An adapter with its replicas: a copy under another name, where one that stands alike was derived before."""
    like = view.alike(adapter)
    if like is None:
        return _derived_adapter(residency_of(view, adapter))
    message, models = pb.AdapterResidency(), models_by_model(like, adapter)
    message.CopyFrom(_shared_adapter(view, like))
    message.name, message.generation = adapter.name, adapter.generation
    for part in message.replicas:
        part.model, part.generation = models[part.model], adapter.generation
    return message


@lru_cache(maxsize=_KINDS)
def _shared_adapter(view: PoolView, like: AdapterView) -> pb.AdapterResidency:
    return _derived_adapter(residency_of(view, like))


def _derived_adapter(one: DerivedResidency) -> pb.AdapterResidency:
    return pb.AdapterResidency(
        name=one.name,
        generation=one.generation,
        load=_load(one),
        replicas=[_residence(part) for part in one.replicas],
        note=one.note,
        halted=one.halted,
    )


def counted_adapter(one: CountedResidency) -> pb.AdapterResidency:
    counts = [_count(standing, replicas) for standing, replicas in one.counts.items()]
    return pb.AdapterResidency(
        name=one.name,
        generation=one.generation,
        load=_load(one),
        note=one.note,
        counts=counts,
        halted=one.halted,
        pool_replicas=one.pool_replicas,
    )


def _count(one: ReplicaStanding, replicas: int) -> pb.ResidenceCount:
    return pb.ResidenceCount(replicas=replicas, **_standing(one))


def _standing(one: ReplicaStanding) -> dict[str, Any]:
    """The fields that both kinds of counts have."""
    state, reason = one.wanted or (None, "")
    return {
        "state": STATES[one.state],
        "reason": one.reason,
        "wanted_state": STATES[state] if state else pb.RolloutReplica.STATE_UNSPECIFIED,
        "wanted_reason": reason,
    }


def _counted_replica(one: CountedReplica) -> pb.ReplicaResidency:
    counts = [pb.AdapterCount(adapters=adapters, **_standing(standing)) for standing, adapters in one.counts.items()]
    return pb.ReplicaResidency(replica=one.replica, counts=counts, loaded=one.loaded)


def _load(one: DerivedResidency | CountedResidency) -> str:
    return "lazy" if one.lazy else "eager"


def _residence(one: DerivedResidence) -> pb.Residence:
    return pb.Residence(
        replica=one.replica,
        engine_url=one.engine_url,
        labels=one.labels,
        model=one.model,
        generation=one.generation,
        state=STATES[one.state],
        reason=one.reason,
        loaded=one.loaded,
        last_used=one.last_used,
        wanted_generation=one.wanted.generation if one.wanted else 0,
        wanted_state=STATES[one.wanted.state] if one.wanted else pb.RolloutReplica.STATE_UNSPECIFIED,
        wanted_reason=one.wanted.reason if one.wanted else "",
        earlier_generations=one.earlier,
    )


def documents(view: PoolView, keys: Sequence[str]) -> Iterator[list[Document]]:
    """The same as JSON values, some at a time; none of the lists is empty."""
    readable, size = _readable(view, keys), _size(view)
    for start in range(0, len(readable), size):
        yield [_document(view, adapter) for adapter in readable[start : start + size]]


def _document(view: PoolView, adapter: AdapterView) -> Document:
    like = view.alike(adapter)
    if like is None:
        return _derived_document(residency_of(view, adapter))
    shared, models = _shared_document(view, like), models_by_model(like, adapter)
    named = {"name": adapter.name, "generation": adapter.generation}
    replicas = [
        part | {"model": models[part["model"]], "generation": adapter.generation} for part in shared["replicas"]
    ]
    return shared | named | {"replicas": replicas}


@lru_cache(maxsize=_KINDS)
def _shared_document(view: PoolView, like: AdapterView) -> Document:
    return _derived_document(residency_of(view, like))


def _derived_document(one: DerivedResidency) -> Document:
    replicas = [_residence_document(part) for part in one.replicas]
    return {"name": one.name, "generation": one.generation, "load": _load(one), "replicas": replicas, "note": one.note}


def _residence_document(one: DerivedResidence) -> Document:
    return {
        "replica": one.replica,
        "engine_url": one.engine_url,
        "labels": one.labels,
        "model": one.model,
        "generation": one.generation,
        "state": one.state.name.lower(),
        "reason": one.reason,
        "loaded": one.loaded,
        "last_used": one.last_used,
        "wanted": _wanted_document(one.wanted) if one.wanted else None,
        "earlier_generations": list(one.earlier),
    }


def _wanted_document(wanted: WantedGeneration) -> Document:
    return {"generation": wanted.generation, "state": wanted.state.name.lower(), "reason": wanted.reason}
