"""A real sidecar beside the strange engine, on virtual time: how it fares with each behaviour, and for how long.

As a program: writes the table of bounds into docs/faults.md.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from registry.model.names import PROOF_PREFIX
from registry.model.records import AdapterSpec, PoolSpec, SourceSpec
from registry.model.status import ReplicaStatus
from sidecar.engines.vllm.http import VllmHttp
from tests.faults.behaviours import ALWAYS, BEHAVIOURS, Behaviour
from tests.faults.strange_engine import BASE, StrangeEngine
from tests.simulation.artifacts import ROOT, path_of
from tests.simulation.checks import Sample
from tests.simulation.history import POOL
from tests.simulation.simulation import play_by_hand
from tests.simulation.world import KEYS, World
from tests.support.records import written

MOMENTS = ("boot", "idle", "change")
SECONDS = (0.1, 5.0, 60.0)
BEFORE = {"a0": "good0", "a1": "good1", "a2": "good2", "a3": "good3"}
# One is new, one has other weights, and one goes.
AFTER = {"a0": "good0", "a1": "good9", "a3": "good3", "a4": "good4"}
TICK_SECONDS = 0.05
LONGEST_SECONDS = 200.0
# Longer than a look is old.
CALM_SECONDS = 20.0
PAGE = Path(__file__).parents[2] / "docs" / "faults.md"
BEGIN, END = "<!-- bounds: made by make docs -->", "<!-- end of bounds -->"
# Its world has one replica and one etcd member, and no plugin in its engine.
SEED = 29


@dataclass
class Course:
    """How it went.

    Attributes:
        heals: seconds from the behaviour's end until all was well, and said to be.
        told: seconds from its beginning after which the replica was not ready any more while it lasted.
        was_out: a replica that was ready was not, at some time.
        too_early: it was ready before its engine ever had all adapters.
        was_ready: the replica was ready when it began.
        struck: whether the behaviour befell anything.
        strangers: calls for names that nobody desires, but for unloads of what is listed.
        calls: how many loads and unloads it made.
        serves: seconds from its beginning until all was well, and stayed so while it lasted; infinite: never.
    """

    heals: float = LONGEST_SECONDS
    told: float = 0.0
    was_out: bool = False
    too_early: bool = False
    was_ready: bool = False
    struck: bool = True
    strangers: list[tuple[str, str]] = field(default_factory=list)
    calls: int = 0
    serves: float = math.inf


class Pipe:
    """A connection's one direction in memory: a writer, and below it the reader of the other side."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._is_over = False

    @property
    def transport(self) -> Pipe:
        return self

    def write(self, data: bytes) -> None:
        if not self._is_over:
            self._reader.feed_data(data)

    async def drain(self) -> None:
        return

    def close(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._reader.feed_eof()

    def abort(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._reader.set_exception(ConnectionResetError("reset"))


@contextmanager
def reachable(engine: StrangeEngine) -> Iterator[None]:
    """Connects the driver's real HTTP to the engine."""
    tasks: set[asyncio.Task[None]] = set()

    async def connect(_host: str, _port: int, *, ssl: object) -> tuple[asyncio.StreamReader, Pipe]:
        assert ssl is None
        await asyncio.sleep(0.0005)
        if engine.gone:
            raise ConnectionRefusedError("refused")
        ours, theirs = asyncio.StreamReader(), asyncio.StreamReader()
        task = asyncio.get_running_loop().create_task(engine.serve(theirs, Pipe(ours)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return ours, Pipe(theirs)

    with (
        mock.patch("sidecar.engines.vllm.driver.VllmHttp", VllmHttp),
        mock.patch("asyncio.open_connection", connect),
    ):
        yield


class Scene:
    """One replica of a world, beside the strange engine."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.host = world.replicas[0]
        self.engine = StrangeEngine()
        self.engine.on_listed = self._note
        self.wanted: dict[str, str] = {}
        self.listed: set[str] = set()
        self._generations: dict[str, int] = {}
        world.store.put(KEYS.pool(POOL), PoolSpec(name=POOL, base_models=[BASE]).to_bytes())

    def _note(self, incarnation: str, adapters: dict[str, str]) -> None:
        """For the check that no status says more than the engine did (R9)."""
        self.listed |= adapters.keys()
        self._world.checks.samples[self.host.name].append(Sample(now(), "listed", incarnation, adapters))

    @property
    def unloads(self) -> set[tuple[str, str]]:
        """Unloads of what was listed."""
        return {("unload", name) for name in self.listed}

    def desire(self, sources: dict[str, str]) -> None:
        """Makes this the desired state."""
        for name, source in sources.items():
            if self.wanted.get(name) != source:
                self._generations[name] = self._generations.get(name, 0) + 1
                spec = AdapterSpec(source=SourceSpec(uri=f"{ROOT}{source}"))
                record = written(name, spec, self._generations[name])
                self._world.store.put(KEYS.adapter(POOL, name), record.to_bytes())
        for name in self.wanted.keys() - sources.keys():
            self._world.store.delete(KEYS.adapter(POOL, name))
        self.wanted = dict(sources)

    def start(self) -> None:
        self._world.start(self.host)

    @property
    def is_ready(self) -> bool:
        return self._world.checks.said_ready.get(self.host.name, False)

    @property
    def has_all(self) -> bool:
        """True if the engine has what is desired."""
        return all(
            self.engine.adapters.get(name) == path_of(self.host.name, source) for name, source in self.wanted.items()
        )

    @property
    def is_well(self) -> bool:
        """True if the engine has exactly what is desired, but for what is others', and the replica says so."""
        kv = self._world.store.kvs.get(KEYS.status(POOL, self.host.name))
        status = None if kv is None else ReplicaStatus.parse(kv.value)
        ours = [path for path in self.engine.adapters.values() if self.host.place.store.owns(path)]
        return (
            status is not None
            and self.has_all
            and len(ours) == len(self.wanted)
            and self.is_ready
            and status.ready
            and status.served.count == len(self.wanted)
            and not (status.pending or status.failed or status.degraded or status.stale)
        )


def now() -> float:
    return asyncio.get_running_loop().time()


def broken(behaviour: Behaviour, seconds: float, course: Course) -> list[str]:
    """The bounds of a behaviour that were not kept."""
    told = behaviour.told
    found = {
        f"healed after {course.heals:.1f} s, promised are {behaviour.heals:g}": course.heals > behaviour.heals,
        f"ready for {course.told:.1f} s, promised are {told}": told is not None and course.told > told + TICK_SECONDS,
        "a ready replica was taken out": course.was_ready and course.was_out and seconds <= behaviour.stays,
        "ready before its engine had what it should": course.too_early and not behaviour.is_ours,
        f"calls for what nobody desires: {course.strangers}": bool(course.strangers),
        f"{course.calls} loads and unloads, promised are {behaviour.calls}": course.calls > behaviour.calls,
        f"not served after {behaviour.serves} s of it": _is_left_out(behaviour, seconds, course),
    }
    return [what for what, is_broken in found.items() if is_broken]


def _is_left_out(behaviour: Behaviour, seconds: float, course: Course) -> bool:
    return behaviour.serves is not None and behaviour.serves < min(seconds, course.serves)


def play(behaviour: Behaviour, moment: str, seconds: float) -> Course:
    """Lets the engine misbehave so at that moment, and for so long."""
    courses: list[Course] = []

    async def work(world: World) -> None:
        scene = Scene(world)
        with reachable(scene.engine):
            courses.append(await _course(scene, behaviour, moment, seconds))
        assert world.checks.violations == []

    play_by_hand(SEED, work)
    return courses[0]


async def _until(is_so: Callable[[], bool], each: Callable[[], None] = lambda: None) -> float:
    """Waits until something is so, and looks at it now and then; gives the seconds."""
    begun = now()
    while not is_so() and now() - begun < LONGEST_SECONDS:
        await asyncio.sleep(TICK_SECONDS)
        each()
    return now() - begun


async def _course(scene: Scene, behaviour: Behaviour, moment: str, seconds: float) -> Course:
    await _come_to(scene, moment)
    course, engine = Course(was_ready=scene.is_ready), scene.engine

    def note() -> None:
        course.was_out = course.was_out or (course.was_ready and not scene.is_ready)

    made = len(engine.calls)
    behaviour.start(engine)
    if moment == "boot":
        scene.start()
    await _last(scene, behaviour, seconds, course, note)
    behaviour.finish(engine)
    course.struck = behaviour.rule is None or engine.struck > 0
    course.heals = await _until(lambda: scene.is_well, note)
    course.calls = len(engine.calls) - made
    names = {*BEFORE, *AFTER, ""}
    called = (call for call in engine.calls if not call[1].startswith(PROOF_PREFIX))
    course.strangers = [call for call in called if call[1] not in names and call not in scene.unloads]
    return course


async def _come_to(scene: Scene, moment: str) -> None:
    scene.desire(BEFORE)
    if moment == "boot":
        return
    scene.start()
    assert await _until(lambda: scene.is_well) < LONGEST_SECONDS, "without any fault"
    await asyncio.sleep(CALM_SECONDS)
    if moment == "change":
        made = len(scene.engine.calls)
        scene.desire(AFTER)
        while len(scene.engine.calls) == made:  # noqa: ASYNC110 - the engine tells nobody
            await asyncio.sleep(0.01)


async def _last(scene: Scene, behaviour: Behaviour, seconds: float, course: Course, note: Callable[[], None]) -> None:
    """Lets it last for so long."""
    begun, had_all = now(), False
    due = begun + behaviour.every
    while now() - begun < seconds:
        await asyncio.sleep(min(TICK_SECONDS, seconds))
        if behaviour.every and now() >= due:
            behaviour.begin(scene.engine)
            due += behaviour.every
        had_all = had_all or scene.has_all
        course.serves = min(course.serves, now() - begun) if scene.is_well else math.inf
        if scene.is_ready:
            course.told = now() - begun
            course.too_early = course.too_early or not (course.was_ready or had_all)
        note()


def table() -> str:
    """The table of bounds in docs/faults.md."""
    rows = "\n".join(_row(one) for one in BEHAVIOURS)
    return (
        f"{BEGIN}\n| the engine | stays ready | told within | served meanwhile within | served again within |\n"
        f"|---|---|---|---|---|\n{rows}\n{END}"
    )


def _row(one: Behaviour) -> str:
    stays = "always" if one.stays == ALWAYS else f"for {one.stays:g} s" if one.stays else ""
    told = "" if one.told is None else f"{one.told:g} s"
    serves = "" if one.serves is None else f"{one.serves:g} s"
    return f"| {one.name} | {stays} | {told} | {serves} | {one.heals:g} s |"


def main() -> None:
    """The program."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + table() + rest.partition(END)[2])


if __name__ == "__main__":
    main()
