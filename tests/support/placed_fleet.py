"""Many replicas of one pool: simulated engines in this process, real sidecars as processes."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Protocol

from registry.etcd3.ops import Range, prefix_end
from registry.keys import last_part
from registry.model.assignment import assign
from registry.model.placement import Member
from registry.model.records import AdapterRecord
from sidecar.engines.simulated.engine import Call, SimulatedVllm
from sidecar.engines.simulated.options import Options
from sidecar.engines.simulated.server import serving
from tests.support.fleet import BASE, POOL, Hand, Sidecar


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
        engines: by replica; an engine outlives its sidecar.
        members: the replicas whose sidecars run.
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

    async def start(self, *replicas: str, capacity: int | None = None, **labels: str) -> None:
        """Starts replicas that were not there before."""
        for replica in replicas:
            engine = SimulatedVllm(Options(served_model_name=BASE), partial(self._note, replica))
            url = await self._stack.enter_async_context(serving(engine))
            extra = ["--labels", ",".join(f"{key}={value}" for key, value in labels.items())] if labels else []
            extra += ["--engine-max-cpu-loras", str(capacity)] if capacity else []
            etcd, sources = self._etcd, self._hand.sources
            sidecar = Sidecar(
                self._folder, etcd.endpoints, etcd.prefix, url, replica=replica, sources=sources, extra=extra
            )
            # In a thread, so that the engines here see their connections end.
            self._stack.push_async_callback(asyncio.to_thread, sidecar.program.stop)
            sidecar.program.start()
            self.engines[replica], self.sidecars[replica] = engine, sidecar
            self.members[replica] = Member(replica, labels, capacity)

    async def are_known(self) -> bool:
        """Whether the presences in etcd are those of all members."""
        prefix = self._hand.keys.replicas(POOL)
        found = await self._hand.client.range(Range(prefix, prefix_end(prefix)))
        return {last_part(kv.key) for kv in found.kvs} == self.members.keys()

    def kill(self, replica: str) -> None:
        """Kills its sidecar; its engine goes on, and nobody counts on it."""
        self.sidecars[replica].program.kill()
        del self.members[replica]

    async def want(self, *records: AdapterRecord) -> None:
        """Writes records."""
        await self._hand.put(*records)
        self._wanted |= {record.name: record for record in records}

    def owners(self, name: str) -> set[str]:
        """The live replicas whose engines list it."""
        return {replica for replica in self.members if name in self.engines[replica].cards}

    def expected(self, name: str) -> set[str]:
        """The live replicas that are to serve it."""
        return set(assign(POOL, name, self._wanted[name].spec, self.members.values(), {}).serving)

    def share(self, replica: str) -> set[str]:
        """What a replica is to serve."""
        return {name for name in self._wanted if replica in self.expected(name)}

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

    def _note(self, replica: str, call: Call) -> None:
        left = self.owners(call.name) - {replica}
        if call.kind == "unload" and call.name in self._wanted and not self.expected(call.name) <= left:
            self.too_few.append(f"{replica} unloads {call.name}, which {left or 'nobody'} is left to serve")
