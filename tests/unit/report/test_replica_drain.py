"""R20 drain: who begins and ends a drain of this replica, and how long it is needed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest import mock

import httpx
import pytest
import structlog
from prometheus_client import REGISTRY
from starlette.applications import Starlette

from registry.etcd3.errors import EtcdError, EtcdUnavailable
from registry.etcd3.ops import Event, KeyValue, RangeResult
from registry.etcd3.stream import Changed, ListCause, Listed, Reflection
from registry.model.status import DrainOrder, Presence
from registry.runtime.clock import Clock
from registry.runtime.http import HttpServer, listen
from sidecar.desired.mailbox import Mailbox, Snapshot
from sidecar.desired.placement import MembershipDigest
from sidecar.engines.driver import Engine
from sidecar.engines.observed import Done, Outcome, Unknown
from sidecar.plan.handoff import Handoff, HandoffVerdict, Need, OtherReplica, Stuck, Taken, Waiting
from sidecar.plan.types import Plan, RoundReport, Selection, ServedAdapter
from sidecar.report.cache import StatusCache
from sidecar.report.events import EventRing
from sidecar.report.http import MAX_CALLER_CHARACTERS, MAX_DRAIN_WAITERS, make_app
from sidecar.report.replica_drain import DrainCause, ReplicaDrain
from sidecar.report.status import ReplicaIdentity
from sidecar.vllm_plugin.guard import CONTROL_HEADER
from tests.simulation.loop import virtual
from tests.support.http_client import http_client
from tests.support.records import KEYS, POOL, kv
from tests.support.waiting import eventually
from tests.support.worlds import desired, fleet, observed, placed_at

STATE = desired(kv("all", 1), kv("here", 2, placement=placed_at("all", zone="x")), kv("one", 3, placement=placed_at(1)))
COMMON = Selection(adapters=(STATE.adapters["all"], STATE.adapters["here"]))
PLACED = Selection(adapters=(STATE.adapters["all"], STATE.adapters["one"]))
LEAVING = Handoff("one", "one", 3, 1, pinned=True, terms=STATE.adapters["one"].terms, owners=("r2",), among=None)  # type: ignore[arg-type]
PLAN = Plan(1, (), (), (), (), (), None, chosen=COMMON)
OUT = replace(PLAN, leaving=(LEAVING,), among=MembershipDigest("m", "w"), is_out=True)
READY = OtherReplica({"zone": "x"}, ready=True)


def ordered(revision: int, *, drain: bool) -> KeyValue:
    value = DrainOrder(pool=POOL, replica="r1", drain=drain, at="", by="alice").to_bytes()
    return KeyValue(b"k", value, revision, revision, 1)


class Scene:
    """A drain over parts that say what a test has them say."""

    def __init__(self) -> None:
        self.mailbox = Mailbox()
        self.mailbox.post(Snapshot(connected=True, members=fleet("r1", "r2")))
        self.is_leave_known = True
        self.left: list[bool] = []
        self.ends, self.announcement = 0, self
        self.verdict: HandoffVerdict = Waiting()
        self.around: list[OtherReplica] | EtcdError = [READY]
        identity = ReplicaIdentity("r1", POOL, "vllm", "http://e")
        self.cache = StatusCache(identity, Clock(random.Random(0)), lambda _: None)
        presence = Presence(pool=POOL, replica="r1", incarnation="i", owner="o", started_at="")
        self.ring = EventRing(Clock(random.Random(0)), bool)
        parts: Any = (None, KEYS, presence, self.mailbox, self, self, self.cache, self.ring, Clock(random.Random(0)))
        self.drain = ReplicaDrain(*parts)

    def leave(self, *, leaving: bool) -> None:
        self.left.append(leaving)

    async def say_left(self) -> None:
        self.ends += 1

    def verdicts(self) -> Mapping[Handoff, HandoffVerdict]:
        return {LEAVING: self.verdict}

    async def others(self, than: str) -> list[OtherReplica]:
        if isinstance(self.around, EtcdError):
            raise self.around
        return self.around

    def plan(self, plan: Plan | None, *names: str, is_seen: bool = True, incarnation: str = "e1") -> None:
        """What the newest round found; the engine lists the names."""
        seen = observed(dict.fromkeys(names, "/x"), incarnation=incarnation) if is_seen else None
        situation = replace(self.cache.report.situation, plan=plan, ready=True, observed=seen)
        self.cache.take(RoundReport(situation, 0))

    def order(self, revision: int, *, drain: bool, is_news: bool = True) -> None:
        self.drain._obey([ordered(revision, drain=drain)], is_news=is_news)

    def app(self, token_file: Path | None = None) -> Starlette:
        return make_app(self.cache, [], self.drain, self.ring, None, token_file=token_file)  # type: ignore[arg-type]

    @asynccontextmanager
    async def calling(
        self, app: Starlette, url: str = "http://127.0.0.1:7602", peer: str = "127.0.0.1"
    ) -> AsyncIterator[httpx.AsyncClient]:
        """From nobody knows where if `peer` is empty."""
        transport = httpx.ASGITransport(app, client=(peer, 1) if peer else None)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url=url) as client:
            yield client

    async def get(self, path: str, peer: str = "127.0.0.1", **asked: Any) -> tuple[int, dict[str, Any]]:
        """As a preStop hook asks."""
        async with self.calling(self.app(), peer=peer, **asked) as client:
            reply = await client.get(path, headers={CONTROL_HEADER: "preStop of the engine"})
        return reply.status_code, reply.json()


@pytest.fixture
def scene(monkeypatch) -> Scene:
    monkeypatch.setattr("sidecar.report.replica_drain.ASK_SECONDS", 0.01)
    return Scene()


class Told:
    """In place of the reflector and of the client: what is heard, and the order that stands by then."""

    def __init__(self, heard: Sequence[Reflection], standing: Sequence[RangeResult | Exception]) -> None:
        self.heard = heard
        self.standing = list(standing)

    def __call__(self, *_: object, **__: object) -> Told:
        return self

    async def stream(self) -> AsyncGenerator[Reflection, None]:
        for one in self.heard:
            yield one

    async def range(self, _read: object) -> RangeResult:
        found = self.standing.pop(0)
        if isinstance(found, Exception):
            raise found
        return found


NONE, TO_DRAIN, TO_SERVE = (), (ordered(29, drain=True),), (ordered(31, drain=False),)


@pytest.mark.parametrize(
    ("standing", "drains"),
    [([NONE, NONE], False), ([TO_DRAIN, NONE], True), ([TO_DRAIN, TO_SERVE], False), ([TO_SERVE, TO_SERVE], False)],
)
async def test_an_order_that_is_heard_late_counts_only_if_it_stands(scene, monkeypatch, standing, drains):
    """R20: simulated seed 701044: it had gone with a lease, and the operator was told that the replica serves."""
    found = [RangeResult(40, kvs, more=False, count=len(kvs)) for kvs in standing]
    away = EtcdUnavailable("away", maybe_applied=False)
    put, delete = Event(b"k", 29, TO_DRAIN[0]), Event(b"k", 30, None)
    told = Told([Listed(28, (), 1, ListCause.FIRST), Changed(29, (put,)), Changed(30, (delete,))], [away, *found])
    monkeypatch.setattr("sidecar.report.replica_drain.Reflector", told)
    scene.drain._client = told
    await scene.drain.run()
    assert (scene.drain.why != "", told.standing) == (drains, [])


async def test_a_drain_is_told_at_once_and_ends_unless_the_process_does(scene):
    """R20: readiness waits for no round."""
    scene.plan(PLAN)
    assert scene.cache.status.ready
    scene.drain.begin(DrainCause.REQUEST)
    assert (scene.cache.status.ready, scene.cache.status.note) == (False, DrainCause.REQUEST.value)
    scene.drain.begin(DrainCause.REQUEST)
    scene.drain.end()
    assert (scene.cache.status.ready, scene.left) == (True, [True, False])
    scene.drain.end()
    scene.drain.begin(DrainCause.SIGNAL)
    scene.drain.begin(DrainCause.OPERATOR)
    scene.drain.end()
    assert (scene.drain.why, scene.left) == (DrainCause.SIGNAL.value, [True, False, True])


async def test_orders_are_followed_once_each_and_none_of_before_this_process_ends_its_drain(scene):
    """R20: after a lost connection the same order is listed again, and may be older than a call of /drain.

    In a store that was replaced another may stand at the same revision: simulation seed 37.
    """
    scene.drain.begin(DrainCause.REQUEST)
    scene.order(5, drain=False, is_news=False)
    assert scene.drain.why == DrainCause.REQUEST.value
    for revision in (6, 7):
        scene.order(revision, drain=True)
        assert scene.drain.why == DrainCause.OPERATOR.value
        scene.order(7, drain=False)
        assert not scene.drain.why
    scene.drain.begin(DrainCause.REQUEST)
    scene.order(7, drain=False)
    scene.drain._obey([KeyValue(b"", b"?", 1, 8, 1)], is_news=True)
    assert scene.drain.why == DrainCause.REQUEST.value
    scene.order(9, drain=False)
    assert not scene.drain.why


CHANGED = Changed(30, (Event(b"k", 30, None),))
NOTHING = RangeResult(40, NONE, more=False, count=0)


@virtual
async def test_an_etcd_that_is_away_is_not_pressed_for_the_order_that_stands(monkeypatch):
    """R16 bounded: it is asked a few times a second, until it answers."""
    told = Told([CHANGED], [*[EtcdUnavailable("away", maybe_applied=False)] * 50, NOTHING])
    monkeypatch.setattr("sidecar.report.replica_drain.Reflector", told)
    drain, now = Scene().drain, asyncio.get_running_loop().time
    drain._client, started = told, now()  # type: ignore[assignment]
    await drain.run()
    assert 10.0 < now() - started < 50.0


OURS = ValueError("ours")
FAULTS = {
    "of etcd": lambda scene: scene.drain.run(),
    "an order that cannot be read": lambda scene: scene.order(5, drain=True),
    "the end of the time": lambda scene: scene.drain.wait(60),
    "the end of the wait after a signal": lambda scene: scene.drain.wait_at_end(60),
}


@pytest.mark.parametrize("what", FAULTS)
async def test_a_fault_of_our_own_is_taken_for_nothing_else(scene, monkeypatch, what):
    """R12: the supervisor tells it, and whoever waits is not told that the replica is still needed."""
    told = Told([CHANGED], [OURS, NOTHING])
    monkeypatch.setattr("sidecar.report.replica_drain.Reflector", told)
    scene.drain._client = told
    scene.plan(OUT if "signal" in what else PLAN)
    fails = mock.Mock(side_effect=OURS)
    monkeypatch.setattr(DrainOrder, "parse", fails)
    monkeypatch.setattr(scene, "others", mock.AsyncMock(side_effect=OURS))
    monkeypatch.setattr(scene, "verdicts", fails)
    with pytest.raises(ValueError, match="ours"):
        await found if (found := FAULTS[what](scene)) is not None else None


@pytest.mark.parametrize("lists", [1, 2])
async def test_an_order_to_serve_that_is_found_after_a_lost_connection_is_followed(scene, monkeypatch, lists):
    """R20: it was given since this process began to listen; one that stood before may be older than the drain."""
    first, later = Listed(28, NONE, 1, ListCause.FIRST), Listed(40, TO_SERVE, 2, ListCause.FIRST)
    monkeypatch.setattr("sidecar.report.replica_drain.Reflector", Told([first, later][-lists:], []))
    scene.drain.begin(DrainCause.REQUEST)
    await scene.drain.run()
    assert bool(scene.drain.why) == (lists == 1)


async def needed(scene: Scene) -> Need:
    return await scene.drain.wait(0.05)


async def test_it_is_needed_until_others_serve_what_it_serves(scene):
    """R20 drain: what is placed is taken over, and another is ready for what all serve."""
    scene.around = EtcdError("no answer")
    scene.plan(None, is_seen=False)
    assert await needed(scene) is Need.NOTHING, "its engine is gone"
    scene.plan(PLAN, is_seen=False)
    assert await needed(scene) is Need.NOTHING, "so is what was planned for it"
    scene.around = [READY]
    scene.plan(PLAN)
    assert await needed(scene) is Need.NOTHING
    scene.is_leave_known = False
    assert await needed(scene) is Need.TAKEOVER, "nobody has heard of it"
    scene.is_leave_known = True
    for around, need in (
        ([replace(READY, ready=False)], Need.TAKEOVER),
        ([replace(READY, labels={})], Need.NOBODY),
        (EtcdError("no answer"), Need.TAKEOVER),
    ):
        scene.around = around
        assert await needed(scene) is need
    scene.around = [OtherReplica({}, ready=True)]
    scene.plan(replace(PLAN, chosen=Selection(), residents=(ServedAdapter("lazy", 1, "d", is_pinned=True),)))
    assert await needed(scene) is Need.NOTHING
    scene.around = []
    assert await needed(scene) is Need.NOBODY, "lazy adapters need somebody too"
    scene.plan(replace(PLAN, chosen=Selection()))
    assert await needed(scene) is Need.NOTHING, "it serves none"


@pytest.mark.parametrize("wait", [ReplicaDrain.wait, ReplicaDrain.wait_at_end])
@virtual
async def test_who_is_needed_no_more_is_let_go_at_once(wait):
    """R20: a hook waits as little as a signal."""
    scene, now = Scene(), asyncio.get_running_loop().time
    scene.plan(OUT)
    scene.verdict, began = Taken(), now()
    await wait(scene.drain, 60)
    assert now() == began


async def test_it_is_needed_until_it_knows_that_what_is_placed_was_taken_over(scene):
    """R20: what it does not know of live replicas proves nothing."""
    scene.plan(replace(PLAN, chosen=replace(COMMON, undecided=(STATE.adapters["one"].rank,))))
    assert await needed(scene) is Need.TAKEOVER
    scene.plan(replace(OUT, is_out=False, leaving=()))
    assert await needed(scene) is Need.TAKEOVER, "it is still one of them"
    scene.plan(OUT)
    assert await scene.drain.need() is None, "nothing drains"
    scene.drain.begin(DrainCause.OPERATOR)
    assert await needed(scene) is await scene.drain.need() is Need.TAKEOVER
    scene.around = []
    assert await needed(scene) is Need.TAKEOVER, "somebody is about to take it, whoever else there is"
    scene.around = [READY]
    scene.verdict = Stuck("it cannot")
    assert await needed(scene) is Need.NOBODY
    waiting = asyncio.create_task(scene.drain.wait(60))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    scene.verdict = Taken(routers_know=False)
    assert await waiting is await scene.drain.need() is Need.NOTHING
    scene.drain.end()
    assert await scene.drain.need() is None


async def test_after_a_signal_it_stays_only_for_what_others_are_about_to_take(scene):
    """R20: and ends at once, as ever, where that is nothing."""
    scene.plan(PLAN)
    await scene.drain.wait_at_end(60)
    assert not scene.drain.why, "nothing is placed here"
    assert scene.ends == 1, "nobody waits for it"
    scene.plan(replace(PLAN, chosen=PLACED, among=MembershipDigest("n", "w")))
    for snapshot in (
        Snapshot(members=fleet("r1", "r2")),
        Snapshot(connected=True, members=fleet("r1")),
        Snapshot(connected=True),
    ):
        scene.mailbox.post(snapshot)
        await scene.drain.wait_at_end(60)
        assert not scene.drain.why
    scene.mailbox.post(Snapshot(connected=True, members=fleet("r1", "r2")))
    scene.plan(replace(PLAN, chosen=PLACED), is_seen=False)
    await scene.drain.wait_at_end(60)
    assert not scene.drain.why, "its engine is gone"
    scene.plan(replace(PLAN, chosen=PLACED, among=MembershipDigest("n", "w")))
    ending = asyncio.create_task(scene.drain.wait_at_end(60))
    await eventually(lambda: scene.drain.why == DrainCause.SIGNAL.value)
    scene.plan(OUT)
    await asyncio.sleep(0)
    assert not ending.done()
    before = scene.ends
    scene.verdict = Taken()
    await eventually(ending.done)
    assert scene.ends == before + 1


@pytest.mark.parametrize("end", ["time", "etcd", "nobody"])
async def test_after_a_signal_it_waits_neither_for_ever_nor_for_what_cannot_come(scene, end):
    """R20: "or the time is up"; etcd may go at the same moment, and so may all the others."""
    scene.plan(OUT)
    ending = asyncio.create_task(scene.drain.wait_at_end(0.05 if end == "time" else 3600))
    await eventually(lambda: scene.drain.why)
    match end:
        case "etcd":
            scene.mailbox.post(replace(scene.mailbox.snapshot, connected=False))
        case "nobody":
            scene.verdict = Stuck("no live replica has the labels that its placement selects")
    await asyncio.wait_for(ending, 60)
    assert scene.ends == 1, "nobody is to wait for it, whoever serves its adapters"


@pytest.mark.parametrize("has_address", [True, False])
@pytest.mark.parametrize("host", ["10.0.0.1", "::2", "testclient", ""])
async def test_only_the_own_host_may_drain_it(scene, host, has_address):
    """R20, X2: who reaches the port of /metrics must not take a fleet out of use.

    A server without an address of its own tells nothing of where somebody is.
    """
    scene.plan(PLAN)
    inner = scene.app()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await inner(scope if has_address else {**scope, "server": None}, receive, send)

    async with scene.calling(app, peer=host) as client:  # type: ignore[arg-type]
        reply = await client.post("/drain", headers={CONTROL_HEADER: "1"})
    assert (reply.status_code, scene.drain.why) == (403, "")
    assert "loraplane drain" in reply.json()["error"]["message"]


@pytest.mark.parametrize("wait", ["long", "-1", "nan", "inf", "3601", ""])
async def test_a_time_that_is_none_is_refused_and_drains_nothing(scene, wait):
    code, said = await scene.get(f"/drain?wait={wait}")
    assert (code, scene.drain.why) == (400, "")
    assert "wait=" in said["error"]["message"]


async def test_the_page_says_whether_it_is_still_needed(scene):
    scene.plan(PLAN)
    assert (await scene.get("/readyz"))[0] == 200
    assert await scene.get("/drain?wait=3600", "::1") == (
        200,
        {"draining": True, "done": True, "needed": Need.NOTHING.value},
    )
    assert (await scene.get("/readyz"))[0] == 503
    own = await scene.get("/drain", "10.0.0.1", url="http://10.0.0.1:7602")
    assert own[0] == 200, "from the address at which it listens"
    for url in ("http://localhost:7602", "http://[::1]:7602", "http://127.0.0.1"):
        scene.drain.end()
        assert ((await scene.get("/drain", url=url))[0], bool(scene.drain.why)) == (200, True)
    scene.plan(OUT)
    assert (await scene.get("/drain?wait=0.05"))[1]["needed"] == Need.TAKEOVER.value


# How a call of /drain differs from that of a hook, the code that it gets, and words of the error.
REFUSED: dict[str, tuple[dict[str, Any], int, tuple[str, ...]]] = {
    "a page, or a fetch of a picture": (
        {"headers": {}},
        403,
        ('curl -sf -H "x-loraplane-control: 1"', "http://127.0.0.1:7602/drain?wait=30", "no web page"),
    ),
    "a header that says nothing": ({"headers": {CONTROL_HEADER: " "}}, 403, ("x-loraplane-control: 1",)),
    "DNS rebinding": ({"url": "http://evil.example:7602"}, 421, ("'evil.example:7602'", "IP address")),
    "a name of one word": ({"url": "http://sidecar:7602"}, 421, ("'sidecar:7602'", "localhost")),
    "a body": ({"content": b"x" * 5000}, 413, ("body",)),
}


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("how", REFUSED)
async def test_no_page_and_no_fetch_drains_a_replica(scene, how, method):
    """R20, X2: one clear error each, which has the right command for the hook of an earlier release."""
    changed, code, words = REFUSED[how]
    asked = {"headers": {CONTROL_HEADER: "1"}} | changed
    url = asked.pop("url", "http://127.0.0.1:7602")
    counted = REGISTRY.get_sample_value
    reason = {403: "control", 413: "body", 421: "host"}[code]
    before = counted("loraplane_http_refused_total", {"reason": reason}) or 0
    async with scene.calling(scene.app(), url) as client:
        reply = await client.request(method, "/drain", **asked)
    error = reply.json()["error"]
    assert (reply.status_code, error["reason"], scene.drain.why) == (code, reason, "")
    assert all(word in error["message"] for word in words), reply.text
    assert counted("loraplane_http_refused_total", {"reason": reason}) == before + 1


async def test_a_token_is_asked_for_where_there_is_one(scene, tmp_path):
    """R20, X1 secret-free: read anew each time; the status says that it was right, and no more."""
    file = tmp_path / "token"
    async with scene.calling(scene.app(file)) as client:

        async def answer(said: str | bytes) -> tuple[int, str]:
            reply = await client.get("/drain", headers={CONTROL_HEADER: said})
            return reply.status_code, reply.json().get("error", {}).get("message", "")

        code, why = await answer("1")
        assert (code, str(file) in why) == (503, True), "nobody drains it as long as there is none"
        file.write_text("canary-5a0c\n")
        for wrong in ("1", "", "canary", b"\xff"):
            code, why = await answer(wrong)
            assert (code, f'-H "x-loraplane-control: $(cat {file})"' in why, "canary" in why) == (403, True, False)
        assert scene.drain.why == ""
        with structlog.testing.capture_logs() as logged:
            assert (await answer("canary-5a0c"))[0] == 200
    assert scene.drain.why.endswith("called by 127.0.0.1, with the control token")
    assert "canary" not in f"{logged}{scene.ring.as_dict()}{scene.cache.status}"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("preStop of the engine", "127.0.0.1, 'preStop of the engine'"),
        (b"\x7f\xe9'", '127.0.0.1, "\\x7fé\'"'),
        ("x" * MAX_CALLER_CHARACTERS, f"127.0.0.1, '{'x' * MAX_CALLER_CHARACTERS}'"),
        ("0123456789abcdef" * 2, "127.0.0.1"),
    ],
)
async def test_who_drained_a_replica_is_told(scene, said, told):
    """R20, X1: in status, log and events, in one line; what may be a token is not."""
    scene.plan(PLAN)
    with structlog.testing.capture_logs() as logged:
        async with scene.calling(scene.app()) as client:
            await client.get("/drain", headers={CONTROL_HEADER: said})
    assert scene.cache.status.note == scene.drain.why == f"{DrainCause.REQUEST.value}; called by {told}"
    assert [(one["cause"], one["by"]) for one in logged if one["event"] == "drain_begun"] == [("request", told)]
    scene.drain.end()
    events = [(one["event"], one["message"]) for one in scene.ring.as_dict()["events"][1:]]  # type: ignore[index]
    assert events == [("drain_begun", f"{DrainCause.REQUEST.value}; called by {told}"), ("drain_ended", "")]
    scene.drain.begin(DrainCause.OPERATOR)
    assert scene.drain.why == DrainCause.OPERATOR.value, "the next one was not called by the same"


@pytest.fixture
def waiting(scene, monkeypatch) -> list[float]:
    """For how many seconds each call does that waits now."""
    began, wait = list[float](), scene.drain.wait

    async def noted(seconds: float) -> Need:
        began.append(seconds)
        try:
            return await wait(seconds)
        finally:
            began.remove(seconds)

    monkeypatch.setattr(scene.drain, "wait", noted)
    return began


async def test_many_may_drain_and_eight_may_wait_for_its_end(scene, waiting):
    """R20, X2: one more is told so at once, the drain has begun, and a place is free once a caller has its answer."""
    scene.plan(OUT)
    async with scene.calling(scene.app()) as client:
        client.headers[CONTROL_HEADER] = "1"
        calls = [asyncio.create_task(client.get("/drain?wait=3600")) for _ in range(MAX_DRAIN_WAITERS)]
        await eventually(lambda: len(waiting) == MAX_DRAIN_WAITERS)
        scene.drain.end()
        more = await client.get("/drain?wait=1")
        assert (more.status_code, more.json()["error"]["reason"], more.headers["retry-after"]) == (429, "waiters", "5")
        assert "wait=0" in more.json()["error"]["message"]
        assert scene.drain.why, "what was asked for is done"
        assert (await client.get("/drain")).status_code == 200, "who does not wait needs no place"
        scene.verdict = Taken()
        answers = await asyncio.wait_for(asyncio.gather(*calls), 60)
        assert {(one.status_code, one.json()["done"]) for one in answers} == {(200, True)}
        assert (await client.get("/drain?wait=1")).status_code == 200


async def test_who_goes_away_gives_the_place_back(scene, waiting):
    """X3 given-back: a hook that the kubelet ended waits no more."""
    scene.plan(OUT)
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    server = HttpServer(scene.app(), listener, lambda _: None)
    running = asyncio.create_task(server.run())
    lines = ("POST /drain?wait=3600 HTTP/1.1", "Host: 127.0.0.1", f"{CONTROL_HEADER}: 1", "Content-Length: 2", "", "{}")
    writers = []
    for _ in range(MAX_DRAIN_WAITERS):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write("\r\n".join(lines).encode())
        writers.append(writer)
    await eventually(lambda: len(waiting) == MAX_DRAIN_WAITERS)
    async with http_client(base_url=f"http://127.0.0.1:{port}", timeout=60, headers={CONTROL_HEADER: "1"}) as client:

        async def code() -> int:
            return (await client.get("/drain?wait=0.01")).status_code

        assert await code() == 429
        for writer in writers:
            writer.close()

        async def has_room() -> bool:
            return await code() == 200

        await eventually(has_room)
    await eventually(lambda: not waiting)
    server.stop()
    await asyncio.wait_for(running, 60)


class HidingEngine:
    """An engine that can hide its adapters. `told`: when it was told to, and for how long."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.told: list[tuple[float, float]] = []
        self.kept: list[set[str]] = []
        self.meanwhile: Callable[[], None] = lambda: None
        self._outcomes = [*outcomes]

    async def hide(self, seconds: float, kept: Collection[str] = ()) -> Outcome:
        self.told.append((asyncio.get_running_loop().time(), seconds))
        self.kept.append({*kept})
        self.meanwhile()
        return self._outcomes.pop(0) if self._outcomes else Done()


