"""``python -m tests.support.make_sample``: writes what a release leaves behind, as tests/samples/README.md says."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from zlib import crc32

import grpc

from registry.etcd3.client import Client
from registry.etcd3.ops import Put, Range
from registry.v1 import registry_pb2 as pb
from registry.v1 import registry_pb2_grpc
from tests.support.adapters import write_adapter
from tests.support.admin import admin_program
from tests.support.etcd import Cluster, commit, make_cluster
from tests.support.fleet import BASE, POOL, Sidecar, SimulatedEngine
from tests.support.waiting import eventually

# The same on every machine, for records and snapshots name it, under checksums.
ROOT = Path("/srv/loraplane")
PREFIX = "/loraplane/v1"
# What etcd derives its cluster's id from. Nobody connects to it.
PEER = "http://127.0.0.1:2380"
# The kept parts of the store: the rest is empty while nobody stages.
KEPT = ("adapters", "leases", "pins", "reports", "locks", "state")
# A release of vLLM that knows adapters by name only, for which a sidecar keeps a load ledger.
OLD_VLLM = "0.10.0"


def sample_cluster(folder: Path) -> Cluster:
    """An etcd, not yet started, of the same cluster id as every other one that is made here."""
    flags = {"initial-advertise-peer-urls": PEER, "initial-cluster": f"m0={PEER}"}
    return make_cluster(folder, flags=flags)


def source(name: str) -> pb.Source:
    """The smallest adapter there is, made from its name."""
    written = write_adapter(ROOT / "sources" / name, rank=1, hidden=2, seed=crc32(name.encode()))
    return pb.Source(uri=written.uri, digest=written.digest)


def put(name: str, where: pb.Source, **spec: Any) -> pb.AdapterChange:
    """An upsert."""
    return pb.AdapterChange(upsert=pb.Adapter(name=name, spec=pb.AdapterSpec(source=where, **spec)))


def unpinned(name: str) -> pb.Source:
    """The same without a digest."""
    return pb.Source(uri=source(name).uri)


def deletion() -> pb.ApplyAdaptersRequest:
    """The request that is repeated after the takeover."""
    return pb.ApplyAdaptersRequest(pool=POOL, changes=[pb.AdapterChange(delete="gone")], request_id="delete-gone")


async def play(stub: Any, client: Client, sidecars: list[Sidecar], engine: SimulatedEngine) -> None:
    """Makes one adapter of each kind; two of them after the sidecars wrote their snapshots."""

    async def apply(*changes: pb.AdapterChange) -> int:
        reply = await stub.ApplyAdapters(pb.ApplyAdaptersRequest(pool=POOL, changes=changes))
        return int(reply.revision)

    await stub.CreatePool(pb.CreatePoolRequest(pool=pb.Pool(name=POOL, base_models=[BASE])))
    await stub.SetTenant(pb.SetTenantRequest(tenant=pb.Tenant(name="acme", max_adapters=2)))
    strategy = pb.Strategy(canary_replicas="1", promote="manual")
    changes = [
        put("acme/pinned", source("pinned")),
        put("acme/lazy", source("lazy"), load="lazy"),
        put("unpinned", unpinned("unpinned")),
        *(put(f"placed-{n}", source(f"placed-{n}"), placement=pb.Placement(replicas=1)) for n in "ab"),
        put("canary", source("stable")),
        put("gone", source("gone")),
        put("refused", pb.Source(uri=(ROOT / "sources/missing").as_uri())),
    ]
    revision = await apply(*changes)
    for one in sidecars:
        one.program.start()
    await all_seen(sidecars, revision)
    await asyncio.gather(*(one.kept() for one in sidecars))
    await apply(put("unpinned", unpinned("unpinned"), labels={"made": "again"}))
    await apply(put("canary", source("canary"), strategy=strategy))
    await add_unknown_fields(client, "unpinned")
    revision = int((await stub.ApplyAdapters(deletion())).revision)
    await all_seen(sidecars, revision)
    assert await engine.request("acme/lazy") == 200
    await eventually(lambda: has_seen(sidecars[0], revision, resident=1))


async def all_seen(sidecars: list[Sidecar], revision: int) -> None:
    """Waits until no replica has anything left to do."""

    async def is_seen() -> bool:
        return all([await has_seen(one, revision) for one in sidecars])

    await eventually(is_seen)


async def has_seen(sidecar: Sidecar, revision: int, resident: int = 0) -> bool:
    """True once nothing is left to do but for what is refused."""
    status = await sidecar.status()
    done = status["ready"] and status["observed_revision"] >= revision and not status["pending"]
    return done and len(status["lazy"]["resident"]) >= resident and len(status["failed"]) == 1


async def add_unknown_fields(client: Client, name: str) -> None:
    """Writes fields into a record that no release knows."""
    key = f"{PREFIX}/adapters/{POOL}/{name}".encode()
    record = json.loads((await client.range(Range(key))).kvs[0].value)
    record["later"] = {"told": "by a later release"}
    record["spec"]["later"] = 1
    await commit(client, Put(key, json.dumps(record, separators=(",", ":")).encode()))


async def make(out: Path, folder: Path, verify: str) -> None:
    """Runs the release and copies what it leaves behind."""
    cluster = sample_cluster(folder / "etcd")
    cluster.start()
    await cluster.ready()
    client = cluster.patient()
    admin = admin_program(folder, cluster.endpoints, PREFIX)
    socket = folder / "s"
    first = SimulatedEngine(folder / "e1", "--max-cpu-loras", "16", resolver=socket)
    second = SimulatedEngine(folder / "e2", "--vllm-version", OLD_VLLM)
    sidecars = [
        _sidecar(folder, cluster, first, "r1", "--resolver-socket", str(socket)),
        _sidecar(folder, cluster, second, "r2", "--engine-max-cpu-loras", "16"),
    ]
    programs = [admin.program, first.program, second.program, *(one.program for one in sidecars)]
    try:
        for program in programs[:3]:
            program.start()
        async with grpc.aio.insecure_channel(admin.address) as channel:
            await channel.channel_ready()
            stub = registry_pb2_grpc.AdapterRegistryStub(channel)  # type: ignore[no-untyped-call]
            await play(stub, client, sidecars, first)
        # Nobody sees the canary go. The second sidecar is killed, and its presence stays; the first is ended as for an
        # upgrade, and takes its presence with it.
        admin.program.stop()
        sidecars[1].program.kill()
        sidecars[0].program.stop()
        shown = {"engines": {"r1": first.url, "r2": second.url}, "listing": await first.listing()}
        (out / "listing.json").write_text(json.dumps(shown, indent=1, sort_keys=True) + "\n")
        flags = ["--etcd", ",".join(cluster.endpoints), "--out", str(out / "etcd.jsonl")]
        command = [sys.executable, "-m", verify, "export", *flags]
        await asyncio.to_thread(subprocess.run, command, check=True)
    finally:
        for program in reversed(programs):
            program.kill()
        await client.aclose()
        cluster.stop()
    for name in KEPT:
        shutil.copytree(ROOT / "store" / name, out / "store" / name)


def _sidecar(folder: Path, cluster: Cluster, engine: SimulatedEngine, replica: str, *extra: str) -> Sidecar:
    places: dict[str, Any] = {"store": ROOT / "store", "sources": ROOT / "sources"}
    return Sidecar(folder, cluster.endpoints, PREFIX, engine.url, replica=replica, extra=extra, **places)


def main() -> None:
    """Entry point; makes and removes /srv/loraplane."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--verify", default="registry.tools.verify.main", help="the module with the command export")
    arguments = parser.parse_args()
    assert not ROOT.exists(), f"{ROOT} is in use"
    arguments.out.mkdir(parents=True)
    folder = Path(tempfile.mkdtemp(prefix="lp-"))
    try:
        asyncio.run(make(arguments.out, folder, arguments.verify))
    finally:
        shutil.rmtree(ROOT, ignore_errors=True)
        print(f"logs are in {folder}")


if __name__ == "__main__":
    os.umask(0o022)
    main()
