"""Many lazy records over few artifacts, one real vLLM that asks its sidecar for them, and what each must answer."""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from registry.etcd3.client import Client
from registry.etcd3.ops import Put, Txn
from registry.model.keys import Keys
from registry.model.names import tenant_of
from registry.model.records import AdapterRecord, AdapterSpec, PoolSpec, SourceSpec
from tests.support.engines import BASE_MODEL, Asker, RealVllm, VllmFlags
from tests.support.etcd import make_cluster, running_etcd
from tests.support.fleet import POOL, Sidecar
from tests.support.records import written
from tests.support.swap_verdict import Sequenced
from tests.support.tiny import Tiny
from tests.support.waiting import eventually

ARTIFACTS = 20
PUTS_AT_ONCE = 1000
NAME = "the-tenant/the-name"
PROMPT = "The quick brown fox jumps over the lazy dog. "


@dataclass
class LazyFleet:
    """A replica with lazy records.

    Attributes:
        vllm: the engine.
        sidecar: beside it.
        asker: for requests to the engine.
        client: of etcd.
        names: of all records; record n has artifact n modulo `ARTIFACTS`.
        paths: of the artifacts.
        expected: what each artifact answers, loaded by hand.
        socket: on which the engine asks.
    """

    vllm: RealVllm
    sidecar: Sidecar
    asker: Asker
    client: Client
    names: Sequence[str]
    paths: Sequence[str]
    expected: Sequence[Sequenced]
    socket: str

    def sample(self, count: int, seed: int) -> list[tuple[str, Sequenced]]:
        """So many different names with the right answers, by chance."""
        numbers = random.Random(seed).sample(range(len(self.names)), count)
        return [(self.names[number], self.expected[number % ARTIFACTS]) for number in numbers]

    async def answer(self, name: str) -> Sequenced:
        """What a request for `name` is answered; it has to succeed."""
        return await _answer(self.asker, name)

    async def resident(self) -> list[int]:
        """Numbers of the adapters in the engine's memory."""
        state: Mapping[str, Any] = (await self.asker.client.get("/v1/loraplane/state")).json()
        return list(state["resident"])


@asynccontextmanager
async def lazy_fleet(
    vllm: RealVllm, flags: VllmFlags, folder: Path, tiny: Tiny, records: int
) -> AsyncIterator[LazyFleet]:
    """Starts all of it. The base model is warm."""
    async with AsyncExitStack() as stack:
        socket = flags.resolver
        assert socket is not None
        await vllm.ensure(flags)
        await vllm.clear()
        asker = vllm.asker()
        stack.push_async_callback(asker.client.aclose)
        paths = [tiny.adapter(f"lazy{number}") for number in range(ARTIFACTS)]
        expected = [await _reference(asker, path) for path in paths]
        assert not any(one.is_like(other) for one, other in itertools.combinations(expected, 2))
        cluster = await stack.enter_async_context(running_etcd(make_cluster(folder / "etcd")))
        client = Client(cluster.options())
        stack.push_async_callback(client.aclose)
        keys = Keys()
        names = [f"tenant-{number % 100}/adapter-{number:06}" for number in range(records)]
        await _write(client, keys, names, paths)
        extra = ("--resolver-socket", socket, *vllm.flags_of_sidecar())
        sources = tiny.folder / "adapters"
        sidecar = Sidecar(folder, cluster.endpoints, keys.prefix, vllm.url, sources=sources, extra=extra)
        sidecar.change("unhurried")  # else a question is lost whenever the machine stands still for two seconds amid it
        stack.callback(sidecar.program.kill)
        sidecar.program.start()
        await eventually(sidecar.is_ready)
        yield LazyFleet(vllm, sidecar, asker, client, names, paths, expected, socket)


async def _reference(asker: Asker, path: str) -> Sequenced:
    assert (await asker.load("reference", path)).status_code == 200
    answer = await _answer(asker, "reference")
    assert (await asker.unload("reference")).status_code == 200
    return answer


async def _answer(asker: Asker, name: str) -> Sequenced:
    reply = await asker.complete(name, PROMPT)
    assert reply.status_code == 200, (name, reply.text)
    logprobs = reply.json()["choices"][0]["logprobs"]
    return Sequenced(tuple(logprobs["tokens"]), tuple(logprobs["token_logprobs"]))


async def _write(client: Client, keys: Keys, names: Sequence[str], paths: Sequence[str]) -> None:
    pool = PoolSpec(name=POOL, base_models=[BASE_MODEL], prove="off")
    puts = [Put(keys.pool(POOL), pool.to_bytes())]
    # Of each artifact one is made, which takes long, and the others have its name's place filled in.
    templates = [_record(NAME, Path(path)).to_bytes() for path in paths]
    for number, name in enumerate(names):
        record = templates[number % len(paths)].replace(NAME.encode(), name.encode())
        record = record.replace(tenant_of(NAME).encode(), tenant_of(name).encode())
        puts.append(Put(keys.adapter(POOL, name), record))
    for begin in range(0, len(puts), PUTS_AT_ONCE):
        await client.txn(Txn((), tuple(puts[begin : begin + PUTS_AT_ONCE])), timeout_seconds=120)


def _record(name: str, folder: Path) -> AdapterRecord:
    return written(name, AdapterSpec(source=SourceSpec(uri=folder.as_uri()), load="lazy"), request_id="req-1")
