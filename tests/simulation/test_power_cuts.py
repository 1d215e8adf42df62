"""What a power cut at any step leaves of the files of a sidecar, and what the next process makes of it."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import random
import tempfile
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from math import inf
from pathlib import Path
from unittest import mock

import pytest

from registry.lora.base import BaseModules
from registry.lora.digest import FileEntry, manifest_digest
from registry.model.placement import Declined, declined_of
from registry.model.status import RememberedDeclines, ReportedDeclines
from registry.sources.base import Stop
from sidecar.artifacts.store import LocalStore, ReadingEngine, StoreLimits
from sidecar.artifacts.types import ArtifactRef
from sidecar.desired.journal import SYNC_AFTER_SECONDS, Journal, Restored
from sidecar.desired.snapshot import AdaptersChanged, SnapshotBase
from sidecar.engines.load_ledger import LoadLedger
from sidecar.engines.observed import Done, Outcome, Refused
from sidecar.ownership import HostLock
from sidecar.report.announcement import DeclineTeller
from tests.corpus.in_process import InProcessExaminer
from tests.simulation.disk import Image, Kept, SimDisk, plugged_in, unwatched, write
from tests.simulation.loop import Process, State, VirtualLoop
from tests.support.adapters import digest_of, write_adapter
from tests.support.memory_folder import memory_folder

JOURNAL_SEEDS = 24
PIECE = 12
STORE_SEEDS = 2
SMALL_SEEDS = 3
BASE = BaseModules({f"base.layers.0.self_attn.{name}_proj": (16, 16) for name in "qv"})
STATE = "state/r1"
# What was appended so long ago is on the disk; meanwhile three syncs may begin and end.
SYNCED_SECONDS = SYNC_AFTER_SECONDS + 0.15


class Killed(BaseException):
    """Ends what a process is amid."""


def slow_disk_loop(rng: random.Random) -> VirtualLoop:
    """A loop in which a thread's function is run some time later; whoever ends amid one says nothing."""
    loop = VirtualLoop()
    loop.thread_seconds = lambda: (rng.uniform(0.0, 0.05), 0.0)
    loop.set_exception_handler(lambda _loop, _context: None)
    return loop


