"""What is said of handing over holds as long as it is asked for, and no longer."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from registry.etcd3.errors import EtcdError
from registry.etcd3.ops import Put, Range, RangeResult, Txn, TxnResult, prefix_end
from registry.model.records import Placement
from registry.model.status import ReplicaStatus
from sidecar.desired.mailbox import Mailbox, Snapshot
from sidecar.desired.placement import MembershipDigest, PlacementSpec
from sidecar.plan.handoff import Handoff, Taken
from sidecar.report.handoff_watch import HandoffWatch
from tests.simulation.loop import virtual
from tests.support.memory_etcd import MemoryEtcd
from tests.support.records import KEYS, POOL, record
from tests.support.residency_world import LEASE, presence, replica_status
from tests.support.waiting import eventually

AMONG = MembershipDigest("m", "w")
ONE_REPLICA = PlacementSpec(Placement(replicas=1), frozenset())


class Client:
    """Reads a store in memory, once `gate` is open; `error` is raised instead, if there is one."""

    def __init__(self, store: MemoryEtcd) -> None:
        self._store = store
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = self.largest = self.read_whole = 0
        self.error: Exception | None = None
        self.listed = 0

    async def list_prefix(self, prefix: bytes) -> RangeResult:
        self.listed += 1
        result = self._store.txn(Txn((), (Range(prefix, prefix_end(prefix)),)))
        (found,) = result.responses
        assert isinstance(found, RangeResult)
        return found

    async def txn(self, txn: Txn) -> TxnResult:
        self.asked += 1
        assert self.asked < 10_000, "it asks without a pause"
        self.largest = max(self.largest, len(txn.success))
        of_records = [op for op in txn.success if isinstance(op, Range) and op.key.startswith(KEYS.adapters(POOL))]
        self.read_whole += sum(not op.keys_only for op in of_records)
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return self._store.txn(txn)


class Scene:
    """A replica that hands an adapter over to r2, which serves it."""

    def __init__(self) -> None:
        self.store = MemoryEtcd()
        self.mailbox = Mailbox()
        self.mailbox.post(Snapshot(connected=True))
        self.client = Client(self.store)
        revision = self.store.put(KEYS.adapter(POOL, "a"), record("a").to_bytes())
        self.leaving = Handoff("a", "a", revision, 1, pinned=True, terms=ONE_REPLICA, owners=("r2",), among=AMONG)
        self.say(serving(revision), LEASE)
        self.handoff_watch = HandoffWatch(self.client, KEYS, POOL, self.mailbox)  # type: ignore[arg-type]

    def say(self, status: ReplicaStatus, lease: int) -> None:
        """What r2 says, whose presence stands under `LEASE`."""
        puts = Put(KEYS.replica(POOL, "r2"), b"", LEASE), Put(KEYS.status(POOL, "r2"), status.to_bytes(), lease)
        self.store.txn(Txn((), puts))

    @property
    def is_taken(self) -> bool:
        return isinstance(self.handoff_watch.verdicts().get(self.leaving), Taken)


def serving(revision: int) -> ReplicaStatus:
    return replica_status("r2", revision, members=AMONG.members, weights=AMONG.weights)


@pytest.fixture
async def scene(monkeypatch):
    monkeypatch.setattr("sidecar.report.handoff_watch.ASK_SECONDS", 0.01)
    scene = Scene()
    running = asyncio.create_task(scene.handoff_watch.run())
    yield scene
    running.cancel()
    await asyncio.wait([running])


async def test_what_was_taken_over_once_is_asked_for_anew_the_next_time(scene):
    """R3 converge: whoever took it over may have gone since, and come back without it."""
    scene.handoff_watch.follow([scene.leaving])
    await eventually(lambda: scene.is_taken)
    scene.handoff_watch.follow([])
    assert scene.handoff_watch.verdicts() == {}
    scene.store.delete(KEYS.status(POOL, "r2"))
    scene.handoff_watch.follow([scene.leaving])
    await eventually(scene.handoff_watch.verdicts)
    assert not scene.is_taken


async def test_a_fault_of_our_own_is_no_fault_of_etcd(scene):
    """R12: the supervisor tells it."""
    scene.client.error = ValueError("ours")
    scene.handoff_watch.follow([scene.leaving])
    with pytest.raises(ValueError, match="ours"):
        await scene.handoff_watch.run()


async def test_who_takes_over_what_labels_place_is_whoever_has_them_now(scene):
    """R20 drain, R3: who that is nobody can say beforehand."""
    terms = PlacementSpec(Placement(selector={"gpu": "a10"}), frozenset({("gpu", "a10")}))
    for name in ("r2", "silent"):
        told = presence(name, labels={"gpu": "a10"}).to_bytes()
        scene.store.txn(Txn((), (Put(KEYS.replica(POOL, name), told, LEASE),)))
    known = scene.leaving
    scene.leaving = replace(scene.leaving, terms=terms, owners=None)
    for others in ([], [known]):
        scene.handoff_watch.follow([scene.leaving, *others])
        await eventually(lambda: scene.is_taken)
        scene.handoff_watch.follow([])


async def test_an_answer_that_comes_too_late_is_forgotten(scene):
    """R3: it is about a time at which the engine still listed what it does not any more."""
    scene.client.gate.clear()
    scene.handoff_watch.follow([scene.leaving])
    await eventually(lambda: scene.client.asked)
    scene.handoff_watch.follow([])
    scene.client.gate.set()
    for _ in range(10):
        await asyncio.sleep(0)
    assert scene.handoff_watch.verdicts() == {}


async def test_what_is_said_of_a_record_that_changes_meanwhile_proves_nothing(scene):
    """R24: a status may be about the record that came while it was read."""
    txn = scene.client.txn

    async def changing(one: Txn) -> TxnResult:
        if any(op.key == KEYS.status(POOL, "r2") for op in one.success):
            revision = scene.store.put(KEYS.adapter(POOL, "a"), record("a", 2).to_bytes())
            scene.say(serving(revision), LEASE)
        return await txn(one)

    scene.client.txn, told = changing, list[bool]()
    scene.mailbox.wake = lambda: told.append(scene.is_taken)
    scene.handoff_watch.follow([scene.leaving])
    await eventually(lambda: told)
    assert not any(told)


@pytest.mark.parametrize("lease", [0, LEASE + 1])
async def test_only_a_status_under_the_lease_of_its_presence_counts(scene, lease):
    """R9 status-truth: an earlier process of the other replica may have written it, or somebody who is none.

    Nor does one that cannot be read, and that is told.
    """
    with capture_logs() as logs:
        scene.store.txn(Txn((), (Put(KEYS.status(POOL, "r2"), b"?", LEASE),)))
        scene.handoff_watch.follow([scene.leaving])
        await eventually(scene.handoff_watch.verdicts)
    assert not scene.is_taken
    assert {log["replica"] for log in logs if log["event"] == "status_unreadable"} == {"r2"}
    scene.handoff_watch.follow([])
    scene.say(serving(scene.leaving.revision), lease)
    scene.handoff_watch.follow([scene.leaving])
    await eventually(scene.handoff_watch.verdicts)
    assert not scene.is_taken
    scene.say(serving(scene.leaving.revision), LEASE)
    await eventually(lambda: scene.is_taken)


@pytest.mark.parametrize("trouble", ["error", "disconnected", "held"])
async def test_nothing_is_said_while_etcd_cannot_be_asked_or_believed(scene, trouble):
    """R13, R15: what was true a moment ago may have ended where nobody could tell us."""
    scene.handoff_watch.follow([scene.leaving])
    await eventually(lambda: scene.is_taken)
    match trouble:
        case "error":
            scene.client.error = EtcdError("no answer")
        case "disconnected":
            scene.mailbox.post(Snapshot())
        case "held":
            scene.mailbox.post(Snapshot(connected=True, held="the store was replaced"))
    await eventually(lambda: not scene.handoff_watch.verdicts())


async def test_others_are_those_who_live_and_do_not_leave(scene):
    """R20 drain: a replica that leaves relies on none that leaves too, and on nobody by a presence alone.

    Nor on itself, whose presence says only a moment later that it leaves.
    """
    for name, leaving, lease, changes in (
        ("ready", False, LEASE, {}),
        ("this", False, LEASE, {}),
        ("starting", False, LEASE, {"ready": False}),
        ("stale", False, LEASE, {"stale": True}),
        ("earlier", False, LEASE + 1, {}),
        ("leaving", True, LEASE, {}),
    ):
        told = presence(name, labels={"name": name}, leaving=leaving).to_bytes()
        status = serving(1).model_copy(update={"replica": name, **changes}).to_bytes()
        puts = Put(KEYS.replica(POOL, name), told, LEASE), Put(KEYS.status(POOL, name), status, lease)
        scene.store.txn(Txn((), puts))
    told = presence("broken", labels={"name": "broken"}).to_bytes()
    puts = Put(KEYS.replica(POOL, "broken"), told, LEASE), Put(KEYS.status(POOL, "broken"), b"?", LEASE)
    scene.store.txn(Txn((), puts))
    found = {one.labels["name"]: one.ready for one in await scene.handoff_watch.others("this")}
    assert found == {"ready": True, "starting": False, "stale": False, "broken": False}


@virtual
async def test_others_are_asked_at_once_and_then_once_a_second_and_what_they_took_over_stays_for_two_seconds():
    """R20, R9, R16 bounded: routers hear of it within that time; and etcd is not pressed.

    R3 converge: whoever plans is woken by a verdict that is news, and by no other.
    """
    scene, now = Scene(), asyncio.get_running_loop().time
    running = asyncio.create_task(scene.handoff_watch.run())
    await asyncio.sleep(5.0)
    assert scene.client.asked == 0, "nothing is handed over"
    began = now()
    scene.handoff_watch.follow([scene.leaving])
    news: list[float] = []
    scene.mailbox.wake = lambda: news.append(now() - began)  # type: ignore[method-assign]
    await asyncio.sleep(0.5)
    assert scene.handoff_watch.verdicts() == {scene.leaving: Taken(routers_know=False)}
    each = scene.client.asked
    await asyncio.sleep(9.0)
    assert scene.client.asked == 10 * each
    assert scene.handoff_watch.verdicts() == {scene.leaving: Taken()}
    assert news == [pytest.approx(0.0, abs=0.01), pytest.approx(2.0, abs=0.01)]
    assert scene.client.listed == 0, "it is known who takes over; nobody's labels are read"
    scene.handoff_watch.follow([])
    await asyncio.sleep(5.0)
    assert scene.client.asked == 10 * each, "nothing is handed over any more"
    assert not running.done()
    running.cancel()


async def test_many_are_asked_for_in_transactions_that_etcd_takes(scene):
    """R16 bounded: it takes 128 operations unless it is told otherwise; and none of them is forgotten."""
    names = [f"n{number:03}" for number in range(250)]
    many = []
    for name in names:
        revision = scene.store.put(KEYS.adapter(POOL, name), record(name).to_bytes())
        many.append(replace(scene.leaving, key=name, name=name, revision=revision))
    scene.say(serving(revision), LEASE)
    scene.handoff_watch.follow(many)
    await eventually(lambda: len(scene.handoff_watch.verdicts()) == len(many))
    assert {type(one) for one in scene.handoff_watch.verdicts().values()} == {Taken}
    assert 64 < scene.client.largest <= 128, "nor one by one"
    assert scene.client.read_whole == 0, "of a record only its revision is asked for"
    scene.store.delete(KEYS.adapter(POOL, "n007"))
    gone, stays = many[7], many[8]
    await eventually(lambda: not isinstance(scene.handoff_watch.verdicts()[gone], Taken))
    await eventually(lambda: isinstance(scene.handoff_watch.verdicts()[stays], Taken))
