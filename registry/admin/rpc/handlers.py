"""Handlers of the unary methods: reads and changes of desired state."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import structlog
from google.protobuf.message import Message

from registry.admin.rpc import decode, encode
from registry.admin.rpc.calls import CallContext
from registry.admin.rpc.encode_changes import first_id, recorded_changes
from registry.admin.rpc.interceptor import Unary
from registry.admin.rpc.shapes import ShapesWorker
from registry.admin.rpc.visible import (
    seen_adapters,
    seen_changes,
    seen_pools,
    seen_status,
    seen_tenants,
    sees_whole,
)
from registry.model.errors import FailedPrecondition, NotFound
from registry.model.keys import last_part
from registry.model.messages import pool_message, tenant_message
from registry.rollout.expected import expectation_of, labels_of
from registry.runtime import tracing
from registry.runtime.clock import Deadline
from registry.runtime.program import release_version
from registry.store.pages import check_page_size, decode_token, parse_filter
from registry.store.reader import Reader
from registry.store.writer import Writer
from registry.transactions.builder import Settled
from registry.transactions.changes import AbortRollout, ApplyAdapters, Change, PromoteRollout, RollbackAdapter
from registry.transactions.context import Caller
from registry.transactions.decode import engine_hosts_of
from registry.v1 import registry_pb2 as pb

Decode = Callable[[Any], Change]
Encode = Callable[[Settled], Message]
LookAtEtcd = Callable[[], Awaitable[Sequence[pb.EtcdMember]]]
ToAdapters = ApplyAdapters | RollbackAdapter | PromoteRollout | AbortRollout


class Reads:
    """Handlers of reads: each takes a request and its call, and raises RegistryError where it refuses."""

    def __init__(self, reader: Reader, look_at_etcd: LookAtEtcd, insecure: Sequence[str] = ()) -> None:
        """`look_at_etcd`: gives its members. `insecure`: what this service bears unprotected on the network."""
        self.reader = reader
        self._look_at_etcd = look_at_etcd
        self._insecure = insecure

    def by_method(self) -> Mapping[str, Unary[Any, Any]]:
        """Each handler by the name of its method."""
        return {
            "GetAdapter": self.get_adapter,
            "ListAdapters": self.list_adapters,
            "ListAdapterHistory": self.list_adapter_history,
            "GetPool": self.get_pool,
            "ListPools": self.list_pools,
            "ListTenants": self.list_tenants,
            "ReadBackup": self.read_backup,
            "ListChanges": self.list_changes,
            "GetReplica": self.get_replica,
            "ListReplicas": self.list_replicas,
        }

    async def get_adapter(self, request: pb.GetAdapterRequest, call: CallContext) -> pb.Adapter:
        return encode.present_adapter(await self.reader.adapter(request.pool, request.name, call.deadline))

    async def list_adapters(self, request: pb.ListAdaptersRequest, call: CallContext) -> pb.ListAdaptersResponse:
        sees, wanted = seen_adapters(call, request.pool), parse_filter(request.filter)
        size = check_page_size(request.page_size)
        listing = f"adapters\0{request.pool}\0{request.filter}"
        token = decode_token(request.page_token, listing)
        page = await self.reader.adapters(request.pool, wanted, size, token, call.deadline, sees)
        return pb.ListAdaptersResponse(
            adapters=[encode.present_adapter(one) for one in page.records],
            next_page_token=encode.token(page.token, listing),
            revision=page.revision,
            unreadable=page.unreadable,
        )

    async def list_adapter_history(
        self, request: pb.ListAdapterHistoryRequest, call: CallContext
    ) -> pb.ListAdapterHistoryResponse:
        return encode.history(await self.reader.history(request.pool, request.name, call.deadline))

    async def get_pool(self, request: pb.GetPoolRequest, call: CallContext) -> pb.Pool:
        found = await self.reader.pool(request.name, call.deadline, field="name")
        return pool_message(found.record, found.revision)

    async def list_pools(self, request: pb.ListPoolsRequest, call: CallContext) -> pb.ListPoolsResponse:
        size, token = check_page_size(request.page_size), decode_token(request.page_token, "pools")
        is_seen = seen_pools(call)
        page = await self.reader.pools(size, token, call.deadline, is_seen)
        unknown: dict[str, list[str]] = {}
        if request.show_unknown and page.token is None:
            unknown = await self.reader.replicas_without_pool(page.revision, call.deadline)
        is_etcd_asked = request.show_etcd and page.token is None and sees_whole(call)
        return pb.ListPoolsResponse(
            etcd=await self._look_at_etcd() if is_etcd_asked else (),
            unknown=encode.unknown_pools({pool: names for pool, names in unknown.items() if is_seen(pool)}),
            pools=[pool_message(one.record, one.revision) for one in page.records],
            next_page_token=encode.token(page.token, "pools"),
            unreadable=page.unreadable,
            admin_version=release_version(),
            admin_insecure=self._insecure,
        )

    async def list_tenants(self, request: pb.ListTenantsRequest, call: CallContext) -> pb.ListTenantsResponse:
        size, token = check_page_size(request.page_size), decode_token(request.page_token, "tenants")
        page = await self.reader.tenants(size, token, call.deadline, seen_tenants(call))
        return pb.ListTenantsResponse(
            tenants=[tenant_message(one.record, one.revision) for one in page.records],
            next_page_token=encode.token(page.token, "tenants"),
            unreadable=page.unreadable,
        )

    async def read_backup(self, request: pb.ReadBackupRequest, call: CallContext) -> pb.ReadBackupResponse:
        size, token = check_page_size(request.page_size), decode_token(request.page_token, "backup")
        page = await self.reader.stored(size, token, call.deadline)
        return encode.backup(page, self.reader.prefix, encode.token(page.token, "backup"))

    async def list_changes(self, request: pb.ListChangesRequest, call: CallContext) -> pb.ListChangesResponse:
        listing, since = f"changes\0{request.pool}\0{request.since}", first_id(request.since)
        size, token = check_page_size(request.page_size), decode_token(request.page_token, listing)
        page = await self.reader.audit(request.pool, since, size, token, call.deadline)
        reply = pb.ListChangesResponse(next_page_token=encode.token(page.token, listing))
        is_seen, is_whole = seen_changes(call, request.pool), sees_whole(call, request.pool)
        for kv in page.kvs:
            try:
                reply.changes.extend(filter(is_seen, recorded_changes(kv.value)))
            except FailedPrecondition:
                if is_whole:
                    reply.unreadable.append(last_part(kv.key))
            await asyncio.sleep(0)  # each may have a megabyte
        return reply

    async def get_replica(self, request: pb.GetReplicaRequest, call: CallContext) -> pb.Replica:
        found = await self.reader.replica(request.pool, request.name, call.deadline)
        return seen_status(call, encode.replica(request.pool, found))

    async def list_replicas(self, request: pb.ListReplicasRequest, call: CallContext) -> pb.ListReplicasResponse:
        listing = f"replicas\0{request.pool}"
        size, token = check_page_size(request.page_size), decode_token(request.page_token, listing)
        page, found = await self.reader.replicas(request.pool, size, token, call.deadline)
        reply = pb.ListReplicasResponse(
            replicas=[seen_status(call, encode.replica(request.pool, one)) for one in found],
            next_page_token=encode.token(page.token, listing),
        )
        if page.token is None:
            said = await self.reader.expected(request.pool, page.revision, call.deadline)
            expected = expectation_of(said.members, said.pool)
            live = labels_of(said.presences, said.statuses, expected.remembered.keys())
            reply.MergeFrom(encode.lacking(expected.lacking(live), engine_hosts_of(said.pool)))
        return reply


_log = structlog.get_logger()


class Request(Protocol):
    """Fields of every request for a change."""

    @property
    def request_id(self) -> str: ...
    @property
    def validate_only(self) -> bool: ...


class Forget(Protocol):
    """Expects a replica no more."""

    async def __call__(self, pool: str, name: str, deadline: Deadline, *, dry_run: bool) -> None: ...


class Writes:
    """Handlers of changes: each decodes its request, has the change carried out, and encodes what came of it."""

    def __init__(self, writer: Writer, reader: Reader, forget: Forget) -> None:
        """`forget` is `registry.rollout.members.forget`, of this service's etcd."""
        self._forget = forget
        self._writer = writer
        self._reader = reader
        self.shapes = ShapesWorker()

    def by_method(self) -> Mapping[str, Unary[Any, Any]]:
        """Each handler by the name of its method."""
        to_adapters: Mapping[str, Callable[[Any], ToAdapters]] = {
            "ApplyAdapters": decode.apply_adapters,
            "RollbackAdapter": decode.rollback_adapter,
            "PromoteRollout": decode.promote_rollout,
            "AbortRollout": decode.abort_rollout,
        }
        fingerprint_of = self.shapes.fingerprint_of
        others: Mapping[str, tuple[Decode, Encode]] = {
            "CreatePool": (partial(decode.create_pool, fingerprint_of=fingerprint_of), encode.settled_pool),
            "UpdatePool": (partial(decode.update_pool, fingerprint_of=fingerprint_of), encode.settled_pool),
            "ConfirmRemovals": (decode.confirm_removals, encode.settled_pool),
            "DeletePool": (decode.delete_pool, lambda done: pb.DeletePoolResponse(revision=done.revision)),
            "SetTenant": (decode.set_tenant, encode.settled_tenant),
            "DrainReplica": (decode.drain_replica, partial(encode.changed, pb.DrainReplicaResponse)),
            "RestoreHistory": (decode.restore_history, partial(encode.changed, pb.RestoreHistoryResponse)),
        }
        return {
            **{method: partial(self._change_adapters, how) for method, how in to_adapters.items()},
            **{method: partial(self._change_other, *how) for method, how in others.items()},
            "RepairTenant": self._repair_tenant,
            "ForgetReplica": self._forget_replica,
        }

    async def _change_adapters(
        self, change_of: Callable[[Any], ToAdapters], request: Request, call: CallContext
    ) -> pb.ApplyAdaptersResponse:
        caller, change = call.caller(request.request_id), change_of(request)
        settled = await self._change(change, request, caller, call)
        return encode.applied(settled, change.pool, caller.request_id)

    async def _change_other(self, change_of: Decode, reply_of: Encode, request: Request, call: CallContext) -> Message:
        return reply_of(await self._change(change_of(request), request, call.caller(request.request_id), call))

    async def _repair_tenant(self, request: pb.RepairTenantRequest, call: CallContext) -> pb.RepairTenantResponse:
        caller, change = call.caller(request.request_id), decode.repair_tenant(request)
        found = replace(change, lost=await self._reader.lost_adapters(change.name, call.deadline))
        return encode.repaired(await self._change(found, request, caller, call))

    async def _forget_replica(self, request: pb.ForgetReplicaRequest, call: CallContext) -> pb.ForgetReplicaResponse:
        try:
            await self._forget(request.pool, request.name, call.deadline, dry_run=request.validate_only)
        except NotFound:
            if not call.repeats:
                raise  # else the call before this one may have done it, and nothing is left to do
        if not request.validate_only:
            _log.info("replica_forgotten", pool=request.pool, replica=request.name, principal=call.principal.name)
        return pb.ForgetReplicaResponse()

    async def _change(self, change: Change, request: Request, caller: Caller, call: CallContext) -> Settled:
        """Carries a change out, logs it, and tells of it to whoever traces. Raises RegistryError."""
        about = {"method": call.method, "pool": getattr(change, "pool", ""), "revision": 0}
        traced = "" if request.validate_only else caller.request_id
        with tracing.stage("change", traced, about, caller=call.traceparent):
            settled = await self._writer.change(change, caller, call.deadline, validate_only=request.validate_only)
            about["revision"] = settled.revision
        if not request.validate_only:
            _log.info(
                "change_settled",
                method=call.method,
                request_id=caller.request_id,
                revision=settled.revision,
                principal=caller.principal.name,
            )
        return settled
