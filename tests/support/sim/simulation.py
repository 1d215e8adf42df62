"""One whole simulation: a seed in, a trace out, and an error that says how to replay it if anything is wrong."""

from __future__ import annotations

import asyncio
import gc
import random
import tempfile
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import structlog

from registry.model.records import AdapterSpec, PoolLimits, Source
from registry.model.status import ReplicaStatus
from registry.transactions.changes import ApplyAdapters, Change, CreatePool, Remove, RollbackAdapter, Upsert
from tests.support.history_check import check_history
from tests.support.sim.admins import settle
from tests.support.sim.artifacts import HIGH_RANK, MAX_RANK, MISSING, REFUSED, ROOT, path_of
from tests.support.sim.engines import BASE, http_for
from tests.support.sim.faults import rage
from tests.support.sim.loop import State, VirtualLoop
from tests.support.sim.world import KEYS, POOL, ReplicaHost, World

CHAOS_SECONDS = 30.0
# A load that hangs is given up after 60 s, and a retry is at most 60 s away.
CONVERGE_SECONDS = 150.0
# What somebody else did to an engine at the very end is found by the next look at it.
DRIFT_SECONDS = 20.0
STAY_SECONDS = 20.0
NAMES = ("a", "b", "acme/c", "acme/d", "e", "f")
ODD_NAME = "odd"
# Files that are synced to memory cost no time; nothing here is about power cuts.
_MEMORY = Path("/dev/shm")


class SimulationFailed(AssertionError):
    """A guarantee did not hold."""


@dataclass(frozen=True)
class Outcome:
    """What a simulation that went well leaves."""

    trace: list[str]
    digest: str
    converged_after_seconds: float


def simulate(seed: int) -> Outcome:
    """Plays one seed.

    Raises:
        SimulationFailed: with what was violated, the end of the trace, and the command that replays it.
    """
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as root, _loop() as loop:
        world = loop.run_until_complete(_made(seed, Path(root)))
        with _patched(world):
            converged = loop.run_until_complete(_play(world))
    if world.checks.violations:
        tail = "\n".join(world.trace[-60:])
        found = "\n".join(world.checks.violations[:10])
        raise SimulationFailed(f"seed {seed}; replay with: make sim SEED={seed}\n{tail}\n\n{found}")
    return Outcome(world.trace, world.digest, converged)


async def _made(seed: int, folder: Path) -> World:
    return World(seed, folder)


@contextmanager
def _loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    gc_was_on = gc.isenabled()
    try:
        yield loop
    finally:
        loop.close()
        if gc_was_on:
            gc.enable()


@contextmanager
def _patched(world: World) -> Iterator[None]:
    """Puts the world in place of sockets, and its trace in place of the log."""

    def note(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
        name = event.pop("event")
        world.log(f"{name} {event}")
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[note], cache_logger_on_first_use=False)
    try:
        with (
            mock.patch("registry.etcd3.channel._open", world.open_channel),
            mock.patch("sidecar.engines.vllm.VllmHttp", http_for(world.engines, world.checks.on_call)),
        ):
            yield
    finally:
        structlog.configure(**before)


async def _play(world: World) -> float:
    loop = asyncio.get_running_loop()
    expiry = loop.create_task(_expire_leases(world))
    for admin in world.admins:
        admin.start()
    operator = Operator(world)
    await operator.change(CreatePool(POOL, (BASE,), PoolLimits(max_rank=MAX_RANK)))
    for replica in world.replicas:
        replica.engine.start()
        world.start(replica)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(operator.work(CHAOS_SECONDS))
        tasks.create_task(rage(world, CHAOS_SECONDS))
    _heal(world)
    world.log("healed everything")
    healed_at = loop.time()
    await _converge(world)
    converged = loop.time() - healed_at
    await _stay(world)
    _check_writes(world)
    expiry.cancel()
    await world.bury()
    return converged


async def _expire_leases(world: World) -> None:
    while True:
        await asyncio.sleep(0.5)
        if world.cluster.has_quorum():
            world.store.expire(asyncio.get_running_loop().time())


def _heal(world: World) -> None:
    for replica in world.replicas:
        replica.process.resume()
        replica.engine.release()
        if replica.engine.engine is None:
            replica.engine.start()
        world.start(replica)