@dataclass
class JournalLives:
    """Several lives of one journal, each ended by a kill or a power cut at a step of the disk.

    An entry is a revision. `appended`: when each was; below `floor` nothing may come back.
    """

    rng: random.Random
    disk: SimDisk
    scratch: Path
    revision: int = 1
    floor: int = 0
    appended: dict[int, float] = field(default_factory=dict)
    process: Process = field(default_factory=lambda: Process("none"))
    kept: Image | None = None
    steps: int = 0
    left: int = 0
    is_busy: bool = False
    is_full: bool = False
    has_gap: bool = False
    wrong: list[str] = field(default_factory=list)
    known: dict[frozenset[tuple[str, Kept]], int | None] = field(default_factory=dict)
    journal: Journal = field(init=False)

    def __post_init__(self) -> None:
        self.journal = Journal(self.disk.root / STATE)

    async def play(self) -> None:
        lives: list[tuple[Process, asyncio.Task[None]]] = []
        for number in range(6):
            self.process, self.left, self.kept = Process(f"life{number}"), self.rng.randint(1, 90), None
            task = asyncio.get_running_loop().create_task(self._live(), context=self.process.context())
            lives.append((self.process, task))
            await asyncio.sleep(self.rng.uniform(0.1, 2.0))
            image = self._die()
            if image is not None:
                self.disk.cut(image)
                self.floor = self._read(image) or 0
        self.disk.on_step = unwatched
        for process, task in lives:
            process.bury()
            task.cancel()
        await asyncio.gather(*(task for _, task in lives), return_exceptions=True)

    def _die(self) -> Image | None:
        """Now at the latest. Gives what a power cut left; None: there was none."""
        if self.process.state is State.RUNS:
            self._kill()
        self.journal.close()
        return self.kept

    def _kill(self) -> None:
        """What is not on the disk by now is synced by nobody before the next life."""
        self.process.kill()
        self.floor, self.appended = self._promised(), {}
        self.kept = self.disk.kept(self.rng) if self.rng.random() < 0.5 else None

    def _promised(self) -> int:
        since = asyncio.get_running_loop().time() - SYNCED_SECONDS
        return max([self.floor, *(revision for revision, at in self.appended.items() if at < since)])

    async def _live(self) -> None:
        HostLock(self.disk.root / STATE / "lock").close()
        self.journal = Journal(self.disk.root / STATE)
        restored = self.journal.restore("p")
        self._begin(newest(restored) or 0)
        if restored is None or self.journal.wants_base:
            self.has_gap = True
            await self._rewrite()
        async with asyncio.TaskGroup() as tasks:
            for work in (self.journal.keep_synced(), self._append(), self._renew()):
                tasks.create_task(work)

    def _begin(self, found: int) -> None:
        """What was found is acted upon; it need not have been synced yet."""
        now = asyncio.get_running_loop().time()
        self.revision = max(found, 1)
        self.appended = dict.fromkeys(range(self.floor + 1, found + 1), now)

    def _note(self) -> None:
        """An entry; of those behind a gap nothing is left but in a new base."""
        self.is_full = self.rng.random() < 0.02
        self.revision += 1
        self.journal.append(AdaptersChanged(self.revision, ()))
        self.is_full = False
        self.has_gap = self.has_gap or self.journal.wants_base
        self.appended[self.revision] = inf if self.has_gap else asyncio.get_running_loop().time()

    async def _append(self) -> None:
        while True:
            await asyncio.sleep(self.rng.choice((0.0, 0.001, 0.05, 0.2)))
            self._note()

    async def _renew(self) -> None:
        while True:
            for _ in range(self.rng.randint(0, 10)):
                await asyncio.sleep(0.05)
                if self.journal.wants_base:
                    break
            await self._rewrite()

    async def _rewrite(self) -> None:
        await self.journal.settle()
        base = SnapshotBase("p", 5, self.revision)
        await self.journal.rewrite(base)
        if not self.journal.wants_base:
            self.floor, self.has_gap = base.revision, False

    def on_step(self, what: str) -> None:
        """What a cut just here leaves; and somebody may append, whatever the disk is about, or all may end here."""
        if self.is_busy:
            return
        self.is_busy = True
        self.steps += 1
        self._check(self.disk.kept(self.rng), what)
        is_of_the_loop = what.startswith("write") or self.journal.wants_base
        if not is_of_the_loop and self.rng.random() < 0.3:
            self._note()
        self.is_busy = False
        self.left -= 1
        if self.left < 0:
            self._kill()
            raise Killed
        if self.is_full:
            raise OSError(errno.ENOSPC, "no space left")

    def _read(self, image: Image) -> int | None:
        which = frozenset(image.items())
        if which not in self.known:
            self.known[which] = self._read_anew(image)
        return self.known[which]

    def _read_anew(self, image: Image) -> int | None:
        folder = self.scratch / f"{self.steps}-{self.rng.random()}"
        folder.mkdir()
        write(image, folder)
        journal = Journal(folder / STATE)
        restored = journal.restore("p")
        journal.close()
        return newest(restored)

    def _check(self, image: Image, what: str) -> None:
        found, promised = self._read(image), self._promised()
        if found is None:
            self.wrong.append(f"a state that never was, before {what}: {image}")
        elif found < promised:
            self.wrong.append(f"{found} instead of {promised} at least, before {what}: {image}")


def newest(restored: Restored | None) -> int | None:
    """The newest revision of what a boot found; 0: it found nothing; None: what it found was never so."""
    if restored is None:
        return 0
    entries = (one.revision for one in restored.entries if isinstance(one, AdaptersChanged))
    revisions = [restored.base.revision, *entries]
    return max(revisions) if all(later <= former + 1 for former, later in pairwise(revisions)) else None


@pytest.mark.parametrize("first", range(0, JOURNAL_SEEDS, PIECE))
def test_what_a_cut_leaves_of_a_snapshot_was_once_true_and_is_no_older_than_a_moment(first):
    """R1, R2, R12: at each step of the journal, also while something is appended, and over kills and cuts before."""
    for seed in range(first, first + PIECE):
        with memory_folder() as root, closing(slow_disk_loop(random.Random(seed))) as loop:
            (Path(root) / "disk" / "state").mkdir(parents=True)
            (Path(root) / "scratch").mkdir()
            disk = SimDisk(Path(root) / "disk")
            lives = JournalLives(random.Random(seed), disk, Path(root) / "scratch")
            disk.on_step = lives.on_step
            with plugged_in([disk]):
                loop.run_until_complete(lives.play())
            assert lives.wrong[:1] == [], f"seed {seed}"
            assert lives.steps > 20


