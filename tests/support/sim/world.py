"""Everything of one simulation, built from its seed: cluster, links, admins, replicas, checks and the trace."""

from __future__ import annotations

import asyncio
import hashlib
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from registry.keys import Keys
from sidecar.journal import Journal
from sidecar.ownership import ReplicaTaken
from tests.support.sim.admins import Admin, Answer
from tests.support.sim.artifacts import SimStore
from tests.support.sim.channels import SimChannel
from tests.support.sim.checks import Checks
from tests.support.sim.engines import EngineHost
from tests.support.sim.links import Link
from tests.support.sim.loop import Process, State, current_process_name
from tests.support.sim.members import Cluster, Habits, Member
from tests.support.sim.sidecars import Place, run_sidecar
from tests.support.sim.store import EtcdStore

POOL = "p"
KEYS = Keys("/sim")
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(eq=False)
class ReplicaHost:
    """One host: its engine, its disk, and the sidecar's process, which comes and goes."""

    place: Place
    engine: EngineHost
    process: Process = field(default_factory=lambda: Process("none", State.DEAD))
    starts: int = 0

    @property
    def name(self) -> str:
        return self.place.replica

    @property
    def runs(self) -> bool:
        return self.process.state is not State.DEAD


class World:
    """One simulation. Every draw of chance is made from the seed."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed = seed
        self.rng = random.Random(f"world {seed}")
        self.trace: list[str] = []
        self.skew_seconds = 0.0
        self.answers: list[Answer] = []
        self.checks = Checks(KEYS, POOL, self.log)
        self.journals: list[Journal] = []
        self.hand_written: set[int] = set()
        self._folder = folder
        self._dead: list[Process] = []
        self._channels = 0
        self.store = EtcdStore()
        self.store.on_commit.append(self.checks.on_commit)
        self.cluster = Cluster(self.store, self._rng("cluster"), _habits(self.rng))
        for number in range(self.rng.choice((1, 3))):
            Member(f"m{number}", number + 1, self.cluster)
        self.links: dict[str, Link] = {}
        self.admins = [self._admin(f"admin{number}") for number in range(2)]
        self.replicas = [self._replica(f"r{number}") for number in range(self.rng.randint(1, 3))]
        self.engines = {replica.engine.url: replica.engine for replica in self.replicas}

    def _rng(self, name: str) -> random.Random:
        return random.Random(f"{name} {self.seed}")

    def wall(self) -> datetime:
        """The wall clock, which may be set."""
        return EPOCH + timedelta(seconds=asyncio.get_running_loop().time() + self.skew_seconds)

    def log(self, text: str) -> None:
        """Adds to the trace."""
        now = asyncio.get_running_loop().time()
        self.trace.append(f"{now:10.4f} {current_process_name()}: {text}")

    @property
    def digest(self) -> str:
        """Of the whole trace."""
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()

    def _endpoints(self, client: str) -> tuple[str, ...]:
        names = tuple(f"{client}|{member.name}" for member in self.cluster.members)
        for name, member in zip(names, self.cluster.members, strict=True):
            self.links[name] = Link(name, member, self._rng(name))
        return names

    def open_channel(self, endpoint: str, _tls: object) -> SimChannel:
        """In place of `registry.etcd3.channel._open`."""
        self._channels += 1
        return SimChannel(self.links[endpoint], self._channels)

    def links_of(self, client: str) -> list[Link]:
        """Its ways to all members."""
        return [link for name, link in self.links.items() if name.startswith(f"{client}|")]

    def _admin(self, name: str) -> Admin:
        return Admin(name, self._endpoints(name), KEYS, self.wall, self._rng(name))

    def _replica(self, name: str) -> ReplicaHost:
        store = SimStore(name, self._rng(f"store {name}"))
        url = f"http://{name}"
        engine = EngineHost(name, url, store, self._rng(f"engine {name}"), self.checks.on_engine)
        place = Place(
            POOL, name, url, self._endpoints(name), self._folder / name, store, KEYS, self.wall, self.checks.on_report
        )
        return ReplicaHost(place, engine)

    def start(self, host: ReplicaHost) -> None:
        """Starts the sidecar's process."""
        if host.runs:
            return
        host.starts += 1
        host.process = Process(f"{host.name}.{host.starts}")
        rng = self._rng(f"{host.name} {host.starts}")
        work = run_sidecar(host.place, host.starts, rng, self.journals)
        task = asyncio.get_running_loop().create_task(work, context=host.process.context())
        task.add_done_callback(lambda done: self._ended(host, done))
        host.process.on_death.append(lambda: self._cut(host.name))

    def _cut(self, client: str) -> None:
        for link in self.links_of(client):
            link.cut()

    def _ended(self, host: ReplicaHost, task: asyncio.Task[None]) -> None:
        """A sidecar may end by itself only because its id is taken; a supervisor starts it anew."""
        if task.cancelled():
            return
        error = task.exception()
        taken = isinstance(error, BaseExceptionGroup) and error.subgroup(ReplicaTaken) is not None
        if not taken:
            self.checks.violated(f"R12 {host.name} ended: {error!r}")
        self.kill(host)

    def kill(self, host: ReplicaHost) -> None:
        """Kills the sidecar's process wherever it is."""
        if host.runs:
            self._dead.append(host.process)
            host.process.kill()

    def kill_admin(self, admin: Admin) -> None:
        """Kills an admin and starts it anew."""
        self._dead.append(admin.process)
        admin.process.kill()
        self._cut(admin.name)
        admin.start()

    async def bury(self) -> None:
        """Ends everything, also what was killed, so that nothing is left behind."""
        for replica in self.replicas:
            self.kill(replica)
        engines = [process for replica in self.replicas for process in replica.engine.processes]
        for process in (*self._dead, *engines):
            process.bury()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for journal in self.journals:
            journal.close()


def _habits(rng: random.Random) -> Habits:
    return Habits(
        version=rng.choice(("3.5.1", "3.5.30")),
        page_limit=rng.choice((0, 0, 2)),
        fragment_events=rng.choice((0, 0, 1)),
        max_lag_seconds=rng.choice((0.001, 0.05, 0.5)),
    )
