"""Changes of a program, and the rollouts that it waits for."""

from __future__ import annotations

import asyncio
import uuid
import warnings
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from math import inf
from types import TracebackType
from typing import Self, TypeVar

from google.protobuf import field_mask_pb2

from registry.client import admin_api as api
from registry.client.adapters import (
    Published,
    RegisteredAdapter,
    has_failed,
    is_nowhere_in,
    not_served,
    published_of,
    retry_id,
)
from registry.client.address import Tls
from registry.client.admin_api import AdminMethod
from registry.client.contexts import connection_of
from registry.client.credentials import TokenSource
from registry.client.publication import fitting
from registry.client.residency import Follower, Residence
from registry.client.transport import AdminCalls, checked_seconds
from registry.model.errors import NotFound, PermissionDenied, ResourceExhausted, Unavailable
from registry.v1 import registry_pb2 as pb

CALL_SECONDS = 30.0
WAIT_SECONDS = 300.0
LOOK_SECONDS = 5.0
_Change = TypeVar(
    "_Change", pb.ApplyAdaptersRequest, pb.RollbackAdapterRequest, pb.PromoteRolloutRequest, pb.AbortRolloutRequest
)
_Changes = AdminMethod[_Change, pb.ApplyAdaptersResponse]


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """Until when a change and what it waits for have to be done, and how many seconds the change itself may take."""

    end: float
    most_seconds: float
    now: Callable[[], float]

    def left_seconds(self) -> float:
        return max(0.0, self.end - self.now())

    def change_seconds(self) -> float:
        return min(self.left_seconds(), self.most_seconds)

    def look_seconds(self) -> float:
        return min(self.left_seconds(), LOOK_SECONDS)


