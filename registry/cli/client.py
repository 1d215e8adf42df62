"""The client of the command line: calls whose errors are CliError."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Any, TypeVar, cast

import grpc

from registry.cli.failure import ChangeInterrupted, CliError, Exit, failure_of, usage
from registry.client import admin_api as api
from registry.client.address import RESOLVED, Tls
from registry.client.admin_api import AdminMethod, Reply, Request
from registry.client.background import BackgroundLoop, BlockingClient
from registry.client.credentials import TokenSource
from registry.client.transport import AdminCalls, Listing, Page
from registry.model.errors import InvalidArgument, Reason, RegistryError, Unavailable
from registry.v1 import registry_pb2 as pb

T = TypeVar("T")
WatchAnswer = pb.WatchAdaptersResponse | pb.WatchResidencyResponse

_FLAGS = {
    "address": "--admin: ",
    "tls": "--tls-ca, --tls-cert, --tls-key: ",
    "token": "--token-file, --token-command: ",
}

# What to do about failures of the connection itself, in terms of the command line.
_REMEDIES: Mapping[Reason, str] = {
    Reason.ADMIN_UNAVAILABLE: (
        "start it (loraplane-admin, or loraplane dev up), or name another with --admin or LORAPLANE_ADMIN"
    ),
    Reason.DEADLINE_EXCEEDED: "see its log, or allow more with --timeout",
    Reason.UNSUPPORTED: "is it a loraplane-admin of this release?",
}
# A call that takes longer is likely to wait for etcd, which the admin service knows within a few seconds.
_ASK_AFTER_SECONDS = 0.7
_HEALTH_SECONDS = 1.0
# Until a first answer somebody may not even listen there, which is quickly known.
_LOOK_AFTER_SECONDS = 0.4
# Nobody listens there who has not taken a connection by then.
_CONNECT_SECONDS = 1.0
# Of several addresses of a name the next is tried by then too, as gRPC does.
_NEXT_SECONDS = 0.25


@contextmanager
def _reported(request_id: str = "") -> Iterator[None]:
    """Raises an error of the registry as CliError, with the request id where the outcome may not be known."""
    try:
        yield
    except RegistryError as error:
        raise CliError(failure_of(error, request_id)) from error


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
        Unavailable: it takes long, and the admin service says that it does not reach etcd; or nobody has answered us
            yet, and nobody listens there. Who has answered once is waited for: it may be restarting.
    """
    task = asyncio.ensure_future(call())
    try:
        is_late = not calls.has_answered and not (await asyncio.wait({task}, timeout=_LOOK_AFTER_SECONDS))[0]
        # Of either look it counts only if the answer has not come meanwhile.
        if is_late and (trouble := await _connection_trouble(calls.address)) and not task.done():
            raise calls.errors.unreachable(trouble, request_id)
        while not (await asyncio.wait({task}, timeout=_ASK_AFTER_SECONDS))[0]:
            if await _is_without_etcd(calls) and not task.done():
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


