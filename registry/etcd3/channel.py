"""One connection to one member: options, metadata, deadlines, errors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self

import grpc

from registry.etcd3.cancellation import is_cancelled
from registry.etcd3.classify import classify
from registry.etcd3.codec import Method, Req, Res
from registry.etcd3.errors import EtcdUnavailable, Timeout, TlsFailed
from registry.etcd3.options import KEEPALIVE, TlsFiles
from registry.etcd3.tls import Pem, TlsReader, TlsUnusable

_log = logging.getLogger(__name__)
_TLS_TROUBLE = "etcd's TLS files: %s; those that were read last are used, and these tried again"
MAX_RECEIVE_BYTES = 64 * 1024 * 1024
CONNECT_SECONDS = 2.0
_OPTIONS: Sequence[tuple[str, int]] = (
    ("grpc.max_receive_message_length", MAX_RECEIVE_BYTES),
    # Pings oftener than every 5 s, or on an idle channel, are answered with GOAWAY too_many_pings.
    *KEEPALIVE,
    ("grpc.keepalive_permit_without_calls", 0),
    # Without it a new channel would be given the dead connection of the old one.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", int(CONNECT_SECONDS * 1000)),  # in truth the limit of one attempt
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.enable_retries", 0),  # a write is never repeated behind our back
    ("grpc.enable_http_proxy", 0),
)
_SETTLED = (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE)


def tls_reader(files: TlsFiles) -> TlsReader:
    """Reads the files for etcd, and logs what is wrong with them."""
    return TlsReader(files, partial(_log.warning, _TLS_TROUBLE))


def _open(endpoint: str, pem: Pem | None) -> grpc.aio.Channel:
    if pem is None:
        return grpc.aio.insecure_channel(endpoint, options=_OPTIONS)
    return grpc.aio.secure_channel(endpoint, grpc.ssl_channel_credentials(*pem), options=_OPTIONS)


def _newest(endpoint: str, tls: TlsReader) -> Pem:
    try:
        return tls.newest()
    except TlsUnusable as error:
        raise TlsFailed(f"{endpoint}: {error}", maybe_applied=False) from error


@contextmanager
def translated(endpoint: str, *, writes: bool) -> Iterator[None]:
    """Turns gRPC's failures into our errors.

    grpc.aio raises CancelledError also when the server, or a closed channel, ended the call; that is a
    failure like others, while the cancellation of our own task must pass through.
    """
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise classify(error.code().name, error.details() or "", writes=writes, endpoint=endpoint) from error
    except asyncio.CancelledError as error:
        if is_cancelled():
            raise
        raise EtcdUnavailable(f"{endpoint}: the call was cancelled", maybe_applied=writes) from error
    except grpc.aio.UsageError as error:
        raise EtcdUnavailable(f"{endpoint}: the channel is closed", maybe_applied=writes) from error


def call_metadata(token: str | None) -> tuple[tuple[str, str], ...]:
    """Metadata of every call: an isolated member must refuse rather than serve or wait in silence."""
    leader = ("hasleader", "true")
    return (leader, ("token", token)) if token else (leader,)


class MemberConnection:
    """A channel to one endpoint, of one event loop. Once retired it closes itself when the last call on it has ended.

    Raises:
        TlsFailed: a TLS file cannot be used, and none could before.
    """

    def __init__(self, endpoint: str, tls: TlsReader | None) -> None:
        self.endpoint = endpoint
        self._tls, self._pem = tls, _newest(endpoint, tls) if tls else None
        self.channel = _open(endpoint, self._pem)
        self._now = asyncio.get_running_loop().time  # to ask for the loop each time is a system call in Python 3.11
        self._unary: dict[str, grpc.aio.UnaryUnaryMultiCallable[Any, Any]] = {}
        self._users = 0
        self._retired = False

    async def __aenter__(self) -> Self:
        self._users += 1
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._users -= 1
        await self._close_if_done()

    def has_old_files(self) -> bool:
        """True if it does not stand, and gRPC would make it anew with TLS files that were replaced since."""
        if self._tls is None or self.channel.get_state() is grpc.ChannelConnectivity.READY:
            return False
        return _newest(self.endpoint, self._tls) != self._pem

    async def retire(self) -> None:
        """Takes no new calls; those that run end by their own deadlines."""
        self._retired = True
        await self._close_if_done()

    async def close(self) -> None:
        """Closes at once; calls that run fail."""
        await self.channel.close()

    async def _close_if_done(self) -> None:
        if self._retired and self._users == 0:
            await self.channel.close()

    async def ready(self, *, within_seconds: float) -> None:
        """Waits until the connection stands, or is known to fail, so that a call never waits unsent.

        Raises:
            Unavailable: neither was the case in that time; certainly not applied.
        """
        state = self.channel.get_state(try_to_connect=True)
        if state in _SETTLED:
            return
        try:
            async with asyncio.timeout(within_seconds):
                while state not in _SETTLED:
                    await self.channel.wait_for_state_change(state)
                    state = self.channel.get_state(try_to_connect=True)
        except TimeoutError as error:
            message = f"{self.endpoint}: no connection within {within_seconds:g} s"
            raise EtcdUnavailable(message, maybe_applied=False) from error

    async def call(self, method: Method[Req, Res], request: Req, *, deadline: float, token: str | None) -> Res:
        """Calls a method once. `deadline` is on the event loop's clock.

        Raises:
            EtcdError: see `registry.etcd3.classify`.
        """
        with translated(self.endpoint, writes=False):
            await self.ready(within_seconds=min(CONNECT_SECONDS, max(0.0, deadline - self._now())))
        left_seconds = deadline - self._now()
        if left_seconds <= 0:
            raise Timeout(f"{self.endpoint}: no time left to send the request", maybe_applied=False)
        with translated(self.endpoint, writes=method.writes):
            return await self._send(method, request, left_seconds, token)

    def stream(
        self, method: Method[Req, Res], *, timeout_seconds: float | None, token: str | None
    ) -> grpc.aio.StreamStreamCall[Req, Res]:
        """Opens a stream; to be used inside `translated`."""
        call: grpc.aio.StreamStreamMultiCallable[Req, Res] = self.channel.stream_stream(
            method.path, method.request.SerializeToString, method.response.FromString
        )
        return call(timeout=timeout_seconds, metadata=call_metadata(token))

    async def _send(self, method: Method[Req, Res], request: Req, seconds: float, token: str | None) -> Res:
        if method.streams:
            return await self._exchange(method, request, seconds, token)
        reply: Res = await self._call_of(method)(request, timeout=seconds, metadata=call_metadata(token))
        return reply

    def _call_of(self, method: Method[Req, Res]) -> grpc.aio.UnaryUnaryMultiCallable[Any, Any]:
        known = self._unary.get(method.path)
        if known is None:
            known = self.channel.unary_unary(method.path, method.request.SerializeToString, method.response.FromString)
            self._unary[method.path] = known
        return known

    async def _exchange(self, method: Method[Req, Res], request: Req, seconds: float, token: str | None) -> Res:
        """One message, one answer, on a stream of its own."""
        call = self.stream(method, timeout_seconds=seconds, token=token)
        try:
            await call.write(request)
            answer = await call.read()
        finally:
            call.cancel()
        if isinstance(answer, method.response):
            return answer
        raise EtcdUnavailable(f"{self.endpoint}: the stream ended without an answer", maybe_applied=method.writes)
