"""Channels of gRPC to an admin service, and the process that had the first."""

from __future__ import annotations

import os

import grpc

from registry.etcd3.options import KEEPALIVE
from registry.etcd3.tls import Pem
from registry.runtime.program import release_version

_MAX_MESSAGE_BYTES = 64 * 1024 * 1024
_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
    *KEEPALIVE,  # who only listens would never notice
    ("grpc.http2.max_pings_without_data", 0),  # a stream of answers sends none
    # A proxy from the environment would be asked for 127.0.0.1.
    ("grpc.enable_http_proxy", 0),
)


class _FirstProcess:
    """The process that made a channel of gRPC first; 0: none did."""

    number = 0


def is_of_other_process() -> bool:
    """True in a fork of a process that had a channel: gRPC works there no more."""
    return _FirstProcess.number not in {0, os.getpid()}


class UsedAfterFork(RuntimeError):
    """A connection is used in a fork of the process that made it."""


def check_process(made_in: int) -> None:
    """Raises UsedAfterFork: a connection that was made in that process is used in another."""
    if made_in != os.getpid():
        raise UsedAfterFork(
            f"this connection to the admin service was made in process {made_in} and is used in process {os.getpid()}, "
            "a fork of it, where it has no threads: make a Registry of its own there"
        )


def open_channel(address: str, pem: Pem | None) -> grpc.aio.Channel:
    """A channel to HOST:PORT, of the event loop that runs; None: without TLS."""
    _FirstProcess.number = _FirstProcess.number or os.getpid()
    # By it the audit tells our clients from others; gRPC puts its own name after it.
    options = (*_CHANNEL_OPTIONS, ("grpc.primary_user_agent", f"loraplane/{release_version() or 'unknown'}"))
    if pem is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(*pem), options=options)
