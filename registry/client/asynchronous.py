"""The registry for programs with an event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import Any, Literal

from registry.client import admin_api as api
from registry.client.adapters import (
    AdapterHistory,
    AdapterListing,
    Canaries,
    FoldedAdapters,
    Published,
    RegisteredAdapter,
    adapter_of,
    history_of,
    listing_of,
)
from registry.client.address import Tls
from registry.client.audit import AuditAccess
from registry.client.credentials import TokenSource
from registry.client.fleet.methods import FleetCalls
from registry.client.fleet.rolling import CALL_SECONDS, waiting_of
from registry.client.publication import KEEP, Keep, Publication, Upload, Withdrawal, change_of, fitting, wire_of
from registry.client.residency import Follower, PoolResidency
from registry.v1 import registry_pb2 as pb


class AsyncRegistry(AuditAccess, FleetCalls):
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
        super().__init__(address, tls, timeout_seconds, token)

    async def publish(
        self,
        source: str | os.PathLike[str],
        name: str,
        pool: str,
        *,
        upload: str | os.PathLike[str] | Upload | None = None,
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
        enabled: bool | Keep = KEEP,
        ttl: str | float | timedelta | Keep | None = KEEP,
        ttl_from: Literal["change", "use"] | Keep = KEEP,
        keep: int | Keep | None = KEEP,
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
            upload: where the files of a directory are copied first: another folder, ``s3://BUCKET/KEY`` (gs, az), or an
                `Upload` with a credential. Each version needs a place of its own, which nothing rotates; None: the
                directory itself is the source.
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
            enabled: False: it is served nowhere, and all else of it is kept.
            ttl: so long after its last change it is deleted: ``"7d"``, seconds or a timedelta; None: never.
            ttl_from: ``use``: its ttl begins with its last use, where that is later; ``change``: with its last change.
            keep: so many of its generations are served as ``name@generation``, the newest included; None: the newest
                alone. For pools with versioned names.
            replace: what is not given gets its default, as by a manifest that does not say it.
            wait: False: return once it is registered. Seconds in place of True are deprecated: use `timeout_seconds`.
            timeout_seconds: for the change and for the replicas together, from when the files are digested; None: 300,
                of which the change has at most the time of a call of the connection.
            request_id: to repeat a call whose outcome is not known; empty: a new one.

        Raises:
            InvalidArgument: the directory is not there or holds no adapter, or the registry refuses a field.
            AlreadyExists: with reason DESTINATION_TAKEN, `upload` names a place with other files; nothing is published.
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
            upload=upload,
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
            enabled=enabled,
            ttl=ttl,
            ttl_from=ttl_from,
            keep=keep,
            replace=replace,
        )
        change = await asyncio.to_thread(change_of, publication)
        request = pb.ApplyAdaptersRequest(pool=pool, changes=[change], request_id=request_id)
        [made] = await self._rolled_out(api.APPLY_ADAPTERS, request, self._limit(timeout_seconds), wait=is_waiting)
        return made

    async def apply(
        self,
        changes: Sequence[Publication | Withdrawal],
        pool: str,
        *,
        wait: bool = True,
        timeout_seconds: float | None = None,
        request_id: str = "",
    ) -> tuple[Published, ...]:
        """Changes several adapters of a pool in one transaction; returns once all that are published are served.

        Where none is changed and replicas refuse one, they try all of them anew, as in `publish`.

        Args:
            changes: what is to be published or withdrawn; no name twice.
            pool: its replicas serve them.
            wait: False: return once the changes are registered.
            timeout_seconds: for the change and for the replicas together, from when the files are digested; None: 300,
                of which the change has at most the time of a call of the connection.
            request_id: to repeat a call whose outcome is not known; empty: a new one.

        Returns:
            The generations that are published, in the order of `changes`.

        Raises:
            InvalidArgument: a directory holds no adapter, or the registry refuses a field; nothing is changed.
            NotFound: there is no such pool, or nothing to withdraw.
            Conflict: an etag is stale.
            FailedPrecondition: with reason ROLLOUT_FAILED, replicas refuse one; see `publish`.
            Unavailable: no answer, or not served in time; see `publish`.
            RegistryError: as the registry refused it otherwise.
        """
        wired = [await asyncio.to_thread(wire_of, one) for one in changes]
        request = pb.ApplyAdaptersRequest(pool=pool, changes=wired, request_id=request_id)
        return await self._rolled_out(api.APPLY_ADAPTERS, request, self._limit(timeout_seconds), wait=wait)

    async def promote(
        self,
        name: str,
        pool: str,
        *,
        generation: int = 0,
        wait: bool = True,
        timeout_seconds: float | None = None,
        request_id: str = "",
    ) -> Published:
        """Gives a generation that only canaries serve to all replicas; returns once they serve it.

        Args:
            name: of the adapter; case does not count.
            pool: its pool.
            generation: refuse unless it is this one; 0: whichever canaries serve.
            wait: False: return once it is ordered.
            timeout_seconds: for the change and for the replicas together; None: 300, of which the change has at most
                the time of a call of the connection.
            request_id: to repeat a call whose outcome is not known; empty: a new one.

        Raises:
            NotFound: there is no such adapter, or no such pool.
            Conflict: it is another generation.
            FailedPrecondition: no canaries serve it alone; or, with reason ROLLOUT_FAILED, replicas refuse it.
            Unavailable: no answer, or not served in time; see `publish`.
            RegistryError: as the registry refused it otherwise.
        """
        with fitting("name or generation"):
            request = pb.PromoteRolloutRequest(pool=pool, name=name, generation=generation, request_id=request_id)
        [made] = await self._rolled_out(api.PROMOTE_ROLLOUT, request, self._limit(timeout_seconds), wait=wait)
        return made

    async def abort(
        self,
        name: str,
        pool: str,
        *,
        generation: int = 0,
        wait: bool = True,
        timeout_seconds: float | None = None,
        request_id: str = "",
    ) -> Published:
        """Takes a generation back that only canaries serve; returns once they serve what the others do.

        Args:
            name: of the adapter; case does not count.
            pool: its pool.
            generation: refuse unless it is this one; 0: whichever canaries serve.
            wait: False: return once it is ordered.
            timeout_seconds: for the change and for the replicas together; None: 300, of which the change has at most
                the time of a call of the connection.
            request_id: to repeat a call whose outcome is not known; empty: a new one.

        Raises:
            NotFound: there is no such adapter, or no such pool.
            Conflict: it is another generation.
            FailedPrecondition: no canaries serve it alone; or, with reason ROLLOUT_FAILED, replicas refuse it.
            Unavailable: no answer, or not served in time; see `publish`.
            RegistryError: as the registry refused it otherwise.
        """
        with fitting("name or generation"):
            request = pb.AbortRolloutRequest(pool=pool, name=name, generation=generation, request_id=request_id)
        [made] = await self._rolled_out(api.ABORT_ROLLOUT, request, self._limit(timeout_seconds), wait=wait)
        return made

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
        [made] = await self._rolled_out(api.ROLLBACK_ADAPTER, request, self._limit(timeout_seconds), wait=wait)
        return made

    async def withdraw(
        self, name: str, pool: str, *, etag: str = "", timeout_seconds: float | None = None, request_id: str = ""
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
        responses = self._calls.follow(api.WATCH_RESIDENCY, request, timeout_seconds, follower.begun)
        async with aclosing(responses):
            async for response in responses:
                if (state := follower.take(response)) is not None:
                    yield state

    async def watch(self, pool: str, *, timeout_seconds: float | None = None) -> AsyncGenerator[AdapterListing, None]:
        """The adapters of a pool, whole, at once and after every change.

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
        folded, request = FoldedAdapters(), pb.WatchAdaptersRequest(pool=pool)
        responses = self._calls.follow(api.WATCH_ADAPTERS, request, timeout_seconds, folded.begun)
        async with aclosing(responses):
            async for response in responses:
                if (listing := folded.take(response)) is not None:
                    yield listing