@dataclass(frozen=True)
class StoreCut:
    """What a cut at one moment left of a store, and what it had to leave; `hurt` is what somebody else damages."""

    what: str
    image: Image
    promised: frozenset[str]
    hurt: str
    has_key: bool


class StoreScene:
    """Two replicas of one host bring, give and take artifacts; each step of the disk is a moment for cuts."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        for name in ("disk", "sources", "scratch"):
            (root / name).mkdir()
        self.root, self.rng = root, rng
        self.disk = SimDisk(root / "disk")
        self.cuts: list[StoreCut] = []
        self.digests: dict[str, str] = {}
        self.promised: set[str] = set()
        self.has_key, self.hurt = False, ""
        self.refs = [self._ref(seed) for seed in range(3)]

    def _ref(self, seed: int) -> ArtifactRef:
        adapter = write_adapter(self.root / f"sources/s{seed}", seed=seed)
        return ArtifactRef(adapter.uri, adapter.digest if seed else None, pin_key=f"p/a{seed}@1")

    def open(self, replica: str, root: Path | None = None) -> LocalStore:
        """A replica's store; r2 has another base, for which each adapter is written anew."""
        sources, base = [(self.root / "sources").as_uri()], BASE if replica == "r2" else None
        root, examiner = root or self.disk.root, InProcessExaminer()
        return LocalStore(
            root,
            replica,
            sources,
            engine=ReadingEngine(base=base),
            limits=StoreLimits(grace_seconds=0.0),
            examiner=examiner,
        )

    def note(self, what: str) -> None:
        """What a cut just here would leave."""
        for _ in range(2):
            told = frozenset(self.promised), self.hurt, self.has_key
            self.cuts.append(StoreCut(what, self.disk.kept(self.rng), *told))

    async def play(self) -> None:
        stores = [self.open("r1"), self.open("r2")]
        self.has_key = True
        self.note("opened")
        for ref in self.refs:
            for store in stores:
                await self._ensure(store, ref)
        for store in stores:
            await self._let_go(store, self.refs[self.rng.randrange(3)])
        for ref in self.refs:
            await self._ensure(stores[1], ref)
        await self._put_back(stores[1], self.refs[0])
        self.note("the end")
        for store in stores:
            store.close()

    async def _ensure(self, store: LocalStore, ref: ArtifactRef) -> Path:
        path = Path((await store.ensure(ref)).path)
        assert self.digests.setdefault(path.name, digest_of(path)) == digest_of(path)
        self.promised.add(path.name)
        self.note(f"has {path.name}")
        return path

    async def _let_go(self, store: LocalStore, ref: ArtifactRef) -> None:
        staged = await store.ensure(ref)
        self.promised.discard(Path(staged.path).name)
        assert store.let_go({staged.id}) == {staged.id}
        await asyncio.to_thread(sweep, store)
        assert staged.id not in store._layout.staged_ids()

    async def _put_back(self, store: LocalStore, ref: ArtifactRef) -> None:
        """Somebody removed a file of what an engine reads."""
        path = await self._ensure(store, ref)
        self.promised.discard(path.name)
        self.hurt = path.name
        (path / "adapter_config.json").unlink()
        assert not store.is_intact(str(path))
        assert await self._ensure(store, ref) == path
        self.hurt = ""

    def found(self, cut: StoreCut) -> str:
        """What is wrong of what a cut left; empty: nothing."""
        files: dict[str, list[FileEntry]] = {}
        for name, kept in cut.image.items():
            match Path(name).parts:
                case ("adapters", directory):
                    files[directory] = []
                case ("adapters", directory, file) if kept.content is not None:
                    sha256 = hashlib.sha256(kept.content).hexdigest()
                    files[directory].append(FileEntry(file, len(kept.content), sha256))
        for directory, entries in files.items():
            if directory != cut.hurt and manifest_digest(entries) != self.digests[directory]:
                return f"{directory} has its name, and is not whole"
        if lost := cut.promised - files.keys():
            return f"{sorted(lost)} were there, and are not"
        key = cut.image.get("key")
        if cut.has_key and (key is None or key.content != (self.disk.root / "key").read_bytes()):
            return "the key is lost"
        return ""

    async def goes_on(self, cut: StoreCut) -> None:
        """Whoever starts with it comes to the same, and what he has then is taken out by nobody else."""
        root = Path(tempfile.mkdtemp(dir=self.root / "scratch"))
        write(cut.image, root)
        first, second = self.open("r1", root), self.open("r2", root)
        for ref in self.refs:
            staged = [await store.ensure(ref) for store in (first, second)]
            await asyncio.to_thread(sweep, second)
            for one in staged:
                assert digest_of(Path(one.path)) == self.digests[Path(one.path).name]
        assert [path.name for path in (root / "tmp").iterdir() if not path.name.startswith(".")] == []
        for store in (first, second):
            store.close()


