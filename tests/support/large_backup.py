"""A backup of large values, and pages of it."""

from __future__ import annotations

import json
from contextlib import AbstractAsyncContextManager

import grpc

from registry.etcd3.client import Client
from registry.etcd3.ops import Put, Txn
from registry.model.keys import Keys
from registry.v1 import registry_pb2 as pb
from tests.support.hostile_callers import OWN_CONNECTION, PATH

VALUES, VALUE_BYTES = 1000, 60_000
_OPTIONS = (*OWN_CONNECTION, ("grpc.max_receive_message_length", 128 << 20))
PAGE = pb.ReadBackupRequest(page_size=VALUES)


async def write_large_values(client: Client, keys: Keys, pool: str) -> None:
    """60 MB of adapters with large specs."""
    value = json.dumps({"x": "y" * VALUE_BYTES}).encode()
    for start in range(0, VALUES, 16):
        puts = [Put(keys.adapter(pool, f"a{number:03}"), value) for number in range(start, min(VALUES, start + 16))]
        await client.txn(Txn((), tuple(puts)))


def backup_channel(address: str) -> AbstractAsyncContextManager[grpc.aio.Channel]:
    """A connection of its own, over which pages of any size come."""
    return grpc.aio.insecure_channel(address, options=_OPTIONS)


async def ask_page(channel: grpc.aio.Channel) -> pb.ReadBackupResponse:
    """The first page, as large as it may be. Raises grpc.aio.AioRpcError."""
    ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"{PATH}ReadBackup")
    return pb.ReadBackupResponse.FromString(await ask(PAGE.SerializeToString(), timeout=60))
