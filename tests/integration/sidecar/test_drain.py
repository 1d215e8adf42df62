"""R20 drain: a replica is taken out of use, by hand and in a rolling update, and no request fails for it."""

from __future__ import annotations

import asyncio
import random
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import httpx
import pytest
import yaml

from loraplane import AsyncRegistry
from registry.etcd3.ops import Range
from registry.model.records import Placement
from registry.model.status import Presence
from registry.v1 import registry_pb2 as pb
from tests.support.admin import Admin, admin_inside, wait_ready
from tests.support.etcd import PATIENCE_SECONDS
from tests.support.fleet import POOL, Hand, Sidecar, SimulatedEngine
from tests.support.http_client import http_client
from tests.support.waiting import eventually

ON_ALL = ["all-0", "all-1"]
ON_ONE = [f"one-{number}" for number in range(3)]
PACE_SECONDS = 0.1
# Several sidecars start at once, beside whatever else the machine does.
STARTED_SECONDS = 180
# Less than whoever asks for the end of a drain waits for an answer.
DRAIN_SECONDS = 45
HOOK = {"x-loraplane-control": "preStop"}
# Whether a presence leaves, whether its replica is ready, and how many replicas residency names.
SERVES, DRAINS = (False, True, ""), (True, False, "leaving")


@pytest.fixture
async def admin(etcd) -> AsyncIterator[Admin]:
    async with admin_inside(etcd.endpoints, etcd.prefix) as admin:
        await wait_ready(admin)
        yield admin


class Router:
    """Follows WatchResidency, and sends each request to one of the engines that it names; it repeats none."""

    def __init__(self, registry: AsyncRegistry) -> None:
        self._registry = registry
        self._rng = random.Random(1)
        self.routes: dict[str, list[tuple[str, str]]] = {}
        self.running: Counter[str] = Counter()
        self.sent = 0
        self.failures: list[str] = []

    async def follow(self) -> None:
        async with aclosing(self._registry.residency(POOL)) as states:
            async for state in states:
                self.routes = {
                    name: [(one.engine_url, one.model) for one in adapter.serving]
                    for name, adapter in state.adapters.items()
                }

    def engines(self, name: str) -> set[str]:
        return {url for url, _ in self.routes.get(name, ())}

    def has_left(self, url: str) -> bool:
        """True once it sends nothing there any more, and waits for nothing."""
        return not self.running[url] and not any(url in self.engines(name) for name in self.routes)

    async def load(self, name: str) -> None:
        """Asks for an adapter again and again."""
        # No connection is kept: the server ends one that rests, also under a request that just came.
        limits = httpx.Limits(max_keepalive_connections=0)
        async with http_client(timeout=PATIENCE_SECONDS, limits=limits) as client:
            while True:
                failure = await self._ask(client, name)
                self.sent += 1
                self.failures += [f"{name}: {failure}"] if failure else []
                await asyncio.sleep(PACE_SECONDS)

    async def _ask(self, client: httpx.AsyncClient, name: str) -> str:
        if not self.routes.get(name):
            return "no route"
        url, model = self._rng.choice(self.routes[name])
        self.running[url] += 1
        try:
            body = {"model": model, "prompt": "x", "max_tokens": 1}
            reply = await client.post(f"{url}/v1/completions", json=body)
        except httpx.TransportError as error:
            return f"{url}: {error!r}"
        finally:
            self.running[url] -= 1
        return "" if reply.status_code == 200 else f"{url}: {reply.status_code} {reply.text}"


