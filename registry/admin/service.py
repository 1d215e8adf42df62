"""Which handler serves which method of the .proto, each under the supervisor."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from registry.admin.emergency import Emergency
from registry.admin.metrics import Metrics
from registry.admin.reads import Reads
from registry.admin.streams import Streams
from registry.admin.supervision import Stream, Unary, supervised_stream, supervised_unary
from registry.admin.turns import Turns
from registry.admin.writes import Writes
from registry.v1 import registry_pb2 as pb

DESCRIPTOR = pb.DESCRIPTOR.services_by_name["AdapterRegistry"]
SERVICE: str = DESCRIPTOR.full_name


def make_handlers(
    writes: Writes, emergency: Emergency, reads: Reads, streams: Streams, metrics: Metrics, stopping: asyncio.Event
) -> grpc.GenericRpcHandler:
    """All methods of the service. Streams end once `stopping` is set.

    Raises:
        KeyError: a method of the .proto has no handler.
    """
    unary = _unary_methods(writes, emergency, reads)
    stream: Mapping[str, Stream[Any, Any]] = {
        "WatchAdapters": streams.watch_adapters,
        "WatchRollout": streams.watch_rollout,
        "WatchResidency": streams.residency.watch_residency,
    }
    turns = Turns()
    handlers = {
        method.name: _stream_handler(method, stream[method.name], metrics, stopping)
        if method.server_streaming
        else _unary_handler(method, unary[method.name], metrics, turns)
        for method in DESCRIPTOR.methods
    }
    return grpc.method_handlers_generic_handler(SERVICE, handlers)


def _unary_methods(writes: Writes, emergency: Emergency, reads: Reads) -> Mapping[str, Unary[Any, Any]]:
    return {
        "ApplyAdapters": writes.apply_adapters,
        "GetAdapter": reads.get_adapter,
        "ListAdapters": reads.list_adapters,
        "ListAdapterHistory": reads.list_adapter_history,
        "RollbackAdapter": writes.rollback_adapter,
        "PromoteRollout": writes.promote_rollout,
        "AbortRollout": writes.abort_rollout,
        "CreatePool": writes.create_pool,
        "UpdatePool": writes.update_pool,
        "ConfirmRemovals": writes.confirm_removals,
        "BreakGlassDelete": emergency.break_glass_delete,
        "SettleRemoval": emergency.settle_removal,
        "GetPool": reads.get_pool,
        "ListPools": reads.list_pools,
        "DeletePool": writes.delete_pool,
        "ListReplicas": reads.list_replicas,
        "GetReplica": reads.get_replica,
        "SetTenant": writes.set_tenant,
        "ListTenants": reads.list_tenants,
    }


def _unary_handler(
    method: MethodDescriptor, handler: Unary[Any, Any], metrics: Metrics, turns: Turns
) -> grpc.RpcMethodHandler[Any, Any]:
    return grpc.unary_unary_rpc_method_handler(
        supervised_unary(method.name, handler, metrics, turns),
        request_deserializer=GetMessageClass(method.input_type).FromString,
        response_serializer=GetMessageClass(method.output_type).SerializeToString,
    )


def _stream_handler(
    method: MethodDescriptor, handler: Stream[Any, Any], metrics: Metrics, stopping: asyncio.Event
) -> grpc.RpcMethodHandler[Any, Any]:
    return grpc.unary_stream_rpc_method_handler(
        supervised_stream(method.name, handler, metrics, stopping),
        request_deserializer=GetMessageClass(method.input_type).FromString,
        response_serializer=GetMessageClass(method.output_type).SerializeToString,
    )
