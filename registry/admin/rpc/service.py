"""Maps each method of the .proto to its supervised handler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from registry.access.control import AccessControl
from registry.access.methods import METHODS
from registry.admin.health import AdminMetrics
from registry.admin.rpc.audited import AuditHandlers
from registry.admin.rpc.calls import CallContext, Hook, asked_of
from registry.admin.rpc.decode import parser_of
from registry.admin.rpc.denials import DenialRecorder
from registry.admin.rpc.handlers import Reads, Writes
from registry.admin.rpc.identity import Identity
from registry.admin.rpc.interceptor import Accept, CallLimits, Prepare, Stream, supervised_stream, supervised_unary
from registry.admin.rpc.limiter import Batcher, ByteLimiter, FairLimiter
from registry.admin.rpc.streams import Streams
from registry.runtime.process import Repeats
from registry.transactions.context import TxnLimits
from registry.v1 import registry_pb2 as pb

DESCRIPTOR = pb.DESCRIPTOR.services_by_name["AdapterRegistry"]
SERVICE: str = DESCRIPTOR.full_name


# Pages of backups at once: more would hold the event loop one after another, and others would wait for all of them.
BACKUPS_AT_ONCE = 2
# Whole lists of a pool that are being sent to readers; one who reads none of it keeps a place.
LISTS_AT_ONCE = 8
# A request is read only when its call is taken: see also `limiter.MAX_BYTES`.
CALLS_AT_ONCE = 128
_AT_ONCE: Mapping[str, int] = {"ReadBackup": BACKUPS_AT_ONCE, "WatchAdapters": LISTS_AT_ONCE}


def make_handlers(
    writes: Writes,
    reads: Reads,
    streams: Streams,
    audit: AuditHandlers,
    metrics: AdminMetrics,
    shared: CallLimits,
    limits: TxnLimits,
    hook: Hook,
) -> grpc.GenericRpcHandler:
    """All methods of the service; `hook` is called before each handler.

    Raises:
        KeyError: a method of the .proto has no handler, or no verb.
    """
    identity = Identity(shared.access, reads.reader)
    unary = {**reads.by_method(), **writes.by_method(), **audit.by_method(), **identity.by_method()}
    stream: Mapping[str, Stream[Any, Any]] = {
        "WatchAdapters": streams.watch_adapters,
        "WatchRollout": streams.watch_rollout,
        "WatchResidency": streams.residency.watch_residency,
        **audit.streams(),
    }
    own = {method: replace(shared, working=FairLimiter(most)) for method, most in _AT_ONCE.items()}
    last = {"WatchAdapters": _ends_list}
    prepare: Mapping[str, Prepare[Any]] = dict.fromkeys(("CreatePool", "UpdatePool"), writes.shapes.prepare)
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
    for method in DESCRIPTOR.methods:
        accept = _acceptor(method, parser_of(method.input_type, limits), hook)
        if method.server_streaming:
            serve_stream = supervised_stream(
                method.name, stream[method.name], accept, metrics, own.get(method.name, shared), last.get(method.name)
            )
            handlers[method.name] = grpc.stream_stream_rpc_method_handler(serve_stream, None, _serializer(method))
        else:
            limited = own.get(method.name, shared)
            serve = supervised_unary(
                method.name, unary[method.name], accept, metrics, limited, prepare.get(method.name)
            )
            handlers[method.name] = grpc.stream_unary_rpc_method_handler(serve, None, _serializer(method))
    return grpc.method_handlers_generic_handler(SERVICE, handlers)


def call_limits(access: AccessControl | None = None, denials: DenialRecorder | None = None) -> CallLimits:
    """State that all calls of a service share; see there for the arguments. Made inside a running event loop."""
    calls, working = FairLimiter(CALLS_AT_ONCE), FairLimiter(CALLS_AT_ONCE, narrows=True)
    refusals = Repeats(asyncio.get_running_loop().time)
    return CallLimits(calls, working, ByteLimiter(), Batcher(), refusals, asyncio.Event(), access, denials)


def _acceptor(method: MethodDescriptor, parse: Callable[[bytes], Message], hook: Hook) -> Accept[Any]:
    """Parser of a request that also lets it through the hook."""
    action = METHODS[method.name]

    def accept(raw: bytes, call: CallContext) -> Message:
        request = parse(raw)
        hook(asked_of(action, request, call.principal, call.grant))
        return request

    return accept


def _ends_list(reply: pb.WatchAdaptersResponse) -> bool:
    return not reply.more


def _serializer(method: MethodDescriptor) -> Callable[[Any], bytes]:
    made: Callable[[Any], bytes] = GetMessageClass(method.output_type).SerializeToString
    return made
