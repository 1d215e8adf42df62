"""The methods that read."""

from __future__ import annotations

from registry.admin import wire_out
from registry.admin.calls import Call
from registry.model.names import check_adapter_name, check_segment
from registry.store.filters import parse_filter
from registry.store.paging import check_page_size, decode_token
from registry.store.reader import Reader
from registry.v1 import registry_pb2 as pb


class Reads:
    """Handlers: each takes a request and its call, and raises RegistryError where it refuses."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def get_adapter(self, request: pb.GetAdapterRequest, call: Call) -> pb.Adapter:
        _check_adapter(request.pool, request.name)
        return wire_out.present_adapter(await self._reader.adapter(request.pool, request.name, call.budget))

    async def list_adapters(self, request: pb.ListAdaptersRequest, call: Call) -> pb.ListAdaptersResponse:
        check_segment(request.pool, field="pool")
        wanted, size = parse_filter(request.filter), check_page_size(request.page_size)
        listing = f"adapters\0{request.pool}\0{request.filter}"
        token = decode_token(request.page_token, listing)
        page = await self._reader.adapters(request.pool, wanted, size, token, call.budget)
        return pb.ListAdaptersResponse(
            adapters=[wire_out.present_adapter(one) for one in page.records],
            next_page_token=wire_out.token(page.token, listing),
            revision=page.revision,
            unreadable=page.unreadable,
        )

    async def list_adapter_history(
        self, request: pb.ListAdapterHistoryRequest, call: Call
    ) -> pb.ListAdapterHistoryResponse:
        _check_adapter(request.pool, request.name)
        return wire_out.history(await self._reader.history(request.pool, request.name, call.budget))

    async def get_pool(self, request: pb.GetPoolRequest, call: Call) -> pb.Pool:
        check_segment(request.name, field="name")
        found = await self._reader.pool(request.name, call.budget, field="name")
        return wire_out.pool(found.record, found.revision)

    async def list_pools(self, request: pb.ListPoolsRequest, call: Call) -> pb.ListPoolsResponse:
        size, token = check_page_size(request.page_size), decode_token(request.page_token, "pools")
        page = await self._reader.pools(size, token, call.budget)
        return pb.ListPoolsResponse(
            pools=[wire_out.pool(one.record, one.revision) for one in page.records],
            next_page_token=wire_out.token(page.token, "pools"),
            unreadable=page.unreadable,
        )

    async def list_tenants(self, request: pb.ListTenantsRequest, call: Call) -> pb.ListTenantsResponse:
        size, token = check_page_size(request.page_size), decode_token(request.page_token, "tenants")
        page = await self._reader.tenants(size, token, call.budget)
        return pb.ListTenantsResponse(
            tenants=[wire_out.tenant(one.record, one.revision) for one in page.records],
            next_page_token=wire_out.token(page.token, "tenants"),
            unreadable=page.unreadable,
        )

    async def get_replica(self, request: pb.GetReplicaRequest, call: Call) -> pb.Replica:
        check_segment(request.pool, field="pool")
        check_segment(request.name, field="name")
        return wire_out.replica(request.pool, await self._reader.replica(request.pool, request.name, call.budget))

    async def list_replicas(self, request: pb.ListReplicasRequest, call: Call) -> pb.ListReplicasResponse:
        check_segment(request.pool, field="pool")
        listing = f"replicas\0{request.pool}"
        size, token = check_page_size(request.page_size), decode_token(request.page_token, listing)
        page, found = await self._reader.replicas(request.pool, size, token, call.budget)
        return pb.ListReplicasResponse(
            replicas=[wire_out.replica(request.pool, one) for one in found],
            next_page_token=wire_out.token(page.token, listing),
        )


def _check_adapter(pool: str, name: str) -> None:
    check_segment(pool, field="pool")
    check_adapter_name(name)
