"""Troubles of lazy adapters: why each was refused when last asked for. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from collections.abc import Set as AbstractSet

from registry.model.names import name_key
from registry.model.records import AskedRetry
from sidecar.desired.informer import DesiredAdapter, DesiredState
from sidecar.engines.observed import Refused
from sidecar.plan.backoff import Failure, after_call
from sidecar.resolver.policy import Catalogue

MAX_TROUBLES = 100
# An engine that was told of an adapter so often and does not list it refuses it; a request that was broken off once
# leaves the same trace.
TOLD_IN_VAIN = 2
REFUSED = "the engine was told where it is, and does not list it: its log says why it was not loaded"


def _longest(_shortest: float, longest: float) -> float:
    """No jitter: what one engine refuses is asked for at moments of its own."""
    return longest


class Troubles:
    """Memory of refusals by name key, of which the newest are kept."""

    def __init__(self) -> None:
        self._known: dict[str, Failure] = {}
        self._fresh: set[str] = set()
        self._asked: dict[str, AskedRetry | None] = {}

    def of(self, key: str) -> Failure | None:
        """Refusal of the adapter when it was last asked for."""
        return self._known.get(key)

    def note(self, key: str, failure: Failure) -> None:
        """Remembers a refusal; the oldest are forgotten."""
        if self._known.pop(key, None) is None:
            self._fresh.add(key)
        self._known[key] = failure
        if len(self._known) > MAX_TROUBLES:
            del self._known[next(iter(self._known))]

    def note_in_vain(self, adapter: DesiredAdapter, incarnation: str, now: float) -> None:
        """Remembers that a process of the engine does not list what it was told of."""
        before = self._known.get(adapter.key)
        failure = after_call(Refused(REFUSED), adapter.ref, incarnation, before, now=now, uniform=_longest)
        if failure is not None:  # pragma: no branch - a refusal always is one
            self.note(adapter.key, failure)

    def by_engine(self, adapter: DesiredAdapter, incarnation: str, now: float) -> Failure | None:
        """Refusal by this process of the engine that forbids to tell it of the adapter now."""
        failure = self._known.get(adapter.key)
        if failure is None or not failure.is_engines or failure.attempts < TOLD_IN_VAIN:
            return None
        return failure if failure.forbids(adapter.ref, incarnation, now) else None

    def end(self, key: str) -> None:
        """Forgets a refusal: the adapter is served."""
        self._known.pop(key, None)

    def end_staging(self, key: str) -> None:
        """Forgets a refusal in which the engine had no part: it is told of the adapter."""
        failure = self._known.get(key)
        if failure is not None and not failure.is_engines:
            del self._known[key]

    def end_of_engine(self, listed: Collection[str], incarnation: str) -> None:
        """Drops what is loaded after all, and what another process of the engine refused."""
        for key, failure in list(self._known.items()):
            if failure.is_engines and (key in listed or failure.incarnation != incarnation):
                del self._known[key]

    def age(self, awaited: AbstractSet[str]) -> None:
        """Takes note of which adapters somebody still waits for."""
        self._fresh &= awaited

    def forget(self) -> None:
        """Has all that was refused looked at anew."""
        self._known.clear()

    def standing(self, state: DesiredState, catalogue: Catalogue) -> Iterator[tuple[DesiredAdapter, Failure]]:
        """Those of adapters that are still desired as they were when they were refused.

        Where the engine gets the last good generation instead, it is told with that: routers go on to ask here (R24).
        A first try in vain is no refusal yet (R9).
        """
        for key, failure in list(self._known.items()):
            adapter = catalogue.version(state, key)
            is_same = adapter is not None and adapter.ref == failure.ref
            if adapter is not None and is_same and self._asked.setdefault(key, adapter.retry) == adapter.retry:
                is_awaited = key in self._fresh and bool(adapter.fallbacks)
                is_awaited |= failure.is_engines and failure.attempts < TOLD_IN_VAIN
                if key == name_key(adapter.name) and not is_awaited:  # of an earlier generation nothing is told
                    yield adapter, failure
            else:
                del self._known[key]
        self._asked = {key: retry for key, retry in self._asked.items() if key in self._known}
