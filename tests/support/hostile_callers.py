"""Callers who make an admin service work as hard as they can, each over a connection of its own."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import grpc
from google.protobuf.message import Message

from registry.v1 import registry_pb2 as pb
from tests.support.admin import change_set, put

PATH = "/registry.v1.AdapterRegistry/"
# As tests reuse one address, gRPC would share one connection otherwise.
OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)
DIGEST = "sha256:" + "0" * 64
_LARGE = "x" * (4 * 1024 * 1024 - 2000)


def _patterns() -> Iterator[tuple[str, bytes]]:
    """106 bytes each, for 200,000 names to be made and hashed; no two alike."""
    for last in itertools.count(100_000):
        base = pb.BaseShapes(modules=[pb.BaseModule(pattern=f"{{0-{last}}}", outputs=1, inputs=1)], fingerprint=DIGEST)
        pool = pb.Pool(name="x", base_models=["b"], base=base)
        yield "CreatePool", pb.CreatePoolRequest(pool=pool, validate_only=True).SerializeToString()


def _large() -> Iterator[tuple[str, bytes]]:
    """Nearly 4 MiB each: more changes, and more labels, than anybody may have."""
    changes = change_set(*(put(f"a{number}") for number in range(150_000)), validate_only=True)
    labels = change_set(put("a", labels={f"{number:x}": "" for number in range(350_000)}), validate_only=True)
    yield from itertools.cycle([("ApplyAdapters", one.SerializeToString()) for one in (changes, labels)])


def refused_requests() -> list[tuple[str, bytes]]:
    """Methods with requests of nearly 4 MiB, which are 4 KiB on the wire, and are refused for one thing each."""
    many = {f"k{number}": "x" * 60_000 for number in range(65)}
    requests: dict[str, list[Message]] = {
        "ApplyAdapters": [
            change_set(put("acme/a", labels={"team": _LARGE})),
            change_set(put("acme/a", labels={_LARGE: "x"})),
            change_set(put("acme/a", labels=many)),
            change_set(put("acme/a"), request_id=_LARGE),
        ],
        "ListPools": [pb.ListPoolsRequest(page_token=_LARGE)],
        "RestoreHistory": [pb.RestoreHistoryRequest(pool="p", name="acme/a", generations=[_LARGE.encode()])],
    }
    found = [(method, one.SerializeToString()) for method, made in requests.items() for one in made]
    return [*found, ("ApplyAdapters", b"\xff" * len(_LARGE))]


async def _ask(channel: grpc.aio.Channel, requests: Iterator[tuple[str, bytes]]) -> None:
    while True:
        method, raw = next(requests)
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(PATH + method)
        with suppress(grpc.aio.AioRpcError):
            await call(raw, timeout=60)


async def _hang(channel: grpc.aio.Channel) -> None:
    """Begins as many calls as it can, and sends no request."""

    async def hang() -> None:
        while True:
            with suppress(grpc.aio.AioRpcError):
                await channel.stream_unary(PATH + "GetPool")(timeout=60)

    await asyncio.gather(*(hang() for _ in range(20)))


@asynccontextmanager
async def hostile_callers(address: str, count: int) -> AsyncIterator[None]:
    """So many, while the context is open: most ask for names, some send large requests, some hang."""
    patterns, large = _patterns(), _large()
    async with AsyncExitStack() as open_channels:
        tasks = []
        for number in range(count):
            channel = grpc.aio.insecure_channel(address, options=OWN_CONNECTION)
            await open_channels.enter_async_context(channel)
            kind = number % 10
            work = _hang(channel) if kind == 0 else _ask(channel, large if kind == 1 else patterns)
            tasks.append(asyncio.create_task(work))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
