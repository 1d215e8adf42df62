"""Stream of the page: the fleet, and then its changes, as server-sent events.

Each reader is one coroutine that looks at its pools a few times a second. It holds no queue: see `PoolCursor`. Readers
hold places at the port, so that there are so many of one caller and so many in all, and none stays longer than an age:
a browser comes again by itself, and shows its credential anew.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from registry.access.control import AccessControl
from registry.access.methods import PAGES
from registry.access.questions import AccessQuestion, Resource, Verb
from registry.admin.health import Probe
from registry.admin.page.cursor import PoolCursor, PoolSight, event
from registry.admin.rpc.calls import CallContext, until_revoked
from registry.admin.rpc.visible import seen_adapters, seen_names
from registry.model.errors import Reason, RegistryError, ResourceExhausted, Unavailable
from registry.residency.hub import ResidencyHub
from registry.runtime.clock import Deadline
from registry.store.pages import everything
from registry.store.reader import Reader

# Of an address or a principal, which has at most 20 connections to the port; and of all, which have 200.
MAX_READERS_OF_CALLER, MAX_READERS = 10, 100
AGE_SECONDS = 300.0
LOOK_SECONDS = 0.2
# Names of pools are read so often; something is sent so often, that it is found out whether anybody listens.
POOLS_SECONDS, BEAT_SECONDS = 5.0, 10.0
MOST_POOLS = 100
_READ_SECONDS = 3.0


class ReaderPlaces:
    """Places of readers, by caller."""

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()

    def check(self, origin: str) -> None:
        """Raises ResourceExhausted: there is no place for another one."""
        if self._held[origin] >= MAX_READERS_OF_CALLER or self._held.total() >= MAX_READERS:
            message = f"{MAX_READERS_OF_CALLER} pages of one caller, and {MAX_READERS} in all, may be open at once: "
            raise ResourceExhausted(Reason.TOO_MANY_CALLS, f"{message}close one, and load this one again")

    @contextmanager
    def taken(self, origin: str) -> Iterator[None]:
        """The body is one reader."""
        self._held[origin] += 1
        try:
            yield
        finally:
            self._held[origin] -= 1
            if not self._held[origin]:
                del self._held[origin]


@dataclass(frozen=True, slots=True)
class FleetParts:
    """Parts of the service that the page reads.

    Attributes:
        hub: of residency.
        reader: of etcd.
        probe: knows whether etcd answers.
        access: who calls; None: anybody.
        stopping: set once the service ends.
    """

    hub: ResidencyHub
    reader: Reader
    probe: Probe
    access: AccessControl | None
    stopping: asyncio.Event


@dataclass(frozen=True, slots=True)
class CallerSight:
    """Pools and their parts that one caller may see."""

    parts: FleetParts
    call: CallContext

    async def names(self) -> Sequence[str]:
        """The names of pools that the caller sees, sorted. Raises RegistryError."""
        deadline = Deadline.of(_READ_SECONDS)
        return await seen_names(self.parts.reader, self.call, deadline, PAGES[self.call.method], MOST_POOLS)

    def sight(self, pool: str) -> PoolSight:
        """Parts of a pool that the caller sees."""
        grant, action = self.call.grant, PAGES[self.call.method]
        if grant is None:
            return PoolSight(everything, shows_replicas=True, is_whole=True)
        listed = grant.by(AccessQuestion(Verb.LIST, Resource.REPLICAS, pool)) is not None
        is_whole = grant.covers(AccessQuestion(Verb.GET, Resource.ADAPTERS, pool))
        return PoolSight(seen_adapters(self.call, pool, action), shows_replicas=listed, is_whole=is_whole)


class FleetStream:
    """The stream of the page."""

    def __init__(self, parts: FleetParts) -> None:
        self._parts = parts
        self._places = ReaderPlaces()

    async def page(self, _: Request, call: CallContext) -> Response:
        """``GET /page/stream``. Raises RegistryError where it refuses."""
        self._places.check(call.origin)
        return StreamingResponse(self._events(call), media_type="text/event-stream")

    async def _events(self, call: CallContext) -> AsyncIterator[str]:
        with self._places.taken(call.origin):
            async with AsyncExitStack() as stack:
                following = _Following(self._parts, call, stack)
                stack.callback(following.revoked.cancel)
                try:
                    async for one in following.events():
                        yield one
                except RegistryError as error:
                    yield event("end", {"reason": error.reason.value, "message": error.message})


class _Following:
    """One reader's pools."""

    def __init__(self, parts: FleetParts, call: CallContext, stack: AsyncExitStack) -> None:
        self._parts, self._call, self._stack = parts, call, stack
        self._reading = CallerSight(parts, call)
        self._cursors: dict[str, PoolCursor] = {}
        self._ready: bool | None = None
        self.revoked = asyncio.ensure_future(until_revoked(parts.access, call))

    async def events(self) -> AsyncIterator[str]:
        """Events until the reader has to come again.

        Raises:
            RegistryError: why it has to.
        """
        now = asyncio.get_running_loop().time
        begun, looked, sent = now(), now() - POOLS_SECONDS, now()
        while now() < begun + AGE_SECONDS:
            if now() >= looked + POOLS_SECONDS:
                looked = now()
                async for one in self._pools():
                    yield one
            async for one in self._news():
                sent = now()
                yield one
            if now() >= sent + BEAT_SECONDS:
                sent = now()
                yield ": still here\n\n"
            await asyncio.wait([self.revoked], timeout=LOOK_SECONDS)
            if self.revoked.done():
                self.revoked.result()
            if self._parts.stopping.is_set():
                break
        raise Unavailable(Reason.ADMIN_UNAVAILABLE, "the stream ends, come again")

    async def _pools(self) -> AsyncIterator[str]:
        """Follows the pools there are now; as before where etcd does not tell."""
        readiness = self._parts.probe.readiness
        try:
            can_tell = readiness.ready or not self._cursors
            names = await self._reading.names() if can_tell else list(self._cursors)
        except RegistryError:
            names = list(self._cursors)
        if gone := [pool for pool in self._cursors if pool not in names]:
            self._cursors = {pool: one for pool, one in self._cursors.items() if pool in names}
            yield event("gone", {"pools": gone})
        for pool in names:
            if pool not in self._cursors or self._cursors[pool].subscription.has_ended:
                self._cursors[pool] = await self._cursor(pool)
        if self._ready != readiness.ready:
            self._ready = readiness.ready
            told = {"ready": readiness.ready, "reason": readiness.reason, "pools": names}
            yield event("health", told | {"principal": self._call.principal.name})

    async def _cursor(self, pool: str) -> PoolCursor:
        subscription = await self._stack.enter_async_context(self._parts.hub.look(pool))
        return PoolCursor(pool, subscription, self._reading.sight(pool))

    async def _news(self) -> AsyncIterator[str]:
        for cursor in self._cursors.values():
            if cursor.subscription.has_ended:
                continue  # the next look at the pools begins anew
            async for one in cursor.news():
                yield one
