"""Hub of residency: derives it once for each pool, for any number of readers.

A pool is followed while somebody looks at it, and a little longer.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdError
from registry.etcd3.informer import SharedInformer, SharedInformerFactory
from registry.etcd3.ops import KeyValue, Range, SortTarget, prefix_end
from registry.model.errors import Reason, Unavailable
from registry.model.keys import Keys
from registry.residency.derive import changed
from registry.residency.view import PoolView, is_held_back, renew_view
from registry.rollout.pool import PoolSnapshot, PoolValues
from registry.runtime.supervisor import Keep, keep_once

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

    async def look(self) -> ResidencyUpdate:
        """The whole as it is now, as soon as it is known.

        Raises:
            Unavailable: the subscription was ended.
        """
        return await self._after(0)

    async def follow(self) -> AsyncGenerator[ResidencyUpdate, None]:
        """The whole first, then what changes, without end; raises as `look`."""
        update = await self._after(0)
        while True:
            yield update
            update = await self._after(update.version)

    async def _after(self, seen: int) -> ResidencyUpdate:
        while seen == self.version and not self._ended:
            await self._changed.wait()
        if self._ended:
            raise Unavailable(Reason.ADMIN_UNAVAILABLE, "the admin service stops; ask another one, or ask again")
        return self._updates.setdefault(seen, self._since(seen))

    def _since(self, seen: int) -> ResidencyUpdate:
        is_snapshot = seen + 1 < self._steps[0][0] or not seen
        keys = self.view.records if is_snapshot else _union(keys for at, keys in self._steps if at > seen)
        return ResidencyUpdate(self.version, self.view, tuple(sorted(keys)), is_snapshot)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _union(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*sets)


# Changes within this time are taken together: one change of an adapter is followed by a status of each replica.
_COALESCE_SECONDS = 0.1
LINGER_SECONDS = 60.0


@dataclass(slots=True)
class _FollowedPool:
    """A pool that is followed."""

    subscription: Subscription
    task: asyncio.Task[None]
    readers: int = 0
    end: asyncio.TimerHandle | None = None


class ResidencyHub:
    """Hands out subscriptions.

    Args:
        linger_seconds: how long a pool is followed after the last look, so that polls find it ready.
        keep: keeps the task of each pool.
    """

    def __init__(
        self,
        client: Client,
        keys: Keys,
        informers: SharedInformerFactory,
        *,
        linger_seconds: float = LINGER_SECONDS,
        keep: Keep = keep_once,
    ) -> None:
        self._client = client
        self._keys = keys
        self._informers = informers
        self._linger_seconds = linger_seconds
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
                followed.end = loop.call_later(self._linger_seconds, self._end, pool, followed)

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
                _FollowedRange(*span, await stack.enter_async_context(self._informers.look(*span, wake)))
                for span in spans
            ]
            await _PoolFollower(self._client, ranges, subscription).run(wake)


class _FollowedRange:
    """A followed range; if read at one revision first, earlier values do not count."""

    def __init__(self, prefix: bytes, end: bytes, informer: SharedInformer) -> None:
        self.prefix = prefix
        self._end = end
        self.informer = informer
        self._first: tuple[int, dict[bytes, KeyValue]] | None = None

    async def begin(self, client: Client, revision: int) -> None:
        """Reads the range as it was at a revision.

        Raises:
            EtcdError: etcd does not answer.
        """
        read = await client.range(Range(self.prefix, self._end, revision=revision))
        self._first = revision, {kv.key: kv for kv in read.kvs}

    def kvs(self) -> dict[bytes, KeyValue]:
        """The newest values."""
        informer = self.informer
        if self._first is not None and (not informer.is_listed or informer.revision < self._first[0]):
            return self._first[1]
        self._first = None
        return dict(informer.kvs)


class _PoolFollower:
    """Keeps one subscription as etcd is: first at one revision, then by informers."""

    def __init__(self, client: Client, ranges: list[_FollowedRange], subscription: Subscription) -> None:
        self._client = client
        self._records, self._presences, self._statuses, self._spec, self._members = ranges
        self._subscription = subscription
        self._seen = self._proven = 0
        self._version = -1
        self._kvs: dict[bytes, KeyValue] = {}

    async def run(self, wake: asyncio.Event) -> None:
        """Follows until it is cancelled."""
        await _until(self._begin)
        while True:
            await wake.wait()
            await asyncio.sleep(_COALESCE_SECONDS)
            wake.clear()
            await _until(self._step)

    async def _begin(self) -> bool:
        """The first view, of one revision; False: the informers are not there yet."""
        try:
            revision = await self._prove()
            if not revision:
                return False
            for read in (self._presences, self._statuses, self._spec, self._members):
                await read.begin(self._client, revision)
        except EtcdError:
            return False
        await self._post(self._values())
        return True

    async def _step(self) -> bool:
        """Takes over what the informers have; False: some status cannot be understood yet."""
        values = self._values()
        await self._post(values)
        if not is_held_back(self._subscription.view, values):
            return True
        try:
            await self._prove()
        except EtcdError:
            return False
        values = self._values()
        await self._post(values)
        return not is_held_back(self._subscription.view, values)

    async def _post(self, values: PoolValues) -> None:
        # In a thread, since a view of very many adapters takes long and other calls are to be answered meanwhile.
        self._subscription.post(*await asyncio.to_thread(_advanced, self._subscription.view, values))

    async def _prove(self) -> int:
        """A revision at which the informer has the records; 0: it does not yet.

        An informer alone does not know how far it is while nothing changes. An equal number of keys and an equal newest
        change prove it: what is created or changed is newer, and what is deleted is missing.

        Raises:
            EtcdError: etcd does not answer.
        """
        prefix, informer = self._records.prefix, self._records.informer
        newest = Range(prefix, prefix_end(prefix), limit=1, keys_only=True, descending_by=SortTarget.MOD)
        found = await self._client.range(newest)
        if not informer.is_listed or len(informer.kvs) != found.count:
            return 0
        last = max((kv.mod_revision for kv in informer.kvs.values()), default=0)
        if any(kv.mod_revision != last for kv in found.kvs):
            return 0
        self._proven = found.revision
        return found.revision

    def _values(self) -> PoolValues:
        """The newest values, to be posted at once: the next ones list changes since these."""
        informer = self._records.informer
        if informer.revision < self._seen:  # the store was set back
            self._proven = 0
        self._seen = informer.revision
        changed = informer.changed_since(self._version)
        if self._version != informer.version:  # there may be very many
            self._version, self._kvs = informer.version, dict(informer.kvs)
        return PoolValues(
            self._presences.kvs(),
            self._statuses.kvs(),
            self._kvs,
            changed,
            max(informer.revision, self._proven),
            holds_back=True,
            spec=next(iter(self._spec.kvs().values()), None),
            members=next(iter(self._members.kvs().values()), None),
        )


async def _until(succeeds: Callable[[], Awaitable[bool]]) -> None:
    while True:
        if await succeeds():
            return
        await asyncio.sleep(_COALESCE_SECONDS)


def _advanced(view: PoolView, values: PoolValues) -> tuple[PoolView, frozenset[str]]:
    """The view of what etcd holds, and the adapters whose residency is another by it."""
    new = renew_view(view, values)
    return new, changed(view, new)
