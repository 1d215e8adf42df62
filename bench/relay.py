"""A server that only hands a transaction on to etcd: what gRPC costs any admin service that is written in Python.

python -m bench.relay ETCD PORT
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc

from registry.etcd3.codec import TXN

METHOD = "Txn"
SERVICE = "bench.Relay"
CALL_SECONDS = 10.0


async def serve(etcd: str, port: int) -> None:
    """Relays until it is killed; neither request nor reply is looked at."""
    async with grpc.aio.insecure_channel(etcd) as channel:
        txn: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(TXN.path)

        async def relay(request: bytes, _context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
            return await txn(request, timeout=CALL_SECONDS)

        server = grpc.aio.server()
        method: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(relay)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: method}),))
        server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
