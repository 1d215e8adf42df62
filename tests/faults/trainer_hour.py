"""Half an hour of training jobs on a real fleet: kills of everything, what it takes, and what must be so at the end.

Of two parts of a kind one is spared in the first half, and the other in the second, so that each is killed and each
lives for long enough to be seen to grow; between the halves everything is killed at once.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from loraplane import AsyncRegistry
from registry.model.keys import Keys
from registry.tools.verify.history import Document, document
from tests.faults.day import FAULT_SECONDS, Day, compacted, fleet, verified
from tests.faults.pods import looks
from tests.faults.schedule import PREFIX
from tests.faults.trainer import BACK_SECONDS, CALL_SECONDS, TTL_SECONDS, Training
from tests.support.etcd import Cluster
from tests.support.fleet import POOL
from tests.support.http_client import http_client
from tests.support.processes import resident_bytes
from tests.support.waiting import eventually

REST_SECONDS = (2.0, 6.0)
# What an engine may have read stays until one process of its sidecar has watched one of the engine for forty seconds.
# Each pod is hurt for half of the time, and more often than that: it keeps nearly all that is published meanwhile.
GRACE_SECONDS, BUDGET_BYTES = 20, 10_000_000
HISTORY_KEPT = 10
LOOK_SECONDS = 5.0
END_SECONDS = TTL_SECONDS + 60
# A process is warm after so long; only what lives for more than twice as long is held against what it was then.
WARM_SECONDS = 240.0
GROWN_SHARE = 0.10
Part = tuple[Callable[[], None], Callable[[], None]]
_KINDS = ("engine", "sidecar", "pod", "admin", "etcd", "frozen etcd", "compact")


@dataclass
class Measures:
    """What the parts took, by part: (process, when, bytes of memory); and most that a store held."""

    memory: dict[str, list[tuple[int, float, int]]] = field(default_factory=dict)
    store_bytes: int = 0
    store_files: int = 0

    def take(self, training: Training) -> None:
        """One look at everything that runs."""
        for who, pid in _pids(training.day):
            try:
                self.memory.setdefault(who, []).append((pid, time.monotonic(), resident_bytes(pid)))
            except FileNotFoundError:
                continue  # killed just now
        for pod in training.day.pods.living:
            held = [*_sizes(pod.sidecar.store / "adapters")]
            self.store_bytes = max(self.store_bytes, sum(held))
            self.store_files = max(self.store_files, len(held))

    def grown(self) -> dict[str, float]:
        """Share by which each part grew, while its longest life lasted, since it was warm; short lives tell nothing."""
        shares = {}
        for who, told in self.memory.items():
            lives = [[(at, size) for pid, at, size in told if pid == one] for one in {pid for pid, _, _ in told}]
            life = max(lives, key=lambda one: one[-1][0] - one[0][0])
            begun, end = life[0][0], life[-1][0]
            if end - begun > 2 * WARM_SECONDS:
                first = [size for at, size in life if 0 <= at - begun - WARM_SECONDS < 60]
                last = [size for at, size in life if at > end - 60]
                shares[who] = statistics.median(last) / statistics.median(first) - 1
        return shares

    def most(self) -> dict[str, int]:
        """Bytes of memory that each part had at most."""
        return {who: max(size for _, _, size in told) for who, told in self.memory.items()}


def _pids(day: Day) -> Iterator[tuple[str, int]]:
    """Processes that run, by part."""
    for number, pod in enumerate(day.pods.living):
        for what, program in (("engine", pod.engine.program), ("sidecar", pod.sidecar.program)):
            if program.is_running:
                yield f"{what} {number}", program.pid
    for number, admin in enumerate(day.admins):
        if admin.program.is_running:
            yield f"admin {number}", admin.program.pid
    for number, member in enumerate(day.cluster.members):
        if member.is_running:
            yield f"etcd {number}", member.pid


def _sizes(folder: Path) -> Iterator[int]:
    for where, _, names in os.walk(folder):  # which passes over what is removed meanwhile
        for name in names:
            with suppress(FileNotFoundError):
                yield (Path(where) / name).stat().st_size


@asynccontextmanager
async def training(folder: Path, cluster: Cluster, seed: int) -> AsyncIterator[Training]:
    """Two replicas with room for some versions, two admin services, and a client of each."""
    flags = ("--unload-grace", f"{GRACE_SECONDS}", "--store-budget", f"{BUDGET_BYTES}")
    async with AsyncExitStack() as stack:
        day = await stack.enter_async_context(
            fleet(folder, cluster, seed, *flags, replicas=2, engine_names="versioned")
        )
        clients = [AsyncRegistry(admin.address, timeout_seconds=CALL_SECONDS) for admin in day.admins]
        yield Training(day, [await stack.enter_async_context(one) for one in clients])


class Fault:
    """Something that happens to parts of a fleet, lasts, and is healed; what may be missing meanwhile is excused."""

    def __init__(self, training: Training, kind: str, spared: int) -> None:
        self._training, self._day = training, training.day
        self._kind, self._spared = kind, spared

    async def play(self) -> None:
        """Hurts, waits and heals."""
        self._day.faults[self._kind] += 1
        if self._kind == "compact":
            await compacted(self._day)
            return
        parts = [*self._parts()]
        self._excuse(float("inf"))
        for hurt, _ in parts:
            hurt()
        await asyncio.sleep(self._day.clock.uniform(*FAULT_SECONDS))
        for _, heal in parts:
            heal()
        for pod in self._day.pods.living:
            await eventually(pod.engine.is_healthy)
        await self._day.cluster.ready()
        self._excuse(time.monotonic() + BACK_SECONDS)

    def _parts(self) -> Iterator[Part]:
        """How each part that it strikes is hurt, and healed."""
        day = self._day
        programs = {
            "engine": [pod.engine.program for pod in day.pods.living],
            "sidecar": [pod.sidecar.program for pod in day.pods.living],
            "admin": [admin.program for admin in day.admins],
        }
        for what, those in programs.items():
            for number, program in enumerate(those):
                if self._strikes(what, number):
                    yield program.kill, program.start
        members = [one for number, one in enumerate(day.cluster.members) if number != self._spared]
        struck = {"everything": day.cluster.members, "etcd": [day.clock.choice(members)]}
        yield from ((one.kill, one.start) for one in struck.get(self._kind, ()))
        if self._kind == "frozen etcd":
            member = day.clock.choice(members)
            yield member.freeze, member.thaw

    def _strikes(self, what: str, number: int) -> bool:
        """Whether it is the matter with that engine, sidecar or admin service."""
        kinds = {what, "pod"} if what in {"engine", "sidecar"} else {what}
        return self._kind == "everything" or (self._kind in kinds and number != self._spared)

    def _excuse(self, until: float) -> None:
        excuses = self._training.excuses
        for number, pod in enumerate(self._day.pods.living):
            if self._strikes("engine", number):
                excuses.engine[pod.name] = until
            if self._strikes("sidecar", number) or "etcd" in self._kind:
                excuses.news[pod.name] = until


async def play(training: Training, measures: Measures, *, seconds: float) -> None:
    """Jobs and workers while everything is killed; then they end, and all is held against what was promised.

    Raises:
        AssertionError: something does not hold.
    """
    day, began = training.day, time.monotonic()
    work = [training.train(), training.work(), training.look_on(), _measured(training, measures)]
    tasks = [asyncio.create_task(one) for one in [*work, looks(day.pods, day.looks, day.stop)]]
    try:
        halves = [began + seconds / 2, began + seconds]
        for spared, end in enumerate(halves):
            while time.monotonic() < end:
                await Fault(training, day.clock.choice(_KINDS), spared).play()
                await asyncio.sleep(day.clock.uniform(*REST_SECONDS))
                for task in tasks:
                    assert not task.done(), task.result()
            if spared == 0:
                await Fault(training, "everything", spared).play()
        day.seconds = time.monotonic() - began
        day.quiet.set()
        await tasks[0]
        await eventually(lambda: _has_ended(training), timeout_seconds=END_SECONDS, every_seconds=0.5)
        day.converged_seconds = time.monotonic() - began - day.seconds
    finally:
        day.stop.set()
        await asyncio.wait(tasks, timeout=20)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await verified(day)


async def _measured(training: Training, measures: Measures) -> None:
    while not training.day.stop.is_set():
        await asyncio.to_thread(measures.take, training)
        await asyncio.sleep(LOOK_SECONDS)


def report(training: Training, measures: Measures) -> str:
    """The measures in a few lines, each beside what it should keep to."""
    day, lags = training.day, sorted(training.lags) or [0.0]
    answers = ", ".join(f"{count} {what}" for what, count in sorted(training.answers.items()))
    faults = ", ".join(f"{count} {what}" for what, count in sorted(day.faults.items()))
    memory = ", ".join(f"{who} {size >> 20} MiB" for who, size in sorted(measures.most().items()))
    grown = ", ".join(f"{who} {share:+.1%}" for who, share in sorted(measures.grown().items()))
    lag = f"{statistics.median(lags):.2f} s at the median, {lags[len(lags) * 99 // 100]:.2f} s at the 99th percentile"
    return "\n".join(
        [
            f"trainer: seed {day.seed}, {day.seconds:.0f} s, {len(day.calls)} versions of {len(training.jobs)} jobs",
            f"trainer: faults: {faults}",
            f"trainer: answers: {answers}; {len(training.wrong)} without the right proof (0)",
            f"trainer: {len(training.unserved)} times a kept version was not served (0); listed after {lag}",
            f"trainer: stores: {measures.store_bytes:,} bytes at most ({BUDGET_BYTES:,}), {measures.store_files} files",
            f"trainer: {most_history(training)} generations of history at most ({HISTORY_KEPT})",
            f"trainer: {deletions(training).total()} jobs ended, the last after {day.converged_seconds:.1f} s (ttl 20)",
            f"trainer: memory at most: {memory}; grown: {grown or 'not for long enough'} ({GROWN_SHARE:.0%})",
            f"trainer: loraplane-verify: {day.verified}",
        ]
    )


async def _has_ended(training: Training) -> bool:
    """Whether the last job is deleted too, and no engine lists anything."""
    ended = deletions(training)
    left = {job.name for job in training.jobs} - ended.keys()
    assert not left, left
    async with http_client() as client:
        for pod in training.day.pods.living:
            listed = await pod.listing(client)
            assert not listed, listed
    return True


def deletions(training: Training) -> Counter[str]:
    """How often the audit has it that a job ended by its ttl, by name."""
    told = Counter[str]()
    for audit in _audits(training):
        if audit["method"] == "ExpireAdapter":
            assert audit["reason"] == "ttl", audit
            told.update(change["name"] for change in audit["changes"])
    return told


def _audits(training: Training) -> Iterator[Document]:
    prefix = Keys(PREFIX).audits()
    events = (event for step in training.day.history.steps for event in step.events)
    for event in events:
        if event.key.startswith(prefix) and event.kv is not None:
            yield document(event.kv.value) or {}


def most_history(training: Training) -> int:
    """How many earlier generations one name had at most, at any revision."""
    prefix, standing, most = Keys(PREFIX).history_in(POOL), defaultdict[bytes, set[bytes]](set), 0
    for step in training.day.history.steps:
        for event in step.events:
            if event.key.startswith(prefix):
                name, _, generation = event.key.rpartition(b"/")
                (standing[name].add if event.kv is not None else standing[name].discard)(generation)
        most = max([most, *map(len, standing.values())])
    return most
