"""Hub of residency: derives it once for each pool, for any number of readers.

A pool is followed while somebody looks at it, and a little longer.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from registry.etcd3.client import Client
from registry.etcd3.informer import SharedInformerFactory
from registry.etcd3.ops import prefix_end
from registry.model.errors import Reason, Unavailable
from registry.model.keys import Keys
from registry.residency.follower import FollowedRange, PoolFollower
from registry.residency.view import PoolView
from registry.rollout.pool import PoolSnapshot
from registry.runtime.process import Keep, keep_once

_STEPS_REMEMBERED = 64


@dataclass(frozen=True, slots=True, eq=False)
class ResidencyUpdate:
    """An update: the adapters of `keys` as `view` has them.

    `snapshot`: there are no others.
    """

    version: int
    view: PoolView
    keys: tuple[str, ...]
    snapshot: bool


class Subscription:
    """One pool's residency. `version` rises at each change; 0: it is not known yet.

    Versions count within `epoch`. Nothing is queued: a reader that comes back late gets all that changed since in one
    update, and one that comes back very late gets a new snapshot.
    """

    def __init__(self, pool: str, epoch: str) -> None:
        self.epoch = epoch
        self.version = 0
        self.view = PoolView(PoolSnapshot(pool))
        self._steps: deque[tuple[int, frozenset[str]]] = deque(maxlen=_STEPS_REMEMBERED)
        self._updates: dict[int, ResidencyUpdate] = {}
        self._changed = asyncio.Event()
        self._ended = False

    @property
    def has_ended(self) -> bool:
        """True once nothing follows."""
        return self._ended

    def post(self, view: PoolView, keys: frozenset[str]) -> None:
        """Takes over a view in which the adapters of these keys are elsewhere than before."""
        self.view = view
        if keys or not self.version:
            self.version += 1
            self._steps.append((self.version, keys))
            self._updates.clear()
            self._wake()

    def end(self) -> None:
        """Ends the subscription: nothing follows."""
        self._ended = True
        self._wake()

    async def look(self, since: int = 0) -> ResidencyUpdate:
        """The whole as it is now, as soon as it is known; `since`: what changed after that version, as soon as any did.

        Raises:
            Unavailable: the subscription was ended.
        """
        while since == self.version and not self._ended:
            await self._changed.wait()
        if self._ended:
            raise Unavailable(Reason.ADMIN_UNAVAILABLE, "the admin service is shutting down; ask again, or another one")
        return self._updates.setdefault(since, self._since(since))

    async def follow(self) -> AsyncGenerator[ResidencyUpdate, None]:
        """The whole first, then what changes, without end; raises as `look`."""
        update = await self.look()
        while True:
            yield update
            update = await self.look(update.version)

    def _since(self, seen: int) -> ResidencyUpdate:
        is_snapshot = seen + 1 < self._steps[0][0] or not seen
        steps = (keys for at, keys in self._steps if at > seen)
        keys = self.view.records if is_snapshot else frozenset[str]().union(*steps)
        return ResidencyUpdate(self.version, self.view, tuple(sorted(keys)), is_snapshot)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


LINGER_SECONDS = 60.0


@dataclass(slots=True)
class _FollowedPool:
    """A pool that is followed."""

    subscription: Subscription
    task: asyncio.Task[None]
    readers: int = 0
    end: asyncio.TimerHandle | None = None


class ResidencyHub:
    """Hands out subscriptions; `keep` keeps the task of each pool."""

    def __init__(self, client: Client, keys: Keys, informers: SharedInformerFactory, *, keep: Keep = keep_once) -> None:
        self._client = client
        self._keys = keys
        self._informers = informers
        self._keep = keep
        self._followed: dict[str, _FollowedPool] = {}

    @asynccontextmanager
    async def look(self, pool: str) -> AsyncIterator[Subscription]:
        """A pool's subscription."""
        followed = self._followed.get(pool)
        if followed is None or followed.task.done():
            followed = self._start(pool)
        followed.readers += 1
        if followed.end is not None:
            followed.end.cancel()
        try:
            yield followed.subscription
        finally:
            followed.readers -= 1
            if not followed.readers:
                loop = asyncio.get_running_loop()
                followed.end = loop.call_later(LINGER_SECONDS, self._end, pool, followed)

    async def aclose(self) -> None:
        """Ends all subscriptions; their readers get an error."""
        ending = list(self._followed.items())
        for pool, followed in ending:
            self._end(pool, followed)
        await asyncio.gather(*(followed.task for _, followed in ending), return_exceptions=True)

    def _start(self, pool: str) -> _FollowedPool:
        subscription = Subscription(pool, secrets.token_hex(8))
        follow = partial(self._run, pool, subscription)
        task = asyncio.create_task(self._keep(f"residency of {pool}", follow), name=f"residency {pool}")
        task.add_done_callback(lambda _: subscription.end())  # also of one that is cancelled before it has begun
        self._followed[pool] = _FollowedPool(subscription, task)
        return self._followed[pool]

    def _end(self, pool: str, followed: _FollowedPool) -> None:
        if self._followed.get(pool) is followed:
            del self._followed[pool]
        if followed.end is not None:
            followed.end.cancel()
        followed.task.cancel()

    async def _run(self, pool: str, subscription: Subscription) -> None:
        wake = asyncio.Event()
        async with AsyncExitStack() as stack:
            prefixes = (self._keys.adapters(pool), self._keys.replicas(pool), self._keys.statuses(pool))
            single = (self._keys.pool(pool), self._keys.members(pool))
            spans = [*((prefix, prefix_end(prefix)) for prefix in prefixes), *((key, key + b"\0") for key in single)]
            ranges = [
                FollowedRange(*span, await stack.enter_async_context(self._informers.look(*span, wake)))
                for span in spans
            ]
            for followed in ranges:
                followed.informer.taps.add(followed.tap)
                stack.callback(followed.informer.taps.discard, followed.tap)
            await PoolFollower(self._client, self._informers, ranges, subscription.view, subscription.post).run(wake)
