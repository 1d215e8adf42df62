"""What an engine may be told of an adapter that it asks for. Pure.

It is held to what an eager adapter is held to: the newest state that is followed, checked files, the replica's rules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from registry.model.names import name_key
from sidecar.artifacts.types import Staged
from sidecar.desired import DesiredAdapter, DesiredState
from sidecar.failures import Failure
from sidecar.lazy.wire import No
from sidecar.rules import Rules, obstacle_of


@dataclass(frozen=True, slots=True)
class Terms:
    """What the newest round knows of the engine, and all questions are decided by until the next.

    Attributes:
        rules: what no adapter may break there.
        room: how many lazy adapters it is to hold at once.
        owns: artifact id of a path under our store, else None.
    """

    rules: Rules
    room: int
    owns: Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class Serve:
    """Everything is in place."""

    staged: Staged


@dataclass(frozen=True, slots=True)
class Bring:
    """It has to be brought into the store first."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """It is not fit for this replica, for a reason that its status tells too."""

    failure: Failure


def find(name: str, state: DesiredState) -> str | No:
    """The name key of the lazy adapter that is called exactly so."""
    key = name_key(name)
    lazy = state.lazy.get(key)
    if lazy is not None and lazy.name == name:
        return key
    eager = state.adapters.get(key)
    return No("not_lazy" if eager is not None and eager.name == name else "unknown_adapter")


def judge(
    adapter: DesiredAdapter, staged: Staged | None, terms: Terms, failure: Failure | None, *, now: float
) -> Serve | Bring | Refuse:
    """What to do about a lazy adapter.

    Args:
        adapter: the whole of it.
        staged: what is in the store of it.
        terms: of the engine that asks.
        failure: the last one of its staging, of whatever version.
        now: monotonic seconds.
    """
    obstacle = obstacle_of(adapter, terms.rules, None, staged, terms.owns)
    if obstacle is not None:
        return Refuse(Failure(adapter.ref, None, obstacle.reason, obstacle.message, obstacle.attempts, None))
    if staged is not None:
        return Serve(staged)
    if failure is not None and failure.forbids(adapter.ref, "", now):
        return Refuse(failure)
    return Bring()
