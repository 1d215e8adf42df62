"""Three routers before one fleet, while one publishes, swaps, drains, restarts and kills: who answers what, counted.

The picker behind the real Envoy, LiteLLM's own Router with our callback, and a router that polls engines as llm-d's
does; with ``ROUTERS=yes`` (``make routers``) LiteLLM's proxy as well, and ROUNDS times what `make test` plays once.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import grpc
import pytest

from loraplane import AsyncRegistry
from registry.v1 import registry_pb2 as pb
from registry.v1 import registry_pb2_grpc
from sidecar.vllm_plugin.entry import HIDE_VARIABLE
from tests.support.adapters import write_adapter
from tests.support.envoy import ENVOY
from tests.support.fleet import BASE, POOL, SimulatedEngine
from tests.support.http_client import http_client
from tests.support.litellm_proxy import KEY, PROXY, litellm_proxy
from tests.support.routed_answers import Answer, Outage, Timeline, judge
from tests.support.routed_clients import LITELLM, by_polls, by_url, litellm_router
from tests.support.routed_fleet import RoutedFleet, routed_fleet
from tests.support.waiting import eventually

IS_LONG = bool(os.environ.get("ROUTERS"))
ROUNDS = int(os.environ.get("ROUNDS", "6" if IS_LONG else "1"))
RATE = float(os.environ.get("RATE", "20" if IS_LONG else "10"))
# Of llm-d's router, and a little more of engines that leave; what is played at each change is quicker.
POLL_SECONDS, HIDE_SECONDS = (5.0, 6.0) if IS_LONG else (1.0, 2.0)
# For so long an engine that was killed stays away.
DEAD_SECONDS = 5.0 if IS_LONG else 0.0
REPLICAS = ("s0", "s1", "s2")
# By name: its artifact, on how many replicas it is (0: all), and how it is loaded.
PLACED = {
    "sql": ("one", 0, "eager"),
    "law-all": ("law", 0, "eager"),
    "law-two": ("law", 2, "eager"),
    "law-one": ("law", 1, "eager"),
    "law-lazy": ("law", 0, "lazy"),
}
# A lazy name is listed once it is loaded, so that a router that polls does not find it before.
POLLED = tuple(name for name in PLACED if name != "law-lazy")
# What the picker sends on as well: the base model, and a name behind that of its base.
BY_BASE = f"{BASE}:law-all"
SECONDS = 90.0

pytestmark = [
    pytest.mark.timeout(1800 if IS_LONG else 300),
    pytest.mark.skipif(not ENVOY.exists(), reason="no Envoy here: make .venv-envoy/.installed"),
    pytest.mark.skipif(not LITELLM.exists(), reason="no LiteLLM here: make .venv-litellm/.installed"),
]


@dataclass
class Play:
    """A fleet of three, what is right on it, and what happens to it."""

    fleet: RoutedFleet
    engines: dict[str, SimulatedEngine]
    stub: registry_pb2_grpc.AdapterRegistryStub
    registry: AsyncRegistry
    folders: dict[str, Path]
    timeline: Timeline = field(default_factory=Timeline)
    texts: dict[str, str] = field(default_factory=dict)
    calms: list[tuple[float, float]] = field(default_factory=list)
    revision: int = 0

    @contextmanager
    def calm(self) -> Iterator[None]:
        """Meanwhile nobody who hears of residency needs a second try."""
        began = time.monotonic()
        yield
        self.calms.append((began, time.monotonic()))

    def repeated(self, answers: Sequence[Answer]) -> list[Answer]:
        """Those that took a second try while it was calm."""
        return [
            one
            for one in answers
            if one.tries > 1 and any(began <= one.began and one.ended <= ended for began, ended in self.calms)
        ]

    async def publish(self, name: str, artifact: str) -> None:
        """Gives a name other weights; until all replicas serve them, either are right."""
        before = self.timeline.right[name][-1][1]
        self.timeline.note(time.monotonic(), name, *before, self.texts[artifact])
        published = await self.registry.publish(str(self.folders[artifact]), name, POOL, timeout_seconds=SECONDS)
        self.revision = published.revision
        self.timeline.note(time.monotonic(), name, self.texts[artifact])

    async def serving(self, is_so: Callable[[dict[str, set[str]]], bool]) -> dict[str, set[str]]:
        """Replicas by the names that they serve, once it is so."""
        async with asyncio.timeout(SECONDS), aclosing(self.registry.residency(POOL)) as states:
            async for state in states:
                found = {name: {one.replica for one in told.serving} for name, told in state.adapters.items()}
                if is_so(found):
                    return found
        raise AssertionError("residency ended")

    async def hand_over(self, name: str) -> None:
        """Places a name on all replicas, and on one again."""
        for number in (len(REPLICAS), 1):
            change = pb.AdapterChange(upsert=adapter(name, self.folders[PLACED[name][0]], number))
            await self.stub.ApplyAdapters(pb.ApplyAdaptersRequest(pool=POOL, changes=[change]))
            await self.serving(lambda found, number=number: len(found[name]) == number)

    async def drain_and_restart(self, replica: str) -> None:
        """As an update does: others take over, routers notice, the engine ends and comes back."""
        alone = [name for name, who in (await self.serving(lambda _: True)).items() if who == {replica}]
        with self.calm():
            began = time.monotonic()
            await self.stub.DrainReplica(pb.DrainReplicaRequest(pool=POOL, name=replica))
            await self.serving(lambda found: all(found[name] - {replica} for name in PLACED))
        # A drain hides all names from polls at once, also those that nobody else lists yet (docs/critiques.md).
        end = time.monotonic() + POLL_SECONDS + 1
        self.timeline.outages += [Outage(name, began, end, router="polls") for name in alone]
        await asyncio.sleep(POLL_SECONDS + 1)
        engine = self.engines[replica]
        await asyncio.to_thread(engine.program.stop)
        await engine.start()
        await self.stub.DrainReplica(pb.DrainReplicaRequest(pool=POOL, name=replica, undrain=True))
        await self.whole()

    async def kill(self, name: str) -> str:
        """Kills the engine that alone serves a name, which comes back; returns its replica."""
        found = await self.serving(lambda found: len(found[name]) == 1)
        (replica,) = found[name]
        began = time.monotonic()
        self.engines[replica].program.kill()
        await asyncio.sleep(DEAD_SECONDS)
        await self.engines[replica].start()
        await self.whole()
        alone, end = [one for one, who in found.items() if who == {replica}], time.monotonic()
        self.timeline.outages += [Outage(one, began, end) for one in alone]
        # It knows at its next poll that the replica is back.
        self.timeline.outages += [Outage(one, began, end + POLL_SECONDS + 1, router="polls") for one in alone]
        return replica

    async def whole(self) -> None:
        """Waits until every name is where it belongs."""
        many = {name: number or len(REPLICAS) for name, (_, number, how) in PLACED.items() if how == "eager"}
        # Of one that has just come back sidecars may not have heard yet: so the engines themselves are asked.
        await eventually(partial(self.is_listed, many), timeout_seconds=SECONDS)
        await self.serving(lambda found: all(len(found[name]) >= number for name, number in many.items()))

    async def is_listed(self, many: Mapping[str, int]) -> bool:
        """Every replica's engine answers, and so many of them list each name."""
        if not all([await one.is_healthy() for one in self.engines.values()]):
            return False
        listed = [await one.listing() for one in self.engines.values()]
        return all(sum(name in one for one in listed) >= number for name, number in many.items())

    async def round(self, turn: int) -> None:
        """Each kind of change once, engines' ends without a word among them."""
        picker, other = self.fleet.pickers[turn % 2], self.fleet.pickers[turn % 2 - 1]
        with self.calm():
            await self.publish("sql", "two" if turn % 2 == 0 else "one")
            await self.fleet.restart(picker.program, picker.is_ready)
            await self.fleet.restart(self.fleet.admin.program, self.fleet.admin.is_ready)
            await self.hand_over("law-one")
        await self.fleet.restart(other.program, other.is_ready, kill=True)
        await self.drain_and_restart(await self.kill("law-one"))


