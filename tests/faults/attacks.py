"""Attackers of everything that listens, each kind as a process of its own that gives way to all others.

``python -m tests.faults.attacks KIND PLACES`` attacks until it is ended, and writes a line for each time that it did.
PLACES is a `Places` as JSON. It ends by itself if an attack succeeds.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import cycle
from json import dumps, loads
from pathlib import Path

import grpc
import httpx

from registry.etcd3.client import Client
from registry.etcd3.ops import Put
from registry.etcd3.options import ClientOptions
from registry.model.keys import Keys
from registry.model.records import RetiredRecord
from registry.v1 import registry_pb2 as pb
from tests.support.etcd import PATIENCE_SECONDS, commit
from tests.support.hanging_callers import hang
from tests.support.hostile_callers import OWN_CONNECTION, PATH, refused_requests
from tests.support.http_client import http_client
from tests.support.large_backup import ask_page, backup_channel
from tests.support.processes import Program
from tests.support.proxy import Proxy
from tests.support.records import POOL, record
from tests.support.silent import silent_connections

SILENT, SILENT_QUESTIONS, HANGING, PAGES, GHOSTS = 1150, 300, 140, 64, 64
# A server ends a connection after ten seconds of silence.
SILENT_SECONDS = 12.0
INVENTED = (1, 2, 3), (2**53 - 1,)
CAPACITIES = 2**62, 1_000_000


@dataclass(frozen=True)
class Places:
    """What is attacked: HOST:PORT of the API and of etcd, URLs of the pages of both, and the engine's socket."""

    api: str
    pages: str
    replica: str
    questions: str
    etcd: str
    prefix: str


Attack = Callable[[Places], AsyncIterator[None]]


async def _through(stack: AsyncExitStack, address: str, source: str) -> str:
    """An address by which the other is reached from `source`."""
    return (await stack.enter_async_context(Proxy(int(address.rpartition(":")[2]), source))).endpoint


async def _refused(places: Places, source: str, requests: Sequence[tuple[str, bytes]]) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        address = await _through(stack, places.api, source)
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(address, options=OWN_CONNECTION))
        for method, raw in cycle(requests):
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(PATH + method)
            with suppress(grpc.aio.AioRpcError):
                await call(raw, timeout=60, compression=grpc.Compression.Gzip)
            yield


def _large(places: Places) -> AsyncIterator[None]:
    return _refused(places, "127.0.0.2", refused_requests())


def _history(places: Places) -> AsyncIterator[None]:
    """Of generations that there were not: the first are taken once, the others never."""
    requests = []
    for generations in INVENTED:
        values = []
        for generation in generations:
            made = record("evil/x", generation).model_dump(by_alias=True)
            values.append(RetiredRecord.model_validate(made | {"retired_by_request": "r", "deleted": False}).to_bytes())
        request = pb.RestoreHistoryRequest(pool=POOL, name="evil/x", generations=values)
        requests.append(("RestoreHistory", request.SerializeToString()))
    return _refused(places, "127.0.0.3", requests)


async def _hanging(places: Places) -> AsyncIterator[None]:
    yield
    await hang(places.api, HANGING, 1, 0.25, "127.0.0.4")


async def _backup(places: Places) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        address = await _through(stack, places.api, "127.0.0.5")
        channels = [await stack.enter_async_context(backup_channel(address)) for _ in range(PAGES)]
        while True:
            await asyncio.gather(*map(ask_page, channels), return_exceptions=True)
            yield


async def _silent(place: str | Path, count: int, net: int) -> AsyncIterator[None]:
    """From so many addresses that each port is full of them."""
    sources = [f"127.0.{net}.{number}" for number in range(1, 21)]
    while True:
        async with silent_connections(place, count, sources):
            yield
            await asyncio.sleep(SILENT_SECONDS)


async def _drain(places: Places) -> AsyncIterator[None]:
    """As a web page would. AssertionError: it is obeyed."""
    transport = httpx.AsyncHTTPTransport(local_address="127.0.0.6")
    async with http_client(base_url=places.replica, transport=transport, timeout=60) as client:
        while True:
            with suppress(httpx.TransportError):
                assert (await client.get("/drain?wait=30")).status_code in {403, 421, 429, 503}
            yield


async def _ghosts(places: Places) -> AsyncIterator[None]:
    """Replicas that are not there: they hold as many as one can say, or more than that."""
    client = Client(ClientOptions(endpoints=(places.etcd,), call_timeout_seconds=PATIENCE_SECONDS))
    said = {"incarnation": "x", "owner": "x:y", "started_at": "2026-01-01T00:00:00.000Z", "schema": 1}
    for number in cycle(range(GHOSTS)):
        ghost = {**said, "pool": POOL, "replica": f"ghost{number}", "capacity": CAPACITIES[number % 2]}
        await commit(client, Put(Keys(places.prefix).replica(POOL, f"ghost{number}"), dumps(ghost).encode()))
        yield
        await asyncio.sleep(0.1)


ATTACKS: dict[str, Attack] = {
    "large": _large,
    "history": _history,
    "hanging": _hanging,
    "backup": _backup,
    "drain": _drain,
    "ghosts": _ghosts,
    "silent at the API": lambda places: _silent(places.api, SILENT, 1),
    "silent at its pages": lambda places: _silent(places.pages, SILENT, 2),
    "silent at the replica": lambda places: _silent(places.replica, SILENT, 3),
    "silent at the socket": lambda places: _silent(Path(places.questions), SILENT_QUESTIONS, 4),
}


@contextmanager
def attackers(folder: Path, places: Places, kinds: Sequence[str]) -> Iterator[dict[str, Program]]:
    """One process for each kind, while the context is open; none of them may end before."""
    told = dumps(asdict(places))
    programs = {
        kind: Program("tests.faults.attacks", [kind, told], folder / f"{kind.replace(' ', '-')}.log") for kind in kinds
    }
    try:
        for program in programs.values():
            program.start()
        yield programs
        for program in programs.values():
            assert program.is_running, program.log.read_text()
    finally:
        for program in programs.values():
            program.kill()


def times(attacker: Program) -> int:
    """How often it did what it does."""
    return attacker.log.read_text().count("\n")


async def _attack(kind: str, places: Places) -> None:
    async for _ in ATTACKS[kind](places):
        sys.stdout.write("once\n")
        sys.stdout.flush()


if __name__ == "__main__":
    # In truth they are other machines, which take no time of the processors of what they attack.
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    asyncio.run(_attack(sys.argv[1], Places(**loads(sys.argv[2]))))
