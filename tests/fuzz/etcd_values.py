"""Any bytes under any key, before everybody who reads etcd: sidecar, replay checker, admin service, command line."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import re
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from unittest import mock

import httpx
from google.protobuf.message import DecodeError
from prometheus_client import generate_latest

from registry.cli.doctor.diagnosis import PoolSeen, Survey, diagnose
from registry.cli.main import run as run_command
from registry.cli.views.replica_view import replica_view
from registry.etcd3.ops import Delete, Event, KeyValue, Put, Range, Txn
from registry.model.keys import Keys
from registry.model.placement import Member
from registry.model.records import PoolSpec
from registry.model.status import ReplicaStatus
from registry.runtime.clock import Clock
from registry.runtime.process import Repeats
from registry.v1 import registry_pb2 as pb
from sidecar.desired.assignment import Assigner
from sidecar.desired.journal import Journal
from sidecar.desired.mailbox import Mailbox
from sidecar.desired.members import BELIEVE_SECONDS, Attendance
from sidecar.desired.pool_cache import Following, PoolCache
from sidecar.desired.watcher import Watcher
from sidecar.engines.simulated.engine import SimulatedVllm
from sidecar.engines.simulated.options import Options
from sidecar.report.http import make_app
from tests.fuzz.fuzzer import Run, Target
from tests.fuzz.mutation import Case, as_json, choice, protobuf, raw
from tests.integration.admin.test_hostile_values import reads
from tests.properties.verify.test_any_value import KINDS, _last, survives
from tests.support.admin import admin_inside, change_set, make_pool, put, wait_ready
from tests.support.etcd import make_cluster, running_etcd
from tests.support.fake_admin import FakeAdmin, connected
from tests.support.records import KEYS, POOL, record
from tests.support.records import put as put_event
from tests.support.residency_world import Replicas, engine_status, presence, replica_status
from tests.support.rig import running_rig
from tests.support.waiting import eventually
from tests.unit.cli.test_diagnosis import NOW

PLACED = {"placement": {"replicas": 2, "selector": {"zone": "a"}}}
_POOL_RECORD = PoolSpec(name=POOL, base_models=["tiny"]).to_bytes()
_PRESENCE = presence("r1", labels={"zone": "a"}, capacity=3).to_bytes()


def _watched() -> list[Case]:
    adapters = [record("a", **PLACED), record("a"), record("a", load="lazy", priority=3)]
    return [
        *((b"adapter", b"a", one.to_bytes()) for one in adapters),
        (b"pool", b"", _POOL_RECORD),
        (b"presence", b"r1", _PRESENCE),
        (b"presence", b"r2", presence("r2", labels={"zone": "a"}).to_bytes()),
    ]


def _new_watcher(folder: Path) -> tuple[Watcher, PoolCache]:
    cache = PoolCache(KEYS, POOL, Mailbox(), Journal(folder))
    return Watcher(None, KEYS, "r1", cache, Clock()), cache  # type: ignore[arg-type]


@asynccontextmanager
async def _watching(folder: Path) -> AsyncIterator[Run]:
    """A sidecar's watchers, its journal, and its next start."""
    number = 0

    async def play(case: Case) -> None:
        nonlocal number
        number += 1
        state = folder / str(number)
        watcher, cache = _new_watcher(state)
        cache.informer.apply(1, [put_event("good", 1, **PLACED)])
        cache.state = Following()
        await cache.rewrite()
        await _take(watcher, case)
        snapshot = cache.mailbox.snapshot
        watcher._post(snapshot)
        Assigner(POOL, "r1", {"zone": "a"}).find(cache.informer.state, snapshot.members)
        cache.journal.close()
        _, again = _new_watcher(state)
        again.restore()
        assert again.informer.state.state_hash == cache.informer.state.state_hash, "R2: a restart tells otherwise"
        assert "good" in again.informer.state.adapters or case[:2] == (b"adapter", b"good"), "R14: a good one is gone"
        again.journal.close()
        for file in state.iterdir():
            file.unlink()

    yield play


async def _take(watcher: Watcher, case: Case) -> None:
    kind, name, value = case
    if kind == b"adapter":
        key = KEYS.adapters(POOL) + name
        await watcher._take_events(2, (Event(key, 2, KeyValue(key, value, 2, 2, 1)),))
    elif kind == b"pool":
        for one in (_POOL_RECORD, value):
            watcher._pool_watcher._note(KeyValue(KEYS.pool(POOL), one, 1, 2, 1), is_doubtful=False)
    else:
        members = watcher._members_watcher
        for replica, one in ((b"r1", _PRESENCE), (name, value)):
            known, kv = replica.decode(errors="replace"), KeyValue(KEYS.replicas(POOL) + replica, one, 2, 2, 1, 7)
            members._attendance.note(known, kv)
            members._attendance.prove(known, kv, replace(kv, key=KEYS.statuses(POOL) + replica))
        for now in (0.0, 2 * BELIEVE_SECONDS):
            members._roll.call(dict(members._attendance.members), now)
        members._take()


