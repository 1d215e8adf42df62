"""A day's mix on a real fleet: publishes of every kind, refused versions, kills of everything, and routers."""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from operator import methodcaller
from pathlib import Path
from typing import Any

import grpc
import httpx

from registry.model.keys import Keys
from registry.tools.verify.export import decode
from registry.v1 import registry_pb2 as pb
from registry.v1 import registry_pb2_grpc
from tests.faults.placed import Follower, Places, Records, Watcher, ask
from tests.faults.pods import Pod, Pods, looks
from tests.faults.recorded import History, compact_seen, watched
from tests.faults.schedule import PREFIX
from tests.support.adapters import digest_of, spoil, write_adapter
from tests.support.admin import AdminProgram, admin_program, change_set, drop, put, refused
from tests.support.checkers.calls import LoggedCall, Outcome, check_calls
from tests.support.checkers.index import HistoryIndex
from tests.support.checkers.logs import documents
from tests.support.checkers.replay import check_replicas
from tests.support.checkers.replicas import EngineListing
from tests.support.etcd import Cluster
from tests.support.fleet import POOL
from tests.support.http_client import http_client
from tests.support.processes import resident_bytes
from tests.support.waiting import eventually

REPLICAS, ADMINS = 6, 2
# What is published, by kind of placement; each name is of a tenant of its own.
KINDS: dict[str, dict[str, Any]] = {
    "all": {},
    "two": {"placement": pb.Placement(replicas=2)},
    "zone": {"placement": pb.Placement(selector={"zone": "a"})},
    "canary": {"strategy": pb.Strategy(canary_replicas="2", soak_seconds=1)},
    "lazy": {"load": "lazy"},
}
NAMES = {f"{kind}{number}/x": kind for kind in KINDS for number in range(3)}
BY_NUMBER = {name: 2 for name, kind in NAMES.items() if kind == "two"}
VERSIONS = ("v1", "v2", "v3")
REFUSED = "refused"
PAUSE_SECONDS = 0.5
FAULT_SECONDS = (0.5, 3.0)
# Between two faults, so that the fleet is whole again now and then.
REST_SECONDS = (1.0, 6.0)
# Whatever is desired of these, a replica that has one keeps it.
ALIKE = {"all", "zone", "canary"}
AGAIN_SECONDS = 60
CONVERGED_SECONDS = 120
GROWN_SHARE = 0.10
WARM_SECONDS = 600.0


@dataclass
class Day:
    """What there is, and what happened: enough to tell a failure.

    `quiet`: nothing is published any more; `stop`: nobody watches any more.
    """

    seed: int
    folder: Path
    cluster: Cluster
    admins: list[AdminProgram]
    stubs: list[Any]
    pods: Pods
    history: History
    records: Records
    clock: random.Random
    quiet: asyncio.Event = field(default_factory=asyncio.Event)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    calls: list[LoggedCall] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    published: Counter[str] = field(default_factory=Counter)
    looks: list[EngineListing] = field(default_factory=list)
    watchers: list[Watcher] = field(default_factory=list)
    answers: int = 0
    memory: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    seconds: float = 0.0
    converged_seconds: float = 0.0
    verified: str = ""

    @property
    def sources(self) -> Path:
        return self.folder / "sources"

    @property
    def found(self) -> list[str]:
        """Answers of residency that left somebody out."""
        return [one for watcher in self.watchers for one in watcher.found]

    def report(self) -> str:
        """The measures in a few lines, each beside what it should keep to."""
        calls = _listed(Counter(call.outcome for call in self.calls))
        memory = ", ".join(f"{who} {grown(told):+.1%}" for who, told in self.memory.items())
        held = sum(watcher.held for watcher in self.watchers)
        return "\n".join(
            [
                f"day: seed {self.seed}, {self.seconds:.0f} s; calls: {calls}; faults: {_listed(self.faults)}",
                f"day: published: {_listed(self.published)}",
                f"day: {self.answers} answers of residency, {held} places of engines: {len(self.found)} left out (0)",
                f"day: converged {self.converged_seconds:.1f} s after healing; memory: {memory} (10 %)",
                f"day: loraplane-verify: {self.verified}",
            ]
        )


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))


