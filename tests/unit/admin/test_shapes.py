"""Fingerprints of large base models: whose are found in a child, how long that may take, and what is kept."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator

import pytest

from registry.access.principal import ANONYMOUS
from registry.admin.rpc import shapes
from registry.admin.rpc.calls import CallContext
from registry.admin.rpc.shapes import ShapesWorker
from registry.model.errors import Reason, Unavailable
from registry.runtime.clock import Deadline
from registry.v1 import registry_pb2 as pb
from tests.simulation.loop import virtual

SHAPE = (8, 8)


class Defect(Exception):
    """A fault of ours."""


class Child:
    """A process that finds one fingerprint, in so many seconds; or ends otherwise."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.returncode: int | None = None
        self.ended: list[str] = []

    async def communicate(self, modules: bytes) -> tuple[bytes, None]:
        self._world.running += 1
        try:
            await asyncio.sleep(self._world.takes_seconds)
        finally:
            self._world.running -= 1
        if self._world.breaks:
            raise Defect
        self.returncode = self._world.code
        given = {pattern: tuple(shape) for pattern, shape in json.loads(modules).items()}
        self._world.asked.append(given)
        return f"found {len(self._world.asked)}".encode(), None

    def kill(self) -> None:
        self.ended.append("killed")

    async def wait(self) -> None:
        assert self.ended == ["killed"]
        self.ended.append("waited for")


class World:
    """Where children are made.

    Attributes:
        asked: what they were given.
        running: how many do at present.
    """

    def __init__(self) -> None:
        self.takes_seconds, self.code, self.breaks = 1.0, 0, False
        self.asked: list[dict[str, tuple[int, int]]] = []
        self.children: list[Child] = []
        self.running = self.most = 0

    async def make(self, *_: object, **__: object) -> Child:
        self.most = max(self.most, self.running + 1)
        self.children.append(Child(self))
        return self.children[-1]


@pytest.fixture
def world(monkeypatch) -> Iterator[World]:
    made = World()
    monkeypatch.setattr(asyncio, "create_subprocess_exec", made.make)
    return made


def request(*patterns: str) -> pb.CreatePoolRequest:
    modules = [pb.BaseModule(pattern=one, outputs=SHAPE[0], inputs=SHAPE[1]) for one in patterns]
    return pb.CreatePoolRequest(pool=pb.Pool(name="p", base=pb.BaseShapes(modules=modules)))


def large(number: int = 0) -> str:
    """A pattern of 2,001 modules."""
    return f"m{number}.{{1-2001}}.q"


def expected(part: str, numbers: range) -> str:
    """The fingerprint of modules with one number, as etcd has it."""
    modules = {f"{part}.{number}.q": list(SHAPE) for number in numbers}
    return f"sha256:{hashlib.sha256(json.dumps(modules, sort_keys=True, separators=(',', ':')).encode()).hexdigest()}"


async def prepare(worker: ShapesWorker, wanted: pb.CreatePoolRequest, seconds: float = 10.0, who: str = "a") -> None:
    await worker.prepare(wanted, CallContext("CreatePool", ANONYMOUS, Deadline.of(seconds), who, f"{who}:1"))


@pytest.mark.parametrize(
    ("pattern", "is_asked"),
    [
        ("m.{1-2000}.q", False),
        ("m.{1-2001}.q", True),
        ("m.{1-1000}.{1-200}.q", True),
        ("m.{1-1000}.{1-201}.q", False),
        ("m.{2-1}.q", False),
        ("m.q", False),
    ],
)
@virtual
async def test_only_what_would_hold_the_event_loop_is_found_in_a_child(world, pattern, is_asked):
    """X2 unbreakable: of what is far too much, or is none, validation tells."""
    worker = ShapesWorker()
    await prepare(worker, request(pattern))
    assert world.asked == ([{pattern: SHAPE}] if is_asked else [])
    if is_asked:
        assert worker.fingerprint_of({pattern: SHAPE}) == "found 1"


@virtual
async def test_the_oldest_is_forgotten_of_many(world, monkeypatch):
    """R16 bounded."""
    monkeypatch.setattr(shapes, "_KEPT", 3)
    worker = ShapesWorker()
    for _ in range(2):
        await prepare(worker, request(large()))
    assert (len(world.asked), world.children[0].ended) == (1, []), "what was found is kept"
    assert worker.fingerprint_of({"m.{0-3}.q": SHAPE}) == expected("m", range(4)), "the rest is found now"
    world.takes_seconds = 0.0
    for number in range(1, 4):
        await prepare(worker, request(large(number)))
    assert worker.fingerprint_of({large(1): SHAPE}) == "found 2"
    assert worker.fingerprint_of({large(3): SHAPE}) == "found 4"
    assert worker.fingerprint_of({large(0): SHAPE}) == expected("m0", range(1, 2002))


@virtual
async def test_children_run_one_after_another(world):
    """X2 unbreakable: the machine has other work; who waits too long is told so, and asks again."""
    worker = ShapesWorker()
    both = [asyncio.create_task(prepare(worker, request(large(number)), who=f"c{number}")) for number in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(Unavailable) as told:
        await prepare(worker, request(large(9)), 0.5, "hasty")
    assert (told.value.reason, len(world.children)) == (Reason.DEADLINE_EXCEEDED, 1)
    await asyncio.gather(*both)
    assert (world.most, asyncio.get_running_loop().time()) == (1, 3.0)


@virtual
async def test_a_child_that_comes_to_no_end_is_ended(world):
    """R16 bounded: with the time of the call."""
    world.takes_seconds = 1000.0
    with pytest.raises(Unavailable, match="too many modules") as told:
        await prepare(ShapesWorker(), request(large()), 5.0)
    assert (told.value.reason, asyncio.get_running_loop().time()) == (Reason.DEADLINE_EXCEEDED, 5.0)
    assert world.children[0].ended == ["killed", "waited for"]


@pytest.mark.parametrize("breaks", [True, False])
@virtual
async def test_a_child_that_ends_without_an_answer_is_no_fingerprint(world, breaks):
    """R12: killed by the kernel, say; a fault of ours is told as it is, and leaves no child behind."""
    world.code, world.breaks = -9, breaks
    worker = ShapesWorker()
    with pytest.raises(Defect if breaks else Unavailable) as told:
        await prepare(worker, request(large()))
    if isinstance(told.value, Unavailable):
        assert told.value.reason is Reason.ADMIN_UNAVAILABLE
    assert world.children[0].ended == (["killed", "waited for"] if breaks else [])
    world.code, world.breaks = 0, False
    await prepare(worker, request(large()))
    assert worker.fingerprint_of({large(): SHAPE}) == f"found {len(world.asked)}"