class Operator:
    """Makes changes, several at once, and settles each."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = random.Random(f"operator {world.seed}")
        self._made = 0
        self._sources = 0

    async def work(self, seconds: float) -> None:
        """Makes changes for so long, and waits until each is settled."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        pause = self._rng.choice((0.5, 2.0, 5.0))
        async with asyncio.TaskGroup() as tasks:
            while loop.time() < end:
                await asyncio.sleep(self._rng.uniform(0.0, 2 * pause))
                if self._rng.random() < 0.1:
                    self._write_by_hand()
                else:
                    tasks.create_task(self.change(self._next()))

    async def change(self, change: Change) -> None:
        """Settles one change."""
        self._made += 1
        request_id = f"req-{self._made}"
        answer = await settle(self._world.admins, change, request_id, self._rng)
        self._world.log(f"{request_id} {type(change).__name__}: revision {answer.revision} {answer.reason}")
        self._world.answers.append(answer)

    def _next(self) -> Change:
        rng = self._rng
        if rng.random() < 0.1:
            return RollbackAdapter(POOL, rng.choice(NAMES))
        names = rng.sample(NAMES, rng.randint(1, 3))
        return ApplyAdapters(POOL, tuple(self._one(name) for name in names))

    def _one(self, name: str) -> Upsert | Remove:
        rng = self._rng
        etag = rng.choice((None, None, None, 0, rng.randint(1, self._world.store.revision)))
        if rng.random() < 0.25:
            return Remove(name, etag or None)
        return Upsert(name, self._spec(), etag)

    def _spec(self) -> AdapterSpec:
        self._sources += 1
        kind = self._rng.choices(("good", MISSING, REFUSED, HIGH_RANK), (12, 1, 1, 1))[0]
        load = self._rng.choices(("eager", "lazy"), (8, 1))[0]
        source = Source(uri=f"{ROOT}{kind}{self._sources}")
        return AdapterSpec.model_validate({"source": source, "load": load, "priority": self._rng.randint(0, 2)})

    def _write_by_hand(self) -> None:
        """A record that somebody writes past the admin service: readable or not, or the base model's name."""
        world = self._world
        key = KEYS.adapter(POOL, ODD_NAME)
        value = self._rng.choice((b"{", b'{"schema":9}', self._odd_record()))
        world.hand_written.add(world.store.put(key, value))
        world.log("written by hand")

    def _odd_record(self) -> bytes:
        self._sources += 1
        source = f"{ROOT}good{self._sources}"
        return (
            f'{{"schema":1,"name":"{ODD_NAME}","pool":"{POOL}","tenant":"default","generation":{self._sources},'
            f'"spec":{{"source":{{"uri":"{source}"}}}},"updated_at":"2026-01-01T00:00:00Z","updated_by":"hand"}}'
        ).encode()


async def _converge(world: World) -> None:
    """R3: within a bound each engine has what it should, and says so."""
    left = [*world.replicas]
    for _ in range(int(CONVERGE_SECONDS / 0.5)):
        left = [replica for replica in left if _difference(world, replica)]
        if not left:
            return
        await asyncio.sleep(0.5)
    for replica in left:
        world.checks.violated(f"R3 {replica.name}: {_difference(world, replica)}")


def _difference(world: World, replica: ReplicaHost) -> str:
    """How a replica is not yet what it should be; empty: it is."""
    moment = world.checks.oracle.newest
    listing = {name: path for name, path in replica.engine.listing.items() if replica.place.store.owns(path)}
    for name, source in moment.eager().items():
        is_good = source.startswith("good")
        is_there = listing.get(name) == path_of(replica.name, source)
        if is_good and not is_there:
            return f"{name} should be {source}, is {listing.get(name)}"
        if not is_good and is_there and not source.startswith("good"):
            return f"{name} has {source}, which is no good"
    known = {one.name for one in moment.wanted.values() if one.is_eager} | moment.unreadable.keys()
    superfluous = [name for name in listing if name not in known]
    if superfluous:
        return f"superfluous: {superfluous}"
    return _status_difference(world, replica, {*moment.unreadable})


def _status_difference(world: World, replica: ReplicaHost, unreadable: set[str]) -> str:
    kv = world.store.kvs.get(KEYS.status(POOL, replica.name))
    if kv is None:
        return "it has no status"
    status = ReplicaStatus.parse(kv.value)
    moment = world.checks.oracle.newest
    bad = {one.name for one in moment.wanted.values() if one.is_eager and not one.source.startswith("good")}
    failed = {entry.name for entry in status.failed}
    newest = world.checks.oracle.moments[-1][0]
    if not status.ready or status.stale or status.observed_revision < newest or status.pending:
        return f"its status says {kv.value!r}"
    if failed != bad | unreadable:
        return f"failed are {failed}, expected {bad | unreadable}"
    return ""


async def _stay(world: World) -> None:
    """R3: what has converged stays so, and nothing is called any more."""
    await asyncio.sleep(DRIFT_SECONDS)
    before = world.checks.calls
    await asyncio.sleep(STAY_SECONDS)
    if world.checks.calls != before:
        world.checks.violated("R3 engines are called although nothing changes")
    for replica in world.replicas:
        if difference := _difference(world, replica):
            world.checks.violated(f"R3 {replica.name} did not stay: {difference}")


def _check_writes(world: World) -> None:
    """W1 to W8, by folding the history."""
    prefixes = tuple(f"{KEYS.prefix}/{kind}/".encode() for kind in ("adapters", "pools", "tenants", "requests"))
    history = [
        (revision, events)
        for revision, events in world.store.history
        if revision not in world.hand_written and any(event.key.startswith(prefixes) for event in events)
    ]
    try:
        check_history(KEYS, history)
    except AssertionError as error:
        world.checks.violated(str(error))
    applied: dict[str, list[int]] = {}
    for revision, events in history:
        for event in events:
            if event.kv is not None and event.key.startswith(f"{KEYS.prefix}/requests/".encode()):
                if b'"reply":null' not in event.kv.value:
                    applied.setdefault(event.key.decode().rsplit("/", 1)[-1], []).append(revision)
    for answer in world.answers:
        revisions = applied.get(answer.request_id, [])
        if len(revisions) > 1:
            world.checks.violated(f"W3 {answer.request_id} was applied at {revisions}")
        if answer.revision and revisions and answer.revision != revisions[0]:
            world.checks.violated(f"W1 {answer} but applied at {revisions}")
        if not answer.revision and revisions:
            world.checks.violated(f"W8 {answer} but applied at {revisions}")
