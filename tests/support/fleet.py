"""Replicas as processes: real sidecars beside simulated engines, one or many of a pool, and a hand that writes records.

Only `PlacedFleet` has its engines in this process, so that a test sees each call as it comes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import httpx

from registry.etcd3.client import Client
from registry.etcd3.ops import Delete, Put, Range, prefix_end
from registry.lora.base import compress
from registry.lora.base_directory import read_base
from registry.model.keys import Keys, last_part
from registry.model.placement import Member
from registry.model.records import AdapterRecord, AdapterSpec, BaseShapes, PoolSpec, SourceSpec
from registry.tools.devstack.engine_environment import PLUGIN_VARIABLES, RESOLVER_VARIABLE, RUNTIME_LORA_VARIABLE
from registry.tools.devstack.processes import free_ports
from registry.v1 import registry_pb2 as pb
from sidecar.artifacts.types import ArtifactRef
from sidecar.engines.simulated.app import serving
from sidecar.engines.simulated.engine import SimulatedCall, SimulatedVllm
from sidecar.engines.simulated.options import Options
from tests.support.adapters import write_adapter
from tests.support.admin import Admin
from tests.support.etcd import PATIENCE_SECONDS, commit
from tests.support.http_client import http_client
from tests.support.metrics import read_metrics
from tests.support.processes import Program
from tests.support.records import written
from tests.support.residency_world import assigned
from tests.support.waiting import eventually

POOL = "p"
BASE = "base"


class SimulatedEngine:
    """``python -m sidecar.engines.simulated`` on a port that survives restarts."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        plugin: bool = False,
        resolver: Path | None = None,
    ) -> None:
        """`plugin`: with ours; `resolver`: with ours, which asks at that socket."""
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        flags = ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", BASE, *arguments]
        environment = {RUNTIME_LORA_VARIABLE: "1"}
        environment |= PLUGIN_VARIABLES if plugin or resolver else {}
        environment |= {RESOLVER_VARIABLE: str(resolver)} if resolver else {}
        self.program = Program("sidecar.engines.simulated", flags, folder / "engine.log", environment)

    async def start(self) -> None:
        """Starts it and waits until it serves."""
        self.program.start()
        await eventually(self.is_healthy)

    async def is_healthy(self) -> bool:
        try:
            return (await self._request("GET", "/health")).status_code == 200
        except httpx.TransportError:
            return False

    async def listing(self) -> dict[str, str]:
        """Adapter names with their paths, as the engine lists them. AssertionError: it does not answer."""
        try:
            cards = (await self._request("GET", "/v1/models")).json()["data"]
        except httpx.TransportError as error:
            raise AssertionError(f"the engine does not answer: {error!r}") from error
        return {card["id"]: card["root"] for card in cards if card.get("parent")}

    async def load(self, name: str, path: str) -> int:
        """What somebody else might do; returns the status."""
        body = {"lora_name": name, "lora_path": path}
        return (await self._request("POST", "/v1/load_lora_adapter", json=body)).status_code

    async def unload(self, name: str) -> int:
        return (await self._request("POST", "/v1/unload_lora_adapter", json={"lora_name": name})).status_code

    async def request(self, name: str) -> int:
        """Status of the answer to a request for a model."""
        body = {"model": name, "prompt": "x", "max_tokens": 1}
        return (await self._request("POST", "/v1/completions", json=body)).status_code

    async def _request(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        async with http_client(base_url=self.url, timeout=PATIENCE_SECONDS) as client:
            return await client.request(method, path, **kwargs)


class Sidecar:
    """``loraplane-sidecar`` beside an engine."""

    def __init__(
        self,
        folder: Path,
        etcd: tuple[str, ...],
        prefix: str,
        engine: str,
        *,
        replica: str = "r1",
        store: Path | None = None,
        sources: Path | None = None,
        extra: Sequence[str] = (),
    ) -> None:
        (port,) = free_ports(1)
        self.http = f"http://127.0.0.1:{port}"
        self.store = store or folder / "store"
        self.replica = replica
        arguments = [
            *("--etcd", ",".join(etcd), "--prefix", prefix, "--pool", POOL, "--replica", replica),
            *("--engine", engine, "--store", str(self.store), "--http", f"127.0.0.1:{port}"),
            *("--allow-source", f"file://{sources or folder / 'sources'}/"),
            *("--drain-timeout", "0"),  # a test that ends its replicas has nobody take anything over
            *extra,
        ]
        self.program = Program("sidecar.main", arguments, folder / f"sidecar-{replica}.log")

    def change(self, how: str) -> None:
        """Makes it, before its start, what `tests.support.changed_sidecar` makes of one."""
        self.program.module = "tests.support.changed_sidecar"
        self.program.arguments.insert(0, how)

    async def get(self, path: str, **headers: str) -> tuple[int, dict[str, Any]]:
        """Status and JSON of one of its pages; status 0 while it does not answer."""
        try:
            async with http_client(base_url=self.http, timeout=PATIENCE_SECONDS) as client:
                reply = await client.get(path, headers=headers)
        except httpx.TransportError:
            return 0, {}
        return reply.status_code, reply.json()

    async def metrics(self) -> dict[str, float]:
        """See `read_metrics`."""
        return await read_metrics(self.http)

    async def status(self) -> dict[str, Any]:
        """What it says of itself. AssertionError: it does not answer."""
        code, said = await self.get("/status")
        assert code == 200, f"{self.http}/status: {code}"
        return said

    async def is_ready(self) -> bool:
        return (await self.get("/readyz"))[0] == 200

    async def failed(self) -> dict[str, str]:
        """Failed names with their reasons."""
        return {entry["name"]: entry["reason"] for entry in (await self.status())["failed"]}

    async def kept(self) -> None:
        """Waits until a snapshot is on the disk: a kill right after the first list would leave none."""
        state = self.store / "state" / self.replica
        await eventually(lambda: any(state.glob("snapshot-*")))


@dataclass
class Hand:
    """Writes records as the admin service would, or as it never would."""

    client: Client
    keys: Keys
    sources: Path

    def source(self, name: str, **kwargs: Any) -> Path:
        """A valid adapter's directory under the allowed root, made if it is not there."""
        folder = self.sources / name
        if not folder.exists():
            write_adapter(folder, **({"seed": sum(name.encode())} | kwargs))
        return folder

    def record(self, name: str, source: str, generation: int = 1, **spec: Any) -> AdapterRecord:
        """A record for the adapter in `source`; pinned only if a digest is given."""
        digest = spec.pop("digest", None)
        where = SourceSpec(uri=self.source(source).as_uri(), digest=digest)
        request_id = f"req-{name.replace('/', '-')}-{generation}"
        return written(name, AdapterSpec(source=where, **spec), generation, request_id)

    async def put(self, *records: AdapterRecord) -> int:
        """Writes records in one transaction; returns its revision."""
        return await self.commit(*(Put(self.keys.adapter(POOL, record.name), record.to_bytes()) for record in records))

    async def delete(self, *names: str) -> int:
        return await self.commit(*(Delete(self.keys.adapter(POOL, name)) for name in names))

    async def pool(self, *base_models: str, **changes: Any) -> int:
        spec = PoolSpec(name=POOL, base_models=list(base_models or (BASE,)), **changes)
        return await self.commit(Put(self.keys.pool(POOL), spec.to_bytes()))

    async def commit(self, *ops: Put | Delete) -> int:
        return await commit(self.client, *ops)

    def ref(self, record: AdapterRecord) -> ArtifactRef:
        source = record.spec.source
        return ArtifactRef(source.uri, source.digest)


def shapes_of(base: Path) -> BaseShapes:
    """A base model's folder, as ``loraplane pool update --from`` writes it into a pool's record."""
    found = read_base(base)
    return BaseShapes(
        modules=compress(found.modules),
        fingerprint=found.fingerprint,
        architecture=found.architecture,
        layout=found.layout,
        weights=found.weights,
    )


async def lists(engine: SimulatedEngine, *names: str) -> None:
    """Waits until the engine lists exactly these names."""

    async def is_so() -> bool:
        return set(await engine.listing()) == set(names)

    await eventually(is_so, timeout_seconds=60)


async def serves(engine: SimulatedEngine, sidecar: Sidecar, *names: str) -> dict[str, str]:
    """Waits until the engine lists exactly these names from the sidecar's store, and returns the listing."""

    async def listed() -> dict[str, str] | None:
        listing = await engine.listing()
        assert set(listing) == set(names)
        assert all(path.startswith(str(sidecar.store / "adapters")) for path in listing.values())
        return listing | {"": ""}

    listing = await eventually(listed)
    del listing[""]
    return listing


async def settled(sidecar: Sidecar, revision: int) -> dict[str, Any]:
    """Waits until the replica says that it is ready at `revision` or later."""

    async def is_settled() -> dict[str, Any] | None:
        status = await sidecar.status()
        assert status.get("ready"), status
        assert status["observed_revision"] >= revision, status
        assert not status["pending"], status
        return status

    return await eventually(is_settled)


@asynccontextmanager
async def known_replicas(
    admin: Admin, etcd: Sequence[str], prefix: str, folder: Path, *names: str
) -> AsyncIterator[dict[str, SimulatedEngine]]:
    """The engines by name of the replica; all may read ``folder/sources``."""
    engines = {name: SimulatedEngine(folder / name) for name in names}

    async def are_known() -> bool:
        found = await admin.stub.ListReplicas(pb.ListReplicasRequest(pool=POOL))
        return len(found.replicas) == len(engines)

    async with AsyncExitStack() as stack:
        for name, engine in engines.items():
            stack.callback(engine.program.kill)
            await engine.start()
            sources = folder / "sources"
            sidecar = Sidecar(folder / name, tuple(etcd), prefix, engine.url, replica=name, sources=sources)
            stack.callback(sidecar.program.kill)
            sidecar.program.start()
        await eventually(are_known)
        yield engines


class EtcdPlace(Protocol):
    """Where the pool's records are."""

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Host and port of each member."""
        ...

    @property
    def prefix(self) -> str:
        """Before every key."""
        ...


class PlacedFleet:
    """Replicas that come and go, and who lists what.

    Attributes:
        engines: by replica.
        members: the replicas.
        too_few: what was unloaded, and where, so that fewer than should were left to serve it.
    """

    def __init__(self, folder: Path, etcd: EtcdPlace, hand: Hand, stack: AsyncExitStack) -> None:
        self._folder = folder
        self._etcd = etcd
        self._hand = hand
        self._stack = stack
        self._wanted: dict[str, AdapterRecord] = {}
        self.engines: dict[str, SimulatedVllm] = {}
        self.sidecars: dict[str, Sidecar] = {}
        self.members: dict[str, Member] = {}
        self.too_few: list[str] = []

    async def start(
        self,
        *replicas: str,
        max_rank: int | None = None,
        may_read: bool = True,
        **labels: str,
    ) -> None:
        """Starts replicas that were not there before; they have these limits, and may read the records' sources."""
        for replica in replicas:
            engine = SimulatedVllm(Options(served_model_name=BASE), partial(self._note, replica))
            url = await self._stack.enter_async_context(serving(engine))
            extra = ["--labels", ",".join(f"{key}={value}" for key, value in labels.items())] if labels else []
            extra += ["--engine-max-rank", str(max_rank)] if max_rank else []
            etcd, sources = self._etcd, self._hand.sources if may_read else self._folder / "elsewhere"
            sidecar = Sidecar(
                self._folder, etcd.endpoints, etcd.prefix, url, replica=replica, sources=sources, extra=extra
            )
            # In a thread, so that the engines here see their connections end.
            self._stack.push_async_callback(asyncio.to_thread, sidecar.program.stop)
            sidecar.program.start()
            self.engines[replica], self.sidecars[replica] = engine, sidecar
            self.members[replica] = Member(replica, labels)

    async def are_known(self) -> bool:
        """Whether the presences in etcd are those of all members."""
        prefix = self._hand.keys.replicas(POOL)
        found = await self._hand.client.range(Range(prefix, prefix_end(prefix)))
        return {last_part(kv.key) for kv in found.kvs} == self.members.keys()

    async def want(self, *records: AdapterRecord) -> None:
        """Writes records."""
        await self._hand.put(*records)
        self._wanted |= {record.name: record for record in records}

    def owners(self, name: str) -> set[str]:
        """The live replicas whose engines list it."""
        return {replica for replica in self.members if name in self.engines[replica].cards}

    def expected(self, name: str) -> set[str]:
        """The live replicas that are to serve it."""
        return set(assigned(POOL, name, self._wanted[name].spec, self.members.values(), {}).serving)

    def is_placed(self) -> bool:
        """Whether everything is where it is to be, and nowhere else."""
        for name in self._wanted:
            assert self.owners(name) == self.expected(name), f"{name}: {self.owners(name)}, not {self.expected(name)}"
        return True

    def calls(self) -> Counter[tuple[str, str, str]]:
        """How often there was each call so far: replica, kind, name."""
        return Counter(
            (replica, one.kind, one.name) for replica, engine in self.engines.items() for one in engine.calls
        )

    def _note(self, replica: str, call: SimulatedCall) -> None:
        left = self.owners(call.name) - {replica}
        if call.kind == "unload" and call.name in self._wanted and not self.expected(call.name) <= left:
            self.too_few.append(f"{replica} unloads {call.name}, which {left or 'nobody'} is left to serve")
