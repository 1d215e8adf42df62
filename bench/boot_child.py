"""One boot in a fresh process: `python -m bench.boot_child floor|list|snapshot ENDPOINT PREFIX STATE`."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import grpc

from registry.etcd3 import rpc_pb2 as rpc
from registry.etcd3.client import Client
from registry.etcd3.codec import RANGE
from registry.etcd3.ops import prefix_end
from registry.etcd3.options import ClientOptions
from registry.model.keys import Keys
from registry.model.records import PoolSpec
from registry.runtime.clock import Clock
from registry.runtime.process import configure_logging
from registry.runtime.program import spare_collector
from sidecar.desired.informer import DesiredState, Informer
from sidecar.desired.journal import Journal
from sidecar.desired.mailbox import Mailbox
from sidecar.desired.pool_cache import PoolCache
from sidecar.desired.snapshot import AdaptersChanged, SnapshotBase
from sidecar.desired.watcher import Watcher
from sidecar.engines.observed import EngineFacts, Observed
from sidecar.plan.planner import make_plan
from sidecar.plan.types import Plan, PlanContext
from tests.support.fleet import BASE, POOL
from tests.support.waiting import eventually

PAGE = 1000
_ENGINE = Observed(EngineFacts("vllm", "0.32.0", "http://127.0.0.1:1", "1"), (BASE,))


@dataclass(frozen=True, slots=True)
class Told:
    """What a boot came to."""

    seconds: float
    records: int
    actions: int


def floor(endpoint: str, keys: Keys) -> Told:
    """All records in pages, each decoded, and nothing else."""
    options = [("grpc.max_receive_message_length", 64 << 20)]
    with grpc.insecure_channel(endpoint, options=options) as channel:
        call = channel.unary_unary(RANGE.path, RANGE.request.SerializeToString, RANGE.response.FromString)
        started = time.perf_counter()
        start, end = keys.adapters(POOL), prefix_end(keys.adapters(POOL))
        page: rpc.RangeResponse = call(rpc.RangeRequest(key=start, range_end=end, limit=PAGE))
        revision = page.header.revision
        records = {kv.key: json.loads(kv.value) for kv in page.kvs}
        while page.more:
            start = page.kvs[-1].key + b"\0"
            page = call(rpc.RangeRequest(key=start, range_end=end, limit=PAGE, revision=revision))
            records |= {kv.key: json.loads(kv.value) for kv in page.kvs}
        return Told(time.perf_counter() - started, len(records), 0)


async def listed(endpoint: str, keys: Keys, state: Path) -> Told:
    """The sidecar's feed from its first call until a plan is made. Then its snapshot is left to be written."""
    client, mailbox, journal = Client(ClientOptions((endpoint,))), Mailbox(), Journal(state)
    feed = Watcher(client, keys, "r1", PoolCache(keys, POOL, mailbox, journal), Clock())
    started = time.perf_counter()
    task = asyncio.create_task(feed.run())
    while (snapshot := mailbox.snapshot).desired is None:
        await mailbox.wait(30)
    plan = _first_plan(snapshot.desired, snapshot.pool)
    seconds = time.perf_counter() - started
    await eventually(lambda: any(state.glob("snapshot-*")))
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await client.aclose()
    return Told(seconds, snapshot.desired.count, len(plan.stage))


def restored(state: Path) -> Told:
    """The sidecar's snapshot from the disk until a plan is made, as if etcd did not answer."""
    started = time.perf_counter()
    found = Journal(state).restore(POOL)
    assert found is not None
    informer = Informer(POOL)
    informer.restore(found.base.revision, found.base.records)
    for entry in found.entries:
        if isinstance(entry, AdaptersChanged):
            informer.apply(entry.revision, entry.events)
    plan = _first_plan(informer.state, _pool(found.base))
    return Told(time.perf_counter() - started, informer.state.count, len(plan.stage))


def _pool(base: SnapshotBase) -> PoolSpec | None:
    return None if base.pool_record is None else PoolSpec.parse(base.pool_record)


def _first_plan(desired: DesiredState, pool: PoolSpec | None) -> Plan:
    nothing = PlanContext(staged={}, staging=set(), failures={}, unsettled=set())
    return make_plan(desired, pool, _ENGINE, nothing, now=0.0)


def main(mode: str, endpoint: str, prefix: str, state: Path) -> None:
    """Carries out one boot and prints what it came to as JSON."""
    if mode != "floor":
        spare_collector()  # as the sidecar's own entry point does
    configure_logging()
    keys = Keys(prefix)
    match mode:
        case "floor":
            told = floor(endpoint, keys)
        case "list":
            told = asyncio.run(listed(endpoint, keys, state))
        case "snapshot":
            told = restored(state)
        case _:
            raise ValueError(mode)
    print(json.dumps(asdict(told)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
