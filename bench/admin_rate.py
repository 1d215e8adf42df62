"""How many changes the admin service makes per second, beside bare transactions of the same shape.

The shape is recorded: the store's own writer makes one change through a client that keeps the transaction. The floor
sends as many compares, puts and else-reads, with keys and values of the same length and under the same leases, through
our own client; its keys are new each time, so that it always succeeds. Floor and ours take turns of a second.

`admin_16_relay` puts the same transactions through a server that hands bytes on and does nothing else: no admin service
on the same gRPC can be faster than that.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from bench.admin_service import Admin, Relay, admin, relaying
from bench.etcd import Store, etcd
from bench.figures import Figure, check, percentile
from bench.usage import cpu_seconds
from registry.access.principal import ANONYMOUS
from registry.etcd3 import codec
from registry.etcd3 import rpc_pb2 as rpc
from registry.etcd3.client import Client
from registry.etcd3.ops import Compare, Op, Put, Relation, Target, Txn, TxnResult
from registry.etcd3.options import ClientOptions
from registry.model.keys import Keys
from registry.runtime.clock import Deadline
from registry.store.writer import WriteGate, Writer
from registry.transactions.context import Caller, TxnLimits
from registry.transactions.validate import make_apply, make_upsert
from tests.support.fleet import POOL

DIGEST = "sha256:" + "5" * 64
TURN_SECONDS = 1.0
TENANTS = 1000

Once = Callable[[int], Awaitable[None]]


class Recorder(Client):
    """Keeps the last transaction that writes."""

    last: Txn | None = None

    async def txn(self, txn: Txn, *, timeout_seconds: float | None = None) -> TxnResult:
        """See `Client.txn`."""
        if txn.success:
            self.last = txn
        return await super().txn(txn, timeout_seconds=timeout_seconds)


async def _shape(store: Store) -> Txn:
    """The transaction that creates one adapter."""
    recorder, gate = Recorder(ClientOptions((store.endpoint,))), WriteGate()
    gate.open()
    writer = Writer(recorder, Keys(), TxnLimits(), gate, rng=random.Random(1))  # noqa: S311 - jitter
    spec = {"source": {"uri": uri_of("tenant-0/recorded"), "digest": DIGEST}}
    change = make_apply(POOL, [make_upsert("tenant-0/recorded", spec, "", field="changes[0]")])
    caller = Caller(ANONYMOUS, f"auto-{'0' * 24}", request_id_given=False)
    await writer.change(change, caller, Deadline.of(10), validate_only=False)
    await recorder.aclose()
    check(recorder.last is not None, "the writer sent no transaction")
    assert recorder.last is not None
    return recorder.last


def uri_of(name: str) -> str:
    return f"file:///adapters/{name}/v1"


def renamed(shape: Txn, number: int) -> Txn:
    """The same transaction on keys that nobody else has."""

    def key(old: bytes) -> bytes:
        return b"/floor/%d" % number + old[len(b"/floor/%d" % number) :]

    def op(old: Op) -> Op:
        end = key(old.range_end) if not isinstance(old, Put) and old.range_end else b""
        return replace(old, key=key(old.key)) if isinstance(old, Put) else replace(old, key=key(old.key), range_end=end)

    def compare(old: Compare) -> Compare:
        end = key(old.range_end) if old.range_end else b""
        return Compare(key(old.key), Target.CREATE, Relation.EQUAL, 0, end)

    return Txn(tuple(map(compare, shape.compare)), tuple(map(op, shape.success)), tuple(map(op, shape.failure)))


@dataclass
class Rates:
    """Changes per second of each turn, and how long each change took."""

    per_second: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: float = 0.0

    async def turn(self, callers: int, once: Once) -> None:
        """So many callers, each with one change after another, for a while."""
        started, done = time.monotonic(), len(self.seconds)
        await asyncio.gather(*(self._call(number, once, started + TURN_SECONDS) for number in range(callers)))
        self.per_second.append((len(self.seconds) - done) / (time.monotonic() - started))

    async def _call(self, caller: int, once: Once, end: float) -> None:
        while (started := time.monotonic()) < end:
            await once(caller)
            self.seconds.append(time.monotonic() - started)

    async def turn_of(self, pid: int, callers: int, once: Once) -> None:
        """A turn through a process, whose CPU time is counted."""
        before = cpu_seconds(pid)
        await self.turn(callers, once)
        self.cpu_seconds += cpu_seconds(pid) - before

    def told(self) -> str:
        p50, p99 = percentile(self.seconds, 0.5) * 1000, percentile(self.seconds, 0.99) * 1000
        return f"{statistics.median(self.per_second):.0f}/s, p50 {p50:.2f} ms, p99 {p99:.2f} ms, n {len(self.seconds)}"

    def told_cpu(self) -> str:
        return f"{self.cpu_seconds / len(self.seconds) * 1000:.2f} ms CPU a call"


@dataclass
class Setting:
    """What both sides need, and names that are never used twice."""

    store: Store
    admin: Admin
    relay: Relay
    shape: Txn
    numbers: count[int]
    acknowledged: int = 0

    async def figure(self, name: str, callers: int, turns: int, *, tenants: int, target: str = "") -> Figure:
        """Compares the admin service with the floor at so many callers, who share so many tenants."""

        async def ours(caller: int) -> None:
            adapter = f"tenant-{caller % tenants}/adapter-{next(self.numbers)}"
            await self.admin.upsert(adapter, uri_of(adapter), DIGEST)
            self.acknowledged += 1

        whose = "one tenant" if tenants == 1 else "a tenant for each caller"
        ratio, told = await self._compare(ours, self.admin.pid, callers, turns)
        return Figure(name, ratio, target, f"{told}; {whose}")

    async def relayed(self, name: str, callers: int, turns: int) -> Figure:
        """Compares the relay with the floor."""

        async def ours(_caller: int) -> None:
            request = codec.txn_request(renamed(self.shape, next(self.numbers)))
            reply = rpc.TxnResponse.FromString(await self.relay.txn(request.SerializeToString()))
            check(reply.succeeded, "a relayed transaction found its key in use")

        ratio, told = await self._compare(ours, self.relay.pid, callers, turns)
        return Figure(name, ratio, "", f"{told}; nothing but gRPC in and out")

    async def _compare(self, ours: Once, pid: int, callers: int, turns: int) -> tuple[float, str]:
        async def floor(_caller: int) -> None:
            result = await self.store.client.txn(renamed(self.shape, next(self.numbers)))
            check(result.succeeded, "a bare transaction found its key in use")

        raw, rates = Rates(), Rates()
        await Rates().turn(callers, floor)
        await Rates().turn(callers, ours)
        for _ in range(turns):
            await raw.turn(callers, floor)
            await rates.turn_of(pid, callers, ours)
        ratio = statistics.median(rates.per_second) / statistics.median(raw.per_second)
        return ratio, f"floor {raw.told()}; ours {rates.told()}, {rates.told_cpu()}"


async def admin_16(folder: Path) -> list[Figure]:
    """At 16 callers, of one tenant and of many; through the relay; and at 1 and 64 of many."""
    async with etcd(folder, fsync=True) as store, admin(store) as calls, relaying(store) as relay:
        setting = Setting(store, calls, relay, await _shape(store), count(1))
        figures = [
            await setting.figure("admin_16", 16, 5, tenants=TENANTS, target=">= 0.5"),
            await setting.figure("admin_16_one_tenant", 16, 4, tenants=1, target=">= 0.5"),
            await setting.relayed("admin_16_relay", 16, 3),
            await setting.figure("admin_1", 1, 2, tenants=TENANTS),
            await setting.figure("admin_64", 64, 2, tenants=TENANTS),
        ]
        await _check_records(setting)
    return figures


async def _check_records(setting: Setting) -> None:
    """Every change that was acknowledged must be there, and nothing else."""
    found = len((await setting.store.client.list_prefix(Keys().adapters(POOL))).kvs)
    check(found == setting.acknowledged + 1, f"{setting.acknowledged} changes were acknowledged, {found - 1} are there")
