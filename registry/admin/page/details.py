"""Details of one adapter or replica, each part as the caller's role allows."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from registry.access.methods import METHODS
from registry.admin.rpc.calls import CallContext, Hook, asked_of
from registry.admin.rpc.interceptor import Unary
from registry.model.errors import InvalidArgument, PermissionDenied, Reason
from registry.model.messages import Plain, adapter_dict
from registry.model.stored import read_json
from registry.runtime.clock import rfc3339
from registry.v1 import registry_pb2 as pb

# Of the audit: the newest entries, of so many days, in so many reads of it.
MAX_ENTRIES = 50
_DAYS = timedelta(days=7)
_READS, _AT_ONCE = 10, 100


class DetailPages:
    """Pages of one adapter and of one replica, by the API's handlers; `hook` is called before each of these."""

    def __init__(self, handlers: Mapping[str, Unary[Any, Any]], hook: Hook, wall: Callable[[], datetime]) -> None:
        self._handlers = handlers
        self._hook = hook
        self._wall = wall

    async def adapter(self, request: Request, call: CallContext) -> Response:
        """``GET /page/adapter?pool=P&name=N``. Raises RegistryError where it refuses."""
        pool, name = _named(request)
        present = await self._ask("GetAdapter", pb.GetAdapterRequest(pool=pool, name=name), call)
        asked = pb.ListAdapterHistoryRequest(pool=pool, name=name)
        told = {
            "adapter": adapter_dict(present),
            "history": await _or_refused(self._history(asked, call)),
            "audit": await _or_refused(self._audit(pool, name, call)),
        }
        return JSONResponse(told)

    async def replica(self, request: Request, call: CallContext) -> Response:
        """``GET /page/replica?pool=P&name=R``. Raises RegistryError where it refuses."""
        pool, name = _named(request)
        found = await self._ask("GetReplica", pb.GetReplicaRequest(pool=pool, name=name), call)
        told = MessageToDict(found, preserving_proto_field_name=True)
        text = told.pop("status_json", "")
        try:
            status = read_json(text) if text else None
        except ValueError:
            status = None
        return JSONResponse(told | {"status": status if isinstance(status, dict) else None})

    async def _ask(self, method: str, request: Message, call: CallContext) -> Any:  # noqa: ANN401 - its own message
        self._hook(asked_of(METHODS[method], request, call.principal, call.grant))
        handler: Callable[[Message, CallContext], Awaitable[Any]] = self._handlers[method]
        return await handler(request, replace(call, method=method))

    async def _history(self, asked: pb.ListAdapterHistoryRequest, call: CallContext) -> Plain:
        found = await self._ask("ListAdapterHistory", asked, call)
        return {"entries": [adapter_dict(one) for one in found.generations], "unreadable": list(found.unreadable)}

    async def _audit(self, pool: str, name: str, call: CallContext) -> Plain:
        """The newest entries, the newest first; `partial`: there may be newer ones yet."""
        request = pb.ListAuditRequest(pool=pool, about=name, since=rfc3339(self._wall() - _DAYS), page_size=_AT_ONCE)
        newest = deque[pb.AuditEntry](maxlen=MAX_ENTRIES)
        for _ in range(_READS):
            found = await self._ask("ListAudit", request, call)
            newest.extend(found.entries)
            request.page_token = found.next_page_token
            if not request.page_token:
                break
        told = [MessageToDict(one, preserving_proto_field_name=True) for one in reversed(newest)]
        return {"entries": told, "days": _DAYS.days, "partial": bool(request.page_token)}


async def _or_refused(part: Awaitable[Plain]) -> Plain:
    """One part of a page; the refusal in its place where the caller may not see it."""
    try:
        return await part
    except PermissionDenied as error:
        return {"refused": error.message}


def _named(request: Request) -> tuple[str, str]:
    pool, name = request.query_params.get("pool", ""), request.query_params.get("name", "")
    for field, value in (("pool", pool), ("name", name)):
        if not value:
            raise InvalidArgument(Reason.INVALID_FIELD, "say which: ?pool=POOL&name=NAME", field=field)
    return pool, name