@asynccontextmanager
async def playing(folder: Path, etcd) -> AsyncIterator[Play]:
    """The fleet, with all names served."""
    sockets = Path(tempfile.mkdtemp(prefix="lp-"))  # a socket's path must be short
    folders = {name: folder / "sources" / name for name in ("one", "two", "law")}
    for seed, one in enumerate(folders.values()):
        write_adapter(one, seed=seed, base=BASE)
    engines = {name: SimulatedEngine(folder / name, resolver=sockets / name) for name in REPLICAS}
    told = {name: (engine.url, ("--resolver-socket", str(sockets / name))) for name, engine in engines.items()}
    async with AsyncExitStack() as stack:
        stack.callback(shutil.rmtree, sockets)
        for engine in engines.values():
            engine.program.environment = {**engine.program.environment, HIDE_VARIABLE: str(HIDE_SECONDS)}
            stack.callback(engine.program.kill)
        await asyncio.gather(*(one.start() for one in engines.values()))
        fleet = await stack.enter_async_context(routed_fleet(folder, etcd, told, folder / "sources"))
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(fleet.admin.address))
        registry = await stack.enter_async_context(AsyncRegistry(fleet.admin.address))
        play = Play(fleet, engines, registry_pb2_grpc.AdapterRegistryStub(channel), registry, folders)
        await declare(play)
        yield play


