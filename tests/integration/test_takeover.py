"""A store, a snapshot and an etcd of the release before, taken over by this one."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import pytest

from registry.etcd3.client import Client
from registry.etcd3.ops import Delete, Put, Range
from registry.model.keys import Keys
from registry.tools.verify.fold import Fold
from registry.tools.verify.history import Revision
from registry.tools.verify.main import decode
from registry.v1 import registry_pb2 as pb
from sidecar.engines.load_ledger import PAST_FILE, LoadLedger
from tests.support.admin import Admin, admin_inside, drop, put, refusal, wait_ready
from tests.support.etcd import Cluster, commit
from tests.support.fleet import POOL, Sidecar, SimulatedEngine, settled
from tests.support.make_sample import PREFIX, ROOT, deletion, sample_cluster
from tests.support.waiting import eventually

SAMPLE = Path(__file__).parents[1] / "samples" / "0.1"
SHOWN = json.loads((SAMPLE / "listing.json").read_text())
HISTORY = [step for step in decode((SAMPLE / "etcd.jsonl").read_text().splitlines()) if isinstance(step, Revision)]
EAGER = {"acme/pinned", "canary", "placed-b", "unpinned"}


@dataclass
class World:
    """The replica r1 as the release before left it; nothing runs yet but its engine, which serves nothing."""

    cluster: Cluster
    engine: SimulatedEngine
    sidecar: Sidecar
    socket: Path

    @property
    def listing(self) -> dict[str, str]:
        """What its engine listed, by the paths of today."""
        return {name: path.replace(str(ROOT / "store"), str(self.sidecar.store)) for name, path in LISTED.items()}

    def calls(self) -> list[str]:
        """What the sidecar asked of the engine about what it served.

        A presence tells no capacity before the engine was seen: for a moment placed-a may be due to this replica too.
        """
        logged = [line for line in self.sidecar.program.logged() if line["event"] == "engine_call"]
        return [f"{line['call']} {line['name']}" for line in logged if line["name"] in LISTED]

    def files(self) -> dict[str, tuple[int, int]]:
        """The artifacts of the store; one that is fetched again has another inode."""
        found = (self.sidecar.store / "adapters").rglob("*")
        return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in found}


LISTED: dict[str, str] = SHOWN["listing"]


@pytest.fixture
def socket() -> Iterator[Path]:
    with TemporaryDirectory(prefix="lp-") as folder:
        yield Path(folder) / "s"


@pytest.fixture
async def world(tmp_path: Path, socket: Path) -> AsyncIterator[World]:
    engine = SimulatedEngine(tmp_path, "--max-cpu-loras", "16", resolver=socket)
    await engine.start()
    cluster = sample_cluster(tmp_path / "etcd")
    store = placed_store(tmp_path / "store", engine.url)
    sidecar = Sidecar(
        *(tmp_path, cluster.endpoints, PREFIX, engine.url),
        store=store,
        sources=ROOT / "sources",  # which is nowhere
        extra=("--resolver-socket", str(socket)),
    )
    yield World(cluster, engine, sidecar, socket)
    sidecar.program.kill()
    engine.program.kill()
    cluster.stop()


def placed_store(store: Path, engine: str) -> Path:
    """The sample's store at another place, and its leases for an engine at another address."""
    shutil.copytree(SAMPLE / "store", store)
    ledger = store / "state/r2" / PAST_FILE
    ledger.write_text(ledger.read_text().replace(str(ROOT / "store"), str(store)))
    leases = store / "leases"
    (leases / f"r1@{_address(SHOWN['engines']['r1'])}").rename(leases / f"r1@{_address(engine)}")
    return store


def _address(engine: str) -> str:
    return hashlib.sha256(engine.encode()).hexdigest()[:16]


async def replay_history(client: Client) -> None:
    """Writes the sample's history so that every key has the revisions that it had.

    What r2 says is under a lease, as of a sidecar that lives on; of r1, which a new sidecar takes over, nothing is.
    """
    lease, ours = await client.lease_grant(3600), {Keys(PREFIX).replica(POOL, "r2"), Keys(PREFIX).status(POOL, "r2")}
    for step in HISTORY:
        ops = [Put(e.key, e.kv.value, lease if e.key in ours else 0) if e.kv else Delete(e.key) for e in step.events]
        assert await commit(client, *ops) == step.revision


@pytest.fixture
async def client(world: World) -> AsyncIterator[Client]:
    world.cluster.start()
    await world.cluster.ready()
    client = world.cluster.patient()
    await replay_history(client)
    yield client
    await client.aclose()


@pytest.fixture
async def admin(world: World, client: Client) -> AsyncIterator[Admin]:
    async with admin_inside(world.cluster.endpoints, PREFIX) as admin:
        await wait_ready(admin)
        yield admin


async def value_of(client: Client, key: str) -> dict[str, Any]:
    return json.loads((await client.range(Range(f"{PREFIX}/{key}".encode()))).kvs[0].value)


def last_status(replica: str) -> dict[str, Any]:
    """What the replica said last to the release before."""
    key = f"{PREFIX}/status/{POOL}/{replica}".encode()
    values = [event.kv.value for step in HISTORY for event in step.events if event.key == key and event.kv]
    return json.loads(values[-1])


async def test_without_etcd_the_snapshot_alone_brings_everything_back(world: World):
    """R12 crash-only, R13 static-stable: base, journal, leases, pins and reports are read as they were written."""
    files = world.files()
    world.sidecar.program.start()
    await eventually(lambda: is_listed(world, EAGER))
    assert (await world.sidecar.status())["stale"]
    await eventually(lambda: is_served(world, "acme/lazy"))
    assert await world.engine.listing() == world.listing
    assert world.files() == files
    logged = world.sidecar.program.logged()
    assert [line["adapters"] for line in logged if line["event"] == "snapshot_restored"] == [7]
    assert not {"leases_of_another_engine", "leases_damaged"} & {line["event"] for line in logged}
    failed = await eventually(world.sidecar.failed)
    assert failed == {"refused": "source_missing"}


