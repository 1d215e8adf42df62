"""Routes calls to a member that answers: rotation, login, deadline, repetition."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from registry.etcd3 import rpc_pb2 as rpc
from registry.etcd3.backoff import Backoff
from registry.etcd3.channel import MemberConnection, tls_reader
from registry.etcd3.classify import may_repeat
from registry.etcd3.codec import AUTHENTICATE, Method, Req, Res
from registry.etcd3.errors import (
    EtcdError,
    EtcdInvalidArgument,
    EtcdPermissionDenied,
    EtcdUnauthenticated,
    EtcdUnavailable,
    NoLeader,
    Timeout,
    TlsFailed,
    TooManyRequests,
)
from registry.etcd3.options import ClientOptions

AUTH_IS_OFF = "authentication is not enabled"


class Rotation:
    """A place in the list of endpoints. Starts anywhere, so that many clients spread over the members."""

    def __init__(self, endpoints: tuple[str, ...], rng: random.Random) -> None:
        self._endpoints = endpoints
        self._index = rng.randrange(len(endpoints))

    @property
    def current(self) -> str:
        return self._endpoints[self._index]

    def leave(self, endpoint: str) -> None:
        """Goes on to the next endpoint, unless somebody has left `endpoint` already."""
        if endpoint == self.current:
            self._index = (self._index + 1) % len(self._endpoints)


class Connections:
    """One connection per endpoint, replaced after a failure: gRPC itself would use a dead one again.

    `tls` reads the files for these connections and for those of watches; None: they are in plain text.
    """

    def __init__(self, options: ClientOptions, rng: random.Random) -> None:
        self.tls = tls_reader(options.tls) if options.tls else None
        self._open: dict[str, MemberConnection] = {}
        self._rotation = Rotation(options.endpoints, rng)
        self.is_closed = False

    def current(self) -> MemberConnection:
        """The connection to the endpoint in use.

        Raises:
            TlsFailed: see `registry.etcd3.channel.MemberConnection`.
        """
        return self.to(self._rotation.current)

    def to(self, endpoint: str) -> MemberConnection:
        """The connection to an endpoint.

        Raises:
            TlsFailed: see `registry.etcd3.channel.MemberConnection`.
            Unavailable: the client is closed.
        """
        if self.is_closed:
            raise EtcdUnavailable(f"{endpoint}: the client is closed", maybe_applied=False)
        if endpoint not in self._open:
            self._open[endpoint] = MemberConnection(endpoint, self.tls)
        return self._open[endpoint]

    async def renewed(self, connection: MemberConnection) -> MemberConnection:
        """The connection, or a new one in its place if it would be made anew with files that were replaced since.

        Raises:
            TlsFailed: see `registry.etcd3.channel.MemberConnection`.
            Unavailable: the client is closed.
        """
        if not connection.has_old_files():
            return connection
        await self._replace(connection)
        return self.to(connection.endpoint)

    async def failed(self, connection: MemberConnection, error: EtcdError) -> None:
        """Draws the consequences of an error: another member next time, and a fresh connection."""
        if isinstance(error, EtcdUnavailable | Timeout | NoLeader | TooManyRequests):
            self._rotation.leave(connection.endpoint)
        if isinstance(error, EtcdUnavailable | Timeout):
            await self._replace(connection)

    async def _replace(self, connection: MemberConnection) -> None:
        """Lets the next one who asks open a new one."""
        if self._open.get(connection.endpoint) is connection:
            del self._open[connection.endpoint]
            await connection.retire()

    async def close(self) -> None:
        """Closes every connection at once, and opens no more."""
        self.is_closed = True
        connections = list(self._open.values())
        self._open.clear()
        for connection in connections:
            await connection.close()


# A password is new in etcd before its file is here; so long one waits whose login was taken before.
ROTATION_SECONDS = 10.0
_ROTATION_PAUSE_SECONDS = 0.1
# Tokens last for minutes at least.
_NEW_SECONDS = 60.0
# Pauses, at their longest, between two tries of one that is refused: each keeps etcd's processor busy for long.
_REFUSED = Backoff(base_seconds=0.5, cap_seconds=30.0)


@dataclass(frozen=True, slots=True)
class _RefusedPassword:
    """A password that etcd refused so often, what it said, and until when it is not asked again."""

    password: str = field(repr=False)
    message: str
    times: int
    until: float


class Login:
    """The token of our user: fetched when first needed, replaced once the server no longer knows it.

    A password that is refused, and was taken before, is being exchanged: it is read anew until it is taken.
    """

    def __init__(self, options: ClientOptions) -> None:
        self._user = options.user
        self._password = options.password
        self._token: str | None = None
        self._taken_at = -math.inf
        self._refused: _RefusedPassword | None = None
        self._lock = asyncio.Lock()

    @property
    def is_new(self) -> bool:
        """True while the token is so new that no server calls it expired."""
        return asyncio.get_running_loop().time() - self._taken_at < _NEW_SECONDS

    async def token(self, connection: MemberConnection, *, deadline: float, stale: str | None = None) -> str | None:
        """A token other than `stale`, or None if no user is set or the server has authentication switched off.

        Raises:
            Unauthenticated: user or password are wrong.
            EtcdError: the login could not be made; nothing else has been sent.
        """
        if self._user is None or self._password is None:
            return None
        async with self._lock:
            if self._token is None or self._token == stale:
                self._token = await self._renewed(self._user, self._password, connection, deadline)
                self._taken_at = asyncio.get_running_loop().time()
            return self._token

    async def _renewed(
        self, user: str, password: Callable[[], str], connection: MemberConnection, deadline: float
    ) -> str | None:
        now = asyncio.get_running_loop().time
        end = now() if self._token is None else min(deadline, now() + ROTATION_SECONDS)
        while True:
            try:
                return await self._paced(user, password(), connection, deadline)
            except EtcdUnauthenticated:
                if now() + _ROTATION_PAUSE_SECONDS >= end:
                    raise
            await asyncio.sleep(_ROTATION_PAUSE_SECONDS)

    async def _paced(self, user: str, password: str, connection: MemberConnection, deadline: float) -> str | None:
        """As `_authenticate`; a password that was refused just now is refused without asking."""
        now = asyncio.get_running_loop().time
        before = self._refused if self._refused is not None and self._refused.password == password else None
        if before is not None and now() < before.until:
            raise EtcdUnauthenticated(before.message)
        try:
            token = await self._authenticate(user, password, connection, deadline)
        except EtcdUnauthenticated as error:
            times = before.times if before is not None else 0
            until = now() + _REFUSED.delay(times, max)
            self._refused = _RefusedPassword(password, str(error), times + 1, until)
            raise
        self._refused = None
        return token

    async def _authenticate(
        self, user: str, password: str, connection: MemberConnection, deadline: float
    ) -> str | None:
        request = rpc.AuthenticateRequest(name=user, password=password)
        try:
            reply = await connection.call(AUTHENTICATE, request, deadline=deadline, token=None)
        except EtcdInvalidArgument as error:
            if AUTH_IS_OFF in str(error):
                return None
            raise
        return reply.token


_REPEAT = Backoff(base_seconds=0.05, cap_seconds=1.0)


class MemberCalls:
    """Calls methods of a cluster, whichever member is up. Made inside a running event loop, and of it."""

    def __init__(self, options: ClientOptions, rng: random.Random) -> None:
        self._options = options
        self._rng = rng
        self._now = asyncio.get_running_loop().time
        self.connections = Connections(options, rng)
        self.login = Login(options)

    async def call(self, method: Method[Req, Res], request: Req, timeout_seconds: float | None) -> Res:
        """Calls a method on any member, and on others after failures that certainly applied nothing.

        Raises:
            EtcdError: the last failure, when it may not be repeated or no time is left.
        """
        deadline = self._now() + (timeout_seconds or self._options.call_timeout_seconds)
        failures = 0
        cause: EtcdError | None = None
        while True:
            try:
                return await self._try(method, request, deadline - self._now())
            except EtcdError as error:
                failures += 1
                delay = _REPEAT.delay(failures, self._rng.uniform)
                is_last = self.connections.is_closed or self._now() + delay >= deadline
                if is_last or not may_repeat(error):
                    if cause is None or not isinstance(error, Timeout):
                        raise
                    raise Timeout(f"{error}; before that: {cause}", maybe_applied=error.maybe_applied) from cause
                # That there is no answer in time tells less than what was told before.
                cause = cause if isinstance(error, Timeout) else error
            await asyncio.sleep(delay)

    async def ask(self, endpoint: str, method: Method[Req, Res], request: Req, timeout_seconds: float) -> Res:
        """Calls a method once, on this member.

        Raises:
            EtcdError: any failure.
        """
        return await self._on(self.connections.to(endpoint), method, request, timeout_seconds)

    async def _try(self, method: Method[Req, Res], request: Req, left_seconds: float) -> Res:
        return await self._on(self.connections.current(), method, request, self._share(method, left_seconds))

    def _share(self, method: Method[Req, Res], left_seconds: float) -> float:
        """Share of the time left that one try may take: a read leaves some for the other members."""
        alone = method.writes or len(self._options.endpoints) == 1
        return left_seconds if alone else max(left_seconds / 2, min(left_seconds, 0.5))

    async def _on(
        self, connection: MemberConnection, method: Method[Req, Res], request: Req, timeout_seconds: float
    ) -> Res:
        used = await self.connections.renewed(connection)
        async with used:
            try:
                return await self._with_token(used, method, request, timeout_seconds)
            except EtcdError as error:
                await self.connections.failed(used, error)
                if isinstance(error, TlsFailed) and error.certainly_not_applied and used.has_old_files():
                    # It was made while they were replaced; the next one has the new ones.
                    raise EtcdUnavailable(str(error), maybe_applied=False) from error
                raise

    async def _with_token(
        self, connection: MemberConnection, method: Method[Req, Res], request: Req, timeout_seconds: float
    ) -> Res:
        deadline = self._now() + timeout_seconds
        token = await self.login.token(connection, deadline=deadline)
        try:
            return await connection.call(method, request, deadline=deadline, token=token)
        except (EtcdUnauthenticated, EtcdPermissionDenied) as error:
            if token is None or (isinstance(error, EtcdPermissionDenied) and self.login.is_new):
                raise
        # The server may have forgotten the token, which old servers call "permission denied".
        fresh = await self.login.token(connection, deadline=deadline, stale=token)
        return await connection.call(method, request, deadline=deadline, token=fresh)
