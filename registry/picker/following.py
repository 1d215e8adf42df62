"""Follower of a pool: its residency, its base models, and its ready replicas.

Level, not edge: whatever comes replaces what was known. What is known stays while the registry is away, since the
engines serve on; how long that is so, `PoolWatch.away_seconds` says.

A stream that says nothing may be one that is dead, so the replicas are listed again and again on the same connection:
a listing that finds no answer ends the connection, and the next one begins anew.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections.abc import Callable
from contextlib import aclosing, suppress

import structlog

from registry.client import admin_api as api
from registry.client.residency import Follower, PoolResidency
from registry.client.transport import AdminCalls
from registry.etcd3.backoff import Backoff
from registry.etcd3.cancellation import is_cancelled
from registry.model.errors import PermissionDenied, Reason, RegistryError, Unavailable
from registry.picker.served import PickPool, ReadyReplica, names_to_resolve, seen_since
from registry.v1 import registry_pb2 as pb

_log = structlog.get_logger()
_NOT_YET = "the registry has not answered yet"
_AGAIN = Backoff(base_seconds=0.2, cap_seconds=5.0)
# Between two listings of replicas; after a change of residency it is the shorter time.
_LIST_SECONDS, _LIST_SOON_SECONDS = 5.0, 0.5
_CALL_SECONDS = 5.0
_RESOLVE_SECONDS = 3.0
_PAGE_SIZE = 100
Connect = Callable[[], AdminCalls]


class PoolWatch:
    """Newest knowledge of one pool.

    Args:
        name: of the pool.
        connect: opens a connection to the admin service.
    """

    def __init__(self, name: str, connect: Connect) -> None:
        self.name = name
        self.pool: PickPool | None = None
        self.trouble = _NOT_YET
        self._connect = connect
        self._away_since: float | None = asyncio.get_running_loop().time()
        self._listed = asyncio.Event()
        self._has_listed = asyncio.Event()
        self._taking = asyncio.Lock()
        self._bases: frozenset[str] = frozenset()
        self._ready: tuple[ReadyReplica, ...] = ()
        self._is_refused = False
        self._is_told_away: bool | None = None  # None: nothing was logged yet

    @property
    def away_seconds(self) -> float:
        """Seconds for which the registry has been out of reach; 0: it is not."""
        return 0.0 if self._away_since is None else asyncio.get_running_loop().time() - self._away_since

    async def run(self) -> None:
        """Follows until it is cancelled."""
        failures = 0
        while True:
            # A group of tasks that fails as it is cancelled tells nothing of that: see `registry.etcd3.cancellation`.
            connection = asyncio.create_task(self._connected(), name=f"connection for {self.name}")
            try:
                await connection
            except RegistryError as error:
                if is_cancelled():
                    raise asyncio.CancelledError from error
                failures = 1 if self._away_since is None else failures + 1
                self._lost(error, failures)
            await asyncio.sleep(_AGAIN.delay(failures, random.uniform))

    async def _connected(self) -> None:
        """Follows over one connection. Raises RegistryError: it broke, or the registry refuses."""
        calls = self._connect()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._list(calls), name=f"replicas of {self.name}")
                tasks.create_task(self._follow(calls), name=f"residency of {self.name}")
        except* RegistryError as group:
            raise _first(group) from None
        finally:
            await calls.aclose()

    async def _follow(self, calls: AdminCalls) -> None:
        follower = Follower()
        request = pb.WatchResidencyRequest(pool=self.name)
        async with aclosing(calls.stream(api.WATCH_RESIDENCY, request)) as answers:
            async for answer in answers:
                if (state := follower.take(answer)) is not None:
                    await self._heard(state)
        raise Unavailable(Reason.ADMIN_UNAVAILABLE, "the admin service ended the stream of residency")

    async def _list(self, calls: AdminCalls) -> None:
        """Lists again and again. A refusal is an answer too: who may not list knows adapters alone."""
        while True:
            try:
                await self._list_once(calls)
            except PermissionDenied as error:
                if not self._is_refused:
                    _log.warning("base_not_known", pool=self.name, reason=error.reason, error=str(error))
                self._is_refused = True
            self._has_listed.set()
            self._listed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_LIST_SECONDS):  # wait_for may lose a cancellation that comes with the event
                    await self._listed.wait()
            await asyncio.sleep(_LIST_SOON_SECONDS)

    async def _list_once(self, calls: AdminCalls) -> None:
        pool = await calls.unary(api.GET_POOL, pb.GetPoolRequest(name=self.name), timeout_seconds=_CALL_SECONDS)
        request = pb.ListReplicasRequest(pool=self.name, page_size=_PAGE_SIZE)
        found: list[ReadyReplica] = []
        async with aclosing(calls.pages(api.LIST_REPLICAS, request, _CALL_SECONDS)) as pages:
            async for page in pages:
                found += [ready for one in page.replicas if (ready := ready_replica(one)) is not None]
        self._bases, self._ready, self._is_refused = frozenset(pool.base_models), tuple(found), False
        await self._take()

    async def _heard(self, state: PoolResidency) -> None:
        """Takes a state of residency, by which the registry is not away.

        A pool is not known before its base is: a request for that would be answered as one for a name nobody has.
        """
        await self._has_listed.wait()
        self._listed.set()
        await self._take(state)
        self._away_since, self.trouble = None, ""
        if self._is_told_away is not False:
            self._is_told_away = False
            _log.info("registry_followed", pool=self.name, revision=state.revision, adapters=len(state.adapters))

    async def _take(self, newer: PoolResidency | None = None) -> None:
        """Takes a newer state, or the one that is known with what was listed; one after the other, as each waits."""
        async with self._taking:
            before = self.pool
            state = newer if before is None else newer or before.residency
            if state is None:
                return
            seen = seen_since(before.seen, before.residency, state) if before is not None else {}
            names = names_to_resolve(state, self._ready)
            known = before.resolved if before is not None else {}  # DNS may be away, and engines serve on
            resolved = {name: known[name] for name in names & known.keys()} | await _resolved(names)
            self.pool = PickPool(self.name, state, self._bases, self._ready, resolved, seen)

    def _lost(self, error: RegistryError, failures: int) -> None:
        """Notes that the registry is away, and logs it once two connections failed: each ends at its age by itself."""
        self.trouble = str(error)
        if failures > 1 and not self._is_told_away:
            self._is_told_away = True
            _log.warning("registry_away", pool=self.name, reason=error.reason, error=self.trouble)
        if self._away_since is None:
            self._away_since = asyncio.get_running_loop().time()


def ready_replica(one: pb.Replica) -> ReadyReplica | None:
    """A replica that may answer for its base model; None: it is not ready, leaves, or is nowhere."""
    try:
        status = json.loads(one.status_json)
    except (ValueError, RecursionError):
        return None
    if one.leaving or not isinstance(status, dict) or status.get("ready") is not True or status.get("stale"):
        return None
    engine = status.get("engine")
    url = one.engine_url or (str(engine.get("url", "")) if isinstance(engine, dict) else "")
    return ReadyReplica(one.name, url) if url and not one.withheld_engine_url else None


def _first(group: ExceptionGroup[RegistryError]) -> RegistryError:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, ExceptionGroup) else error


async def _resolved(names: frozenset[str]) -> dict[str, str]:
    """The address of each name that leads somewhere."""
    loop = asyncio.get_running_loop()

    async def address(name: str) -> tuple[str, str]:
        try:
            async with asyncio.timeout(_RESOLVE_SECONDS):
                found = await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, TimeoutError, UnicodeError):
            return name, ""
        return name, str(found[0][4][0])

    return {name: at for name, at in await asyncio.gather(*map(address, sorted(names))) if at}
