"""The command line at the size of a large installation: a listing with states, and a change set of a thousand.

`get adapters` shows 5,000 adapters with their states on 50 replicas; the floor is a program that lists the same
records page by page, decodes them, and knows nothing of replicas. `apply` sends a manifest of 1,000 new adapters; its
floor is a program that sends to etcd the transactions which the admin service makes of them, under other keys: as many
compares, puts and else-reads, of the same bytes (adapters, their tenant's counter, the audit and request records with
their leases), in the same order, made before it starts. Each run is a process from its start to its end, and floor and
ours take turns. Both find their modules compiled, as an installed program does, floor and ours alike: where Python is
told to write no bytecode, ours would else compile its own modules in each run, which no user ever waits for.
"""

from __future__ import annotations

import asyncio
import pickle
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.admin_rate import DIGEST, Recorder, renamed, uri_of
from bench.admin_service import Admin, admin
from bench.children import compiled_in
from bench.etcd import Store, etcd, put_of, record
from bench.figures import Figure, check, of_times
from registry.access.principal import ANONYMOUS
from registry.etcd3.ops import Txn
from registry.etcd3.options import ClientOptions
from registry.model.keys import Keys
from registry.model.records import SourceSpec
from registry.model.status import Pending
from registry.runtime.clock import Deadline
from registry.store.writer import WriteGate, Writer
from registry.transactions.context import Caller, TxnLimits
from registry.transactions.validate import make_apply, make_upsert
from tests.support.fleet import POOL
from tests.support.residency_world import Replicas

ADAPTERS, REPLICAS, WAITING = 5000, 50, 8
# As many as fit into one transaction of etcd's 1,024 operations, as the command line plans its parts.
RECORDS, PART = 1000, 340
ROUNDS, APPLIES = 9, 7
_PROGRAM = ("-c", "import sys; from registry.cli.main import main; sys.exit(main())")
_LIST = """
import sys, time
import grpc
from registry.v1 import registry_pb2 as pb
from registry.v1.registry_pb2_grpc import AdapterRegistryStub
with grpc.insecure_channel(sys.argv[1], [("grpc.max_receive_message_length", 1 << 26)]) as channel:
    stub, request, found = AdapterRegistryStub(channel), pb.ListAdaptersRequest(pool=sys.argv[2], page_size=1000), 0
    stub.ListPools(pb.ListPoolsRequest())
    started = time.perf_counter()
    while True:
        page = stub.ListAdapters(request)
        found += sum(bool(one.spec.source.uri) for one in page.adapters)
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    print(found, time.perf_counter() - started)
"""
_SEND = """
import asyncio, pickle, sys
from registry.etcd3.client import Client
from registry.etcd3.options import ClientOptions
async def send():
    client = Client(ClientOptions((sys.argv[1],)))
    for txn in pickle.load(sys.stdin.buffer):
        result = await client.txn(txn)
        assert result.succeeded
    await client.aclose()
asyncio.run(send())
"""


async def _run(folder: Path, *arguments: str, given: bytes = b"") -> tuple[float, str]:
    """Seconds of a program from its start to its end, and what it prints; what is compiled is kept in the folder."""
    started = time.perf_counter()
    command, env = [sys.executable, *arguments], compiled_in(folder)
    ran = await asyncio.to_thread(subprocess.run, command, input=given, capture_output=True, check=False, env=env)
    seconds = time.perf_counter() - started
    check(ran.returncode == 0, f"{arguments[2:]} failed: {ran.stderr.decode()[-500:]}")
    return seconds, ran.stdout.decode()


async def get_adapters_5000(folder: Path) -> list[Figure]:
    """In turns, after one of each that compiles what is not compiled yet; the admin service knows the pool then."""
    async with etcd(folder, fsync=False) as store, admin(store) as service:
        await _fleet(store)
        floor, ours, calls = list[float](), list[float](), list[float]()
        for _ in range(ROUNDS + 1):
            seconds, told = await _run(folder, "-c", _LIST, service.address, POOL)
            found, call = told.split()
            check(int(found) == ADAPTERS, f"{found} of {ADAPTERS} adapters were listed")
            floor.append(seconds)
            calls.append(float(call))
            seconds, told = await _run(folder, *_PROGRAM, "--admin", service.address, "get", "adapters", "--pool", POOL)
            lines = told.splitlines()[1:]
            check(len(lines) == ADAPTERS, f"{len(lines)} of {ADAPTERS} adapters were shown")
            healthy = sum(f"{REPLICAS}/{REPLICAS}" in line for line in lines)
            check(healthy == ADAPTERS - WAITING, f"{healthy} adapters are served everywhere")
            ours.append(seconds)
    call_told = f"of the floor the listing alone {statistics.median(calls[1:]) * 1000:.0f} ms"
    note = f"{call_told}; ours the first time {ours[0] * 1000:.0f} ms"
    return [of_times("get_adapters_5000", floor[1:], ours[1:], target="<= 3", note=note)]