@asynccontextmanager
async def fleet(
    folder: Path, cluster: Cluster, seed: int, *flags: str, replicas: int = REPLICAS, engine_names: str = ""
) -> AsyncIterator[Day]:
    """Two admin services and six pods, with whoever watches them; ended with the context. `flags`: of the sidecars."""
    clock = random.Random(seed)
    write_sources(folder / "sources")
    admins = [admin_program(folder / f"admin{number}", cluster.endpoints, PREFIX) for number in range(ADMINS)]
    pods = Pods(folder, cluster.endpoints, PREFIX, folder / "sources", random.Random(seed), flags=flags)
    async with AsyncExitStack() as stack:
        stack.callback(pods.end)
        history = await stack.enter_async_context(watched(cluster.options(), PREFIX))
        stubs = []
        for admin in admins:
            stack.callback(admin.program.kill)
            admin.program.start()
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(admin.address))
            stubs.append(registry_pb2_grpc.AdapterRegistryStub(channel))
        client = cluster.patient()
        stack.push_async_callback(client.aclose)
        records = Records(history, client, Keys(PREFIX))
        day = Day(seed, folder, cluster, admins, stubs, pods, history, records, clock)
        pool = pb.Pool(name=POOL, base_models=["base"], engine_names=engine_names)
        request = pb.CreatePoolRequest(pool=pool, request_id="pool")
        await settled(day, lambda stub: stub.CreatePool(request, timeout=5))
        await pods.begin(replicas)
        yield day


def write_sources(folder: Path) -> None:
    """Three versions, and one that no replica takes: a number in it is none."""
    for version in (*VERSIONS, REFUSED):
        write_adapter(folder / version, seed=sum(version.encode()))
    spoil(folder / REFUSED)


async def settled(day: Day, call: Callable[[Any], Awaitable[Any]]) -> Any:
    """The answer to a call that is repeated, at any admin service, until there is one."""

    async def answered() -> Any:
        try:
            return await call(day.clock.choice(day.stubs))
        except grpc.RpcError as error:
            raise AssertionError(f"{refused(error)}") from error

    return await eventually(answered, every_seconds=0.2)


async def publish(day: Day, name: str, version: str | None, request_id: str) -> None:
    """One change of an adapter, told to either admin service; None: it is deleted."""
    change = drop(name)
    if version is not None:
        change = put(name, (day.sources / version).as_uri(), **KINDS[NAMES[name]])
        change.upsert.spec.source.digest = digest_of(day.sources / version)
    request, revision = change_set(change, request_id=request_id), 0
    outcome: Outcome = "refused"
    try:
        reply = await day.clock.choice(day.stubs).ApplyAdapters(request, timeout=4)
    except grpc.RpcError as error:
        told = refused(error).code
        if told in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}:
            outcome = "unknown"
    else:
        outcome, revision = "ok", reply.revision
        day.published[f"{NAMES[name]} {version}"] += 1
    day.calls.append(LoggedCall(request_id=request_id, outcome=outcome, revision=revision))


async def publisher(day: Day, number: int) -> None:
    """Publishes at random: now and then a version that is refused, now and then nothing."""
    clock, made = random.Random(f"{day.seed}.{number}"), 0
    while not day.quiet.is_set():
        made += 1
        chance = clock.random()
        version = None if chance < 0.08 else REFUSED if chance < 0.25 else clock.choice(VERSIONS)
        await publish(day, clock.choice([*NAMES]), version, f"p{number}-{made}")
        await asyncio.sleep(clock.uniform(0.0, 2 * PAUSE_SECONDS))


async def clients(day: Day) -> None:
    """Requests for adapters, so that lazy ones are loaded."""
    async with http_client(timeout=10) as client:
        while not day.stop.is_set():
            await day.clock.choice(day.pods.living).ask(client, day.clock.choice([*NAMES]))
            await asyncio.sleep(PAUSE_SECONDS)


async def poller(day: Day) -> None:
    """Asks each admin service in turn, and holds its answer against the engines before and after."""
    watcher = Watcher("an answer", day.records, day.pods, BY_NUMBER)
    day.watchers.append(watcher)
    async with http_client(timeout=10) as client:
        while not day.stop.is_set():
            before = await day.pods.listings(client)
            places = await ask(day.stubs[day.answers % ADMINS])
            if places is not None:
                await watcher.hold(before, places, await day.pods.listings(client))
            day.answers += 1
            await asyncio.sleep(0.1)