def sweep(store: LocalStore) -> None:
    """One round of maintenance, and the removal of all that no lease protects."""
    store.maintenance.round(Stop())
    store.maintenance.collector.collect(1 << 40, Stop())


@pytest.mark.parametrize("seed", range(STORE_SEEDS))
def test_what_a_cut_leaves_of_a_store_is_whole_or_not_there(seed):
    """R4, R7, R12, R21: at each step of what brings, gives up, removes and puts back artifacts; and all goes on."""
    with memory_folder() as root:
        scene = StoreScene(Path(root), random.Random(seed))
        scene.disk.on_step = scene.note
        with plugged_in([scene.disk]):
            asyncio.run(scene.play())
        assert [(found, cut.what) for cut in scene.cuts if (found := scene.found(cut))][:1] == []
        for cut in scene.rng.sample(scene.cuts, 20):
            asyncio.run(scene.goes_on(cut))


@dataclass
class SmallFiles:
    """What a replica writes beside its journal: `may_be` says what a boot may find of each just now."""

    rng: random.Random
    disk: SimDisk
    scratch: Path
    ledger: list[dict[str, str]] = field(default_factory=lambda: [{}])
    told: list[Mapping[str, Declined]] = field(default_factory=lambda: [{}])
    wrong: list[str] = field(default_factory=list)
    steps: int = 0

    async def play(self) -> None:
        ledger, teller = LoadLedger(self.disk.root), DeclineTeller(mock.Mock(), self.disk.root)
        for number in range(12):
            name, had = self.rng.choice("ab"), dict(ledger.of("p1"))
            with_it = had | {name: f"/{number}"}
            without = {one: path for one, path in had.items() if one != name}
            if self.rng.random() < 0.6:
                self.ledger = [had, with_it]
                outcome = self.rng.choice((Done(), Refused("?")))
                await ledger.recording("p1", name, f"/{number}", partial(self._load, had, with_it, outcome))
            else:
                self.ledger = [had, without]
                await ledger.forget("p1", name)
            self.ledger = [dict(ledger.of("p1"))]
            self._tell(teller, f"r{number}")

    async def _load(self, had: dict[str, str], with_it: dict[str, str], outcome: Outcome) -> Outcome:
        self.ledger = [with_it]
        self.look("the call of the engine")
        self.ledger = [with_it] if isinstance(outcome, Done) else [with_it, had]
        return outcome

    def _tell(self, teller: DeclineTeller, by: str) -> None:
        declines = {"too_large": ReportedDeclines(by=by, adapters=["a" * self.rng.randint(1, 60)])}
        self.told.append(declined_of(declines))
        teller._remember(RememberedDeclines(declines=declines))

    def look(self, what: str) -> None:
        self.steps += 1
        for number in range(3):
            folder = self.scratch / f"{self.steps}-{number}"
            folder.mkdir()
            write(self.disk.kept(self.rng), folder)
            teller = DeclineTeller(mock.Mock(), folder)
            teller.restore()
            found = dict(LoadLedger(folder).of("p1"))
            if found not in self.ledger or teller.told not in self.told:
                self.wrong.append(f"{found} instead of {self.ledger}, {teller.told}, before {what}")


@pytest.mark.parametrize("seed", range(SMALL_SEEDS))
def test_what_a_cut_leaves_of_a_ledger_is_what_the_engine_may_have(seed):
    """R4, R12: recorded before the engine is called; of what is not synced, such as declines, one of those told."""
    with memory_folder() as root, closing(VirtualLoop()) as loop:
        for name in ("disk", "scratch"):
            (Path(root) / name).mkdir()
        disk = SimDisk(Path(root) / "disk")
        files = SmallFiles(random.Random(seed), disk, Path(root) / "scratch")
        disk.on_step = files.look
        with plugged_in([disk]):
            loop.run_until_complete(files.play())
        assert files.wrong[:1] == []
        assert files.steps > 50
