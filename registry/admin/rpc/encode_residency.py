"""Encodes a pool's residency as messages and as JSON, in bounded parts. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from registry.model.names import name_of_key
from registry.model.replica_state import ReplicaState
from registry.residency.derive import DerivedResidence, DerivedResidency, WantedGeneration, residency
from registry.residency.hub import ResidencyUpdate
from registry.residency.view import PoolView
from registry.v1 import registry_pb2 as pb

# A replica's part in an adapter has about 100 bytes.
_PARTS_AT_ONCE = 2000
STATES = {
    ReplicaState.PENDING: pb.RolloutReplica.PENDING,
    ReplicaState.SERVING: pb.RolloutReplica.SERVING,
    ReplicaState.FAILED: pb.RolloutReplica.FAILED,
    ReplicaState.UNKNOWN: pb.RolloutReplica.UNKNOWN,
}


def starts(update: ResidencyUpdate) -> range:
    """Where the parts begin in which it is sent; an empty snapshot has one as well."""
    return range(0, max(1, len(update.keys)), _size(update.view))


# Those who look at one pool get the same at nearly the same time.
@lru_cache(maxsize=16)
def response(update: ResidencyUpdate, start: int) -> pb.WatchResidencyResponse:
    """The part of a message that begins there."""
    end = start + _size(update.view)
    keys = update.keys[start:end]
    found = [(key, residency(update.view, key)) for key in keys]
    return pb.WatchResidencyResponse(
        revision=update.view.revision,
        adapters=[_adapter(one) for _, one in found if one is not None],
        gone=[] if update.snapshot else [name_of_key(key) for key, one in found if one is None],
        snapshot=update.snapshot,
        more=end < len(update.keys),
    )


def _size(view: PoolView) -> int:
    return max(1, _PARTS_AT_ONCE // max(1, len(view.replicas)))


def _adapter(one: DerivedResidency) -> pb.AdapterResidency:
    return pb.AdapterResidency(
        name=one.name,
        generation=one.generation,
        load=_load(one),
        replicas=[_residence(part) for part in one.replicas],
        note=one.note,
    )


def _load(one: DerivedResidency) -> str:
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
    )


def documents(view: PoolView, keys: Sequence[str]) -> Iterator[list[dict[str, object]]]:
    """The same as JSON values, some at a time; none of the lists is empty."""
    readable = [key for key in keys if view.adapter(key) is not None]
    size = _size(view)
    for start in range(0, len(readable), size):
        found = (residency(view, key) for key in readable[start : start + size])
        yield [_document(one) for one in found if one is not None]


def _document(one: DerivedResidency) -> dict[str, object]:
    replicas = [_residence_document(part) for part in one.replicas]
    return {
        "name": one.name,
        "generation": one.generation,
        "load": _load(one),
        "replicas": replicas,
        "note": one.note,
    }


def _residence_document(one: DerivedResidence) -> dict[str, object]:
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
    }


def _wanted_document(wanted: WantedGeneration) -> dict[str, object]:
    return {"generation": wanted.generation, "state": wanted.state.name.lower(), "reason": wanted.reason}