@virtual
async def test_the_engines_list_is_without_adapters_while_the_replica_drains():
    """R20: a router that polls it, and nothing else, hears of the drain too; and of its end, until it has heard."""
    scene, engine = Scene(), HidingEngine(*[Done()] * 4, Unknown("lost"))
    work = asyncio.create_task(scene.drain.hide(cast("Engine", engine)))
    await asyncio.sleep(60)
    assert engine.told == []
    scene.plan(PLAN, "all")
    await asyncio.sleep(60)
    assert [seconds for _, seconds in engine.told] == [0.0], "the process before it may have hidden them"
    engine.told.clear()
    began = asyncio.get_running_loop().time()
    scene.drain.begin(DrainCause.OPERATOR)
    await asyncio.sleep(11)
    assert engine.told == [(began + after, 30.0) for after in (0, 5, 10)]
    scene.drain.end()
    await asyncio.sleep(60)
    (at, _), *_ = ended = engine.told[3:]
    assert (at, [seconds for _, seconds in ended]) == (began + 11, [0.0, 0.0])
    work.cancel()


@virtual
async def test_what_nobody_else_serves_stays_in_the_engines_list():
    """R20: a router that polls would else send its requests nowhere, though the replica answers them."""
    scene, engine = Scene(), HidingEngine(Unknown("lost"))
    scene.around = [replace(READY, ready=False)]
    scene.plan(replace(OUT, chosen=COMMON), "all", "here", "one", "theirs")
    work = asyncio.create_task(scene.drain.hide(cast("Engine", engine)))
    scene.drain.begin(DrainCause.OPERATOR)
    await asyncio.sleep(2)
    assert engine.kept == [{"all", "here", "one"}] * 2, "it is told again where it may not have heard"
    scene.verdict = Stuck("another has no room", elsewhere=True)
    await asyncio.sleep(1)
    assert engine.kept[2:] == [{"all", "here"}]
    scene.verdict, scene.around = Taken(routers_know=False), [READY]
    assert await scene.drain.wait(0) is Need.TAKEOVER, "routers may still have heard of it here"
    assert await scene.drain.wait(5) is Need.NOTHING
    assert engine.kept[3:] == [set()]
    scene.around = EtcdError("no answer")
    await asyncio.sleep(10)
    assert {"all", "here"} in engine.kept[4:], "nobody is known to serve it any more"
    work.cancel()


