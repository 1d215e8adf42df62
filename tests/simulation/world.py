"""Everything of one simulation, built from its seed: cluster, links, admins, replicas, checks and the trace."""

from __future__ import annotations

import asyncio
import hashlib
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path

from google.protobuf.message import Message

from registry.client.address import Tls
from registry.etcd3.errors import TlsFailed
from registry.etcd3.options import TlsFiles
from registry.model.keys import Keys
from registry.model.records import Meta
from registry.transactions.changes import Change
from sidecar.desired.journal import Journal
from sidecar.desired.mailbox import Mailbox, Snapshot
from sidecar.ownership import ReplicaTaken
from sidecar.plan.types import RoundReport
from tests.simulation.admins import API_PORT, Admin
from tests.simulation.artifacts import SimStore
from tests.simulation.callers import CallerChannel
from tests.simulation.channels import SimChannel
from tests.simulation.checks import Checks
from tests.simulation.clients import Answer, Clients
from tests.simulation.conduct import Conduct
from tests.simulation.cut import ALL, SLOW, Cut, Parts
from tests.simulation.disk import Image, SimDisk, kept_revision
from tests.simulation.engines import EngineHost
from tests.simulation.history import POOL, Moment
from tests.simulation.links import Link
from tests.simulation.loop import THREAD_SECONDS, Process, State, current_process, current_process_name
from tests.simulation.members import Cluster, Habits, Member
from tests.simulation.pace import Halts, Pace, paced
from tests.simulation.plugin import Socket
from tests.simulation.rotation import Rotation
from tests.simulation.services import Services
from tests.simulation.serving import SimServer
from tests.simulation.sidecars import GRACE_SECONDS, Place, run_sidecar
from tests.simulation.size import WHOLE, Size
from tests.simulation.store import EtcdStore

KEYS = Keys("/sim")
# After this a sidecar that gave up its replica id is started anew.
SUPERVISOR_SECONDS = 5.0
# So many fleets have our plugin in their engines, and serve lazy adapters.
PLUGIN_SHARE = 0.5
# A step of a large batch.
STEP_SECONDS = 4.0
# One in so many worlds has TLS, whose files are replaced.
TLS_SHARE = 3
# In so many a restoration deletes what the backup does not have; there nobody writes past the admin service.
PRUNES_SHARE = 0.25
# Below a host's disk: what a sidecar keeps of what it follows.
STATE = "state"
# What was acted upon so long ago is on the disk, if the sidecar could go on meanwhile, and its disk was prompt.
KEPT_SECONDS = 1.0
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Doubts:
    """What a replica followed before a list that it may not follow: one of a store below that revision."""

    until: float
    moments: Sequence[Moment]


@dataclass(eq=False)
class ReplicaHost:
    """One host: its engine, its disk, and the sidecar's process, which comes and goes."""

    place: Place
    engine: EngineHost
    disk: SimDisk
    process: Process = field(default_factory=lambda: Process("none", State.DEAD))
    starts: int = 0
    halts: Halts = field(default_factory=Halts)
    died_at: float = 0.0
    started_at: float = 0.0
    doubts: Doubts | None = None

    @property
    def name(self) -> str:
        return self.place.replica

    @property
    def has_snapshot(self) -> bool:
        return kept_revision(self.place.state) is not None

    @property
    def runs(self) -> bool:
        return self.process.state is not State.DEAD


