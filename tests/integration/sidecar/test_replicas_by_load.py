"""A number of replicas that follows requests: an admin service, two sidecars beside simulated engines, and a router."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path

import httpx
import pytest

from registry.v1 import registry_pb2 as pb
from sidecar.engines.simulated.app import serving
from sidecar.engines.simulated.engine import SimulatedVllm
from sidecar.engines.simulated.options import Options
from tests.support.admin import Admin, admin_inside, change_set, wait_ready
from tests.support.fleet import BASE, POOL, Hand, Sidecar
from tests.support.http_client import http_client
from tests.support.waiting import eventually

NAME = "hot"
BY_LOAD = pb.Placement(replicas=1, by_load=pb.ByLoad(max=2, per_replica=4))
# So long after it left the list an engine answers to a name, and so often a router asks for the list.
HIDE_SECONDS, POLL_SECONDS = 3.0, 0.2


class Router:
    """Sends requests where the lists of the engines name the adapter; as many at once as it is told."""

    def __init__(self, urls: list[str], client: httpx.AsyncClient) -> None:
        self._urls, self._client = urls, client
        self.listing: list[str] = []
        self.at_once = 0
        self.sent, self.failed = 0, list[str]()
        self._turn = count()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._poll())
            for number in range(6):
                tasks.create_task(self._work(number))

    async def _poll(self) -> None:
        while True:
            pages = [(url, (await self._client.get(f"{url}/v1/models")).json()["data"]) for url in self._urls]
            self.listing = [url for url, cards in pages if any(card["id"] == NAME for card in cards)]
            await asyncio.sleep(POLL_SECONDS)

    async def _work(self, number: int) -> None:
        while True:
            if number >= self.at_once:
                await asyncio.sleep(POLL_SECONDS)
                continue
            if not self.listing:
                self.failed.append("nobody lists it")
                return
            url = self.listing[next(self._turn) % len(self.listing)]
            body = {"model": NAME, "prompt": "x", "max_tokens": 5}
            reply = await self._client.post(f"{url}/v1/completions", json=body)
            self.sent += 1
            if reply.status_code != 200:
                self.failed.append(reply.text)


@pytest.fixture
async def admin(etcd, monkeypatch) -> AsyncIterator[Admin]:
    """One whose minutes are seconds."""
    monkeypatch.setattr("registry.rollout.scaling.STEP_SECONDS", 1.0)
    monkeypatch.setattr("registry.rollout.scaling.CALM_SECONDS", 1.5)
    async with admin_inside(etcd.endpoints, etcd.prefix) as admin:
        await wait_ready(admin)
        yield admin


async def number_of(admin: Admin) -> tuple[int, str, int]:
    """The present number, the reason for it, and the generation."""
    found = await admin.stub.GetAdapter(pb.GetAdapterRequest(pool=POOL, name=NAME))
    return found.scaled.replicas, found.scaled.reason, found.generation


async def test_a_second_replica_serves_it_while_there_is_much_to_do_and_no_request_fails(
    etcd, hand: Hand, admin: Admin, tmp_path: Path
):
    """R20: one more, and one fewer, by one audited step each, of one generation; what leaves hands over first."""
    await hand.pool()
    async with AsyncExitStack() as stack:
        urls = []
        for replica in ("r0", "r1"):
            options = Options(served_model_name=BASE, plugin=True, token_seconds=0.05, hide_seconds=HIDE_SECONDS)
            urls.append(url := await stack.enter_async_context(serving(SimulatedVllm(options))))
            sidecar = Sidecar(tmp_path, etcd.endpoints, etcd.prefix, url, replica=replica, sources=hand.sources)
            sidecar.change("counting")
            stack.push_async_callback(asyncio.to_thread, sidecar.program.stop)
            sidecar.program.start()
        source = pb.Source(uri=hand.source("v1").as_uri())
        wanted = pb.Adapter(name=NAME, spec=pb.AdapterSpec(source=source, placement=BY_LOAD))
        await admin.stub.ApplyAdapters(change_set(pb.AdapterChange(upsert=wanted)))
        client = await stack.enter_async_context(http_client(timeout=60))
        router = Router(urls, client)
        running = asyncio.create_task(router.run())
        await eventually(lambda: len(router.listing) == 1)
        router.at_once = 6

        async def is_on(many: int) -> bool:
            assert (await number_of(admin))[0] == many
            return len(router.listing) == many

        await eventually(lambda: is_on(2))
        _, reason, generation = await number_of(admin)
        assert (reason.endswith("requests at once on 1 replicas, 4 are to be on each"), generation) == (True, 1)
        router.at_once = 1
        await eventually(lambda: is_on(1))
        sent = router.sent
        await eventually(lambda: router.sent > sent + 5)
        running.cancel()
        assert router.failed == []
        told = (await admin.stub.ListChanges(pb.ListChangesRequest(pool=POOL))).changes
        steps = [one for one in told if one.method == "ScaleAdapter"]
        assert [(one.action, list(one.fields), "requests at once" in one.note) for one in steps] == [
            ("updated", ["scaled"], True)
        ] * 2
