"""Which member is spoken to, over which connection, and as whom."""

from __future__ import annotations

import asyncio
import random

from registry.etcd3 import rpc_pb2 as rpc
from registry.etcd3.channel import Connection
from registry.etcd3.errors import EtcdError, InvalidArgument, NoLeader, Timeout, TooManyRequests, Unavailable
from registry.etcd3.methods import AUTHENTICATE
from registry.etcd3.options import ClientOptions


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
    """One connection per endpoint, replaced after a failure: gRPC itself would use a dead one again."""

    def __init__(self, options: ClientOptions, rng: random.Random) -> None:
        self._tls = options.tls
        self._open: dict[str, Connection] = {}
        self._rotation = Rotation(options.endpoints, rng)
        self._closed = False

    def current(self) -> Connection:
        """The connection to the endpoint in use.

        Raises:
            TlsFailed: a certificate or key cannot be read.
        """
        return self.to(self._rotation.current)

    def to(self, endpoint: str) -> Connection:
        """The connection to an endpoint.

        Raises:
            TlsFailed: a certificate or key cannot be read.
            Unavailable: the client is closed.
        """
        if self._closed:
            raise Unavailable(f"{endpoint}: the client is closed", maybe_applied=False)
        if endpoint not in self._open:
            self._open[endpoint] = Connection(endpoint, self._tls)
        return self._open[endpoint]

    async def failed(self, connection: Connection, error: EtcdError) -> None:
        """Draws the consequences of an error: another member next time, and a fresh connection."""
        if isinstance(error, Unavailable | Timeout | NoLeader | TooManyRequests):
            self._rotation.leave(connection.endpoint)
        broken = isinstance(error, Unavailable | Timeout)
        if broken and self._open.get(connection.endpoint) is connection:
            del self._open[connection.endpoint]
            await connection.retire()

    async def close(self) -> None:
        """Closes every connection at once, and opens no more."""
        self._closed = True
        connections = list(self._open.values())
        self._open.clear()
        for connection in connections:
            await connection.close()


class Login:
    """The token of our user: fetched when first needed, replaced once the server no longer knows it."""

    def __init__(self, options: ClientOptions) -> None:
        self._user = options.user
        self._password = options.password
        self._token: str | None = None
        self._lock = asyncio.Lock()

    async def token(self, connection: Connection, *, deadline: float, stale: str | None = None) -> str | None:
        """A token other than `stale`, or None if no user is set or the server has authentication switched off.

        Raises:
            Unauthenticated: user or password are wrong.
            EtcdError: the login could not be made; nothing else has been sent.
        """
        if self._user is None or self._password is None:
            return None
        async with self._lock:
            if self._token is None or self._token == stale:
                self._token = await self._authenticate(self._user, self._password(), connection, deadline)
            return self._token

    async def _authenticate(self, user: str, password: str, connection: Connection, deadline: float) -> str | None:
        request = rpc.AuthenticateRequest(name=user, password=password)
        try:
            reply = await connection.call(AUTHENTICATE, request, deadline=deadline, token=None)
        except InvalidArgument as error:
            if "authentication is not enabled" in str(error):
                return None
            raise
        return reply.token