async def _fleet(store: Store) -> None:
    """Adapters that all replicas serve but for a few, which wait on one replica."""
    keys = Keys()
    names = [f"tenant-{number % 100}/adapter-{number:06}" for number in range(ADAPTERS)]
    source = {name: SourceSpec(uri=f"s3://example-adapters/{name}/v1/", digest=DIGEST) for name in names}
    revision = await store.put(*(put_of(keys, record(name, source[name])) for name in names))
    replicas = Replicas(store.client, keys, POOL)
    waiting = [Pending(name=name, generation=1, reason="over_capacity") for name in names[:WAITING]]
    for number in range(REPLICAS):
        await replicas.alive(f"r{number}", capacity=ADAPTERS)
        await replicas.says(f"r{number}", revision, pending=[] if number else waiting)


async def apply_1000(folder: Path) -> list[Figure]:
    """The command, and beside it the same requests from a client that has them in hand already."""
    async with etcd(folder, fsync=True) as store, admin(store) as service:
        shapes = await _shapes(store)
        floor, ours, raw, calls = list[float](), list[float](), list[float](), list[float]()
        for turn in range(APPLIES + 1):
            txns = [renamed(shape, turn * 1000 + number) for number, shape in enumerate(shapes)]
            floor.append((await _run(folder, "-c", _SEND, store.endpoint, given=pickle.dumps(txns)))[0])
            ours.append(await _applied(folder, service, turn))
            txns = [renamed(shape, 500_000 + turn * 1000 + number) for number, shape in enumerate(shapes)]
            raw.append(await _sent(store, txns))
            calls.append(await _called(service, turn))
        found = (await store.client.list_prefix(Keys().adapters(POOL))).kvs
        wanted = RECORDS * (2 * APPLIES + 3)
        check(len(found) == wanted, f"{wanted} adapters were applied, {len(found)} are there")
    note = f"{RECORDS} records in {len(shapes)} transactions"
    return [
        of_times("apply_1000", floor[1:], ours[1:], target="< 2", note=f"{note}, each a process from start to end"),
        of_times("apply_1000_calls", raw[1:], calls[1:], target="< 2", note=f"{note}, from one that is connected"),
    ]


def _names(turn: str) -> list[str]:
    return [f"tenant-{turn}/adapter-{number:06}" for number in range(RECORDS)]


async def _applied(folder: Path, service: Admin, turn: int) -> float:
    manifest = folder / "adapters.yaml"
    documents = (
        f"apiVersion: loraplane/v1\nkind: Adapter\nmetadata: {{name: {name}, pool: {POOL}}}\n"
        f'spec:\n  source: {{uri: "{uri_of(name)}", digest: "{DIGEST}"}}\n'
        for name in _names(f"c{turn}")
    )
    manifest.write_text("---\n".join(documents))
    flags = ("--no-atomic", "--force", "--look-seconds", "0")
    seconds, told = await _run(folder, *_PROGRAM, "--admin", service.address, "apply", "-f", str(manifest), *flags)
    check(told.count("created") == RECORDS, f"{told.count('created')} of {RECORDS} adapters were created")
    return seconds


async def _called(service: Admin, turn: int) -> float:
    started = time.perf_counter()
    for part in _parts(_names(f"d{turn}")):
        await service.upsert_all([(name, uri_of(name), DIGEST) for name in part])
    return time.perf_counter() - started


async def _sent(store: Store, txns: Sequence[Txn]) -> float:
    started = time.perf_counter()
    for txn in txns:
        check((await store.client.txn(txn)).succeeded, "a bare transaction found its keys in use")
    return time.perf_counter() - started


def _parts(names: Sequence[str]) -> list[Sequence[str]]:
    return [names[start : start + PART] for start in range(0, len(names), PART)]


async def _shapes(store: Store) -> list[Txn]:
    """The transactions that create so many adapters."""
    shapes = []
    for number, part in enumerate(_parts(_names("recorded"))):
        recorder, gate = Recorder(ClientOptions((store.endpoint,))), WriteGate()
        gate.open()
        writer = Writer(recorder, Keys(), TxnLimits(max_ops=1024), gate, rng=random.Random(1))  # noqa: S311 - jitter
        specs = [(name, {"source": {"uri": uri_of(name), "digest": DIGEST}}) for name in part]
        change = make_apply(POOL, [make_upsert(name, spec, "", field="changes") for name, spec in specs])
        caller = Caller(ANONYMOUS, f"auto-{number:024}", request_id_given=False)
        await writer.change(change, caller, Deadline.of(10), validate_only=False)
        await recorder.aclose()
        assert recorder.last is not None
        shapes.append(recorder.last)
    return shapes
