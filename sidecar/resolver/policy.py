"""Policy for lazy adapters: serve, fetch or reject. Pure.

It is held to what an eager adapter is held to: the newest state that is followed, checked files, the replica's rules.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from registry.model.errors import RegistryError
from registry.model.names import name_key
from sidecar.artifacts.types import Staged
from sidecar.desired.informer import DesiredAdapter, DesiredState, Informer, parse_whole
from sidecar.plan.backoff import Failure
from sidecar.plan.limits import rejection_of
from sidecar.plan.names import SEPARATOR
from sidecar.plan.types import ReplicaLimits
from sidecar.vllm_plugin.protocol import Unresolved


@dataclass(frozen=True, slots=True)
class ServingLimits:
    """Limits from the newest round, by which questions are decided until the next.

    Attributes:
        rules: what no adapter may break there.
        room: how many lazy adapters it is to hold at once.
    """

    rules: ReplicaLimits
    room: int


@dataclass(frozen=True, slots=True)
class Serve:
    """Everything is in place."""

    staged: Staged


@dataclass(frozen=True, slots=True)
class Fetch:
    """It has to be brought into the store first."""


@dataclass(frozen=True, slots=True)
class Reject:
    """It is not fit for this replica, for a reason that its status tells too."""

    failure: Failure


def find(name: str, state: DesiredState) -> str | Unresolved:
    """The name key of the lazy adapter that is called exactly so."""
    key = name_key(name)
    lazy = state.lazy.get(key)
    if lazy is not None and lazy.name == name:
        return key
    eager = state.adapters.get(key)
    return Unresolved("not_lazy" if eager is not None and eager.name == name else "unknown_adapter")


def decide(
    adapter: DesiredAdapter, staged: Staged | None, terms: ServingLimits, failure: Failure | None, *, now: float
) -> Serve | Fetch | Reject:
    """Decision about a lazy adapter.

    Args:
        adapter: the whole of it.
        staged: what is in the store of it.
        terms: of the engine that asks.
        failure: the last one of its staging, of whatever version.
        now: monotonic seconds.
    """
    obstacle = rejection_of(adapter, terms.rules, None, staged)
    if obstacle is not None:
        return Reject(Failure(adapter.ref, None, obstacle.reason, obstacle.message, obstacle.attempts, None))
    if staged is not None and staged.is_proven:
        return Serve(staged)
    if failure is not None and failure.forbids(adapter.ref, "", now):
        return Reject(failure)
    return Fetch()


# Of so many adapters what was read is remembered; those that are loaded are wanted at each round.
MAX_REMEMBERED = 1024


class Catalogue:
    """Reads raw records, never for a state that they are not of."""

    def __init__(self, informer: Informer) -> None:
        """Reads nothing yet. Records of the informer may be newer than a state that is asked about."""
        self._informer = informer
        self._read: OrderedDict[str, tuple[bytes, DesiredAdapter]] = OrderedDict()

    def whole(self, state: DesiredState, key: str) -> DesiredAdapter | None:
        """The lazy adapter under a name key as `state` has it; None: it has none, or the record has moved on."""
        lazy, record = state.lazy.get(key), self._informer.record(key)
        if lazy is None or record is None:
            return None
        value, revision = record.good or (record.value, record.revision)
        adapter = self._whole(key, value, revision)
        is_of_state = adapter is not None and (adapter.name, adapter.generation) == (lazy.name, lazy.generation)
        return self._informer.with_last_good(key, adapter) if adapter is not None and is_of_state else None

    def version(self, state: DesiredState, key: str) -> DesiredAdapter | None:
        """The same, also of what is answered with while that fails, which has a key of its own."""
        plain = key.partition(SEPARATOR)[0]
        adapter = self.whole(state, plain)
        return None if adapter is None else adapter.under(key)

    def _whole(self, key: str, value: bytes, revision: int) -> DesiredAdapter | None:
        known = self._read.get(key)
        if known is not None and known[0] == value:
            self._read.move_to_end(key)
            return known[1]
        try:
            adapter = parse_whole(self._informer.pool, key, value, revision)
        except (RegistryError, ValueError):
            return None  # it is newer than any state that could be followed
        self._read[key] = value, adapter
        self._read.move_to_end(key)
        if len(self._read) > MAX_REMEMBERED:
            self._read.popitem(last=False)
        return adapter
