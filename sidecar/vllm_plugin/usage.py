"""Registered adapters by name, their locks, last use and requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from weakref import WeakValueDictionary


class NameLocks(WeakValueDictionary[str, asyncio.Lock]):
    """In place of vLLM's own dictionary of locks, which keeps every name that anybody ever asked for.

    Whoever holds a lock or waits for it refers to it, so that all who ask for its name meanwhile get that very lock.
    When the last of them is done it is gone, and the name with it: nothing has to be cleared away, at no wrong moment.
    """

    def __getitem__(self, name: str) -> asyncio.Lock:
        """The lock of `name`, the one in use if there is one."""
        lock = self.get(name)
        if lock is None:
            lock = self[name] = asyncio.Lock()
        return lock


A = TypeVar("A")
# For so long it is told when a name that is registered no more was used, of so many that left last: longer than a
# sidecar lets pass between two looks, at each of which it needs to hear of all uses since the one before.
LEFT_SECONDS, MAX_LEFT = 700.0, 4096


class Usage(dict[str, A]):
    """In place of vLLM's own dictionary of adapters. vLLM binds a request by ``[name]``, and looks by ``in`` and `get`.

    So the time of the last binding is exact, at the price of one entry for each name that is, or just was, registered.

    Attributes:
        changes: how often a name was registered or unregistered, by whomever.
        on_bound: is called with what a request is bound to, in the request's context, and must not raise.
    """

    def __init__(self, adapters: Mapping[str, A] | None = None, *, now: Callable[[], float] = time.monotonic) -> None:
        """Holds what is registered already; `now` gives seconds of a clock that never goes back."""
        super().__init__(adapters or {})
        self._now = now
        self._used_at: dict[str, float] = {}
        self._left: dict[str, tuple[float, float]] = {}  # when it left, and when it was used
        self._counts: dict[str, int] = {}
        self.changes = 0
        self.on_bound: Callable[[A], None] = lambda _adapter: None

    def __getitem__(self, name: str) -> A:
        """Adapter that a request for `name` is bound to; notes that there is one.

        Raises:
            KeyError: no such name is registered.
        """
        adapter = super().__getitem__(name)
        self._used_at[name] = self._now()
        self.on_bound(adapter)
        return adapter

    def __setitem__(self, name: str, adapter: A) -> None:
        """Registers `adapter`; what `name` had before is not bound any more."""
        super().__setitem__(name, adapter)
        self.changes += 1
        if name in self._left:
            self._used_at[name] = self._left.pop(name)[1]

    def __delitem__(self, name: str) -> None:
        """Forgets `name` and how often it was used; when it was used, by and by.

        Raises:
            KeyError: no such name is registered.
        """
        super().__delitem__(name)
        self.changes += 1
        self._counts.pop(name, None)
        if name in self._used_at:
            self._left[name] = self._now(), self._used_at.pop(name)
        if len(self._left) > MAX_LEFT:
            del self._left[next(iter(self._left))]

    def note(self, name: str) -> None:
        """Notes that a request for `name` still runs; of a name that is not registered nothing is kept."""
        if name in self:
            self._used_at[name] = self._now()

    def count(self, name: str) -> None:
        """Counts a request for `name` that ended; of a name that is not registered nothing is kept."""
        if name in self:
            self._counts[name] = self._counts.get(name, 0) + 1

    def counts(self) -> dict[str, int]:
        """For each name with requests that ended since it is registered, how many."""
        return dict(self._counts)

    def ages(self) -> dict[str, float]:
        """For each name that was ever used and is registered, or was a moment ago, how many seconds ago it last was."""
        now = self._now()
        self._left = {name: one for name, one in self._left.items() if now - one[0] <= LEFT_SECONDS}
        left = {name: used_at for name, (_, used_at) in self._left.items()}
        return {name: now - at for name, at in (*left.items(), *self._used_at.items())}


class RequestStates(dict[str, Any]):
    """In place of vLLM's own dictionary of the requests that are with the engine, which takes them out by `pop`."""

    def __init__(self, states: Mapping[str, Any], ended: Callable[[str, Any], None]) -> None:
        """Holds these already; `ended` is called with each that is taken out, and must not raise."""
        super().__init__(states)
        self._ended = ended

    def pop(self, request: str, *default: Any) -> Any:  # noqa: ANN401 - vLLM's own
        """Takes out a request that ended, or was aborted.

        Raises:
            KeyError: it is not there, and there is no default.
        """
        is_there = request in self
        state = super().pop(request, *default)
        if is_there:
            self._ended(request, state)
        return state
