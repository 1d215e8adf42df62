"""What is told of a pool's residency, to any number of those who look, in their own time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass

from registry.errors import Reason, Unavailable
from registry.store.pool_view import PoolView

_STEPS_REMEMBERED = 64


@dataclass(frozen=True, slots=True, eq=False)
class Told:
    """What is to be heard: where the adapters of `keys` are in `view`. `snapshot`: and there are no others."""

    version: int
    view: PoolView
    keys: tuple[str, ...]
    snapshot: bool


class Board:
    """One pool's residency. `version` rises whenever it changes, within `epoch`; 0: it is not known yet.

    Nothing is queued for anybody: who comes back late hears at once of all that changed since, and who comes back very
    late gets a new snapshot.
    """

    def __init__(self, pool: str, epoch: str) -> None:
        self.epoch = epoch
        self.version = 0
        self.view = PoolView(pool)
        self._steps: deque[tuple[int, frozenset[str]]] = deque(maxlen=_STEPS_REMEMBERED)
        self._told: dict[int, Told] = {}
        self._news = asyncio.Event()
        self._ended = False

    def post(self, view: PoolView, keys: frozenset[str]) -> None:
        """Takes over a view in which the adapters of these keys are elsewhere than before."""
        self.view = view
        if keys or not self.version:
            self.version += 1
            self._steps.append((self.version, keys))
            self._told.clear()
            self._wake()

    def end(self) -> None:
        """Says that nothing follows."""
        self._ended = True
        self._wake()

    async def look(self) -> Told:
        """The whole as it is now, as soon as it is known.

        Raises:
            Unavailable: the board was ended.
        """
        return await self._after(0)

    async def follow(self) -> AsyncGenerator[Told, None]:
        """The whole first, then what changes, without end; raises as `look`."""
        told = await self._after(0)
        while True:
            yield told
            told = await self._after(told.version)

    async def _after(self, seen: int) -> Told:
        while seen == self.version and not self._ended:
            await self._news.wait()
        if self._ended:
            raise Unavailable(Reason.ADMIN_UNAVAILABLE, "the admin service stops; ask another one, or ask again")
        return self._told.setdefault(seen, self._since(seen))

    def _since(self, seen: int) -> Told:
        is_snapshot = seen + 1 < self._steps[0][0] or not seen
        keys = self.view.records if is_snapshot else _union(keys for at, keys in self._steps if at > seen)
        return Told(self.version, self.view, tuple(sorted(keys)), is_snapshot)

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


def _union(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*sets)
