"""The registry for programs with an event loop."""

from __future__ import annotations

import asyncio
import os
import uuid
import warnings
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from math import inf
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from registry.client import admin_api as api
from registry.client.adapters import (
    AdapterHistory,
    AdapterListing,
    Canaries,
    Published,
    RegisteredAdapter,
    adapter_of,
    has_failed,
    history_of,
    listing_of,
    not_served,
    published_of,
    retry_id,
)
from registry.client.address import Tls
from registry.client.admin_api import AdminMethod
from registry.client.audit import AuditAccess
from registry.client.contexts import connection_of
from registry.client.credentials import TokenSource
from registry.client.publication import KEEP, Keep, Publication, change_of, fitting
from registry.client.residency import Follower, PoolResidency
from registry.client.transport import AdminCalls
from registry.v1 import registry_pb2 as pb

CALL_SECONDS = 30.0
WAIT_SECONDS = 300.0
LOOK_SECONDS = 5.0
_Change = TypeVar("_Change", pb.ApplyAdaptersRequest, pb.RollbackAdapterRequest)
_Changes = AdminMethod[_Change, pb.ApplyAdaptersResponse]


class AsyncRegistry(AuditAccess):
    """A connection to the admin service, for use in ``async with``.

    Args:
        address: HOST:PORT of the admin service; empty: LORAPLANE_ADMIN, with the variables of TLS and tokens beside it,
            or else the context that `loraplane config` made the current one.
        tls: for a service with certificates; None: without TLS.
        timeout_seconds: how long one call may take, repetitions included, unless it says otherwise; waiting for
            replicas has a time of its own.
        token: where the token comes from that is shown with each call, over TLS or to this host alone; None: none is.

    Raises:
        InvalidArgument: `address` is none, nothing names one, a file of `tls` cannot be used, or others could read the
            token.
        FailedPrecondition: others may write the file of contexts.
    """

    def __init__(
        self,
        address: str = "",
        *,
        tls: Tls | None = None,
        timeout_seconds: float = CALL_SECONDS,
        token: TokenSource | None = None,
    ) -> None:
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

    async def publish(
        self,
        source: str | os.PathLike[str],
        name: str,
        pool: str,
        *,
        digest: str = "",
        signature: str = "",
        expect: Mapping[str, Any] | None = None,
        base_model: str | Keep = KEEP,
        load: Literal["eager", "lazy"] | Keep = KEEP,
        priority: int | Keep = KEEP,
        placement: Mapping[str, Any] | Keep = KEEP,
        prepare: Mapping[str, Any] | Keep = KEEP,
        credentials: str | Keep = KEEP,
        labels: Mapping[str, str] | Keep | None = KEEP,
        canaries: Canaries | Keep | None = KEEP,
        description: str | Keep = KEEP,
        replace: bool = False,
        wait: float | bool = True,
        timeout_seconds: float | None = None,
        request_id: str = "",
    ) -> Published:
        """Gives an adapter what `source` holds; returns once every replica that should serve it does.

        Where the adapter exists, all else stays as it is that is not given here; a new one gets the defaults. Where all
        is as it was and replicas refuse it, they try it anew, and what comes of that is waited for. With canaries that
        are promoted by hand, it returns once they serve it.

        Args:
            source: a directory that the replicas see at the same path, whose digest is computed and pinned here; or a
                URI (``s3://…``), pinned by `digest`. Files of a generation must not change: write each to a place of
                its own.
            name: of the adapter; the part before a slash is the tenant.
            pool: its replicas serve it.
            digest: manifest digest, ``sha256:`` and 64 hex digits; empty: not pinned where `source` is a URI.
            signature: over the digest, as ``loraplane sign`` prints it; empty: none.
            expect: what these weights have to answer, as ``loraplane expect -o json`` prints it; None: anything.
            base_model: that it was trained on; empty: not said.
            load: ``eager``, or ``lazy``: loaded at the first request.
            priority: higher is loaded first; -1000 to 1000.
            placement: ``{"replicas": 2, "selector": {"zone": "a"}}``, as in a manifest; ``{}``: all replicas.
            prepare: as in a manifest, such as ``{"vision": "drop"}``; ``{}``: the defaults.
            credentials: name of a credential that sidecars know; empty: none.
            labels: for people and filters; None: none.
            canaries: replicas that take new weights first; None: all take them at once.
            description: for people; empty: none.
            replace: what is not given gets its default, as by a manifest that does not say it.
            wait: False: return once it is registered. Seconds in place of True are deprecated: use `timeout_seconds`.
            timeout_seconds: for the change and for the replicas together, from when the files are digested; None: 300,
                of which the change has at most the time of a call of the connection.
            request_id: to repeat a call whose outcome is not known; empty: a new one.

        Raises:
            InvalidArgument: the directory is not there or holds no adapter, or the registry refuses a field.
            NotFound: there is no such pool.
            FailedPrecondition: with reason ROLLOUT_FAILED, replicas refuse it, or its rollout was halted; `metadata`
                names the replicas and their reasons.
            ResourceExhausted: a quota of the tenant, or the space of the store.
            Unavailable: no answer, or not served in time: the message names the replicas that are missing. The change
                may have been made; repeat with the ``request_id`` in `metadata`, which goes on waiting.
            RegistryError: as the registry refused it otherwise.
        """
        is_waiting, timeout_seconds = waiting_of(wait, timeout_seconds)
        publication = Publication(
            name=name,
            source=source,
            digest=digest,
            signature=signature,
            expect=expect,
            base_model=base_model,
            load=load,
            priority=priority,
            placement=placement,
            prepare=prepare,
            credentials=credentials,
            labels=labels,
            canaries=canaries,
            description=description,
            replace=replace,
        )
        change = await asyncio.to_thread(change_of, publication)
        request = pb.ApplyAdaptersRequest(pool=pool, changes=[change], request_id=request_id)
        return await self._rolled_out(api.APPLY_ADAPTERS, request, self._limit(timeout_seconds), wait=is_waiting)

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
            Conflict: the adapter was changed meanwhile.
            FailedPrecondition: with reason ROLLOUT_FAILED, replicas refuse it; `metadata` names them and their reasons.
            Unavailable: no answer, or not served in time; see `publish`.
            RegistryError: as the registry refused it otherwise.
        """
        with fitting("name, pool or replica"):
            asked = pb.GetAdapterRequest(pool=pool, name=name)
            request = pb.ApplyAdaptersRequest(pool=pool, request_id=request_id, retry=True, retry_replica=replica)
        limit = self._limit(timeout_seconds)
        adapter = await self._calls.unary(api.GET_ADAPTER, asked, timeout_seconds=limit.change_seconds())
        request.changes.append(pb.AdapterChange(upsert=adapter, etag=adapter.etag))
        return await self._rolled_out(api.APPLY_ADAPTERS, request, limit, wait=wait)

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
        last = await self._heard(adapter, timeout_seconds, lambda rollout: rollout.done)
        if (error := not_served(adapter, last)) is not None:
            raise error

    async def rollback(
        self,
        name: str,
        pool: str,
        *,
        to_generation: int = 0,
        restored: bool = False,
        etag: str = "",
        wait: bool = True,
        timeout_seconds: float | None = None,
        request_id: str = "",
    ) -> Published:
        """Makes a new generation with the spec of an earlier one; returns once every replica that should serve it does.

        Args:
            name: of the adapter, which may have been deleted; case does not count.
            pool: its pool.
            to_generation: the earlier generation; 0: the one before the present one.
            restored: go back also to a generation that somebody restored from a backup, see `history`.
            etag: refuse unless the adapter has it; empty: no condition.
            wait: False: return once it is registered.
            timeout_seconds: for the change and for the replicas together; None: 300, of which the change has at most
                the time of a call of the connection.
            request_id: to repeat a call whose outcome is not known; empty: a new one.

        Raises:
            NotFound: there is no such adapter, or the generation is not kept.
            Conflict: `etag` is stale.
            FailedPrecondition: with reason GENERATION_RESTORED, the generation was restored; see `restored`. With
                reason ROLLOUT_FAILED, replicas refuse it; `metadata` names them and their reasons.
            Unavailable: no answer, or not served in time; see `publish`.
            RegistryError: as the registry refused it otherwise.
        """
        with fitting("name, to_generation, restored or etag"):
            request = pb.RollbackAdapterRequest(
                pool=pool, name=name, to_generation=to_generation, restored=restored, etag=etag, request_id=request_id
            )
        return await self._rolled_out(api.ROLLBACK_ADAPTER, request, self._limit(timeout_seconds), wait=wait)

    async def withdraw(
        self,
        name: str,
        pool: str,
        *,
        etag: str = "",
        timeout_seconds: float | None = None,
        request_id: str = "",
    ) -> None:
        """Deletes an adapter. Replicas unload it afterwards; this does not wait for them.

        Args:
            name: of the adapter; case does not count.
            pool: its pool.
            etag: refuse unless the adapter has it; empty: no condition.
            timeout_seconds: repetitions included; None: that of the connection.
            request_id: to repeat a call whose outcome is not known; empty: a new one.

        Raises:
            NotFound: there is no such adapter, or no such pool.
            Conflict: `etag` is stale.
            Unavailable: no answer in time. It may have been deleted; repeat with the ``request_id`` in `metadata`.
            RegistryError: as the admin service refused it otherwise.
        """
        change = pb.AdapterChange(delete=name, etag=etag)
        request = pb.ApplyAdaptersRequest(pool=pool, changes=[change], request_id=request_id)
        await self._changed(api.APPLY_ADAPTERS, request, timeout_seconds)

    async def get(self, name: str, pool: str, *, timeout_seconds: float | None = None) -> RegisteredAdapter:
        """The adapter as it is now.

        Args:
            name: of the adapter; case does not count.
            pool: its pool.
            timeout_seconds: repetitions included; None: that of the connection.

        Raises:
            NotFound: there is no such adapter, or no such pool.
            Unavailable: no answer in time.
            RegistryError: as the admin service refused it otherwise.
        """
        request = pb.GetAdapterRequest(pool=pool, name=name)
        return adapter_of(await self._calls.unary(api.GET_ADAPTER, request, timeout_seconds=timeout_seconds))

    async def list(self, pool: str, *, matching: str = "", timeout_seconds: float | None = None) -> AdapterListing:
        """All adapters of a pool, at one revision.

        Args:
            pool: whose adapters.
            matching: terms ``field=value`` joined by `` AND ``; fields: name (a prefix with a trailing ``*``), tenant,
                load, label.KEY. Empty: all.
            timeout_seconds: of each page of 1000, repetitions included; None: that of the connection.

        Raises:
            InvalidArgument: `matching` cannot be read.
            NotFound: there is no such pool.
            Unavailable: no answer in time.
            RegistryError: as the admin service refused it otherwise.
        """
        request = pb.ListAdaptersRequest(pool=pool, filter=matching)
        pages = self._calls.pages(api.LIST_ADAPTERS, request, timeout_seconds)
        async with aclosing(pages):
            return listing_of([page async for page in pages])

    async def history(self, name: str, pool: str, *, timeout_seconds: float | None = None) -> AdapterHistory:
        """The generations of an adapter that are kept, also of one that was deleted.

        Args:
            name: of the adapter; case does not count.
            pool: its pool.
            timeout_seconds: repetitions included; None: that of the connection.

        Raises:
            NotFound: there never was such an adapter, or there is no such pool.
            Unavailable: no answer in time.
            RegistryError: as the admin service refused it otherwise.
        """
        request = pb.ListAdapterHistoryRequest(pool=pool, name=name)
        history = await self._calls.unary(api.LIST_ADAPTER_HISTORY, request, timeout_seconds=timeout_seconds)
        return history_of(history)

    async def residency(
        self, pool: str, *, timeout_seconds: float | None = None
    ) -> AsyncGenerator[PoolResidency, None]:
        """The replicas that serve each adapter of a pool, whole, at once and after every change; for routers.

        When the connection breaks it is made again, and the last state holds until then. Close the generator at the end
        (`contextlib.closing`, `contextlib.aclosing`).

        Args:
            pool: whose adapters.
            timeout_seconds: how long the admin service may be out of reach; None: for ever.

        Raises:
            NotFound: there is no such pool.
            Unavailable: the admin service was out of reach for longer than `timeout_seconds`.
            RegistryError: as the admin service refused it otherwise.
        """
        request = pb.WatchResidencyRequest(pool=pool)
        follower = Follower()
        responses = self._calls.follow(api.WATCH_RESIDENCY, request, timeout_seconds)
        async with aclosing(responses):
            async for response in responses:
                if (state := follower.take(response)) is not None:
                    yield state

    async def wait_served(self, published: Published, wait_seconds: float = WAIT_SECONDS) -> None:
        """Deprecated: use `wait`."""
        warnings.warn("wait_served is deprecated; use wait", DeprecationWarning, stacklevel=2)
        await self.wait(published, timeout_seconds=wait_seconds)

    async def _rolled_out(
        self, method: _Changes[_Change], request: _Change, limit: _TimeLimit, *, wait: bool
    ) -> Published:
        """The generation that a change makes, once it is served if that is waited for."""
        response = await self._changed(method, request, limit.change_seconds())
        published = published_of(response)
        is_same = response.results[0].outcome == pb.AdapterResult.UNCHANGED
        if is_same and isinstance(request, pb.ApplyAdaptersRequest) and await self._is_refused(published):
            again = pb.ApplyAdaptersRequest(
                pool=request.pool, changes=request.changes, request_id=retry_id(published.request_id), retry=True
            )
            published = published_of(await self._changed(api.APPLY_ADAPTERS, again, limit.change_seconds()))
        if wait:
            await self.wait(published, timeout_seconds=limit.left_seconds())
        return published

    def _limit(self, timeout_seconds: float | None) -> _TimeLimit:
        total_seconds = WAIT_SECONDS if timeout_seconds is None else timeout_seconds
        now = asyncio.get_running_loop().time
        return _TimeLimit(now() + total_seconds, self._calls.timeout_seconds if timeout_seconds is None else inf, now)

    async def _is_refused(self, published: Published) -> bool:
        """True if a replica that should serve this generation has failed to; False where that is not heard soon."""
        heard = await self._heard(published, LOOK_SECONDS, lambda _rollout: True)
        return heard is not None and any(map(has_failed, heard.replicas))

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


@dataclass(frozen=True, slots=True)
class _TimeLimit:
    """Until when a change and what it waits for have to be done, and how many seconds the change itself may take."""

    end: float
    most_seconds: float
    now: Callable[[], float]

    def left_seconds(self) -> float:
        return max(0.0, self.end - self.now())

    def change_seconds(self) -> float:
        return min(self.left_seconds(), self.most_seconds)


def waiting_of(wait: float | bool, timeout_seconds: float | None) -> tuple[bool, float | None]:
    """Whether to wait, and for how many seconds, from both spellings."""
    if isinstance(wait, bool):
        return wait, timeout_seconds
    warnings.warn("seconds in wait are deprecated; use timeout_seconds", DeprecationWarning, stacklevel=3)
    return True, wait