async def is_listed(world: World, names: set[str]) -> bool:
    return set(await world.engine.listing()) == names


async def is_served(world: World, name: str) -> bool:
    return await world.engine.request(name) == 200


async def test_a_new_sidecar_takes_an_engine_and_a_rollout_over_without_a_call_or_a_fetch(
    world: World, client: Client, admin: Admin
):
    """R1 monotonic, R4 digest-true, R7 files-pinned, R9: the same names, digests, paths, and the same share of a pool
    in which another replica is of the release before; the canary stays the canary, and is promoted."""
    for name, path in world.listing.items():
        assert await world.engine.load(name, path) == 200
    files, before = world.files(), last_status("r1")
    world.sidecar.program.start()
    same = ("served", "found", "members", "weights", "held", "note")

    async def is_as_before() -> bool:
        now = await settled(world.sidecar, before["observed_revision"])
        assert {name: now[name] for name in same if name != "served"} == {name: before[name] for name in same[1:]}
        assert [one["name"] for one in now["lazy"]["resident"]] == ["acme/lazy"]
        assert [one["reason"] for one in now["failed"]] == ["source_missing"]
        return {name: now["served"][name] for name in before["served"]} == before["served"]

    await eventually(is_as_before)
    assert await world.engine.listing() == world.listing
    assert world.files() == files
    events = [line["event"] for line in world.sidecar.program.logged()]
    assert "snapshot_restored" in events
    assert not {"listed", "list_held", "store_replaced"} & set(events), "the watch goes on where it was"
    serving = pb.RolloutReplica.SERVING
    expected = {"r1": (True, 2, serving), "r2": (False, 1, serving)}

    async def is_halfway() -> bool:
        watched = admin.stub.WatchRollout(pb.WatchRolloutRequest(pool=POOL, name="canary"))
        rollout = await watched.read()
        watched.cancel()
        return {one.replica: (one.canary, one.generation, one.state) for one in rollout.replicas} == expected

    await eventually(is_halfway)
    promoted = await admin.stub.PromoteRollout(pb.PromoteRolloutRequest(pool=POOL, name="canary"))
    assert promoted.results[0].adapter.generation == 2
    await settled(world.sidecar, promoted.revision)
    await eventually(lambda: is_listed(world, set(LISTED)))
    assert await world.engine.listing() == world.listing
    assert world.calls() == []


def test_the_replay_checker_and_the_ledger_are_read_as_they_were_written(tmp_path: Path):
    """What an engine had under a name is still known; the checker finds what was written by hand, and no more."""
    store = placed_store(tmp_path / "store", "http://127.0.0.1:8000")
    past = LoadLedger(store / "state/r2", PAST_FILE).of(last_status("r2")["engine"]["incarnation"])
    assert set(past) >= {"acme/pinned", "canary", "gone", "placed-a", "unpinned"}
    assert all(Path(path).is_dir() for path in past.values())
    found = Fold(Keys(PREFIX)).replay(HISTORY).findings
    assert {(one.where, one.revision) for one in found} == {(f"{PREFIX}/adapters/p/unpinned", 17)}


async def test_generations_history_quotas_and_replies_go_on(world: World, client: Client, admin: Admin):
    """W3 idempotent, W5 quota-never, W6 one-digest: the admin service carries on what the one
    before wrote, and drops nothing that it does not know."""
    listed = await admin.stub.ListAdapters(pb.ListAdaptersRequest(pool=POOL))
    assert {one.name: one.generation for one in listed.adapters} == {
        **dict.fromkeys(("acme/lazy", "acme/pinned", "placed-a", "placed-b", "refused"), 1),
        "canary": 2,
        "unpinned": 2,
    }
    repeated = await admin.stub.ApplyAdapters(deletion())
    assert [result.adapter.name for result in repeated.results] == ["gone"]
    assert repeated.revision < HISTORY[-1].revision
    told = await refusal(admin.stub.ApplyAdapters(pb.ApplyAdaptersRequest(pool=POOL, changes=[put("acme/third")])))
    assert (told.code, told.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED")

    back = await admin.stub.RollbackAdapter(pb.RollbackAdapterRequest(pool=POOL, name="gone"))
    assert back.results[0].adapter.generation == 2
    labelled = put("unpinned", (ROOT / "sources/unpinned").as_uri(), labels={"made": "now"})
    changed = await admin.stub.ApplyAdapters(pb.ApplyAdaptersRequest(pool=POOL, changes=[labelled]))
    assert changed.results[0].adapter.generation == 3
    now = await value_of(client, "adapters/p/unpinned")
    assert (now["later"], now["spec"]["later"]) == ({"told": "by a later release"}, 1)
    assert (await value_of(client, "history/p/unpinned/2"))["spec"]["later"] == 1
    again = pb.RollbackAdapterRequest(pool=POOL, name="unpinned", to_generation=1)
    assert (await admin.stub.RollbackAdapter(again)).results[0].adapter.generation == 4
    history = await admin.stub.ListAdapterHistory(pb.ListAdapterHistoryRequest(pool=POOL, name="unpinned"))
    assert [one.generation for one in history.generations] == [4, 3, 2, 1]

    changes = [drop("acme/lazy"), put("acme/third")]
    await admin.stub.ApplyAdapters(pb.ApplyAdaptersRequest(pool=POOL, changes=changes))
    assert (await value_of(client, "tenants/acme"))["adapters"] == 2
