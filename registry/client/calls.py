"""Calls of the admin API from an event loop: each with a deadline, repeated with its request id where that is safe."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import grpc
from google.protobuf.message import Message
from tenacity import AsyncRetrying, retry_if_exception, stop_before_delay, wait_random_exponential

from registry.client.refusals import error_of, worth_repeating
from registry.errors import InvalidArgument, Reason

Reply = TypeVar("Reply", bound=Message)
_SERVICE = "/registry.v1.AdapterRegistry"
# One try may not use up the whole time: a connection may hang that another would not.
_TRY_SECONDS = 10.0
_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
    # A proxy from the environment would be asked for 127.0.0.1.
    ("grpc.enable_http_proxy", 0),
)


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files. `ca` None: the system's; `cert` and `key` belong together."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None


def open_channel(address: str, tls: Tls | None) -> grpc.aio.Channel:
    """A channel to HOST:PORT, secured if `tls` is given.

    Raises:
        InvalidArgument: a certificate is without its key, or a file cannot be read.
    """
    if tls is None:
        return grpc.aio.insecure_channel(address, options=_OPTIONS)
    if (tls.cert is None) != (tls.key is None):
        raise InvalidArgument(Reason.INVALID_FIELD, "cert and key belong together; give both", field="tls")
    try:
        files = [file.read_bytes() if file else None for file in (tls.ca, tls.key, tls.cert)]
    except OSError as error:
        raise InvalidArgument(
            Reason.INVALID_FIELD, f"cannot read {error.filename}: {error.strerror}", field="tls"
        ) from error
    return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(*files), options=_OPTIONS)


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
        call = self._channel.unary_unary(f"{_SERVICE}/{method}", _serialized, reply.FromString)
        retrying = AsyncRetrying(
            stop=stop_before_delay(self._timeout_seconds),
            wait=wait_random_exponential(multiplier=0.2, max=2),
            retry=retry_if_exception(worth_repeating),
            reraise=True,
        )
        try_seconds = min(_TRY_SECONDS, self._timeout_seconds)
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
        call = self._channel.unary_stream(f"{_SERVICE}/{method}", _serialized, reply.FromString)
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


def _serialized(message: Message) -> bytes:
    return message.SerializeToString()
