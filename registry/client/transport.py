"""Transport of the clients: addresses, TLS, deadlines, safe repetition."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from functools import partial
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from registry.client import admin_api as api
from registry.client.address import Tls, check_address, is_of_this_host
from registry.client.admin_api import AdminMethod, Reply, Request
from registry.client.background import PROCESS, LoopedChannel
from registry.client.channel import check_process, is_of_other_process, open_channel
from registry.client.credentials import BearerToken, ShownToken, TokenCommand, TokenSource
from registry.client.errors import CallErrors
from registry.client.handshake import HandshakeTrouble, admin_service, found_trouble
from registry.client.relay import RelayedChannel
from registry.etcd3.backoff import Backoff
from registry.etcd3.tls import Pem, TlsReader, TlsUnusable
from registry.model.errors import RETRY_AFTER, InvalidArgument, Reason, ResourceExhausted, Unauthenticated, Unavailable
from registry.model.names import REPEATED_METADATA
from registry.runtime import tracing
from registry.v1 import registry_pb2 as pb

_log = logging.getLogger(__name__)
_TLS_TROUBLE = "TLS files for the admin service: %s; those that were read last are used, and these tried again"
# One try may not use up the whole time: a connection may hang that another would not.
TRY_SECONDS = 10.0
PAGE_SIZE = 1000
_SHORTEST_TRY_SECONDS = 0.05
# One failure may be a connection that was just ended.
_FAILURES_BEFORE_LOOK = 2
# Files that are being replaced on both sides do not fit for a moment.
_ROTATION_SECONDS = 1.0
REPEAT = Backoff(base_seconds=0.2, cap_seconds=2.0)
_SERVICE = "/registry.v1.AdapterRegistry"

Answer = TypeVar("Answer")
Page = TypeVar(
    "Page",
    pb.ListAdaptersResponse,
    pb.ListPoolsResponse,
    pb.ListReplicasResponse,
    pb.ListTenantsResponse,
    pb.ReadBackupResponse,
    pb.ListChangesResponse,
    pb.ListAuditResponse,
)
Listing = TypeVar(
    "Listing",
    pb.ListAdaptersRequest,
    pb.ListPoolsRequest,
    pb.ListReplicasRequest,
    pb.ListTenantsRequest,
    pb.ReadBackupRequest,
    pb.ListChangesRequest,
    pb.ListAuditRequest,
)


def _nothing() -> None:
    """Does nothing."""


def checked_seconds(timeout_seconds: float) -> float:
    """The same. Raises InvalidArgument: it is no time that a call can have, and would not end, or before it began."""
    if timeout_seconds >= 0:
        return timeout_seconds
    message = f"timeout_seconds={timeout_seconds!r}: write seconds, 0 or more"
    raise InvalidArgument(Reason.INVALID_FIELD, message, field="timeout_seconds")


def _is_over(patience_seconds: float | None, since: float) -> bool:
    return patience_seconds is not None and time.monotonic() - since >= patience_seconds


def _open(address: str, pem: Pem | None) -> grpc.aio.Channel | RelayedChannel | LoopedChannel:
    """A channel to HOST:PORT, for the event loop that runs; None: without TLS."""
    if is_of_other_process():
        return RelayedChannel(address, pem)
    return open_channel(address, pem) if PROCESS.runs_here() else LoopedChannel(address, pem)


class AdminCalls:
    """Unary calls and streams over one channel. Made inside a running event loop, and of it.

    Args:
        address: HOST:PORT of the admin service.
        tls: for a service with certificates.
        timeout_seconds: of one call, repetitions included, unless the call says otherwise.
        remedies: see `CallErrors`.
        token: where the token comes from that is shown with each call; None: none is.

    Raises:
        InvalidArgument: `address` is none, `timeout_seconds` is no time, a certificate is without its key, a file of
            `tls` cannot be used, or others could read the token.
    """

    def __init__(
        self,
        address: str,
        tls: Tls | None,
        timeout_seconds: float,
        remedies: Mapping[Reason, str] | None = None,
        token: TokenSource | None = None,
    ) -> None:
        check_address(address)
        self.timeout_seconds = checked_seconds(timeout_seconds)
        self._token = _bearer(token, is_private=bool(tls) or is_of_this_host(address))
        self.address = address
        # Whether a call was answered, so that somebody is known to be there.
        self.has_answered = False
        self._process = os.getpid()
        self._files = tls.files() if tls else None
        self._tls = TlsReader(self._files, partial(_log.warning, _TLS_TROUBLE)) if self._files else None
        self._pem = self._newest_pem()
        self._closing: set[asyncio.Task[None]] = set()
        self.channel = _open(address, self._pem)
        self.errors = CallErrors(address, remedies or {})

    async def unary(
        self,
        method: AdminMethod[Request, Reply],
        request: Request,
        *,
        request_id: str = "",
        timeout_seconds: float | None = None,
        repeats: bool = False,
    ) -> Reply:
        """One answer.

        Args:
            method: of the admin API.
            request: sent again as it is, so one that changes something holds a request id.
            request_id: for the metadata of errors.
            timeout_seconds: repetitions included; None: that of the connection.
            repeats: the same may have been sent before; if not, only what is sent again here says so.

        Raises:
            RegistryError: as the admin service refused it, or Unavailable.
        """
        sent, change = repeats, _change_of(request)

        async def attempt(seconds: float) -> Reply:
            nonlocal sent
            token = await self._shown()
            known = (*_headers(token), *tracing.headers(change))
            metadata, sent = (*known, REPEATED_METADATA) if sent else known, True
            call = self.channel.unary_unary(f"{_SERVICE}/{method.name}", _serialized, method.reply.FromString)
            with self._outcomes(token, request_id):
                answer = await call(request, timeout=seconds, metadata=metadata or None)
            self.has_answered = True
            return answer

        with tracing.stage("request", change, {"method": method.name}):
            return await self.repeated(attempt, timeout_seconds)

    async def pages(
        self, method: AdminMethod[Listing, Page], request: Listing, timeout_seconds: float | None = None
    ) -> AsyncGenerator[Page, None]:
        """All pages of a listing, of `PAGE_SIZE` items unless it says otherwise; `timeout_seconds` is of each.

        Raises:
            Internal: a page leads back to one that was read before, so there would be no end.
            RegistryError: as the admin service refused it, or Unavailable.
        """
        request.page_size = request.page_size or PAGE_SIZE
        seen = {request.page_token}
        while True:
            page = await self.unary(method, request, timeout_seconds=timeout_seconds)
            yield page
            if not page.next_page_token:
                return
            if page.next_page_token in seen:
                raise self.errors.endless_pages(method.name)
            seen.add(page.next_page_token)
            request.page_token = page.next_page_token

    async def stream(
        self, method: AdminMethod[Request, Reply], request: Request, timeout_seconds: float | None = None
    ) -> AsyncGenerator[Reply, None]:
        """Answers until the service ends the stream; None: without a deadline.

        Raises:
            Unavailable: the connection broke, the time is up, or the token ended that the service believed until then;
                the stream may be begun again, with the token that there is then.
            RegistryError: as the admin service refused it.
        """
        token, is_believed = await self._shown(), False
        call = self.channel.unary_stream(f"{_SERVICE}/{method.name}", _serialized, method.reply.FromString)
        running = call(request, timeout=timeout_seconds, metadata=_headers(token) or None)
        try:
            with self._outcomes(token):
                async for answer in running:
                    self.has_answered, is_believed = True, token is not None
                    yield answer
        except Unauthenticated as error:
            if not is_believed:
                raise
            raise _ended(error) from error
        finally:
            running.cancel()

    async def follow(
        self,
        method: AdminMethod[Request, Reply],
        request: Request,
        patience_seconds: float | None = None,
        begun: Callable[[], None] = _nothing,
    ) -> AsyncGenerator[Reply, None]:
        """Answers without end: a stream that ends or breaks is begun again, also where its token ends.

        One that is a call too many is begun after the time that the service asks for.

        Args:
            method: of the admin API.
            request: sent at each beginning.
            patience_seconds: how long no stream may stand; None: for ever.
            begun: called before each stream: the next answer is its first.

        Raises:
            Unavailable: the patience is at an end.
            RegistryError: as the admin service refused it.
        """
        failures, broken_at = 0, 0.0
        checked_seconds(patience_seconds or 0.0)
        while True:
            begun()
            asked_seconds = 0.0
            try:
                async with aclosing(self.stream(method, request)) as answers:
                    async for answer in answers:
                        failures = 0
                        yield answer
            except (Unavailable, ResourceExhausted) as error:
                asked = _asked_pause(error) if isinstance(error, ResourceExhausted) else 0.0
                if asked is None or (failures and _is_over(patience_seconds, broken_at)):
                    raise
                asked_seconds = asked
                self._renew()
            broken_at = broken_at if failures else time.monotonic()
            failures += 1
            await asyncio.sleep(max(asked_seconds, REPEAT.delay(failures, random.uniform)))

    async def residency_now(self, request: pb.WatchResidencyRequest) -> list[pb.WatchResidencyResponse]:
        """Residency at this moment: the first whole state of the stream, in its parts.

        Raises:
            RegistryError: as the admin service refused it, or Unavailable.
        """

        async def attempt(seconds: float) -> list[pb.WatchResidencyResponse]:
            found: list[pb.WatchResidencyResponse] = []
            responses = self.stream(api.WATCH_RESIDENCY, request, seconds)
            async with aclosing(responses):
                async for response in responses:
                    found.append(response)
                    if not response.more:
                        break
            return found

        return await self.repeated(attempt)

    async def repeated(
        self, attempt: Callable[[float], Awaitable[Answer]], timeout_seconds: float | None = None
    ) -> Answer:
        """The outcome of an attempt, which is told how many seconds it has; repeated while it is Unavailable.

        One call too many is repeated after the time that the service asks for, if that is in time.

        Raises:
            Unavailable: no handshake with the service can succeed, since its certificate or ours does not fit.
            RegistryError: of the last attempt.
        """
        begun = time.monotonic()
        end = begun + (self.timeout_seconds if timeout_seconds is None else checked_seconds(timeout_seconds))
        failures = 0
        trouble: HandshakeTrouble | None = None
        while True:
            left_seconds = end - time.monotonic()
            try:
                return await attempt(max(_SHORTEST_TRY_SECONDS, min(TRY_SECONDS, left_seconds)))
            except ResourceExhausted as error:
                pause_seconds = _asked_pause(error)
                if pause_seconds is None or time.monotonic() + pause_seconds >= end:
                    raise
            except Unavailable as error:
                self._renew()
                failures += 1
                pause_seconds = REPEAT.delay(failures, random.uniform)
                if failures == _FAILURES_BEFORE_LOOK or trouble:
                    trouble = await found_trouble(self.address, self._files, admin_service(self.address))
                now, told_at = time.monotonic(), begun + _ROTATION_SECONDS
                if trouble and (now >= told_at or now + pause_seconds >= end):
                    raise Unavailable(Reason.ADMIN_UNAVAILABLE, str(trouble)) from error
                if now + pause_seconds >= end:
                    raise
                pause_seconds = min(pause_seconds, told_at - now) if trouble else pause_seconds
            await asyncio.sleep(pause_seconds)

    async def aclose(self) -> None:
        """Ends the connection and every stream on it; in a fork there is nothing to end."""
        if self._process == os.getpid():
            await asyncio.gather(self.channel.close(), *self._closing)

    async def _shown(self) -> ShownToken | None:
        """The token by which the service knows us; None: none is shown.

        Raises:
            UsedAfterFork: the connection is of another process.
            Unauthenticated: there is no token to be had.
        """
        check_process(self._process)
        return None if self._token is None else await self._token.shown()

    @contextmanager
    def _outcomes(self, token: ShownToken | None, request_id: str = "") -> Iterator[None]:
        """Translates failures as `CallErrors` does; after a refusal of the token the next call takes a new one.

        The refusal of a token that was kept from an earlier call becomes Unavailable, so that a new one is tried.
        """
        try:
            with self.errors.translated(request_id):
                yield
        except Unauthenticated as error:
            if self._token is not None and token is not None:
                self._token.forget(token)
            if token is None or not token.is_kept:
                raise
            raise _ended(error) from error

    def _renew(self) -> None:
        """Connects anew if files of `tls` were replaced, of which a channel never learns; calls that run may end."""
        pem = self._newest_pem()
        if pem == self._pem:
            return
        closing = asyncio.create_task(self.channel.close(TRY_SECONDS))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        self.channel, self._pem = _open(self.address, pem), pem

    def _newest_pem(self) -> Pem | None:
        try:
            return self._tls.newest() if self._tls else None
        except TlsUnusable as error:
            raise InvalidArgument(Reason.INVALID_FIELD, str(error), field="tls") from error


def _bearer(token: TokenSource | None, *, is_private: bool) -> BearerToken | None:
    """The token to show. Raises InvalidArgument: others could read it, or no program is named."""
    if token is None:
        return None
    if not is_private:
        message = "a token is sent over TLS or to this host alone, since others could read it; give the service's CA"
        raise InvalidArgument(Reason.INVALID_FIELD, message, field="token")
    if isinstance(token, TokenCommand) and (isinstance(token.argv, str) or not token.argv):
        remedy = "write the program and its arguments as a list: TokenCommand(['gcloud', 'auth', 'token'])"
        message = f"the token command is {'one text' if token.argv else 'empty'}; {remedy}"
        raise InvalidArgument(Reason.INVALID_FIELD, message, field="token")
    return BearerToken(token)


def _headers(token: ShownToken | None) -> tuple[tuple[str, str], ...]:
    return () if token is None else (token.header,)


def _ended(refusal: Unauthenticated) -> Unavailable:
    """The error of a token that ended, where another may be there by now."""
    return Unavailable(Reason.ADMIN_UNAVAILABLE, f"the token ended: {refusal.message}")


def _change_of(request: Message) -> str:
    """The request id of what changes something, for its trace; empty: nothing is changed."""
    if getattr(request, "validate_only", False):
        return ""
    return str(getattr(request, "request_id", ""))


def _serialized(message: Message) -> bytes:
    return message.SerializeToString()


def _asked_pause(error: ResourceExhausted) -> float | None:
    """Seconds after which the service wants to be asked again; None: it says nothing of that."""
    try:
        seconds = float(error.metadata[RETRY_AFTER])
    except (KeyError, ValueError):
        return None
    return max(seconds, _SHORTEST_TRY_SECONDS) if math.isfinite(seconds) else None