async def follower(day: Day) -> None:
    watcher = Watcher("the stream", day.records, day.pods, BY_NUMBER)
    day.watchers.append(watcher)
    async with http_client(timeout=10) as client:
        await Follower(day.stubs, watcher, client).run(day.stop)


async def memory(day: Day) -> None:
    """Notes every ten seconds what the two that are never killed have: an admin service and a sidecar."""
    began = time.monotonic()
    watched_ones = {"admin": day.admins[-1].program.pid, "sidecar": day.pods.living[0].sidecar.program.pid}
    day.memory.update({who: [] for who in watched_ones})
    while not day.stop.is_set():
        for who, pid in watched_ones.items():
            day.memory[who].append((time.monotonic() - began, resident_bytes(pid)))
        await asyncio.sleep(10 if day.memory["admin"][2:] else 3)


def grown(told: list[tuple[float, int]]) -> float:
    """By which share it is more at the end than after ten minutes, or than at the beginning of a shorter day."""
    end = told[-1][0]
    after = WARM_SECONDS if end > 1.5 * WARM_SECONDS else 0.0
    first = [size for at, size in told if after - 30.0 <= at <= after + 60.0]
    last = [size for at, size in told if at >= end - 60.0]
    return statistics.median(last) / statistics.median(first) - 1


async def one_fault(day: Day) -> None:
    """Something happens to one part, lasts, and is healed; etcd keeps its majority."""
    kinds = {
        "etcd": etcd_fault, "compact": compacted, "admin": admin_killed, "sidecar": sidecar_killed,
        "store": store_wiped, "engine": engine_killed, "pod": pod_replaced,
    }  # fmt: skip
    kind = day.clock.choice([*kinds, "engine", "sidecar", "store"])
    day.faults[kind] += 1
    await kinds[kind](day)


async def etcd_fault(day: Day) -> None:
    member = await day.cluster.leader() if day.clock.random() < 0.5 else day.clock.choice(day.cluster.members)
    hurt, heal = (member.kill, member.start) if day.clock.random() < 0.5 else (member.freeze, member.thaw)
    hurt()
    await _for_a_while(day)
    heal()
    await day.cluster.ready()


async def compacted(day: Day) -> None:
    await compact_seen(day.cluster, PREFIX, day.history)


async def admin_killed(day: Day) -> None:
    program = day.admins[0].program
    program.kill()
    await _for_a_while(day)
    program.start()


def _other(day: Day) -> Pod:
    """Any pod but the one whose sidecar's memory is measured."""
    return day.clock.choice(day.pods.living[1:])


async def sidecar_killed(day: Day) -> None:
    program = _other(day).sidecar.program
    program.kill()
    await _for_a_while(day)
    program.start()


async def store_wiped(day: Day) -> None:
    """Half of the time the sidecar dies too, as on another disk."""
    pod = _other(day)
    if day.clock.random() < 0.5:
        pod.wipe()
        return
    pod.sidecar.program.kill()
    pod.wipe()
    await _for_a_while(day)
    pod.sidecar.program.start()


async def engine_killed(day: Day) -> None:
    """What it had it gets again, whatever is published meanwhile: of what is refused the last good version (R13)."""
    pod = day.clock.choice(day.pods.living)
    async with http_client(timeout=10) as client:
        had = {name for name in await pod.listing(client) if NAMES[name] in ALIKE}
        await pod.restart_engine()
        await eventually(lambda: _has_again(day, pod, had, client), timeout_seconds=AGAIN_SECONDS, every_seconds=0.5)


async def _has_again(day: Day, pod: Pod, had: set[str], client: httpx.AsyncClient) -> bool:
    day.records.catch_up()
    gone = {name for name in had if not day.records.stands(name)}
    lacking = had - gone - (await pod.listing(client)).keys()
    assert not lacking, f"{pod.name} does not serve {lacking} again, which its engine had before it restarted"
    return True


async def pod_replaced(day: Day) -> None:
    await day.pods.replace(_other(day))


async def _for_a_while(day: Day) -> None:
    await asyncio.sleep(day.clock.uniform(*FAULT_SECONDS))


