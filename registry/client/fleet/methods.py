"""Calls of a program about pools, replicas, tenants, and what was done."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Literal, TypeVar

from google.protobuf import field_mask_pb2

from registry.client import admin_api as api
from registry.client.admin_api import AdminMethod, Reply
from registry.client.fleet.rolling import RolloutCalls
from registry.client.fleet.values import (
    FleetReplica,
    RecordedEvent,
    RegisteredPool,
    ReplicaListing,
    TenantQuota,
    event_of,
    pool_of,
    replica_of,
    replicas_of,
    tenant_of_wire,
)
from registry.client.publication import each_of, fitting
from registry.v1 import registry_pb2 as pb

_Once = TypeVar(
    "_Once",
    pb.CreatePoolRequest,
    pb.UpdatePoolRequest,
    pb.DeletePoolRequest,
    pb.DrainReplicaRequest,
    pb.SetTenantRequest,
)


class FleetCalls(RolloutCalls):
    """A connection, with what is asked about a fleet. See `AsyncRegistry`."""

    async def pools(self, *, timeout_seconds: float | None = None) -> tuple[RegisteredPool, ...]:
        """All pools, in the order of their names.

        Args:
            timeout_seconds: of each page of 1000, repetitions included; None: that of the connection.

        Raises:
            Unavailable: no answer in time.
            RegistryError: as the admin service refused it otherwise.
        """
        pages = self._calls.pages(api.LIST_POOLS, pb.ListPoolsRequest(), timeout_seconds)
        async with aclosing(pages):
            return tuple([pool_of(one) async for page in pages for one in page.pools])

    async def get_pool(self, name: str, *, timeout_seconds: float | None = None) -> RegisteredPool:
        """The pool as it is now.

        Args:
            name: of the pool.
            timeout_seconds: repetitions included; None: that of the connection.

        Raises:
            NotFound: there is no such pool.
            Unavailable: no answer in time.
            RegistryError: as the admin service refused it otherwise.
        """
        request = pb.GetPoolRequest(name=name)
        return pool_of(await self._calls.unary(api.GET_POOL, request, timeout_seconds=timeout_seconds))

    async def create_pool(
        self,
        name: str,
        base_models: Sequence[str],
        *,
        engine: str = "vllm",
        engine_names: Literal["plain", "versioned"] = "plain",
        max_rank: int | None = None,
        max_adapters: int | None = None,
        expected_replicas: int | None = None,
        require_digest: bool = False,
        require_signature: bool = False,
        timeout_seconds: float | None = None,
        request_id: str = "",
    ) -> RegisteredPool:
        """Creates a pool. The modules of its base model are read by ``loraplane pool update --from DIR``.

        Args:
            name: of the pool.
            base_models: names under which its engines serve the base model; at least one.
            engine: kind of its engines.
            engine_names: ``versioned``: engines call an adapter ``name@generation``.
            max_rank: highest rank of an adapter; None: no limit.
            max_adapters: adapters that one engine is asked to hold at once; None: no limit.
            expected_replicas: how many it is to have; None: those that lived within the last day.
            require_digest: take no adapter without the digest of its source.
            require_signature: serve no adapter without a signature.
            timeout_seconds: repetitions included; None: that of the connection.
            request_id: to repeat a call whose outcome is not known; empty: a new one.

        Raises:
            AlreadyExists: there is such a pool.
            InvalidArgument: a field cannot have such a value.
            Unavailable: no answer in time. It may have been created; repeat with the ``request_id`` in `metadata`.
            RegistryError: as the admin service refused it otherwise.
        """
        with fitting("pool"):
            limits = pb.PoolLimits(
                max_rank=max_rank or 0,
                max_adapters=max_adapters or 0,
                expected_replicas=expected_replicas or 0,
                require_digest=require_digest,
                require_signature=require_signature,
            )
            names = each_of(base_models)
            pool = pb.Pool(name=name, base_models=names, engine=engine, engine_names=engine_names, limits=limits)
        return pool_of(await self._once(api.CREATE_POOL, pb.CreatePoolRequest(pool=pool), request_id, timeout_seconds))

    async def update_pool(
        self,
        name: str,
        *,
        max_rank: int | None = None,
        max_adapters: int | None = None,
        expected_replicas: int | None = None,
        require_digest: bool | None = None,
        require_signature: bool | None = None,
        etag: str = "",
        timeout_seconds: float | None = None,
        request_id: str = "",
    ) -> RegisteredPool:
        """Changes limits of a pool; what is None stays as it is.

        Args:
            name: of the pool.
            max_rank: highest rank of an adapter; 0: no limit.
            max_adapters: adapters that one engine is asked to hold at once; 0: no limit.
            expected_replicas: how many it is to have; 0: those that lived within the last day.
            require_digest: take no adapter without the digest of its source.
            require_signature: serve no adapter without a signature.
            etag: refuse unless the pool has it; empty: no condition.
            timeout_seconds: repetitions included; None: that of the connection.
            request_id: to repeat a call whose outcome is not known; empty: a new one.

        Raises:
            NotFound: there is no such pool.
            Conflict: `etag` is stale.
            InvalidArgument: nothing is given, or a field cannot have such a value.
            Unavailable: no answer in time. It may have been changed; repeat with the ``request_id`` in `metadata`.
            RegistryError: as the admin service refused it otherwise.
        """
        limits = {
            "max_rank": max_rank,
            "max_adapters": max_adapters,
            "expected_replicas": expected_replicas,
            "require_digest": require_digest,
            "require_signature": require_signature,
        }
        given = {field: value for field, value in limits.items() if value is not None}
        with fitting("pool"):
            pool = pb.Pool(name=name, etag=etag, limits=pb.PoolLimits(**given))  # type: ignore[arg-type] # as named
        mask = field_mask_pb2.FieldMask(paths=[f"limits.{field}" for field in given])
        request = pb.UpdatePoolRequest(pool=pool, update_mask=mask)
        return pool_of(await self._once(api.UPDATE_POOL, request, request_id, timeout_seconds))

    async def delete_pool(
        self, name: str, *, etag: str = "", timeout_seconds: float | None = None, request_id: str = ""
    ) -> None:
        """Deletes a pool that has no adapters left.

        Args:
            name: of the pool.
            etag: refuse unless the pool has it; empty: no condition.
            timeout_seconds: repetitions included; None: that of the connection.
            request_id: to repeat a call whose outcome is not known; empty: a new one.

        Raises:
            NotFound: there is no such pool.
            Conflict: `etag` is stale.
            FailedPrecondition: it has adapters.
            Unavailable: no answer in time. It may have been deleted; repeat with the ``request_id`` in `metadata`.
            RegistryError: as the admin service refused it otherwise.
        """
        await self._once(api.DELETE_POOL, pb.DeletePoolRequest(name=name, etag=etag), request_id, timeout_seconds)

    async def replicas(self, pool: str, *, timeout_seconds: float | None = None) -> ReplicaListing:
        """The replicas of a pool that live, and those that are expected and do not.

        Args:
            pool: whose replicas.
            timeout_seconds: of each page of 100, repetitions included; None: that of the connection.

        Raises:
            NotFound: there is no such pool.
            Unavailable: no answer in time.
            RegistryError: as the admin service refused it otherwise.
        """
        pages = self._calls.pages(api.LIST_REPLICAS, pb.ListReplicasRequest(pool=pool), timeout_seconds)
        async with aclosing(pages):
            return replicas_of([page async for page in pages])

    async def get_replica(self, name: str, pool: str, *, timeout_seconds: float | None = None) -> FleetReplica:
        """The replica as it is now.

        Args:
            name: of the replica.
            pool: its pool.
            timeout_seconds: repetitions included; None: that of the connection.

        Raises:
            NotFound: no such replica lives.
            Unavailable: no answer in time.
            RegistryError: as the admin service refused it otherwise.
        """
        request = pb.GetReplicaRequest(pool=pool, name=name)
        return replica_of(await self._calls.unary(api.GET_REPLICA, request, timeout_seconds=timeout_seconds))

    async def drain(
        self, replica: str, pool: str, *, timeout_seconds: float | None = None, request_id: str = ""
    ) -> bool:
        """Orders a live replica to drain: others take what it serves, and routers leave it out.

        Args:
            replica: its name.
            pool: its pool.
            timeout_seconds: repetitions included; None: that of the connection.
            request_id: to repeat a call whose outcome is not known; empty: a new one.

        Returns:
            False: it was ordered before.

        Raises:
            NotFound: no such replica lives.
            Unavailable: no answer in time; see `create_pool`.
            RegistryError: as the admin service refused it otherwise.
        """
        request = pb.DrainReplicaRequest(pool=pool, name=replica)
        return (await self._once(api.DRAIN_REPLICA, request, request_id, timeout_seconds)).changed

    async def undrain(
        self, replica: str, pool: str, *, timeout_seconds: float | None = None, request_id: str = ""
    ) -> bool:
        """Orders a replica that drains to serve again.

        Args:
            replica: its name.
            pool: its pool.
            timeout_seconds: repetitions included; None: that of the connection.
            request_id: to repeat a call whose outcome is not known; empty: a new one.

        Returns:
            False: there was nothing to take back.

        Raises:
            NotFound: no such replica lives.
            Unavailable: no answer in time; see `create_pool`.
            RegistryError: as the admin service refused it otherwise.
        """
        request = pb.DrainReplicaRequest(pool=pool, name=replica, undrain=True)
        return (await self._once(api.DRAIN_REPLICA, request, request_id, timeout_seconds)).changed

    async def forget(self, replica: str, pool: str, *, timeout_seconds: float | None = None) -> None:
        """Expects a replica no more that does not live and is not to come back.

        Args:
            replica: its name.
            pool: its pool.
            timeout_seconds: repetitions included; None: that of the connection.

        Raises:
            NotFound: no such replica is expected.
            FailedPrecondition: it lives.
            Unavailable: no answer in time.
            RegistryError: as the admin service refused it otherwise.
        """
        request = pb.ForgetReplicaRequest(pool=pool, name=replica)
        await self._calls.unary(api.FORGET_REPLICA, request, timeout_seconds=timeout_seconds)

    async def tenants(self, *, timeout_seconds: float | None = None) -> tuple[TenantQuota, ...]:
        """All tenants that have adapters or a quota, in the order of their names.

        Args:
            timeout_seconds: of each page of 1000, repetitions included; None: that of the connection.

        Raises:
            Unavailable: no answer in time.
            RegistryError: as the admin service refused it otherwise.
        """
        pages = self._calls.pages(api.LIST_TENANTS, pb.ListTenantsRequest(), timeout_seconds)
        async with aclosing(pages):
            return tuple([tenant_of_wire(one) async for page in pages for one in page.tenants])

    async def set_quota(
        self,
        tenant: str,
        max_adapters: int | None,
        *,
        etag: str = "",
        timeout_seconds: float | None = None,
        request_id: str = "",
    ) -> TenantQuota:
        """Sets how many adapters a tenant may have over all pools.

        Args:
            tenant: its name; case does not count.
            max_adapters: at least 1; None: any number.
            etag: refuse unless the tenant has it; empty: no condition.
            timeout_seconds: repetitions included; None: that of the connection.
            request_id: to repeat a call whose outcome is not known; empty: a new one.

        Raises:
            FailedPrecondition: it has more already.
            Conflict: `etag` is stale.
            InvalidArgument: it is no number that a quota can be.
            Unavailable: no answer in time; see `create_pool`.
            RegistryError: as the admin service refused it otherwise.
        """
        with fitting("max_adapters"):
            if max_adapters == 0:
                raise ValueError("0 is no quota: write 1 or more, or None for any number")
            wanted = pb.Tenant(name=tenant, max_adapters=max_adapters or 0, etag=etag)
        request = pb.SetTenantRequest(tenant=wanted)
        return tenant_of_wire(await self._once(api.SET_TENANT, request, request_id, timeout_seconds))

    async def events(
        self, pool: str, *, since: str = "", timeout_seconds: float | None = None
    ) -> AsyncGenerator[RecordedEvent, None]:
        """Changes of a pool, its adapters and its replicas, as the audit trail has them; the oldest first.

        Args:
            pool: also one that was deleted.
            since: RFC 3339, by the clock of the admin service that did it; empty: all that is kept, which is 30 days.
            timeout_seconds: of each page of 100 records, repetitions included; None: that of the connection.

        Raises:
            InvalidArgument: `since` is no time.
            Unavailable: no answer in time.
            RegistryError: as the admin service refused it otherwise.
        """
        request = pb.ListChangesRequest(pool=pool, since=since, page_size=100)
        pages = self._calls.pages(api.LIST_CHANGES, request, timeout_seconds)
        async with aclosing(pages):
            async for page in pages:
                for one in page.changes:
                    yield event_of(one)

    async def _once(
        self, method: AdminMethod[_Once, Reply], request: _Once, request_id: str, timeout_seconds: float | None
    ) -> Reply:
        """The reply to a change that is made once, however often it is sent."""
        request.request_id = request_id or str(uuid.uuid4())
        return await self._calls.unary(
            method, request, request_id=request.request_id, timeout_seconds=timeout_seconds, repeats=bool(request_id)
        )
