"""One watch stream on one connection, with a deadline that finds a hung server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

from registry.etcd3 import rpc_pb2 as rpc
from registry.etcd3.calls import Login
from registry.etcd3.channel import MemberConnection, translated
from registry.etcd3.codec import RANGE, STATUS, WATCH
from registry.etcd3.errors import EtcdError, EtcdPermissionDenied, EtcdUnauthenticated, EtcdUnavailable, Timeout
from registry.etcd3.stream import Mark
from registry.etcd3.tls import TlsReader

# Silence for so long is answered by a request for progress, and in the end by giving up: 5 s in all.
SILENCE_SECONDS = (2.0, 2.0, 1.0)
_QUEUED_RESPONSES = 16
_WRITE_SECONDS = 1.0
_CALL_SECONDS = 3.0
# A member that answers within this time while its watch is silent does not hang.
_ANSWER_SECONDS = 1.0
# Members before this one tell everybody their version (etcd #14663, #21663): what denies it to a user is no older.
_FIRST_TO_DENY = "3.5.28"
_ETCDS_OWN_DENIAL = "etcdserver: permission denied"


@asynccontextmanager
async def open_watch(
    endpoint: str, tls: TlsReader | None, login: Login, refused_token: str | None
) -> AsyncIterator[WatchStream]:
    """A stream on a connection of its own, since a dead connection must never be used again.

    Raises:
        EtcdError: the member does not answer, or refuses us.
    """
    connection = MemberConnection(endpoint, tls)
    try:
        token = await login.token(connection, deadline=_deadline(), stale=refused_token)
        version = await _server_version(connection, token, _deadline())
        async with WatchStream(connection, token=token, server_version=version) as stream:
            yield stream
    finally:
        await connection.close()


class WatchStream:
    """A Watch call, to be entered as a context. `token` and `server_version` are those of its connection."""

    def __init__(self, connection: MemberConnection, *, token: str | None, server_version: str) -> None:
        self.token = token
        self.server_version = server_version
        self._connection = connection
        self._endpoint = connection.endpoint
        self._call = connection.stream(WATCH, timeout_seconds=None, token=token)
        # A read with a deadline of its own would cancel the stream; so one task reads, and deadlines wait here.
        self._responses: asyncio.Queue[rpc.WatchResponse | EtcdError] = asyncio.Queue(_QUEUED_RESPONSES)
        self._reader = asyncio.create_task(self._read(), name=f"watch {connection.endpoint}")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._reader.cancel()
        await asyncio.wait([self._reader])
        self._call.cancel()

    async def send(self, request: rpc.WatchRequest) -> None:
        """Sends a message.

        Raises:
            EtcdError: the stream broke, or takes nothing.
        """
        try:
            async with asyncio.timeout(_WRITE_SECONDS):
                with translated(self._endpoint, writes=False):
                    await self._call.write(request)
        except TimeoutError as error:
            raise Timeout(f"{self._endpoint}: the stream takes no message", maybe_applied=False) from error

    async def receive(self, patience: float = 1.0) -> rpc.WatchResponse:
        """The next response; asks for progress if nothing comes. `patience` stretches the silence that is borne.

        Raises:
            Timeout: no response of any kind, since the server hangs or refuses to tell of progress.
            EtcdError: the stream broke.
        """
        for seconds in SILENCE_SECONDS:
            try:
                async with asyncio.timeout(seconds * patience):
                    item = await self._responses.get()
            except TimeoutError:
                await self._ask_for_progress()
                continue
            if isinstance(item, EtcdError):
                raise item
            return item
        seconds = sum(SILENCE_SECONDS) * patience
        raise await self._why_silent(seconds, patience)

    async def _why_silent(self, seconds: float, patience: float) -> Timeout:
        try:
            deadline = asyncio.get_running_loop().time() + _ANSWER_SECONDS * patience
            await _server_version(self._connection, self.token, deadline)
        except EtcdError:
            message = f"{self._endpoint}: no sign of life on the watch for {seconds:g} s"
            return Timeout(message, maybe_applied=False)
        message = (
            f"{self._endpoint} refused two requests for progress on the watch within {seconds:g} s and answers all "
            "else, as etcd's grpc-proxy does, which can lose events (etcd #21813): give --etcd the addresses of etcd's "
            "own members"
        )
        return Timeout(message, maybe_applied=False, refuses_progress=True)

    async def mark(self, key: bytes) -> Mark:
        """State of the store, by a linearizable read of `key` from the same member.

        Raises:
            EtcdError: any failure.
        """
        request = rpc.RangeRequest(key=key, keys_only=True)
        reply = await self._connection.call(RANGE, request, deadline=_deadline(), token=self.token)
        return Mark(reply.header.revision, reply.header.cluster_id, reply.header.raft_term)

    async def _ask_for_progress(self) -> None:
        if not self._call.done():
            await self.send(rpc.WatchRequest(progress_request=rpc.WatchProgressRequest()))

    async def _read(self) -> None:
        await self._responses.put(await self._read_to_the_end())

    async def _read_to_the_end(self) -> EtcdError:
        try:
            with translated(self._endpoint, writes=False):
                while isinstance(response := await self._call.read(), rpc.WatchResponse):
                    await self._responses.put(response)
        except EtcdError as error:
            return error
        return EtcdUnavailable(f"{self._endpoint}: the server ended the watch", maybe_applied=False)


def _deadline() -> float:
    return asyncio.get_running_loop().time() + _CALL_SECONDS


async def _server_version(connection: MemberConnection, token: str | None, deadline: float) -> str:
    """Version of the member, or the oldest that it can be; empty where that is unknown."""
    try:
        reply = await connection.call(STATUS, rpc.StatusRequest(), deadline=deadline, token=token)
    except EtcdUnauthenticated:
        return ""
    except EtcdPermissionDenied as error:
        return _FIRST_TO_DENY if _ETCDS_OWN_DENIAL in str(error) else ""
    return reply.version