async def play(day: Day, *, faults: int, seconds: float) -> None:
    """So many faults, and more until so long has passed; then everything heals and is held against what was promised.

    Raises:
        AssertionError: something does not hold.
    """
    began = time.monotonic()
    work = [publisher(day, number) for number in range(2)]
    work += [clients(day), poller(day), follower(day), memory(day), looks(day.pods, day.looks, day.stop)]
    tasks = [asyncio.create_task(one) for one in work]
    publishers = tasks[:2]
    try:
        while sum(day.faults.values()) < faults or time.monotonic() - began < seconds:
            await one_fault(day)
            await asyncio.sleep(day.clock.uniform(*REST_SECONDS))
            for task in tasks:
                assert not task.done() or task.result() is None
        healed = time.monotonic()
        day.seconds = healed - began
        day.quiet.set()
        await asyncio.wait(publishers)
        await _last_versions(day)
        await eventually(lambda: is_whole(day), timeout_seconds=CONVERGED_SECONDS, every_seconds=0.5)
        day.converged_seconds = time.monotonic() - healed
    finally:
        day.stop.set()
        await asyncio.wait(tasks, timeout=20)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await verified(day)


async def _last_versions(day: Day) -> None:
    """Everything is published once more, so that it is known what is to be served."""
    for number, name in enumerate(NAMES):
        change = put(name, (day.sources / "v1").as_uri(), **KINDS[NAMES[name]])
        change.upsert.spec.source.digest = digest_of(day.sources / "v1")
        request = change_set(change, request_id=f"last-{number}")
        reply = await settled(day, methodcaller("ApplyAdapters", request, timeout=5))
        day.calls.append(LoggedCall(request_id=f"last-{number}", outcome="ok", revision=reply.revision))


async def is_whole(day: Day) -> bool:
    """Every replica serves what it is to serve, and every admin service tells where that is."""
    for pod in day.pods.living:
        status = await pod.sidecar.status()
        wrong = {key: status[key] for key in ("pending", "failed", "note", "removing") if status.get(key)}
        assert status["ready"], (pod.name, wrong)
        assert not wrong, (pod.name, wrong)
    async with http_client(timeout=10) as client:
        listed = {name: set(names) for name, (_, names) in (await day.pods.listings(client)).items()}
    for number, stub in enumerate(day.stubs):
        places = await ask(stub)
        assert places is not None
        _compare(f"admin {number}", places, listed)
    return True


def _compare(who: str, places: Places, listed: dict[str, set[str]]) -> None:
    for name, kind in NAMES.items():
        told, at = places.serving(name), {replica for replica, names in listed.items() if name in names}
        assert len(told) == {"two": 2, "zone": REPLICAS // 2}.get(kind, REPLICAS), (who, name, told)
        assert told == at or kind == "lazy", (who, name, told, at)


async def verified(day: Day) -> None:
    """What loraplane-verify says of all that etcd still has, and what the checkers say of logs, calls and looks."""
    history = day.folder / "history.jsonl"
    etcd = ["--etcd", ",".join(day.cluster.endpoints), "--out", str(history)]
    assert (await _verify("export", *etcd, "--prefix", PREFIX))[0] == 0
    code, day.verified = await _verify("verify", "--history", str(history), "--prefix", PREFIX)
    findings, compared = await asyncio.to_thread(_held_against, day, history)
    day.verified += f"; {_listed(compared)}: {len(findings)} findings"
    assert (code, findings) == (0, []), "\n".join([day.report(), *findings[:5]])


def _held_against(day: Day, history: Path) -> tuple[list[str], Counter[str]]:
    """Findings on the logs, the calls and the looks, and how much was compared."""
    index = HistoryIndex(Keys(PREFIX)).replay(decode(history.read_text().splitlines()))
    told, calls = check_calls(index, day.calls)
    logs = [(log.name, documents(log.read_text().splitlines())) for log in day.pods.logs]
    found, compared = check_replicas(index, POOL, logs, day.looks)
    return [f"{one}" for one in (*told, *found)], compared + Counter({f"calls {what}": n for what, n in calls.items()})


async def _verify(*arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "registry.tools.verify.main", *arguments), stdout=asyncio.subprocess.PIPE
    )
    told, _ = await process.communicate()
    return process.returncode or 0, told.decode().strip()
