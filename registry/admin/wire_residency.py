"""A pool's residency on the wire and as JSON, in parts that are small enough. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from registry.model.names import name_of_key
from registry.store.judgement import ReplicaState
from registry.store.pool_view import PoolView
from registry.store.residency import AdapterResidency, Residence, residency
from registry.store.residency_board import Told
from registry.v1 import registry_pb2 as pb

# A replica's part in an adapter has about 100 bytes.
_PARTS_AT_ONCE = 2000
STATES = {
    ReplicaState.PENDING: pb.RolloutReplica.PENDING,
    ReplicaState.SERVING: pb.RolloutReplica.SERVING,
    ReplicaState.FAILED: pb.RolloutReplica.FAILED,
    ReplicaState.UNKNOWN: pb.RolloutReplica.UNKNOWN,
}


def starts(told: Told) -> range:
    """Where the parts begin in which it is told; an empty snapshot has one as well."""
    return range(0, max(1, len(told.keys)), _size(told.view))


# Those who look at one pool are told the same at nearly the same time.
@lru_cache(maxsize=16)
def response(told: Told, start: int) -> pb.WatchResidencyResponse:
    """The part of a message that begins there."""
    end = start + _size(told.view)
    keys = told.keys[start:end]
    found = [(key, residency(told.view, key)) for key in keys]
    return pb.WatchResidencyResponse(
        revision=told.view.revision,
        adapters=[_adapter(one) for _, one in found if one is not None],
        gone=[] if told.snapshot else [name_of_key(key) for key, one in found if one is None],
        snapshot=told.snapshot,
        more=end < len(told.keys),
    )


def _size(view: PoolView) -> int:
    return max(1, _PARTS_AT_ONCE // max(1, len(view.replicas)))


def _adapter(one: AdapterResidency) -> pb.AdapterResidency:
    return pb.AdapterResidency(
        name=one.name,
        generation=one.generation,
        load=_load(one),
        replicas=[_residence(part) for part in one.replicas],
        note=one.note,
    )


def _load(one: AdapterResidency) -> str:
    return "lazy" if one.lazy else "eager"


def _residence(one: Residence) -> pb.Residence:
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
    )


def documents(view: PoolView, keys: Sequence[str]) -> Iterator[list[dict[str, object]]]:
    """The same as JSON values, some at a time; none of the lists is empty."""
    readable = [key for key in keys if view.adapter(key) is not None]
    size = _size(view)
    for start in range(0, len(readable), size):
        found = (residency(view, key) for key in readable[start : start + size])
        yield [_document(one) for one in found if one is not None]


def _document(one: AdapterResidency) -> dict[str, object]:
    replicas = [_residence_document(part) for part in one.replicas]
    return {
        "name": one.name,
        "generation": one.generation,
        "load": _load(one),
        "replicas": replicas,
        "note": one.note,
    }


def _residence_document(one: Residence) -> dict[str, object]:
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
    }
