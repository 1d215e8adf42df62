"""The methods that change desired state."""

from __future__ import annotations

from typing import Protocol

import structlog

from registry.admin import wire_in, wire_out
from registry.admin.calls import Call
from registry.store.writer import Writer
from registry.transactions.changes import Change
from registry.transactions.context import Caller
from registry.transactions.replay import Settled
from registry.v1 import registry_pb2 as pb

_log = structlog.get_logger()


class Request(Protocol):
    """What every request for a change has."""

    @property
    def request_id(self) -> str: ...
    @property
    def validate_only(self) -> bool: ...


class Writes:
    """Handlers: each takes a request and its call, and raises RegistryError where it refuses."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def apply_adapters(self, request: pb.ApplyAdaptersRequest, call: Call) -> pb.ApplyAdaptersResponse:
        caller = call.caller(request.request_id)
        settled = await self.change(wire_in.apply_adapters(request), request, caller, call)
        return wire_out.applied(settled, request.pool, caller.request_id)

    async def rollback_adapter(self, request: pb.RollbackAdapterRequest, call: Call) -> pb.ApplyAdaptersResponse:
        caller = call.caller(request.request_id)
        settled = await self.change(wire_in.rollback_adapter(request), request, caller, call)
        return wire_out.applied(settled, request.pool, caller.request_id)

    async def promote_rollout(self, request: pb.PromoteRolloutRequest, call: Call) -> pb.ApplyAdaptersResponse:
        caller = call.caller(request.request_id)
        settled = await self.change(wire_in.promote_rollout(request), request, caller, call)
        return wire_out.applied(settled, request.pool, caller.request_id)

    async def abort_rollout(self, request: pb.AbortRolloutRequest, call: Call) -> pb.ApplyAdaptersResponse:
        caller = call.caller(request.request_id)
        settled = await self.change(wire_in.abort_rollout(request), request, caller, call)
        return wire_out.applied(settled, request.pool, caller.request_id)

    async def create_pool(self, request: pb.CreatePoolRequest, call: Call) -> pb.Pool:
        caller = call.caller(request.request_id)
        return wire_out.settled_pool(await self.change(wire_in.create_pool(request), request, caller, call))

    async def update_pool(self, request: pb.UpdatePoolRequest, call: Call) -> pb.Pool:
        caller = call.caller(request.request_id)
        return wire_out.settled_pool(await self.change(wire_in.update_pool(request), request, caller, call))

    async def confirm_removals(self, request: pb.ConfirmRemovalsRequest, call: Call) -> pb.Pool:
        caller = call.caller(request.request_id)
        return wire_out.settled_pool(await self.change(wire_in.confirm_removals(request), request, caller, call))

    async def delete_pool(self, request: pb.DeletePoolRequest, call: Call) -> pb.DeletePoolResponse:
        caller = call.caller(request.request_id)
        settled = await self.change(wire_in.delete_pool(request), request, caller, call)
        return pb.DeletePoolResponse(revision=settled.revision)

    async def set_tenant(self, request: pb.SetTenantRequest, call: Call) -> pb.Tenant:
        caller = call.caller(request.request_id)
        return wire_out.settled_tenant(await self.change(wire_in.set_tenant(request), request, caller, call))

    async def change(self, change: Change, request: Request, caller: Caller, call: Call) -> Settled:
        """Carries a change out and logs it. Raises RegistryError."""
        settled = await self._writer.change(change, caller, call.budget, validate_only=request.validate_only)
        if not request.validate_only:
            _log.info(
                "change_settled",
                method=call.method,
                request_id=caller.request_id,
                revision=settled.revision,
                principal=caller.principal,
            )
        return settled