class Pod:
    """An engine and its sidecar, which reaches it by another address than routers do."""

    def __init__(self, folder: Path, etcd, name: str, sources: Path) -> None:
        self.engine = SimulatedEngine(folder / name)
        address = self.engine.url.replace("127.0.0.1", "localhost")
        extra = ("--advertise-url", self.engine.url, "--drain-timeout", str(DRAIN_SECONDS))
        self.sidecar = Sidecar(
            folder / name, etcd.endpoints, etcd.prefix, address, replica=name, sources=sources, extra=extra
        )
        self.sidecar.change("unhurried")  # who cannot say in time that it ends counts as lost

    async def start(self) -> None:
        self.engine.program.start()
        self.sidecar.program.start()
        await eventually(self.sidecar.is_ready, timeout_seconds=STARTED_SECONDS)

    async def drain(self) -> None:
        """What a preStop hook does, in either container."""
        code, said = await self.sidecar.get(f"/drain?wait={DRAIN_SECONDS}", **HOOK)
        assert (code, said["done"]) == (200, True), said

    async def end(self, router: Router) -> None:
        """What a kubelet does: the preStop hooks of both containers together, SIGTERM to the engine, then the sidecar.

        The hook of the engine's container lasts until no router sends it anything.
        """
        listed = await self.engine.listing()

        async def pre_stop_of_engine() -> None:
            await self.drain()
            await eventually(lambda: router.has_left(self.engine.url))

        async with asyncio.TaskGroup() as hooks:
            hooks.create_task(pre_stop_of_engine())
            hooks.create_task(self.drain())
        assert not await self.sidecar.is_ready()
        assert await self.engine.listing() == listed, "nothing is unloaded"
        await asyncio.to_thread(self.engine.program.stop)
        assert await asyncio.to_thread(self.sidecar.program.stop) == 0

    def kill(self) -> None:
        self.engine.program.kill()
        self.sidecar.program.kill()


async def test_no_request_fails_while_all_replicas_are_replaced(etcd, hand: Hand, admin, tmp_path):
    """R20 drain: a rolling update under load, in the order of a kubelet; then SIGTERM alone, without any hook."""
    await hand.pool()
    on_one = [hand.record(name, name, placement=Placement(replicas=1)) for name in ON_ONE]
    await hand.put(*(hand.record(name, name) for name in ON_ALL), *on_one)
    first, second, third = pods = [Pod(tmp_path, etcd, f"r{number}", hand.sources) for number in range(3)]
    async with AsyncRegistry(admin.address, timeout_seconds=PATIENCE_SECONDS) as registry:
        router = Router(registry)
        tasks = [asyncio.create_task(router.follow())]

        def is_spread(*live: Pod) -> bool:
            urls = {pod.engine.url for pod in live}
            assert all(router.engines(name) == urls for name in ON_ALL), router.routes
            assert all(len(router.engines(name) & urls) == 1 for name in ON_ONE), router.routes
            return True

        async def has_moved(*live: Pod) -> bool:
            """Also those who stay have let go of what the new one took over from them."""
            statuses = [await pod.sidecar.status() for pod in live]
            assert len({status["members"] for status in statuses}) == 1
            listed = [await pod.engine.listing() for pod in live]
            assert sum(len(one) for one in listed) == 2 * len(ON_ALL) + len(ON_ONE), listed
            return is_spread(*live)

        try:
            await asyncio.gather(first.start(), second.start())
            await eventually(lambda: is_spread(first, second), timeout_seconds=STARTED_SECONDS)
            tasks += [asyncio.create_task(router.load(name)) for name in (*ON_ALL, *ON_ONE)]
            await first.end(router)
            await third.start()
            await eventually(lambda: has_moved(second, third), timeout_seconds=STARTED_SECONDS)
            second.sidecar.program.signal(signal.SIGTERM)
            assert await asyncio.to_thread(second.sidecar.program.wait) == 0
            await eventually(lambda: is_spread(third), timeout_seconds=STARTED_SECONDS)
            await eventually(lambda: expects(admin, {"r2"}, set()), timeout_seconds=STARTED_SECONDS)
            for task in tasks:
                task.cancel()  # nobody is left whom a request could be sent to
            third.sidecar.program.kill()
            await eventually(lambda: expects(admin, set(), {"r2"}), timeout_seconds=STARTED_SECONDS)
        finally:
            for task in tasks:
                task.cancel()
            for pod in pods:
                pod.kill()
    assert router.failures == []
    assert router.sent > 50
    begun = [one for one in second.sidecar.program.logged() if one["event"] == "drain_begun"]
    assert [one["cause"] for one in begun] == ["signal"]


async def expects(admin: Admin, live: set[str], missing: set[str]) -> bool:
    """True if these live and are missed: not who ended when it was told to, but who died."""
    reply = await admin.stub.ListReplicas(pb.ListReplicasRequest(pool=POOL))
    found = {one.name for one in reply.replicas}, {one.name for one in reply.missing}
    assert found == (live, missing), found
    return True


