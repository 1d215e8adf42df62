"""The methods for when etcd is out of space, and for afterwards."""

from __future__ import annotations

import structlog

from registry.admin import wire_in, wire_out
from registry.admin.calls import Call
from registry.admin.writes import Writes
from registry.model.names import check_adapter_name, check_segment
from registry.store.break_glass import BreakGlass
from registry.transactions.make import make_existing_etag
from registry.v1 import registry_pb2 as pb

_log = structlog.get_logger()


class Emergency:
    """Handlers, as those of `Writes`."""

    def __init__(self, glass: BreakGlass, writes: Writes) -> None:
        self._glass = glass
        self._writes = writes

    async def break_glass_delete(self, request: pb.BreakGlassDeleteRequest, call: Call) -> pb.Removal:
        check_segment(request.pool, field="pool")
        check_adapter_name(request.name)
        etag = make_existing_etag(request.etag, field="etag")
        caller = call.caller(request.request_id)
        removal = wire_out.removal(await self._glass.delete(request.pool, request.name, etag, caller, call.budget))
        _log.warning("glass_broken", pool=removal.pool, name=removal.name, revision=removal.revision)
        return removal

    async def settle_removal(self, request: pb.SettleRemovalRequest, call: Call) -> pb.ApplyAdaptersResponse:
        caller = call.caller(request.request_id)
        settled = await self._writes.change(wire_in.settle_removal(request), request, caller, call)
        return wire_out.applied(settled, request.removal.pool, caller.request_id)