def _desired() -> list[Case]:
    specs = ({}, PLACED, {"load": "lazy"}, {"priority": 9, "labels": {"a": "b"}}, {"prepare": {"dora": "strip"}})
    return [(record("bad", **one).to_bytes(), _POOL_RECORD, _PRESENCE) for one in specs]


@asynccontextmanager
async def _reconciling(folder: Path) -> AsyncIterator[Run]:
    """A whole sidecar with a simulated engine, which serves one good adapter all the while."""
    async with running_rig(folder, SimulatedVllm(Options(plugin=True))) as rig:
        rig.desire(1, good="good")
        await rig.served(1, "good")
        good, bad, revision = KEYS.adapter(POOL, "good"), KEYS.adapter(POOL, "bad"), 1
        value_of_good = rig.records[good]
        told = rig.sidecar.reporting
        transport = httpx.ASGITransport(app=make_app(told.status, (), told.drain, told.events, told.activity))
        page = httpx.AsyncClient(transport=transport, base_url="http://sidecar")

        async def play(case: Case) -> None:
            nonlocal revision
            record_, pool, member = case
            revision += 1
            kvs = [KeyValue(good, value_of_good, 1, 1, 1), KeyValue(bad, record_, 1, revision, 1)]
            rig._informer.replace(revision, kvs)
            kv, attendance = KeyValue(KEYS.replica(POOL, "r1"), member, 1, 1, 1), Attendance(Repeats())
            attendance.note("r1", kv)
            attendance.prove("r1", kv, None)
            members = {
                "r1": attendance.members.get("r1") or Member("r1", {}, None),
                "r2": Member("r2", {"zone": "a"}, 4),
            }
            snapshot = rig.sidecar.cache.with_pool(rig.mailbox.snapshot, pool)
            rig.mailbox.post(replace(snapshot, desired=rig._informer.state, members=members))
            await eventually(lambda: rig.status.observed_revision == revision)
            status = rig.status.to_bytes()
            assert ReplicaStatus.parse(status).replica == "r1"
            assert b"good" in b"".join(name.encode() for name in rig.engine.cards), "what was served stopped"
            rig.sidecar.reporting.status.refresh_metrics()
            generate_latest()
            for path in ("/readyz", "/status"):
                assert (await page.get(path)).content

        yield play


def _checked() -> list[Case]:
    return [(kind.encode(), _last(kind).value) for kind in KINDS]


@asynccontextmanager
async def _checking(_: Path) -> AsyncIterator[Run]:
    """The replay checker."""

    async def play(case: Case) -> None:
        survives(case[0].decode(), case[1])

    yield play


_ADMIN_PREFIX = "/fuzz"
_ADMIN_KEYS = Keys(_ADMIN_PREFIX)
_STORED = (b"replica", b"status", b"pool", b"tenant", b"adapter", b"history", b"any")


def _stored() -> list[Case]:
    """Values of the right form for each key; those that the admin service itself wrote are hurt as well."""
    status = replica_status("r1", 7, engine=engine_status(), note="n").to_bytes()
    values = (presence("r1").to_bytes(), status, _POOL_RECORD, b'{"schema":1,"name":"acme","adapters":1}')
    adapter = record("acme/a").to_bytes()
    return [(kind, b"x", value) for kind, value in zip(_STORED, (*values, adapter, adapter, b"{}"), strict=True)]


@asynccontextmanager
async def _serving(folder: Path) -> AsyncIterator[Run]:
    """An admin service on a real etcd, and everything that reads ask for."""
    async with (
        running_etcd(make_cluster(folder / "etcd")) as cluster,
        aclosing(cluster.patient()) as client,
        admin_inside(cluster.endpoints, _ADMIN_PREFIX) as admin,
    ):
        await wait_ready(admin)
        for pool in ("p", "q"):
            await make_pool(admin, pool)
        await admin.stub.ApplyAdapters(change_set(put("acme/a")))
        replicas = Replicas(client, _ADMIN_KEYS)
        await replicas.alive("r1", "r2", capacity=9, labels={"zone": "a"})
        await replicas.says("r1", 7)
        keys = _ADMIN_KEYS
        known = {
            b"replica": keys.replica("p", "r1"),
            b"status": keys.status("p", "r1"),
            b"pool": keys.pool("p"),
            b"tenant": keys.tenant("acme"),
            b"adapter": keys.adapter("p", "acme/a"),
            b"history": keys.history("p", "acme/a", 1),
        }

        async def play(case: Case) -> None:
            kind, rest, value = case
            key = known.get(kind, f"{_ADMIN_PREFIX}/".encode() + rest)
            if key == keys.meta() or not rest:
                return  # another store is another matter: it is refused as a whole
            found = (await client.range(Range(key))).kvs
            lease = found[0].lease if found else 0
            await client.txn(Txn((), (Put(key, value[:1_000_000], lease),)))
            await reads(admin)
            back = Put(key, found[0].value, lease) if found else Delete(key)
            await client.txn(Txn((), (back,)))

        yield play