async def _connection_trouble(address: str) -> str:
    """Reason for which nobody takes a connection there; empty: somebody does, or it is no HOST:PORT."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or address.startswith(RESOLVED):
        return ""
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port), happy_eyeballs_delay=_NEXT_SECONDS)
    except TimeoutError:
        return "nothing answers there"
    except OSError as error:
        return os.strerror(error.errno) if error.errno else str(error)
    writer.close()
    return ""


async def _is_without_etcd(calls: AdminCalls) -> bool:
    from grpc_health.v1 import health_pb2, health_pb2_grpc  # noqa: PLC0415 - most runs have their answer before

    request = health_pb2.HealthCheckRequest(service=pb.DESCRIPTOR.services_by_name["AdapterRegistry"].full_name)
    try:
        reply = await health_pb2_grpc.HealthStub(calls.channel).Check(request, timeout=_HEALTH_SECONDS)
    except grpc.RpcError:
        return False
    return bool(reply.status == health_pb2.HealthCheckResponse.NOT_SERVING)


class AdminClient(BlockingClient[AdminCalls]):
    """A connection to the admin service, for use in ``with``. Every method raises CliError where it fails.

    Args:
        address: HOST:PORT of the admin service.
        tls: for a service with certificates.
        timeout_seconds: how long one call may take, repetitions included.
        waits: False: no call is waited for once the admin service says that it does not reach etcd.
        before_change: is called before the first call that may change something.
        token: where the token comes from that is shown with each call; None: none is.
        repeats: the user named the request id, so every call may be one that was made before.
        loop: the event loop that carries calls out; None: that of this process.

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
        token: TokenSource | None = None,
        loop: BackgroundLoop | None = None,
    ) -> None:
        self._before_change: Callable[[], None] | None = before_change
        self._waits = waits
        self._repeats = repeats
        try:
            make = partial(AdminCalls, address, tls, timeout_seconds, _REMEDIES, token)
            super().__init__(make, loop or BackgroundLoop())
        except InvalidArgument as error:
            raise usage(f"{_FLAGS.get(error.field or '', '')}{error.message}") from error

    def may_pass(self, error: CliError) -> bool:
        """True if the same may succeed in a moment; not where nobody has ever answered: nobody may be there at all."""
        is_there = self._client.has_answered or error.failure.exit is not Exit.UNAVAILABLE
        return error.failure.passes and is_there

    def unary(self, method: AdminMethod[Request, Reply], request: Request) -> Reply:
        """The answer to a call."""
        request_id = str(getattr(request, "request_id", ""))
        is_change = bool(request_id) and not getattr(request, "validate_only", False)
        if is_change and self._before_change is not None:
            self._before_change()
            self._before_change = None
        try:
            return self._run(partial(self._client.unary, method, request, repeats=self._repeats), request_id)
        except KeyboardInterrupt as interrupt:
            if is_change:
                raise ChangeInterrupted(request_id) from interrupt
            raise

    def pages(self, method: AdminMethod[Listing, Page], request: Listing | None = None) -> Iterator[Page]:
        """All pages of a listing; `request` None: of all that there is."""
        pages = self._client.pages(method, request or method.request())
        return self._each(pages if self._waits else _each_while_etcd_answers(self._client, pages))

    def stream(self, method: AdminMethod[Request, Reply], request: Request, timeout_seconds: float) -> Iterator[Reply]:
        """Answers until the stream ends; unavailable when it breaks or the time is up."""
        return self._each(self._client.stream(method, request, timeout_seconds))

    def history(self, pool: str, name: str) -> pb.ListAdapterHistoryResponse:
        """An adapter's generations, the newest first."""
        return self.unary(api.LIST_ADAPTER_HISTORY, pb.ListAdapterHistoryRequest(pool=pool, name=name))

    def whole(self, method: AdminMethod[Listing, Page], request: Listing | None = None) -> Page:
        """All pages of a listing in one; what each page tells is there as often as there are pages."""
        found = method.reply()
        for page in self.pages(method, request):
            found.MergeFrom(page)
        return found

    def all_replicas(self, pool: str) -> pb.ListReplicasResponse:
        """The live replicas, and those that are expected and do not live."""
        return self.whole(api.LIST_REPLICAS, pb.ListReplicasRequest(pool=pool))

    def residency(
        self, pool: str, name: str = "", detail: pb.WatchResidencyRequest.Detail = pb.WatchResidencyRequest.REPLICAS
    ) -> list[pb.AdapterResidency]:
        """Places of a pool's adapters now; or of one of them."""
        found = self.residency_told(pb.WatchResidencyRequest(pool=pool, name=name, detail=detail))
        return [one for response in found for one in response.adapters]

    def residency_told(self, request: pb.WatchResidencyRequest) -> list[pb.WatchResidencyResponse]:
        """Residency now, as it is sent."""
        return self._run(partial(self._client.residency_now, request))

    def watch_pool(
        self, start: pb.WatchAdaptersRequest, where: pb.WatchResidencyRequest | None, quiet_seconds: float
    ) -> Iterator[Sequence[WatchAnswer]]:
        """Changes of a pool's adapters, and of where they are unless `where` is None, until a stream ends.

        What comes at one time is one item, an empty one where nothing came for so long; unavailable when a stream
        breaks.
        """
        streams: list[AsyncGenerator[Any, None]] = [self._client.stream(api.WATCH_ADAPTERS, start)]
        if where is not None:
            streams.append(self._client.stream(api.WATCH_RESIDENCY, where))
        return self._each(_merged(streams, quiet_seconds))

    def inspect(self, look: Callable[[grpc.aio.Channel, str], Coroutine[Any, Any, T]]) -> T:
        """The findings of a function that is given the channel itself and the address of the service."""

        async def looked() -> T:
            with self._client.errors.translated():
                return await look(cast("grpc.aio.Channel", self._client.channel), self._client.errors.address)

        return self._run(looked)

    def is_without_etcd(self) -> bool:
        """True if the admin service answers, and says that it does not reach etcd."""
        return self._loop.run(_is_without_etcd, self._client)

    def _run(self, call: Callable[[], Coroutine[Any, Any, T]], request_id: str = "") -> T:
        with _reported(request_id):
            if self._waits:
                return self._loop.run(call)
            return self._loop.run(_while_etcd_answers, self._client, call, request_id)

    def _each(self, answers: AsyncGenerator[T, None]) -> Iterator[T]:
        with _reported():
            yield from self._loop.each(answers)
