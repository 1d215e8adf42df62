"""The admin API as a client sees it: one typed method for each call, with a deadline, repeated where that is safe."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self, TypeVar

import grpc
from google.protobuf.message import Message
from tenacity import Retrying, retry_if_exception, retry_never, stop_before_delay, wait_random_exponential

from registry.cli.failure import CliError, usage
from registry.cli.rpc_errors import rpc_failure
from registry.client.connection import CHANNEL_OPTIONS, SERVICE, TRY_SECONDS, Tls, check_address, serialized
from registry.client.refusals import worth_repeating
from registry.errors import InvalidArgument
from registry.v1 import registry_pb2 as pb

Reply = TypeVar("Reply", bound=Message)
Answer = TypeVar("Answer")
Page = TypeVar("Page", pb.ListAdaptersResponse, pb.ListPoolsResponse, pb.ListReplicasResponse, pb.ListTenantsResponse)
OneChange = pb.RollbackAdapterRequest | pb.PromoteRolloutRequest | pb.AbortRolloutRequest
Paged = pb.ListAdaptersRequest | pb.ListPoolsRequest | pb.ListReplicasRequest | pb.ListTenantsRequest

_PAGE_SIZE = 1000


def open_channel(address: str, tls: Tls) -> grpc.Channel:
    """A channel to `address`, secured if any file of `tls` is given.

    Raises:
        CliError: that is no address, a file cannot be read, or a certificate is without its key.
    """
    try:
        check_address(address)
    except InvalidArgument as error:
        raise usage(f"--admin: {error.message}") from error
    if not tls:
        return grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
    try:
        return grpc.secure_channel(address, tls.credentials(), options=CHANNEL_OPTIONS)
    except InvalidArgument as error:
        raise usage(error.message) from error


class Client:
    """A connection to the admin service, for use in ``with``. Every method raises CliError where it fails.

    Args:
        channel: closed at the end.
        address: for messages.
        timeout_seconds: how long one call may take, repetitions included.
        sleep: waits between repetitions.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        address: str,
        *,
        timeout_seconds: float,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._channel = channel
        self.address = address
        self.timeout_seconds = timeout_seconds
        self._sleep = sleep

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection and every stream on it. Safe to call twice."""
        self._channel.close()

    def apply(self, request: pb.ApplyAdaptersRequest) -> pb.ApplyAdaptersResponse:
        return self._unary("ApplyAdapters", request, pb.ApplyAdaptersResponse, request.request_id)

    def change_one(self, request: OneChange) -> pb.ApplyAdaptersResponse:
        """Sends a change of one adapter to the method that its request is named after."""
        method = request.DESCRIPTOR.name.removesuffix("Request")
        return self._unary(method, request, pb.ApplyAdaptersResponse, request.request_id)

    def get_adapter(self, pool: str, name: str) -> pb.Adapter:
        return self._unary("GetAdapter", pb.GetAdapterRequest(pool=pool, name=name), pb.Adapter)

    def list_adapters(self, pool: str) -> list[pb.Adapter]:
        """All adapters of a pool, at one revision."""
        return [one for page in self.adapter_pages(pool) for one in page.adapters]

    def adapter_pages(self, pool: str) -> Iterator[pb.ListAdaptersResponse]:
        """The same, with the names of records that cannot be read."""
        request = pb.ListAdaptersRequest(pool=pool, page_size=_PAGE_SIZE)
        return self._pages("ListAdapters", request, pb.ListAdaptersResponse)

    def history(self, pool: str, name: str) -> pb.ListAdapterHistoryResponse:
        """An adapter's generations, the newest first."""
        request = pb.ListAdapterHistoryRequest(pool=pool, name=name)
        return self._unary("ListAdapterHistory", request, pb.ListAdapterHistoryResponse)

    def create_pool(self, request: pb.CreatePoolRequest) -> pb.Pool:
        return self._unary("CreatePool", request, pb.Pool, request.request_id)

    def update_pool(self, request: pb.UpdatePoolRequest) -> pb.Pool:
        return self._unary("UpdatePool", request, pb.Pool, request.request_id)

    def confirm_removals(self, request: pb.ConfirmRemovalsRequest) -> pb.Pool:
        return self._unary("ConfirmRemovals", request, pb.Pool, request.request_id)

    def break_glass_delete(self, request: pb.BreakGlassDeleteRequest) -> pb.Removal:
        """Asked once: after a reply that was lost, the refusal of a repetition would not say that nothing was done."""
        return self._unary("BreakGlassDelete", request, pb.Removal, request.request_id, repeat=False)

    def settle_removal(self, request: pb.SettleRemovalRequest) -> pb.ApplyAdaptersResponse:
        return self._unary("SettleRemoval", request, pb.ApplyAdaptersResponse, request.request_id)

    def delete_pool(self, request: pb.DeletePoolRequest) -> pb.DeletePoolResponse:
        return self._unary("DeletePool", request, pb.DeletePoolResponse, request.request_id)

    def get_pool(self, name: str) -> pb.Pool:
        return self._unary("GetPool", pb.GetPoolRequest(name=name), pb.Pool)

    def pool_pages(self) -> Iterator[pb.ListPoolsResponse]:
        """All pools, with the names of records that cannot be read."""
        return self._pages("ListPools", pb.ListPoolsRequest(page_size=_PAGE_SIZE), pb.ListPoolsResponse)

    def get_replica(self, pool: str, name: str) -> pb.Replica:
        return self._unary("GetReplica", pb.GetReplicaRequest(pool=pool, name=name), pb.Replica)

    def list_replicas(self, pool: str) -> list[pb.Replica]:
        request = pb.ListReplicasRequest(pool=pool, page_size=_PAGE_SIZE)
        pages = self._pages("ListReplicas", request, pb.ListReplicasResponse)
        return [one for page in pages for one in page.replicas]

    def set_tenant(self, request: pb.SetTenantRequest) -> pb.Tenant:
        return self._unary("SetTenant", request, pb.Tenant, request.request_id)

    def tenant_pages(self) -> Iterator[pb.ListTenantsResponse]:
        """All tenants, with the names of records that cannot be read."""
        return self._pages("ListTenants", pb.ListTenantsRequest(page_size=_PAGE_SIZE), pb.ListTenantsResponse)

    def watch_adapters(self, pool: str, start_revision: int) -> Iterator[pb.WatchAdaptersResponse]:
        """Changes of a pool without end; raises grpc.RpcError when the stream breaks."""
        request = pb.WatchAdaptersRequest(pool=pool, start_revision=start_revision)
        return self._stream("WatchAdapters", request, pb.WatchAdaptersResponse, None)

    def watch_rollout(self, request: pb.WatchRolloutRequest, timeout_seconds: float) -> Iterator[pb.Rollout]:
        """Progress of a rollout until it is done; raises grpc.RpcError when the stream breaks or the time is up."""
        return self._stream("WatchRollout", request, pb.Rollout, timeout_seconds)

    def residency(self, pool: str, name: str = "") -> list[pb.AdapterResidency]:
        """Where a pool's adapters are now; or where one of them is."""
        request = pb.WatchResidencyRequest(pool=pool, name=name)
        return self._repeated(lambda seconds: self._whole(request, seconds))

    def watch_residency(self, pool: str, name: str) -> Iterator[pb.WatchResidencyResponse]:
        """Where adapters are, and every change of that, without end; raises grpc.RpcError when the stream breaks."""
        request = pb.WatchResidencyRequest(pool=pool, name=name)
        return self._stream("WatchResidency", request, pb.WatchResidencyResponse, None)

    def _whole(self, request: pb.WatchResidencyRequest, seconds: float) -> list[pb.AdapterResidency]:
        found: list[pb.AdapterResidency] = []
        for response in self._stream("WatchResidency", request, pb.WatchResidencyResponse, seconds):
            found.extend(response.adapters)
            if not response.more:
                break
        return found

    def _pages(self, method: str, request: Paged, reply: type[Page]) -> Iterator[Page]:
        while True:
            page = self._unary(method, request, reply)
            yield page
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def _stream(
        self, method: str, request: Message, reply: type[Reply], timeout_seconds: float | None
    ) -> Iterator[Reply]:
        call: grpc.UnaryStreamMultiCallable[Message, Reply] = self._channel.unary_stream(
            f"{SERVICE}/{method}", serialized, reply.FromString
        )
        return iter(call(request, timeout=timeout_seconds))

    def _unary(
        self, method: str, request: Message, reply: type[Reply], request_id: str = "", *, repeat: bool = True
    ) -> Reply:
        call: grpc.UnaryUnaryMultiCallable[Message, Reply] = self._channel.unary_unary(
            f"{SERVICE}/{method}", serialized, reply.FromString
        )
        return self._repeated(lambda seconds: call(request, timeout=seconds), request_id, repeat=repeat)

    def _repeated(self, attempt: Callable[[float], Answer], request_id: str = "", *, repeat: bool = True) -> Answer:
        """What an attempt, which is told how many seconds it has, comes to; repeated where that is safe."""
        end = time.monotonic() + self.timeout_seconds
        retrying = Retrying(
            stop=stop_before_delay(self.timeout_seconds),
            wait=wait_random_exponential(multiplier=0.2, max=2),
            retry=retry_if_exception(worth_repeating) if repeat else retry_never,
            sleep=self._sleep,
            reraise=True,
        )
        try:
            return retrying(lambda: attempt(_try_seconds(end)))
        except grpc.RpcError as error:
            raise CliError(rpc_failure(error, self.address, request_id)) from error


def _try_seconds(end: float) -> float:
    return max(0.05, min(TRY_SECONDS, end - time.monotonic()))