class World:
    """One simulation. Every draw of chance is made from the seed.

    Attributes:
        seconds: how long faults last.
        told: how often each rule was asked.
        prunes: what a backup does not have is deleted where it is restored, and nobody writes past the admin service.
    """

    def __init__(self, seed: int, folder: Path, cut: Cut = ALL, size: Size = WHOLE) -> None:
        self.seed = seed
        self.size = size
        self.seconds = size.seconds if cut.seconds is None else cut.seconds
        self.parts = Parts(cut)
        self.rng = random.Random(f"world {seed}")
        self.trace: list[str] = []
        self.skew_seconds = 0.0
        self.told: Counter[str] = Counter()
        self.paces: list[Pace] = []
        self.has_plugin = self._rng("plugin").random() < PLUGIN_SHARE
        self.prunes = self._rng("prunes").random() < PRUNES_SHARE
        self.answers: list[Answer] = []
        self.checks = Checks(KEYS, POOL, self.log)
        self.journals: list[Journal] = []
        self.hand_written: set[int] = set()
        self.rivals: list[ReplicaHost] = []
        self.restores = 0
        self.on_restore: Callable[[], None] = lambda: None
        self.on_news: Callable[[Snapshot], None] = lambda _snapshot: None
        self.on_power_cut: Callable[[str, float], None] = lambda _replica, _kept_until: None
        self.noted_call: Callable[[Message], AbstractContextManager[None]] = lambda _request: nullcontext()
        self.folder = folder
        self.disks: list[SimDisk] = []
        self._followed: dict[str, list[tuple[float, int]]] = defaultdict(list)
        self._dead: list[Process] = []
        # What dead processes had: collected at a chance moment, their generators would be closed as if they lived.
        self._lost: list[SimServer | None] = []
        self._clients: Clients | None = None
        self._channels = 0
        self._ids = count(1)
        self.rotation = Rotation(folder / "tls", self._rng("rotation"), self.checks.violated, self.told)
        self.has_tls = seed % TLS_SHARE == 1
        self.store = EtcdStore()
        self.conduct = Conduct(self.store, KEYS, POOL, self.checks.violated)
        self.store.on_commit += [self.checks.on_commit, self.conduct.on_commit]
        self.cluster = Cluster(self.store, self._rng("cluster"), _habits(self.rng))
        for number in range(self.rng.choice(size.members)):
            Member(f"m{number}", number + 1, self.cluster)
        self.write_meta()
        self.links: dict[str, Link[Member]] = {}
        self.ways: dict[str, Link[Admin]] = {}
        self.services = Services(self.checks.violated, self._rng("services"))
        self._context = copy_context()
        self.admins = [self._admin(f"admin{number}") for number in range(size.admins)]
        self._disk_pace = self.pace("disk")
        self.replicas = [self._replica(f"r{number}") for number in range(self.rng.choice(size.replicas))]
        self.checks.replicas = {replica.name for replica in self.replicas}
        self.engines = {replica.engine.url: replica.engine for replica in self.replicas}

    def _rng(self, name: str) -> random.Random:
        return random.Random(f"{name} {self.seed}")

    def pace(self, name: str, *, rarely: int = 1) -> Pace:
        """That of a part of the world which has this name."""
        pace = paced(self._rng(f"pace {name}"), self._left_seconds, rarely=rarely)
        self.paces.append(pace if self.parts.cut.has(SLOW) else Pace(pace.rng))
        return self.paces[-1]

    def _left_seconds(self) -> float:
        return self.seconds - asyncio.get_running_loop().time()

    def thread_seconds(self) -> tuple[float, float]:
        """How long what is given to a thread now takes before its effect, and after it."""
        before, after, now = THREAD_SECONDS[0] + self._disk_pace.seconds(), self._disk_pace.seconds(), self.monotonic()
        host = next((one for one in self.replicas if one.process is current_process()), None)
        if host is not None:
            host.halts.note(now, now + before + after)
        if any(one.process is current_process() for one in self.admins):
            before += self.services.thread_seconds()
        return before, after

    def wall(self) -> datetime:
        """The wall clock, which may be set."""
        return EPOCH + timedelta(seconds=asyncio.get_running_loop().time() + self.skew_seconds)

    def monotonic(self) -> float:
        """The loop's clock."""
        return asyncio.get_running_loop().time()

    def log(self, text: str) -> None:
        """Adds to the trace, without the name of the folder, which is another one each time."""
        now, told = asyncio.get_running_loop().time(), text.replace(str(self.folder), "")
        self.trace.append(f"{now:10.4f} {current_process_name()}: {told}")

    def plays(self, name: str, text: str) -> bool:
        """Whether an event of that name happens now; it is told in the trace."""
        is_played = self.parts.plays(name, asyncio.get_running_loop().time(), text)
        if is_played:
            self.log(f"{name} {text}")
        return is_played

    @property
    def tls(self) -> TlsFiles | None:
        """The files that all processes are given; None: there is no TLS."""
        return self.rotation.files if self.has_tls else None

    @property
    def tls_of_callers(self) -> Tls | None:
        """The same, as callers of the admin services give them."""
        return None if self.tls is None else Tls(self.tls.ca, self.tls.certificate, self.tls.key)

    def new_id(self) -> str:
        """The id of a request that its user does not name."""
        return f"cli-{next(self._ids)}"

    @property
    def digest(self) -> str:
        """Of the whole trace."""
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()

    def _endpoints(self, client: str) -> tuple[str, ...]:
        names = tuple(f"{client}|{member.name}" for member in self.cluster.members)
        for name, member in zip(names, self.cluster.members, strict=True):
            self.links[name] = Link(name, member, self._rng(name), pace=self.pace(name, rarely=10))
        return names

    def open_plain(self, target: str, *, options: object) -> SimChannel:
        """In place of `grpc.aio.insecure_channel`."""
        return self._open_caller(target) if target.endswith(f":{API_PORT}") else self._open_member(target)

    def open_secure(self, target: str, _credentials: object, *, options: object) -> SimChannel:
        """In place of `grpc.aio.secure_channel`."""
        return self.open_plain(target, options=options)

    def _open_member(self, endpoint: str) -> SimChannel:
        """A channel to a member of etcd."""
        self._channels += 1
        return SimChannel(self.links[endpoint], self._channels)

    def _open_caller(self, address: str) -> CallerChannel:
        """A channel to an admin service; the address names the caller, too."""
        self._channels += 1
        caller, _, name = address.removesuffix(f":{API_PORT}").partition(".")
        way = f"{caller}|{name}"
        if way not in self.ways:
            admin = next(one for one in self.admins if one.name == name)
            self.ways[way] = Link(way, admin, self._rng(way), self._context)
        callers = sorted({one.partition("|")[0] for one in self.ways})
        peer = f"10.0.0.{1 + callers.index(caller)}"
        return CallerChannel(self.ways[way], self._channels, peer, self.noted_call)

    async def change(self, change: Change, request_id: str) -> None:
        """Makes a change by the first admin service. Raises RegistryError."""
        self._clients = self._clients or Clients("test")
        await self._clients.change(self.admins[0], change, request_id)

    def links_of(self, client: str) -> list[Link[Member]]:
        """Its ways to all members."""
        return [link for name, link in self.links.items() if name.startswith(f"{client}|")]

    def _admin(self, name: str) -> Admin:
        return Admin(
            name,
            self._endpoints(name),
            KEYS,
            self.wall,
            self._rng(name),
            self.services.on_server,
            self._admin_ended,
            self.tls,
        )

    def _admin_ended(self, admin: Admin, error: BaseException | None) -> None:
        """One ends by itself only after a signal, or where it never had whole TLS files; it is started anew then."""
        if error is not None and not _has_no_files(error):
            self.checks.violated(f"R12 {admin.name} ended: {error!r}")
        self.log(f"{admin.name} has ended")
        self._dead.append(admin.process)
        self.services.on_end(admin)
        if error is None:
            self._restart(admin)
        else:
            asyncio.get_running_loop().call_later(SUPERVISOR_SECONDS, self._restart_once, admin, admin.restarts)

    def _replica(self, name: str) -> ReplicaHost:
        disk = self._disk()
        store = self._store_of(name, disk)
        url = f"http://{name}"
        engine = EngineHost(name, url, store, self._rng(f"engine {name}"), self.checks.on_engine, socket=self._socket())
        engine.pace = self.pace(f"engine {name}", rarely=4)
        engine.step_seconds = self._rng(f"steps {name}").choice((0.0, 0.0, STEP_SECONDS))
        store.on_removal = lambda path: self.checks.on_removal(engine, path)
        store.on_wrong = lambda source: self.checks.on_wrong(engine, source)
        place = Place(
            *(POOL, name, url, self._endpoints(name), disk.root / STATE, store, KEYS, self.wall),
            *(self._on_report, partial(self.checks.on_answer, engine), f"host of {name}", engine.socket, self.tls),
        )
        return ReplicaHost(place, engine, disk)

    def _disk(self) -> SimDisk:
        root = self.folder / f"disk{len(self.disks)}"
        (root / STATE).mkdir(parents=True)
        self.disks.append(SimDisk(root))
        return self.disks[-1]

    def _on_report(self, replica: str, mailbox: Mailbox, report: RoundReport) -> None:
        self.checks.on_report(replica, mailbox, report)
        self._followed[replica].append((asyncio.get_running_loop().time(), self.checks.applied[replica]))

    def _socket(self) -> Socket | None:
        return Socket() if self.has_plugin else None

    def _store_of(self, name: str, disk: SimDisk) -> SimStore:
        return SimStore(name, self._rng(f"store {name}"), disk.root / "leases", pace=self.pace(f"source {name}"))

    def write_meta(self) -> None:
        """What the first admin service writes into a store: its epoch."""
        meta = Meta(epoch=f"{self.rng.random()}", created_at=EPOCH.isoformat())
        self.hand_written.add(self.store.put(KEYS.meta(), meta.to_bytes()))

    def replace_store(self, revision: int, *, bump: int) -> None:
        """etcd is restored from a backup of that revision, 0: is emptied; as an operator does it, with admins ended."""
        self.restores += 1
        self.log(f"store restored to revision {revision}, bumped by {bump}")
        for admin in self.admins:
            self.kill_admin(admin)
        for host in self.replicas:
            host.doubts = None if bump else self._doubts(host, self.checks.applied[host.name])
        self.store.restore(revision, asyncio.get_running_loop().time(), bump=bump)
        self.cluster.restart(cluster_id=None if bump else self.cluster.cluster_id + 1)
        self.hand_written = {number for number in self.hand_written if number <= revision}
        self.answers = [answer for answer in self.answers if answer.revision <= revision]
        self.checks.oracle.restore(self.store.history)
        self.checks.on_store(self.store.revision)
        self.conduct.restore()
        for link in self.links.values():
            link.cut()
        if not revision:
            self.store.is_full = False
            self.write_meta()
        self.on_restore()

    def rival(self, host: ReplicaHost) -> ReplicaHost:
        """A clone of a host: the same replica id, but an engine, a disk and ways to etcd of its own."""
        twin = ReplicaHost(host.place, host.engine, self._disk())
        name = f"{host.name}twin{len(self.rivals)}"
        store = self._store_of(name, twin.disk)
        rng = self._rng(f"engine {name}")
        engine = EngineHost(name, f"http://{name}", store, rng, _nothing, socket=self._socket())
        self.engines[engine.url] = engine
        twin.engine = engine
        twin.place = replace(
            host.place,
            engine_url=engine.url,
            endpoints=self._endpoints(name),
            state=twin.disk.root / STATE,
            store=store,
            on_report=lambda _replica, _mailbox, _report: None,
            on_answer=lambda _mailbox, _name, _answer: None,
            socket=engine.socket,
            owner=f"host of {name}",
        )
        self.rivals.append(twin)
        return twin

    def start(self, host: ReplicaHost, keys: Keys = KEYS) -> None:
        """Starts the sidecar's process; other `keys`: with a wrong prefix."""
        if host.runs:
            return
        if host.doubts is None or math.isinf(host.doubts.until):
            host.doubts = None if keys is KEYS else self._doubts(host, math.inf)
        if host in self.replicas and not any(host.place.state.glob("snapshot-*")):
            self.checks.on_lost_disk(host.name, self.store.revision)  # its first list was not written down yet
        host.starts += 1
        host.started_at = self.monotonic()
        host.halts.note(host.died_at, self.monotonic())
        client = host.place.store.replica
        host.process = Process(f"{client}.{host.starts}")
        self.checks.lost.pop(client, None)
        rng = self._rng(f"{client} {host.starts}")
        place = replace(host.place, keys=keys)
        work = run_sidecar(place, host.starts, rng, self.journals)
        task = asyncio.get_running_loop().create_task(work, context=host.process.context())
        task.add_done_callback(lambda done: self._ended(host, done))
        host.process.on_death.append(lambda: self._cut(client))

    def _doubts(self, host: ReplicaHost, until: float) -> Doubts:
        revisions = {
            self.checks.applied[host.name],
            self.checks.planned[host.name],
            kept_revision(host.place.state) or 0,
        }
        return Doubts(until, [moment for at in revisions for moment in self.checks.oracle.at(at)])

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
        if host in self.replicas:
            asyncio.get_running_loop().call_later(SUPERVISOR_SECONDS, self.start, host)

    def kill(self, host: ReplicaHost) -> None:
        """Kills the sidecar's process wherever it is."""
        if host.runs:
            self._dead.append(host.process)
            host.process.kill()
            host.died_at = self.monotonic()
            for since, until in host.process.paused:
                host.halts.note(since, until)

    def cut_power(self, host: ReplicaHost, image: Image) -> None:
        """Ends all of a host, and leaves it what its disk kept: what was followed a moment ago, or newer (R1)."""
        self.kill(host)
        if host.engine.engine is not None:
            host.engine.kill()
        host.disk.cut(image)
        applied, now = self.checks.applied, self.monotonic()
        kept_until = host.halts.done_before(now, KEPT_SECONDS)
        known = [revision for at, revision in self._followed[host.name] if at < kept_until]
        # Whatever was followed since then may be what is left; it went back where the store did.
        newer = [revision for at, revision in self._followed[host.name] if at >= kept_until]
        applied[host.name] = min(applied[host.name], known[-1] if known else 0, *newer)
        host.place.store.kept_until = now + GRACE_SECONDS
        self._followed[host.name] = [(0.0, applied[host.name])]
        self.checks.on_power_cut(host.name, kept_until)
        self.checks.followed[host.name] = 0  # what it kept may be none of them
        self.on_power_cut(host.name, kept_until)

    def kill_admin(self, admin: Admin) -> None:
        """Kills an admin and starts it anew."""
        self._dead.append(admin.process)
        self._lost.append(admin.server)
        admin.kill()
        self._cut(admin.name)
        self._restart(admin)

    def _restart_once(self, admin: Admin, restarts: int) -> None:
        """Restarts an admin service, unless somebody has done so since it was started for that time."""
        if admin.restarts == restarts:
            self._restart(admin)

    def _restart(self, admin: Admin) -> None:
        """Starts an admin service that is gone, and with it all connections to it."""
        for way in self.ways.values():
            if way.member is admin:
                way.cut()
        admin.start()

    async def bury(self) -> None:
        """Ends everything, also what was killed, so that nothing is left behind."""
        for replica in self.replicas:
            self.kill(replica)
        for replica in self.rivals:
            self.kill(replica)
        engines = [process for host in (*self.replicas, *self.rivals) for process in host.engine.processes]
        for host in (*self.replicas, *self.rivals):
            host.place.store.on_removal = _unheard  # what is cancelled below may take one more step
        for process in (*self._dead, *engines):
            process.bury()
        # Generators that are let go of amid a stream are closed by tasks of their own.
        while tasks := [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for journal in self.journals:
            journal.close()


def _has_no_files(error: BaseException) -> bool:
    """Whether a process ended since its TLS files were half replaced when it first looked at them."""
    return isinstance(error, TlsFailed) or (isinstance(error, BaseExceptionGroup) and error.split(TlsFailed)[1] is None)


def _unheard(_path: str) -> None:
    return


def _nothing(_host: EngineHost, _what: str, _name: str, _path: str) -> None:
    return


def _habits(rng: random.Random) -> Habits:
    return Habits(
        version=rng.choice(("3.5.1", "3.5.30")),
        page_limit=rng.choice((0, 0, 2)),
        fragment_events=rng.choice((0, 0, 1)),
        max_lag_seconds=rng.choice((0.001, 0.05, 0.5)),
    )