class RolloutCalls:
    """A connection, with changes that are waited for. See `AsyncRegistry`."""

    def __init__(self, address: str, tls: Tls | None, timeout_seconds: float, token: TokenSource | None) -> None:
        where = connection_of(address, tls, token)
        self._calls = AdminCalls(where.address, where.tls, timeout_seconds, token=where.token)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Ends the connection. Safe to call twice."""
        await self._calls.aclose()

    async def wait(self, adapter: Published | RegisteredAdapter, *, timeout_seconds: float = WAIT_SECONDS) -> None:
        """Returns once every replica that should serve this generation does.

        Args:
            adapter: what `publish`, `rollback`, `get` or `history` returned.
            timeout_seconds: for the replicas.

        Raises:
            NotFound: there is no such adapter, or no such pool.
            FailedPrecondition: with reason ROLLOUT_FAILED, replicas refuse it, or it was superseded, deleted or halted.
            Unavailable: it is not served in time, or the admin service was not reached.
            RegistryError: as the admin service refused it otherwise.
        """
        await self._served(adapter, checked_seconds(timeout_seconds))

    async def retry(
        self,
        name: str,
        pool: str,
        *,
        replica: str = "",
        wait: bool = True,
        timeout_seconds: float | None = None,
        request_id: str = "",
    ) -> Published:
        """Has replicas try at once what failed there; returns once every replica that should serve it does.

        The adapter stays what it is, in the same generation.

        Args:
            name: of the adapter; case does not count.
            pool: its pool.
            replica: the only one that is to try; empty: all.
            wait: False: return once they are asked.
            timeout_seconds: for the change and for the replicas together; None: 300, of which the change has at most
                the time of a call of the connection.
            request_id: to repeat a call whose outcome is not known; empty: a new one.

        Raises:
            NotFound: there is no such adapter, or no such pool.
            FailedPrecondition: with reason ROLLOUT_FAILED, replicas refuse it; `metadata` names them and their reasons.
            Unavailable: no answer, or not served in time; see `publish`.
            RegistryError: as the registry refused it otherwise.
        """
        with fitting("name, pool or replica"):
            asked = pb.GetAdapterRequest(pool=pool, name=name)
            request = pb.ApplyAdaptersRequest(pool=pool, request_id=request_id, retry=True, retry_replica=replica)
        limit = self._limit(timeout_seconds)
        adapter = await self._calls.unary(api.GET_ADAPTER, asked, timeout_seconds=limit.change_seconds())
        request.changes.append(pb.AdapterChange(update=pb.Adapter(name=adapter.name)))
        [made] = await self._rolled_out(api.APPLY_ADAPTERS, request, limit, wait=wait)
        return made

    async def disable(
        self, name: str, pool: str, *, timeout_seconds: float | None = None, request_id: str = ""
    ) -> Published:
        """Has an adapter served nowhere; its name, history and place in the quota are kept. Does not wait for that.

        Args:
            name: of the adapter.
            pool: its pool.
            timeout_seconds: repetitions included; None: that of the connection.
            request_id: to repeat a call whose outcome is not known; empty: a new one.

        Raises:
            NotFound: there is no such adapter, or no such pool.
            Unavailable: no answer in time. It may be disabled; repeat with the ``request_id`` in `metadata`.
            RegistryError: as the admin service refused it otherwise.
        """
        request = _switched(name, pool, request_id, enabled=False)
        [made] = published_of(await self._changed(api.APPLY_ADAPTERS, request, timeout_seconds))
        return made

    async def enable(
        self, name: str, pool: str, *, wait: bool = True, timeout_seconds: float | None = None, request_id: str = ""
    ) -> Published:
        """Has an adapter served again that was disabled; returns once every replica that should serve it does.

        Args:
            name: of the adapter.
            pool: its pool.
            wait: False: return once it is registered.
            timeout_seconds: for the change and for the replicas together; None: 300, of which the change has at most
                the time of a call of the connection.
            request_id: to repeat a call whose outcome is not known; empty: a new one.

        Raises:
            NotFound: there is no such adapter, or no such pool.
            FailedPrecondition: with reason ROLLOUT_FAILED, replicas refuse it; `metadata` names them and their reasons.
            Unavailable: no answer, or not served in time; see `publish`.
            RegistryError: as the registry refused it otherwise.
        """
        request = _switched(name, pool, request_id, enabled=True)
        [made] = await self._rolled_out(api.APPLY_ADAPTERS, request, self._limit(timeout_seconds), wait=wait)
        return made

    async def wait_served(self, published: Published, wait_seconds: float = WAIT_SECONDS) -> None:
        """Deprecated: use `wait`."""
        warnings.warn("wait_served is deprecated; use wait", DeprecationWarning, stacklevel=2)
        await self.wait(published, timeout_seconds=wait_seconds)

    async def _rolled_out(
        self, method: _Changes[_Change], request: _Change, limit: TimeLimit, *, wait: bool
    ) -> tuple[Published, ...]:
        """The generations that a change makes, once they are served if that is waited for."""
        response = await self._changed(method, request, limit.change_seconds())
        published = published_of(response)
        is_same = all(one.outcome == pb.AdapterResult.UNCHANGED for one in response.results)
        if is_same and isinstance(request, pb.ApplyAdaptersRequest) and await self._is_refused(published, limit):
            again = pb.ApplyAdaptersRequest(
                pool=request.pool, changes=request.changes, request_id=retry_id(response.request_id), retry=True
            )
            published = published_of(await self._changed(api.APPLY_ADAPTERS, again, limit.change_seconds()))
        if not wait:
            return published
        goes_back = isinstance(request, pb.RollbackAdapterRequest)
        rollouts = [await self._served(one, limit.left_seconds(), goes_back=goes_back) for one in published]
        return tuple([await self._with_places(*one, limit) for one in zip(published, rollouts, strict=True)])

    async def _served(
        self, one: Published | RegisteredAdapter, timeout_seconds: float, *, goes_back: bool = False
    ) -> pb.Rollout | None:
        """The rollout, once every replica that should serve the generation does. Raises as `wait`.

        `goes_back`: it is over too once nobody has the files, which are of an earlier generation.
        """
        last = await self._heard(
            one, timeout_seconds, lambda rollout: rollout.done or (goes_back and is_nowhere_in(rollout))
        )
        if (error := not_served(one, last, goes_back=goes_back)) is not None:
            raise error
        return last

    async def _with_places(self, one: Published, rollout: pb.Rollout | None, limit: TimeLimit) -> Published:
        """The same with where it is served; as far as somebody tells, since the change is made all the same.

        Residency may hear of a replica a moment after its rollout did, so it is followed until it has them all.
        """
        told = rollout.replicas if rollout is not None else ()
        awaited = {
            by.replica for by in told if (by.state, by.generation) == (pb.RolloutReplica.SERVING, one.generation)
        }
        follower, serving = Follower(), list[Residence]()
        asked = pb.WatchResidencyRequest(pool=one.pool, name=one.name)
        responses = self._calls.follow(api.WATCH_RESIDENCY, asked, 0.0, follower.begun)
        with suppress(TimeoutError, NotFound, PermissionDenied, ResourceExhausted, Unavailable):
            async with asyncio.timeout(limit.look_seconds()), aclosing(responses):
                async for response in responses:
                    if (state := follower.take(response)) is None:
                        continue
                    places = [place for adapter in state.adapters.values() for place in adapter.serving]
                    serving = [place for place in places if place.generation == one.generation]
                    if awaited <= {place.replica for place in serving}:
                        break
        urls = tuple(place.engine_url for place in serving if place.engine_url)
        return replace(one, model=serving[0].model if serving else "", engine_urls=urls)

    def _limit(self, timeout_seconds: float | None) -> TimeLimit:
        total_seconds = WAIT_SECONDS if timeout_seconds is None else checked_seconds(timeout_seconds)
        now = asyncio.get_running_loop().time
        return TimeLimit(now() + total_seconds, self._calls.timeout_seconds if timeout_seconds is None else inf, now)

    async def _is_refused(self, published: Sequence[Published], limit: TimeLimit) -> bool:
        """True if a replica that should serve one of these generations has failed to; False where nothing is heard."""
        for one in published:
            heard = await self._heard(one, limit.look_seconds(), lambda _rollout: True)
            if heard is not None and any(map(has_failed, heard.replicas)):
                return True
        return False

    async def _heard(
        self, one: Published | RegisteredAdapter, timeout_seconds: float, is_over: Callable[[pb.Rollout], bool]
    ) -> pb.Rollout | None:
        """The newest of a rollout, once it is over or the time is up; None: nothing was heard."""
        rollouts = self._calls.follow(
            api.WATCH_ROLLOUT, pb.WatchRolloutRequest(pool=one.pool, name=one.name, generation=one.generation)
        )
        last: pb.Rollout | None = None
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds), aclosing(rollouts):
                async for last in rollouts:
                    if is_over(last):
                        break
        return last

    async def _changed(
        self, method: _Changes[_Change], request: _Change, timeout_seconds: float | None
    ) -> pb.ApplyAdaptersResponse:
        is_given = bool(request.request_id)
        request_id = request.request_id = request.request_id or str(uuid.uuid4())
        return await self._calls.unary(
            method, request, request_id=request_id, timeout_seconds=timeout_seconds, repeats=is_given
        )


def _switched(name: str, pool: str, request_id: str, *, enabled: bool) -> pb.ApplyAdaptersRequest:
    with fitting("name"):
        adapter = pb.Adapter(name=name, spec=pb.AdapterSpec(enabled=enabled))
    change = pb.AdapterChange(update=adapter, update_mask=field_mask_pb2.FieldMask(paths=["enabled"]))
    return pb.ApplyAdaptersRequest(pool=pool, changes=[change], request_id=request_id)


def waiting_of(wait: float | bool, timeout_seconds: float | None) -> tuple[bool, float | None]:
    """Whether to wait, and for how many seconds, from both spellings."""
    if isinstance(wait, bool):
        return wait, timeout_seconds
    warnings.warn("seconds in wait are deprecated; use timeout_seconds", DeprecationWarning, stacklevel=3)
    return True, wait