_COMMANDS = {
    "ListReplicas": ("get", "replicas", "--pool", "dev"),
    "GetReplica": ("describe", "replica", "r1", "--pool", "dev"),
    "ListPools": ("get", "pools"),
    "GetPool": ("describe", "pool", "dev"),
    "ListTenants": ("get", "tenants"),
    "ListAdapters": ("get", "adapters", "--pool", "dev"),
    "GetAdapter": ("describe", "adapter", "a", "--pool", "dev"),
    "ListAdapterHistory": ("describe", "adapter", "a", "--pool", "dev"),
    "ListChanges": ("events", "--pool", "dev"),
    "ListAudit": ("audit", "-o", "wide"),
}
# What has power over a terminal.
_POWER = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@lru_cache
def _answers() -> dict[str, object]:
    """A valid answer of each method."""
    status = replica_status("r1", 7, engine=engine_status(), note="n").to_bytes().decode()
    replica = pb.Replica(name="r1", pool="dev", status_json=status, labels={"zone": "a"})
    spec = pb.AdapterSpec(source=pb.Source(uri="file:///a"), labels={"a": "b"}, priority=2)
    adapter = pb.Adapter(name="a", pool="dev", tenant="default", generation=2, etag="7", spec=spec)
    pool = pb.Pool(name="dev", base_models=["tiny"])
    change = pb.RecordedChange(at="2026-01-01T00:00:00Z", kind="adapter", name="a", action="updated", fields=["load"])
    change.values.add(path="load", before_json='"eager"', after_json='["lazy", {"a": 1}]')
    audited = pb.AuditedChange(
        kind="adapter", name="a", action="updated", before_json="{}", after_json='{"a": {"b": 1}}'
    )
    entry = pb.AuditEntry(at="2026-01-01T00:00:00Z", principal="ann", changes=[audited], peer="p", user_agent="u")
    return {
        "ListReplicas": pb.ListReplicasResponse(replicas=[replica]),
        "GetReplica": replica,
        "ListPools": pb.ListPoolsResponse(pools=[pool]),
        "GetPool": pool,
        "ListTenants": pb.ListTenantsResponse(tenants=[pb.Tenant(name="t", adapters=1, max_adapters=2)]),
        "ListAdapters": pb.ListAdaptersResponse(adapters=[adapter]),
        "GetAdapter": adapter,
        "ListAdapterHistory": pb.ListAdapterHistoryResponse(),
        "ListChanges": pb.ListChangesResponse(changes=[change], unreadable=["u"]),
        "ListAudit": pb.ListAuditResponse(entries=[entry], unreadable=["u"]),
    }


def _told() -> list[Case]:
    forms = (b"table", b"json", b"yaml", b"name")
    messages = [(method.encode(), one.SerializeToString()) for method, one in _answers().items()]  # type: ignore[attr-defined]
    return [(method, forms[at % 4], message) for at, (method, message) in enumerate(messages)]


@asynccontextmanager
async def _telling(folder: Path) -> AsyncIterator[Run]:
    """The command line, before an admin service that passes on what stands in etcd."""
    admin = FakeAdmin()

    async def play(case: Case) -> None:
        method, form = case[0].decode(), case[1].decode()
        admin.answers |= {name: [answer] for name, answer in _answers().items()} | {"WatchRollout": [[pb.Rollout()]]}
        try:
            message = type(_answers()[method]).FromString(case[2])  # type: ignore[attr-defined]
        except DecodeError:
            return  # gRPC refuses it
        admin.answers[method] = [message, _answers()[method]]  # which ends a list that goes on
        if isinstance(message, pb.Replica):
            assert all(
                one.finding
                for one in diagnose(Survey([PoolSeen("dev", [], [], [replica_view(message)])], [], [], []), NOW)
            )
        arguments = ["--admin", address, "-o", form, *_COMMANDS[method]]
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = await asyncio.to_thread(run_command, arguments)
        assert code != 1, err.getvalue()
        said = _POWER.search(out.getvalue() + err.getvalue())
        assert said is None, f"{said} has power over a terminal"

    environment = {"LORAPLANE_TIMEOUT": "60", "LORAPLANE_LOOK_SECONDS": "0", "COLUMNS": "200"}
    with connected(admin) as address, mock.patch.dict(os.environ, environment):
        yield play


TARGETS = (
    Target("watcher", (choice, raw, as_json), _watched, _watching, runs=400),
    Target("reconciler", (as_json,), _desired, _reconciling, runs=40),
    Target("checker", (choice, as_json), _checked, _checking, runs=200, held_seconds=30),
    Target("admin-reads", (choice, raw, as_json), _stored, _serving, runs=40),
    Target("command-line", (choice, choice, protobuf), _told, _telling, runs=60),
)
