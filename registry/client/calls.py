"""Calls of the admin API from an event loop: each with a deadline, repeated with its request id where that is safe."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TypeVar

import grpc
from google.protobuf.message import Message
from tenacity import AsyncRetrying, retry_if_exception, stop_before_delay, wait_random_exponential

from registry.client.connection import CHANNEL_OPTIONS, SERVICE, TRY_SECONDS, Tls, check_address, serialized
from registry.client.refusals import error_of, worth_repeating

Reply = TypeVar("Reply", bound=Message)


def open_channel(address: str, tls: Tls | None) -> grpc.aio.Channel:
    """A channel to HOST:PORT, secured if `tls` is given.

    Raises:
        InvalidArgument: that is no address, a certificate is without its key, or a file cannot be read.
    """
    check_address(address)
    if tls is None:
        return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
    return grpc.aio.secure_channel(address, tls.credentials(), options=CHANNEL_OPTIONS)


class Calls:
    """Unary calls and streams over one channel.

    Args:
        channel: closed by `aclose`.
        timeout_seconds: of one call, repetitions included.
    """

    def __init__(self, channel: grpc.aio.Channel, timeout_seconds: float) -> None:
        self._channel = channel
        self._timeout_seconds = timeout_seconds

    async def unary(self, method: str, request: Message, reply: type[Reply], request_id: str = "") -> Reply:
        """One answer.

        Raises:
            RegistryError: as the admin service refused it, or Unavailable.
        """
        call = self._channel.unary_unary(f"{SERVICE}/{method}", serialized, reply.FromString)
        retrying = AsyncRetrying(
            stop=stop_before_delay(self._timeout_seconds),
            wait=wait_random_exponential(multiplier=0.2, max=2),
            retry=retry_if_exception(worth_repeating),
            reraise=True,
        )
        try_seconds = min(TRY_SECONDS, self._timeout_seconds)
        try:
            async for attempt in retrying:
                with attempt:
                    return await call(request, timeout=try_seconds)
        except grpc.RpcError as error:
            raise error_of(error, request_id) from error
        raise AssertionError("unreachable: retrying ends with an answer or an error")

    async def stream(self, method: str, request: Message, reply: type[Reply]) -> AsyncGenerator[Reply, None]:
        """Answers until the service ends the stream; begun again when the connection breaks. Without a deadline.

        Raises:
            RegistryError: as the admin service refused it.
        """
        call = self._channel.unary_stream(f"{SERVICE}/{method}", serialized, reply.FromString)
        while True:
            try:
                async for answer in call(request):
                    yield answer
            except grpc.RpcError as error:
                if not worth_repeating(error):
                    raise error_of(error) from error
                await asyncio.sleep(0.2)
            else:
                return

    async def aclose(self) -> None:
        """Ends the connection and every stream on it."""
        await self._channel.close()
