"""The admin API as typed calls with deadlines, repeated where that is safe."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
from google.protobuf.message import Message

from registry.cli.failure import CliError, failure_of, usage
from registry.client.address import Tls
from registry.client.background import BackgroundLoop
from registry.client.transport import AdminCalls, Page, Paged, Reply
from registry.model.errors import InvalidArgument, Reason, RegistryError, Unavailable
from registry.v1 import registry_pb2 as pb

T = TypeVar("T")
WatchAnswer = pb.WatchAdaptersResponse | pb.WatchResidencyResponse
OneChange = pb.RollbackAdapterRequest | pb.PromoteRolloutRequest | pb.AbortRolloutRequest

_FLAGS = {"address": "--admin: ", "tls": "--tls-ca, --tls-cert, --tls-key: "}

# What to do about failures of the connection itself, in terms of the command line.
_REMEDIES: Mapping[Reason, str] = {
    Reason.ADMIN_UNAVAILABLE: (
        "start it (loraplane-admin, or loraplane dev up), or name another with --admin or LORAPLANE_ADMIN"
    ),
    Reason.DEADLINE_EXCEEDED: "see its log, or allow more with --timeout",
    Reason.UNSUPPORTED: "is it a loraplane-admin of this release?",
}
_PAGE_SIZE = 1000
# A call that takes longer is likely to wait for etcd, which the admin service knows within a few seconds.
_ASK_AFTER_SECONDS = 0.7
_HEALTH_SECONDS = 1.0


@contextmanager
def _reported(request_id: str = "") -> Iterator[None]:
    """Raises an error of the registry as CliError, with the request id where the outcome may not be known."""
    try:
        yield
    except RegistryError as error:
        raise CliError(failure_of(error, request_id)) from error


async def _connected(address: str, tls: Tls, timeout_seconds: float) -> AdminCalls:
    """Calls to an admin service.

    Raises:
        CliError: that is no address, a file cannot be read, or a certificate is without its key.
    """
    try:
        return AdminCalls(address, tls, timeout_seconds, _REMEDIES)
    except InvalidArgument as error:
        raise usage(f"{_FLAGS.get(error.field or '', '')}{error.message}") from error


async def _each_while_etcd_answers(calls: AdminCalls, answers: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """The answers; raises as `_while_etcd_answers`."""
    async with aclosing(answers):
        while True:
            try:
                answer = await _while_etcd_answers(calls, partial(anext, answers), "")
            except StopAsyncIteration:
                return
            yield answer


async def _merged(
    streams: Sequence[AsyncGenerator[Any, None]], quiet_seconds: float
) -> AsyncGenerator[list[Any], None]:
    """Answers of several streams in lists, as they come, until one of them ends; see `AdminClient.watch_pool`."""
    waiting = {_next_of(stream): stream for stream in streams}
    try:
        while True:
            come, _ = await asyncio.wait(waiting, timeout=quiet_seconds, return_when=asyncio.FIRST_COMPLETED)
            answers = [task.result() for task in come]
            yield [answer for answer in answers if answer is not None]
            if None in answers:
                return
            for stream in [waiting.pop(task) for task in come]:
                waiting[_next_of(stream)] = stream
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        for stream in streams:
            await stream.aclose()


def _next_of(stream: AsyncGenerator[Any, None]) -> asyncio.Task[Any]:
    return asyncio.ensure_future(anext(stream, None))


async def _while_etcd_answers(calls: AdminCalls, call: Callable[[], Awaitable[T]], request_id: str) -> T:
    """The outcome of a call; `request_id` empty: it changes nothing.

    Raises:
        Unavailable: it takes long, and the admin service says that it does not reach etcd.
    """
    task = asyncio.ensure_future(call())
    try:
        while not (await asyncio.wait({task}, timeout=_ASK_AFTER_SECONDS))[0]:
            if await _is_without_etcd(calls):
                again = f"; whether the change is made is settled by the same with --request-id {request_id}"
                message = (
                    f"the admin service at {calls.errors.address} answers, but reaches no majority of etcd; --timeout "
                    "waits for it, and loraplane doctor --etcd HOST:PORT,… looks at its members"
                )
                raise Unavailable(Reason.ETCD_UNAVAILABLE, message + (again if request_id else ""))
        return await task
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _is_without_etcd(calls: AdminCalls) -> bool:
    from grpc_health.v1 import health_pb2, health_pb2_grpc  # noqa: PLC0415 - most runs have their answer before

    request = health_pb2.HealthCheckRequest(service=pb.DESCRIPTOR.services_by_name["AdapterRegistry"].full_name)
    try:
        reply = await health_pb2_grpc.HealthStub(calls.channel).Check(request, timeout=_HEALTH_SECONDS)
    except grpc.RpcError:
        return False
    return bool(reply.status == health_pb2.HealthCheckResponse.NOT_SERVING)


class AdminClient:
    """A connection to the admin service, for use in ``with``. Every method raises CliError where it fails.

    Args:
        address: HOST:PORT of the admin service.
        tls: for a service with certificates.
        timeout_seconds: how long one call may take, repetitions included.
        waits: False: no call is waited for once the admin service says that it does not reach etcd.
        before_change: is called before the first call that may change something.
        repeats: the user named the request id, so every call may be one that was made before.

    Raises:
        CliError: that is no address, a file cannot be read, or a certificate is without its key.
    """

    def __init__(
        self,
        address: str,
        tls: Tls,
        *,
        timeout_seconds: float,
        waits: bool = True,
        before_change: Callable[[], None] = lambda: None,
        repeats: bool = False,
    ) -> None:
        self._before_change: Callable[[], None] | None = before_change
        self._loop = BackgroundLoop()
        self._waits = waits
        self._repeats = repeats
        try:
            self._calls = self._loop.run(_connected, address, tls, timeout_seconds)
        except BaseException:  # an interrupt too: nobody else could end what it began
            self._loop.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection and every stream on it. Safe to call twice."""
        self._loop.close(self._calls.aclose)

    def apply(self, request: pb.ApplyAdaptersRequest) -> pb.ApplyAdaptersResponse:
        return self._unary("ApplyAdapters", request, pb.ApplyAdaptersResponse, request.request_id)

    def change_one(self, request: OneChange) -> pb.ApplyAdaptersResponse:
        """Sends a change of one adapter to the method that its request is named after."""
        method = request.DESCRIPTOR.name.removesuffix("Request")
        return self._unary(method, request, pb.ApplyAdaptersResponse, request.request_id)

    def get_adapter(self, pool: str, name: str) -> pb.Adapter:
        return self._unary("GetAdapter", pb.GetAdapterRequest(pool=pool, name=name), pb.Adapter)

    def adapter_pages(self, pool: str) -> Iterator[pb.ListAdaptersResponse]:
        """All adapters of a pool, at one revision, with the names of records that cannot be read."""
        request = pb.ListAdaptersRequest(pool=pool, page_size=_PAGE_SIZE)
        return self._pages("ListAdapters", request, pb.ListAdaptersResponse)

    def some_adapters(self, pool: str, prefix: str) -> Sequence[pb.Adapter]:
        """The first adapters of a pool whose names begin so."""
        request = pb.ListAdaptersRequest(pool=pool, filter=f"name={prefix}*" if prefix else "")
        return self._unary("ListAdapters", request, pb.ListAdaptersResponse).adapters

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

    def delete_pool(self, request: pb.DeletePoolRequest) -> pb.DeletePoolResponse:
        return self._unary("DeletePool", request, pb.DeletePoolResponse, request.request_id)

    def get_pool(self, name: str) -> pb.Pool:
        return self._unary("GetPool", pb.GetPoolRequest(name=name), pb.Pool)

    def pool_pages(self, *, show_unknown: bool = False) -> Iterator[pb.ListPoolsResponse]:
        """All pools, with the names of records that cannot be read, and with replicas whose pool does not exist."""
        request = pb.ListPoolsRequest(page_size=_PAGE_SIZE, show_unknown=show_unknown)
        return self._pages("ListPools", request, pb.ListPoolsResponse)

    def get_replica(self, pool: str, name: str) -> pb.Replica:
        return self._unary("GetReplica", pb.GetReplicaRequest(pool=pool, name=name), pb.Replica)

    def drain_replica(self, request: pb.DrainReplicaRequest) -> pb.DrainReplicaResponse:
        return self._unary("DrainReplica", request, pb.DrainReplicaResponse, request.request_id)

    def list_replicas(self, pool: str) -> list[pb.Replica]:
        """The live ones."""
        return list(self.all_replicas(pool).replicas)

    def all_replicas(self, pool: str) -> pb.ListReplicasResponse:
        """The live ones, and those that are expected and do not live: all pages in one."""
        request, found = pb.ListReplicasRequest(pool=pool, page_size=_PAGE_SIZE), pb.ListReplicasResponse()
        for page in self._pages("ListReplicas", request, pb.ListReplicasResponse):
            found.MergeFrom(page)
        return found

    def change_pages(self, pool: str, since: str) -> Iterator[pb.ListChangesResponse]:
        """Changes of a pool since a time (RFC 3339), the oldest first."""
        request = pb.ListChangesRequest(pool=pool, since=since)
        return self._pages("ListChanges", request, pb.ListChangesResponse)

    def forget_replica(self, request: pb.ForgetReplicaRequest) -> pb.ForgetReplicaResponse:
        return self._unary("ForgetReplica", request, pb.ForgetReplicaResponse)

    def set_tenant(self, request: pb.SetTenantRequest) -> pb.Tenant:
        return self._unary("SetTenant", request, pb.Tenant, request.request_id)

    def repair_tenant(self, request: pb.RepairTenantRequest) -> pb.RepairTenantResponse:
        return self._unary("RepairTenant", request, pb.RepairTenantResponse, request.request_id)

    def tenant_pages(self) -> Iterator[pb.ListTenantsResponse]:
        """All tenants, with the names of records that cannot be read."""
        return self._pages("ListTenants", pb.ListTenantsRequest(page_size=_PAGE_SIZE), pb.ListTenantsResponse)

    def backup_pages(self) -> Iterator[pb.ReadBackupResponse]:
        """Desired state as it is stored, all at one revision."""
        return self._pages("ReadBackup", pb.ReadBackupRequest(page_size=_PAGE_SIZE), pb.ReadBackupResponse)

    def restore_history(self, request: pb.RestoreHistoryRequest) -> pb.RestoreHistoryResponse:
        return self._unary("RestoreHistory", request, pb.RestoreHistoryResponse, request.request_id)

    def watch_pool(
        self, start: pb.WatchAdaptersRequest, where: pb.WatchResidencyRequest | None, quiet_seconds: float
    ) -> Iterator[Sequence[WatchAnswer]]:
        """Changes of a pool's adapters, and of where they are unless `where` is None, until a stream ends.

        What comes at one time is one item, an empty one where nothing came for so long; unavailable when a stream
        breaks.
        """
        changes = self._calls.stream("WatchAdapters", start, pb.WatchAdaptersResponse)
        if where is None:
            return self._each(_merged([changes], quiet_seconds))
        places = self._calls.stream("WatchResidency", where, pb.WatchResidencyResponse)
        return self._each(_merged([changes, places], quiet_seconds))

    def watch_rollout(self, request: pb.WatchRolloutRequest, timeout_seconds: float) -> Iterator[pb.Rollout]:
        """Progress of a rollout until it is done; unavailable when the stream breaks or the time is up."""
        return self._each(self._calls.stream("WatchRollout", request, pb.Rollout, timeout_seconds))

    def residency(
        self, pool: str, name: str = "", detail: pb.WatchResidencyRequest.Detail = pb.WatchResidencyRequest.REPLICAS
    ) -> list[pb.AdapterResidency]:
        """Places of a pool's adapters now; or of one of them."""
        request = pb.WatchResidencyRequest(pool=pool, name=name, detail=detail)
        return self._run(partial(self._calls.residency_now, request))

    def inspect(self, look: Callable[[grpc.aio.Channel, str], Coroutine[Any, Any, T]]) -> T:
        """The findings of a function that is given the channel itself and the address of the service."""
        calls = self._calls

        async def looked() -> T:
            with calls.errors.translated():
                return await look(calls.channel, calls.errors.address)

        return self._run(looked)

    def _pages(self, method: str, request: Paged, reply: type[Page]) -> Iterator[Page]:
        pages = self._calls.pages(method, request, reply)
        return self._each(pages if self._waits else _each_while_etcd_answers(self._calls, pages))

    def _unary(self, method: str, request: Message, reply: type[Reply], request_id: str = "") -> Reply:
        if request_id and self._before_change is not None and not getattr(request, "validate_only", False):
            self._before_change()
            self._before_change = None
        return self._run(partial(self._calls.unary, method, request, reply, repeats=self._repeats), request_id)

    def is_without_etcd(self) -> bool:
        """True if the admin service answers, and says that it does not reach etcd."""
        return self._loop.run(_is_without_etcd, self._calls)

    def _run(self, call: Callable[[], Coroutine[Any, Any, T]], request_id: str = "") -> T:
        with _reported(request_id):
            if self._waits:
                return self._loop.run(call)
            return self._loop.run(_while_etcd_answers, self._calls, call, request_id)

    def _each(self, answers: AsyncGenerator[T, None]) -> Iterator[T]:
        with _reported():
            yield from self._loop.each(answers)