def adapter(name: str, folder: Path, number: int = 0, load: str = "eager") -> pb.Adapter:
    """It on so many replicas; 0: on all."""
    placement = pb.Placement(replicas=number) if number else None
    spec = pb.AdapterSpec(source=pb.Source(uri=folder.as_uri()), placement=placement, load=load)
    return pb.Adapter(name=name, spec=spec)


async def declare(play: Play) -> None:
    """Makes the pool and its names, and learns what each artifact answers."""
    await play.stub.CreatePool(pb.CreatePoolRequest(pool=pb.Pool(name=POOL, base_models=[BASE])))
    changes = []
    for name, (artifact, number, how) in PLACED.items():
        changes.append(pb.AdapterChange(upsert=adapter(name, play.folders[artifact], number, how)))
    changes.append(pb.AdapterChange(upsert=adapter("other", play.folders["two"])))
    await play.stub.ApplyAdapters(pb.ApplyAdaptersRequest(pool=POOL, changes=changes))
    await play.serving(lambda found: len(found.get("other", ())) == len(REPLICAS))
    await play.whole()
    for artifact, name in (("one", "sql"), ("two", "other"), ("law", "law-all"), (BASE, BASE)):
        (play.texts[artifact],) = await play.fleet.texts(name)
    assert len({*play.texts.values()}) == 4, "each answers in its own way"
    artifacts = {name: artifact for name, (artifact, _, _) in PLACED.items()} | {BASE: BASE, BY_BASE: "law"}
    for name, artifact in artifacts.items():
        play.timeline.note(time.monotonic(), name, play.texts[artifact])
    for picker in play.fleet.pickers:
        await eventually(picker.is_ready)


async def rounds(play: Play, stop: asyncio.Event) -> None:
    """All changes, one after the other."""
    try:
        for turn in range(ROUNDS):
            await play.round(turn)
        await asyncio.sleep(POLL_SECONDS + 1)
    finally:
        stop.set()


async def check_refusals(play: Play) -> None:
    """What the picker answers itself, and that it follows."""

    async def asked(model: object, **headers: str) -> tuple[int, str]:
        async with http_client(base_url=play.fleet.url, timeout=30) as client:
            reply = await client.post("/v1/completions", json={"model": model, "prompt": "x"}, headers=headers)
        return reply.status_code, "" if reply.status_code == 200 else reply.json()["error"]["code"]

    newest, later = ({"x-loraplane-min-revision": str(play.revision + more)} for more in (0, 10**6))
    assert await asked("sql", **newest) == (200, "")
    assert await asked("sql", **later) == (503, "not_served_yet")
    assert await asked(7) == (400, "invalid_request")
    assert (await asked("nobody"))[0] == 404


async def test_nobody_is_answered_by_another_and_who_fails_had_one_replica_that_was_killed(etcd, tmp_path, capsys):
    """R5 no-silent-base, R20 drain, R13 static-stable: for adapters on one, two and all replicas, and lazy ones."""
    stop, names, running = asyncio.Event(), tuple(PLACED), dict[str, asyncio.Task[list[Answer]]]()
    async with playing(tmp_path, etcd) as play, AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        admin, urls = play.fleet.admin.address, [one.url for one in play.engines.values()]
        if IS_LONG:
            assert PROXY.exists(), "make .venv-litellm-proxy/.installed puts it there"
            proxy = await stack.enter_async_context(litellm_proxy(tmp_path / "proxy", admin, POOL))
            asked = by_url("proxy", proxy, names, RATE, stop, Authorization=f"Bearer {KEY}")
            running["proxy"] = tasks.create_task(asked)
        ended = await stack.enter_async_context(litellm_router(admin, POOL, urls, names, RATE))
        running["envoy"] = tasks.create_task(by_url("envoy", play.fleet.url, (*names, BASE, BY_BASE), RATE, stop))
        running["polls"] = tasks.create_task(by_polls(urls, POLL_SECONDS, POLLED, RATE, stop))
        await rounds(play, stop)
        await check_refusals(play)
        answers = {"litellm": await ended()} | {name: await one for name, one in running.items()}
    found = {name: judge(play.timeline, one) for name, one in answers.items()}
    with capsys.disabled():
        for name, verdict in found.items():
            print(f"\n{name}: {verdict}", *verdict.kinds.items(), sep="\n  ")
    for name, verdict in found.items():
        assert (name, verdict.wrong, verdict.failed) == (name, (), ())
        assert name == "polls" or play.repeated(answers[name]) == []
        assert verdict.asked > RATE * 5
