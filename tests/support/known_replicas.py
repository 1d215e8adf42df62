"""Replicas that the registry knows: real sidecars as processes, beside simulated engines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from registry.v1 import registry_pb2 as pb
from tests.support.admin import Admin
from tests.support.fleet import POOL, Sidecar, SimulatedEngine
from tests.support.waiting import eventually


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
        await eventually(are_known, timeout_seconds=120)
        yield engines