async def test_an_operator_drains_a_replica_and_takes_it_back(etcd, hand: Hand, admin, engine, sidecar):
    """R20 drain, R24: readiness, presence and residency follow at once; what the engine has stays, and is told of."""
    replica_key = hand.keys.replica(POOL, "r1")
    await hand.pool()
    await hand.put(hand.record("a", "v1"))
    sidecar.change("unhurried")  # its end is told, also by an etcd that stands still for a moment
    sidecar.program.start()
    await comes_to_serve(sidecar, hand, replica_key)

    async def order(**fields: object) -> bool:
        request = pb.DrainReplicaRequest(pool=POOL, name="r1", **fields)  # type: ignore[arg-type]
        return (await admin.stub.DrainReplica(request)).changed

    async def said() -> tuple[bool, bool, str]:
        replica = await admin.stub.GetReplica(pb.GetReplicaRequest(pool=POOL, name="r1"))
        async for response in admin.stub.WatchResidency(pb.WatchResidencyRequest(pool=POOL)):
            return replica.leaving, await sidecar.is_ready(), response.adapters[0].replicas[0].reason
        raise AssertionError("no snapshot")

    async def comes_to(wanted: tuple[bool, bool, str]) -> None:
        async def is_so() -> bool:
            found = await said()
            assert found == wanted, found
            return True

        await eventually(is_so)

    await comes_to(SERVES)
    assert not await order(undrain=True), "it does not drain"
    assert await order()
    await comes_to(DRAINS)
    assert "loraplane undrain" in (await sidecar.status())["note"]
    assert not await order(), "it was ordered before"
    assert set(await engine.listing()) == {"a"}
    assert await order(undrain=True)
    await comes_to(SERVES)

    code, answer = await sidecar.get("/drain?wait=1")
    assert (code, "curl -sf -H" in answer["error"]["message"], await sidecar.is_ready()) == (403, True, True), (
        "an old hook"
    )
    code, answer = await sidecar.get("/drain", **HOOK)
    assert (code, answer["draining"], answer["done"]) == (200, True, False)
    assert (await sidecar.get("/readyz"))[0] == 503, "at once"

    async def is_alone() -> bool:
        code, answer = await sidecar.get("/drain?wait=1", **HOOK)
        assert (code, answer["done"]) == (200, False)
        return answer["needed"] == "no other replica can serve all that it serves"

    await eventually(is_alone)
    await comes_to(DRAINS)
    assert await order(undrain=True), "also of a drain that an operator did not begin"
    await comes_to(SERVES)


async def stands(hand: Hand, key: bytes) -> bytes:
    """The value of a key of etcd; empty: there is none."""
    found = (await hand.client.range(Range(key))).kvs
    return found[0].value if found else b""


async def comes_to_serve(sidecar: Sidecar, hand: Hand, presence: bytes) -> None:
    async def serves() -> bool:
        value = await stands(hand, presence)
        return bool(value) and not Presence.parse(value).leaving and await sidecar.is_ready()

    await eventually(serves, timeout_seconds=STARTED_SECONDS)


def documented_hooks() -> list[list[str]]:
    """The commands of the preStop hooks in the page for operators."""
    text = (Path(__file__).parents[3] / "docs" / "operations.md").read_text()
    blocks = re.findall(r"^ {4}lifecycle:\n(?:(?: {4}.*)?\n)+", text, re.MULTILINE)
    hooks = [yaml.safe_load(textwrap.dedent(block)) for block in blocks]
    return [one["lifecycle"]["preStop"]["exec"]["command"] for one in hooks]


async def test_the_hooks_that_are_documented_drain_a_replica(hand: Hand, engine, sidecar):
    """R20 drain: each is obeyed, and tells whose it was; it ends well."""
    await hand.pool()
    sidecar.program.start()
    await eventually(sidecar.is_ready)
    port, hooks = sidecar.http.rpartition(":")[2], documented_hooks()
    assert [command[0] for command in hooks] == ["sh", "python"]
    for command in hooks:
        if command[0] == "sh" and shutil.which("curl") is None:
            continue  # as the image of a sidecar
        changed = [one.replace("7602", port).replace("wait=30", "wait=0").replace("; sleep 5", "") for one in command]
        program = sys.executable if command[0] == "python" else command[0]
        await asyncio.to_thread(subprocess.run, [program, *changed[1:]], check=True, timeout=PATIENCE_SECONDS)
        assert (await sidecar.get("/readyz"))[0] == 503
    begun = [one for one in sidecar.program.logged() if one["event"] == "drain_begun"]
    assert [one["cause"] for one in begun] == ["request"], "the second changes nothing"
    assert begun[0]["by"] in {"127.0.0.1, 'engine'", "127.0.0.1, 'sidecar'"}
    assert begun[0]["by"] in (await sidecar.status())["note"]
