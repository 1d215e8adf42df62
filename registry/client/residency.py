"""Residency of a pool as a router keeps it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from registry.v1 import registry_pb2 as pb


class State(StrEnum):
    """Progress of a replica with what it is to serve."""

    PENDING = "pending"
    SERVING = "serving"
    FAILED = "failed"
    UNKNOWN = "unknown"


_STATES = {pb.RolloutReplica.State.Value(one.name): one for one in State}


@dataclass(frozen=True, slots=True)
class WantedResidence:
    """A generation that a replica is to serve while it serves another: how it stands to it, and why."""

    generation: int
    state: State
    reason: str


@dataclass(frozen=True, slots=True)
class Residence:
    """One replica's part in an adapter.

    Attributes:
        replica: its name.
        engine_url: of its engine, as its sidecar reaches it.
        labels: of the replica.
        model: what requests to that engine call the adapter.
        generation: that it serves, or is to serve; 0: it serves an earlier one, it is not known which.
        state: only `State.SERVING` is proven to serve.
        reason: why it does not serve.
        loaded: it is loaded now; lazy adapters are loaded at the first request.
        last_used: of a lazy adapter that is loaded, RFC 3339, to the minute.
        wanted: what it is to serve, where it serves something else; None: it does not.
        earlier: generations that it answers to beside that as ``name@generation``, the newest first.
    """

    replica: str
    engine_url: str
    labels: Mapping[str, str]
    model: str
    generation: int
    state: State
    reason: str
    loaded: bool
    last_used: str
    wanted: WantedResidence | None = None
    earlier: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class AdapterResidency:
    """Places of one adapter; `note` is what somebody should know in one sentence."""

    name: str
    generation: int
    load: str
    replicas: tuple[Residence, ...]
    note: str

    @property
    def serving(self) -> tuple[Residence, ...]:
        """Those to which requests may go."""
        return tuple(one for one in self.replicas if one.state is State.SERVING)


@dataclass(frozen=True, slots=True)
class PoolResidency:
    """Places of a pool's adapters at one moment, by name in lower case. `revision` is etcd's of the records."""

    revision: int
    adapters: Mapping[str, AdapterResidency]


class Follower:
    """Folds the responses of one stream into whole states, or of several, each of which is `begun`."""

    def __init__(self) -> None:
        self._adapters: dict[str, AdapterResidency] = {}
        self._is_in_snapshot = False

    def begun(self) -> None:
        """Notes that the next response is the first of a stream: the one before may have ended amid a state."""
        self._is_in_snapshot = False

    def take(self, response: pb.WatchResidencyResponse) -> PoolResidency | None:
        """The state after a response; None: the next one belongs to it."""
        if response.snapshot and not self._is_in_snapshot:
            self._adapters = {}
        self._adapters.update((one.name.lower(), _adapter(one)) for one in response.adapters)
        for name in response.gone:
            self._adapters.pop(name, None)
        self._is_in_snapshot = response.snapshot and response.more
        if response.more:
            return None
        return PoolResidency(response.revision, MappingProxyType(dict(self._adapters)))


def _adapter(one: pb.AdapterResidency) -> AdapterResidency:
    return AdapterResidency(one.name, one.generation, one.load, tuple(map(_residence, one.replicas)), one.note)


def _residence(one: pb.Residence) -> Residence:
    return Residence(
        one.replica,
        one.engine_url,
        MappingProxyType(dict(one.labels)),
        one.model,
        one.generation,
        _state(one.state),
        one.reason,
        one.loaded,
        one.last_used,
        _wanted(one) if one.wanted_state else None,
        tuple(one.earlier_generations),
    )


def _wanted(one: pb.Residence) -> WantedResidence:
    return WantedResidence(one.wanted_generation, _state(one.wanted_state), one.wanted_reason)


def _state(state: pb.RolloutReplica.State) -> State:
    """A state that only a newer admin service knows is not one in which requests may come."""
    return _STATES.get(state, State.UNKNOWN)
