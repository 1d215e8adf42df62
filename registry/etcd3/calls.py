"""How a call reaches a member that answers: one deadline, a token, and repetition only where it is harmless."""

from __future__ import annotations

import asyncio
import random

from registry.etcd3.backoff import Backoff
from registry.etcd3.channel import Connection
from registry.etcd3.classify import may_repeat
from registry.etcd3.endpoints import Connections, Login
from registry.etcd3.errors import EtcdError, PermissionDenied, Unauthenticated
from registry.etcd3.methods import Method, Req, Res
from registry.etcd3.options import ClientOptions

_REPEAT = Backoff(base_seconds=0.05, cap_seconds=1.0)


class Calls:
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
        while True:
            try:
                return await self._try(method, request, deadline - self._now())
            except EtcdError as error:
                failures += 1
                delay = _REPEAT.delay(failures, self._rng)
                if not may_repeat(error) or self._now() + delay >= deadline:
                    raise
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
        """How much of the time that is left one try may take: a read leaves some for the other members."""
        alone = method.writes or len(self._options.endpoints) == 1
        return left_seconds if alone else max(left_seconds / 2, min(left_seconds, 0.5))

    async def _on(self, connection: Connection, method: Method[Req, Res], request: Req, timeout_seconds: float) -> Res:
        async with connection:
            try:
                return await self._with_token(connection, method, request, timeout_seconds)
            except EtcdError as error:
                await self.connections.failed(connection, error)
                raise

    async def _with_token(
        self, connection: Connection, method: Method[Req, Res], request: Req, timeout_seconds: float
    ) -> Res:
        deadline = self._now() + timeout_seconds
        token = await self.login.token(connection, deadline=deadline)
        try:
            return await connection.call(method, request, deadline=deadline, token=token)
        except (Unauthenticated, PermissionDenied):
            if token is None:
                raise
        # The server may have forgotten the token, which old servers call "permission denied".
        fresh = await self.login.token(connection, deadline=deadline, stale=token)
        return await connection.call(method, request, deadline=deadline, token=fresh)
