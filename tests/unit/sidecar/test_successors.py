"""What is said of handing over holds as long as it is asked for, and no longer."""

from __future__ import annotations

import asyncio

import pytest

from registry.etcd3.errors import EtcdError
from registry.etcd3.ops import Range, RangeResult, Txn, TxnResult
from registry.model.status import EngineStatus, ReplicaStatus, Served
from sidecar.inputs import Inputs
from sidecar.leaving import Leaving, Taken
from sidecar.placings import Among
from sidecar.successors import Successors
from tests.support.memory_etcd import MemoryEtcd
from tests.support.records import KEYS, POOL, record
from tests.support.waiting import eventually

AMONG = Among("m", "w")


class Client:
    """Reads a store in memory, once `gate` is open; `error` is raised instead, if there is one."""

    def __init__(self, store: MemoryEtcd) -> None:
        self._store = store
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = 0
        self.error: EtcdError | None = None

    async def range(self, op: Range) -> RangeResult:
        self.asked += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        (found,) = self._store.txn(Txn((), (op,))).responses
        assert isinstance(found, RangeResult)
        return found

    async def txn(self, txn: Txn) -> TxnResult:
        return self._store.txn(txn)


class Scene:
    """A replica that hands an adapter over to r2, which serves it."""

    def __init__(self) -> None:
        self.store = MemoryEtcd()
        self.inputs = Inputs()
        self.inputs.connected = True
        self.client = Client(self.store)
        revision = self.store.put(KEYS.adapter(POOL, "a"), record("a").to_bytes())
        self.leaving = Leaving("a", "a", revision, frozenset(), ("r2",), AMONG)
        self.store.put(KEYS.status(POOL, "r2"), serving(revision).to_bytes())
        self.successors = Successors(self.client, KEYS, POOL, self.inputs)  # type: ignore[arg-type]

    @property
    def is_taken(self) -> bool:
        return self.inputs.handed == {self.leaving: Taken()}


def serving(revision: int) -> ReplicaStatus:
    engine = EngineStatus(kind="vllm", version="", url="", base_models=["base"], incarnation="e1")
    return ReplicaStatus(
        replica="r2",
        pool=POOL,
        engine=engine,
        observed_revision=revision,
        ready=True,
        stale=False,
        served=Served(count=1, hash=""),
        pending=[],
        failed=[],
        members=AMONG.members,
        weights=AMONG.weights,
        updated_at="",
    )


@pytest.fixture
async def scene(monkeypatch):
    monkeypatch.setattr("sidecar.successors.ASK_SECONDS", 0.01)
    scene = Scene()
    running = asyncio.create_task(scene.successors.run())
    yield scene
    running.cancel()
    await asyncio.wait([running])


async def test_what_was_taken_over_once_is_asked_for_anew_the_next_time(scene):
    """R3 converge: whoever took it over may have gone since, and come back without it."""
    scene.successors.follow([scene.leaving])
    await eventually(lambda: scene.is_taken)
    scene.successors.follow([])
    assert scene.inputs.handed == {}
    scene.store.delete(KEYS.status(POOL, "r2"))
    scene.successors.follow([scene.leaving])
    await eventually(lambda: scene.inputs.handed)
    assert not scene.is_taken


async def test_an_answer_that_comes_too_late_is_forgotten(scene):
    """R3: it is about a time at which the engine still listed what it does not any more."""
    scene.client.gate.clear()
    scene.successors.follow([scene.leaving])
    await eventually(lambda: scene.client.asked)
    scene.successors.follow([])
    scene.client.gate.set()
    for _ in range(10):
        await asyncio.sleep(0)
    assert scene.inputs.handed == {}


@pytest.mark.parametrize("trouble", ["error", "disconnected", "held"])
async def test_nothing_is_said_while_etcd_cannot_be_asked_or_believed(scene, trouble):
    """R13, R15: what was true a moment ago may have ended where nobody could tell us."""
    scene.successors.follow([scene.leaving])
    await eventually(lambda: scene.is_taken)
    match trouble:
        case "error":
            scene.client.error = EtcdError("no answer")
        case "disconnected":
            scene.inputs.connected = False
        case "held":
            scene.inputs.held = "the store was replaced"
    await eventually(lambda: not scene.inputs.handed)