@virtual
async def test_nothing_leaves_the_list_before_it_is_known_what_others_serve():
    """R20, R24: a sidecar that begins to drain at its start, with an engine that serves; and one that loses sight."""
    scene, engine = Scene(), HidingEngine()
    scene.around = [replace(READY, ready=False)]
    work = asyncio.create_task(scene.drain.hide(cast("Engine", engine)))
    scene.drain.begin(DrainCause.OPERATOR)
    await asyncio.sleep(10)
    scene.plan(None)
    assert await scene.drain.wait(0) is Need.NOTHING, "the engine has no adapters"
    scene.plan(None, "all", "here")
    await asyncio.sleep(10)
    assert (engine.kept, await scene.drain.wait(0)) == ([], Need.TAKEOVER)
    scene.plan(PLAN, "all", "here")
    await asyncio.sleep(1)
    assert engine.kept == [{"all", "here"}]
    scene.plan(None, is_seen=False)
    await asyncio.sleep(10)
    assert engine.kept == [{"all", "here"}] * 2, "it is told so again, or would list all others before long"
    assert await scene.drain.wait(0) is Need.NOTHING, "it is away"
    work.cancel()


@virtual
async def test_an_engine_that_restarted_is_told_again_before_the_replica_may_end():
    """R20: its new process has heard of nothing, and lists again whatever it gets."""
    scene, engine = Scene(), HidingEngine()
    scene.plan(PLAN, "all")
    work = asyncio.create_task(scene.drain.hide(cast("Engine", engine)))
    scene.drain.begin(DrainCause.OPERATOR)
    await asyncio.sleep(1.5)
    assert (engine.kept, await scene.drain.wait(0)) == ([set()], Need.NOTHING)
    scene.plan(PLAN, "all", incarnation="e2")
    assert await scene.drain.wait(0) is Need.TAKEOVER
    engine.meanwhile = lambda: scene.plan(PLAN, "all", incarnation="e3")
    await asyncio.sleep(1)
    assert (engine.kept, await scene.drain.wait(0)) == ([set()] * 2, Need.TAKEOVER), "which of them heard is not known"
    await asyncio.sleep(1)
    assert (engine.kept, await scene.drain.wait(0)) == ([set()] * 3, Need.NOTHING)
    scene.plan(None, is_seen=False)
    await asyncio.sleep(1.5)
    assert engine.kept == [set()] * 3, "it is away"
    work.cancel()


@virtual
async def test_an_engine_that_cannot_hide_anything_is_not_asked():
    scene = Scene()
    scene.drain.begin(DrainCause.OPERATOR)
    await scene.drain.hide(cast("Engine", object()))
