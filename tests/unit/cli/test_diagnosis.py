"""Each finding of the doctor, provoked one at a time, and on its edge; and nothing, where nothing is wrong."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from registry.cli.doctor import collect, replica_findings
from registry.cli.doctor.diagnosis import Miscount, PoolSeen, Survey, diagnose, looked_at, methods_differ, miscounts
from registry.cli.doctor.findings import (
    CheckedPart,
    DoctorFinding,
    EtcdGrowth,
    Severity,
    error,
    etcd_findings,
    expiry_findings,
    folded,
    growth_findings,
    named,
)
from registry.cli.views.replica_view import ReplicaView, missing_view, replica_view
from registry.etcd3.client import MemberDown, MemberStatus
from registry.etcd3.errors import EtcdPermissionDenied, EtcdUnauthenticated, NoLeader
from registry.model.placement import ROLE_LABEL
from registry.model.status import (
    Failed,
    Found,
    Lazy,
    Pending,
    ReportedCertificate,
    ReportedLimits,
    ReportedStore,
    ReportedUses,
    Warned,
)
from registry.v1 import registry_pb2 as pb
from tests.support.hostile import spoiled
from tests.support.played_etcd import PlayedEtcd, played
from tests.support.records import KEYS
from tests.support.residency_world import engine_status, replica_status

MIB = 1 << 20


def missing(name: str, last_seen: str = "2025-12-31T23:59:20Z") -> ReplicaView:
    return missing_view("p", pb.MissingReplica(name=name, last_seen=last_seen))


def of_all(reason: str, message: str) -> list[Warned]:
    return [Warned(name="", generation=0, reason=reason, message=message)]


def member(name: str = "m1", **fields: Any) -> MemberStatus:
    said = {"version": "3.6.14", "cluster_id": 1, "member_id": 1, "leader_id": 1, "raft_term": 1, "revision": 5}
    return MemberStatus(**{"endpoint": name, "db_size_bytes": 1, **said, **fields})


def living(lived: int, lacking: int = 0, gone: Sequence[ReplicaView] = (), **more: Any) -> Survey:
    """A pool of which so many live, and others do not."""
    live = [replace(replica(f"r{number}"), host="h") for number in range(lived)]
    return Survey([PoolSeen("p", (), (), live, gone, lacking=lacking, **more)], (), (), ())


def driving(*engines: tuple[str, str]) -> Survey:
    """A pool of replicas whose engines have such URLs and incarnations."""
    told = [engine_status(url=url, incarnation=incarnation, swap="plugin") for url, incarnation in engines]
    return pool(*(replica(f"r{number}", engine=one) for number, one in enumerate(told)))


def on_hosts(url: str, *hosts: str, advertised: str = "") -> Survey:
    """The same of engines with one URL and one incarnation, by which two that start together may be told."""
    seen = driving(*[(url, "1767225600.25")] * len(hosts))
    live = zip(seen.pools[0].replicas, hosts, strict=True)
    placed = [replace(one, host=host, engine_url=advertised) for one, host in live]
    return replace(seen, pools=[replace(seen.pools[0], replicas=placed)])


def leaves(seen: Survey) -> Survey:
    """The same while its replicas drain."""
    going = [replace(one, leaving=True, status={**one.status, "ready": False}) for one in seen.pools[0].replicas]
    return replace(seen, pools=[replace(seen.pools[0], replicas=going)])


def said(**parts: Any) -> Survey:
    """A replica whose status has parts that no release of ours writes."""
    status = json.loads(replica_status("r1", 7, engine=engine_status(swap="plugin")).to_bytes())
    return pool(raw("r1", json.dumps({**status, **parts})))


NOW = datetime(2026, 1, 1, tzinfo=UTC)
# What a remedy is made of: our programs and flags, and those of others that an operator has at hand.
COMMANDS = ("loraplane", "--", "pip install", "etcdctl", "timedatectl", "VLLM_PLUGINS", "GET /readyz", "POST /")


def replica(name: str = "r1", **fields: Any) -> ReplicaView:
    engine = fields.pop("engine", engine_status(url=f"http://{name}", swap="plugin"))
    status = replica_status(name, fields.pop("revision", 7), engine=engine, **fields)
    return raw(name, status.to_bytes().decode())


def raw(name: str, status: str, **fields: Any) -> ReplicaView:
    return replica_view(
        pb.Replica(name=name, pool="p", status_json=status, started_at="2026-01-01T00:00:00Z", **fields)
    )


def adapter(etag: str = "7", **placement: Any) -> pb.Adapter:
    return pb.Adapter(name="a", pool="p", etag=etag, spec=pb.AdapterSpec(placement=pb.Placement(**placement)))


def pool(*replicas: ReplicaView, adapters: tuple[pb.Adapter, ...] = (), unreadable: tuple[str, ...] = ()) -> Survey:
    return Survey([PoolSeen("p", adapters, unreadable, replicas)], (), (), ())


def hindered(**parts: Any) -> Survey:
    return pool(replica(**{"ready": False, **parts}))


def switched_off(replicas: int = 1) -> pb.Adapter:
    return pb.Adapter(name="off", spec=pb.AdapterSpec(enabled=False, placement=pb.Placement(replicas=replicas)))


def of_roles(roles: Sequence[str], *plays: str, adapters: Sequence[pb.Adapter] = (adapter(),)) -> Survey:
    """A pool that asks for these roles, and a replica for each role that one plays."""
    there = [replace(replica(f"r{at}"), labels={ROLE_LABEL: one}) for at, one in enumerate(plays)]
    return Survey([PoolSeen("p", adapters, (), there, limits=pb.PoolLimits(roles=roles))], (), (), ())


BEGAN = "2025-01-01T00:00:00Z"


def ends(ttl_seconds: int, expires_at: str) -> pb.Adapter:
    return pb.Adapter(name="ends", spec=pb.AdapterSpec(ttl_seconds=ttl_seconds), expires_at=expires_at)


def from_use() -> pb.Adapter:
    """One whose ttl would be over, had nobody used it."""
    return pb.Adapter(name="ends", spec=pb.AdapterSpec(ttl_seconds=60, ttl_from="use"), expires_at=at(1))


def failed(reason: str, *names: str) -> list[Failed]:
    return [Failed(name=name, generation=1, reason=reason, message="", attempts=1, retry_at=None) for name in names]


def pending(reason: str) -> list[Pending]:
    return [Pending(name="a", generation=1, reason=reason)]


def found(char: str) -> list[Found]:
    return [Found(name="a", generation=1, digest=f"sha256:{char}")]


def near(name: str, host: str, url: str = "http://localhost:8000") -> ReplicaView:
    """A replica that tells routers an address which they reach on its own host only."""
    return replace(replica(name), host=host, engine_url=url)


def far(name: str, host: str) -> ReplicaView:
    """A replica that reaches its engine by the loopback, and tells routers another address."""
    seen = replica(name, engine=engine_status(url="http://127.0.0.1:8000", swap="plugin"))
    return replace(seen, host=host, engine_url=f"http://{name}:8000")


E, W = Severity.ERROR, Severity.WARNING


def warned(reason: str, **engine: Any) -> Survey:
    return pool(replica(warnings=of_all(reason, ""), engine=engine_status(**{"swap": "plugin", **engine})))


def ranked(limit: int, *highest: int | None, **fields: Any) -> Survey:
    """A pool of replicas whose engines are started for ranks up to `limit` and hold these."""
    limits = ReportedLimits(max_lora_rank=limit)
    engines = [engine_status(url=f"http://{rank}", swap="plugin", limits=limits, highest_rank=rank) for rank in highest]
    return pool(*(replica(f"r{index}", engine=engine, **fields) for index, engine in enumerate(engines)))


def started_for(
    allowed: pb.PoolLimits, *adapters: pb.Adapter, waits: tuple[Pending, ...] = (), **limits: int
) -> Survey:
    """A pool with such limits, whose one engine was started with these."""
    engine = engine_status(url="http://r1", swap="plugin", limits=ReportedLimits(**limits))
    return Survey(
        [PoolSeen("p", adapters, (), [replica(engine=engine, pending=list(waits))], (), 0, allowed)], (), (), ()
    )


def stored(room_bytes: int, in_use_bytes: int = 0, largest_bytes: int = 0, bound: str = "disk") -> ReportedStore:
    return ReportedStore(room_bytes=room_bytes, in_use_bytes=in_use_bytes, largest_bytes=largest_bytes, bound=bound)


@pytest.mark.parametrize(
    ("growth", "told"),
    [
        (EtcdGrowth(), []),
        (EtcdGrowth(changes=14_000), []),
        (EtcdGrowth(changes=15_000), [("outgrows_quota", "the 2048 MiB that etcd takes")]),
        (EtcdGrowth(changes=15_000, audit_seconds=7 * 86_400), []),
        (EtcdGrowth(changes=15_000, quota_bytes=4 * 1024**3), []),
        (EtcdGrowth(changes=45_000, quota_bytes=4 * 1024**3), [("outgrows_quota", "the quota is the 4096 MiB")]),
        (EtcdGrowth(old_revision=7), [("not_compacted", "revision 7 can still be read")]),
    ],
)
def test_what_outgrows_etcd_is_told_before_it_does(growth, told):
    found = list(growth_findings(growth))
    assert [one.reason for one in found] == [reason for reason, _ in told]
    assert all(words in one.finding for one, (_, words) in zip(found, told, strict=True))


@played
async def test_growth_is_that_of_the_last_day_and_unknown_where_etcd_cannot_be_read(etcd: PlayedEtcd, monkeypatch):
    """What its audit says of pools and of what belongs to none; and of old revisions those that were to be gone."""
    client, made = etcd.client(), datetime.now(UTC)
    etcd.store.put(KEYS.pool("p"), b"any")
    for scope, hours in ((scope, hours) for scope in ("_", "p", "gone") for hours in (0, 23, 25)):
        etcd.store.put(KEYS.audit(scope, f"{made - timedelta(hours=hours):%Y%m%dT%H%M%S}Z{hours}"), b"any")

    async def told() -> list[tuple[str, str]]:
        found = await collect._growth(client, KEYS, EtcdGrowth(quota_bytes=1))
        return [(one.reason, one.finding.partition(",")[0].partition(" can")[0]) for one in found]

    outgrows = ("outgrows_quota", "4 changes in the last day")
    assert await told() == [outgrows]
    revision = etcd.store.revision
    for kept, old in ((3, revision - 3), (revision, 2)):
        monkeypatch.setattr(collect, "_FEW_REVISIONS", revision - 1)
        monkeypatch.setattr(collect, "_KEPT_REVISIONS", kept)
        assert await told() == [("not_compacted", f"revision {old}"), outgrows]
    etcd.store.compacted = 3
    assert await told() == [outgrows], "it is compacted"
    etcd.store.compacted = 0
    monkeypatch.setattr(collect, "_FEW_REVISIONS", revision)
    assert await told() == [outgrows], "there are few"
    monkeypatch.setattr(client, "range", AsyncMock(side_effect=NoLeader()))
    assert await told() == []


def test_counters_that_differ_from_what_is_listed():
    """W5: over all pools; records that cannot be read count, and tenants that cannot be read are left out."""
    adapters = [pb.Adapter(name=name) for name in ("Acme/a", "x", "other/a", "odd/a")]
    pools = [PoolSeen("p", adapters, ("acme/b",), ()), PoolSeen("q", [pb.Adapter(name="acme/a")], (), ())]
    tenants = [pb.Tenant(name="acme", adapters=4), pb.Tenant(name="default", adapters=1), pb.Tenant(name="gone")]
    assert miscounts(Survey(pools, (), tenants, ("odd",))) == [Miscount("acme", 4, 3), Miscount("other", 0, 1)]


def checked(finding: DoctorFinding) -> DoctorFinding:
    """One that says of what it is, and which command helps."""
    assert finding.subject
    assert any(command in finding.remedy for command in COMMANDS), finding.remedy
    return finding


def at(seconds: float) -> str:
    return (NOW + timedelta(seconds=seconds)).isoformat()


THREE = [adapter(), adapter(), adapter()]
LAZY = pb.Adapter(name="z", pool="p", etag="7", spec=pb.AdapterSpec(load="lazy"))
DISABLED = pb.Adapter(name="y", pool="p", etag="7", spec=pb.AdapterSpec(enabled=False))
GPU = {"gpu": "a10"}
OF_GPUS = (replace(replica("r1"), labels=GPU), replace(replica("r2"), labels={"gpu": "b"}))
LEAVING = replace(replica("r2"), leaving=True)
ON_EDGES: list[tuple[Survey, str]] = [
    (warned("engine_paused"), "W engine_paused"),
    (warned("kv_connector", swap="refused"), "W kv_connector"),
    (warned("rust_frontend", swap="refused"), "W rust_frontend"),
    (warned("kv_shared"), "E kv_shared"),
    (warned("base_unknown"), "W base_unknown"),
    (pool(raw("r1", "")), "E no_status"),
    (pool(raw("r1", "?")), "E unreadable_status"),
    (pool(replica(held="mass_removal", stale=True)), "E held"),
    (pool(replica(engine=engine_status(incarnation=""), ready=False)), "E engine_unreachable"),
    (pool(replica(omitted=4)), "E names_omitted"),
    (replace(pool(replica()), version_here="2"), "W versions_differ"),
    (Survey((), (), (), ()), "W no_pools"),
    (Survey((), (), (), (), unknown_pools=[pb.UnknownPool(name="p", replicas=1, names=["r1"])]), "E pool_unknown"),
    (pool(replica(), unreadable=("a",)), "E unreadable_record"),
    (pool(replica(found=found("1")), replica("r2", found=found("2"))), "E digests_differ"),
    (pool(replica(), replica("r2", engine=engine_status(url="http://r2", version="2"))), "W engine_versions_differ"),
    (pool(replace(replica(), withheld_engine_url="http://evil.test")), "E engine_url_not_allowed"),
    (pool(replica(), replica("r2"), adapters=(adapter(), adapter(replicas=2), adapter(selector={}))), ""),
    (pool(replica(), adapters=(ends(60, at(61)), ends(600, at(61)), ends(10**7, at(86_401)), ends(0, "soon"))), ""),
    (pool(replica(), adapters=(ends(600, at(59)), ends(10**7, at(86_399)), ends(60, at(-9)))), "W adapters_expire"),
    (pool(replica(), adapters=(from_use(),)), "W uses_not_told"),
    (pool(replica(uses=ReportedUses(since=1, until=2)), adapters=(from_use(),)), ""),
    (pool(replica(updated_at=at(60))), ""),
    (pool(replica(updated_at=at(61))), "W clock_skew"),
    (pool(replica(updated_at=at(-259_200))), ""),
    (pool(replica(updated_at="now")), ""),
    (pool(replica(updated_at="2026-01-01T01:00:30+01:00")), ""),
    (pool(replica(updated_at="2025-12-31T23:30:00-01:00")), "W clock_skew"),
    (pool(replace(replica(), started_at=at(60))), ""),
    (pool(replace(replica(updated_at=at(61)), started_at=at(61))), "W clock_skew"),
    (ranked(64, 9), "W rank_limit_too_high"),
    (ranked(63, 9), ""),
    (ranked(32, 8), "W rank_limit_too_high"),
    (ranked(31, 8), ""),
    (ranked(64, 9, 17), ""),
    (ranked(256, 8, 16, None), "W rank_limit_too_high, W rank_limit_too_high, W rank_limit_too_high"),
    (ranked(256, None), ""),
    (ranked(256, 8, pending=pending("staging")), "W adapters_pending"),
    (replace(ranked(256, 8), pools=[replace(ranked(256, 8).pools[0], adapters=[LAZY])]), ""),
    (ranked(2048, 1000), ""),
    (started_for(pb.PoolLimits(max_rank=17), max_lora_rank=16), "W rank_limit_too_low"),
    (started_for(pb.PoolLimits(max_rank=16), max_lora_rank=16), ""),
    (started_for(pb.PoolLimits(max_rank=512, max_adapters=512), *THREE), ""),
    (leaves(started_for(pb.PoolLimits(max_rank=64), max_lora_rank=16)), "W draining"),
    (started_for(pb.PoolLimits(max_adapters=5), max_cpu_loras=4), "W room_too_small"),
    (started_for(pb.PoolLimits(max_adapters=4), max_cpu_loras=4), ""),
    (started_for(pb.PoolLimits(), *THREE[:2], max_cpu_loras=2), ""),
    (started_for(pb.PoolLimits(), *THREE[:2], max_cpu_loras=1), "E room_too_small"),
    (started_for(pb.PoolLimits(), *THREE[:2], LAZY, max_cpu_loras=2), ""),
    (started_for(pb.PoolLimits(), *THREE[:2], DISABLED, max_cpu_loras=2), ""),
    (started_for(pb.PoolLimits(), *THREE[:2], adapter(replicas=1), max_cpu_loras=2), ""),
    (started_for(pb.PoolLimits(), *THREE[:2], adapter(selector={"zone": "z"}), max_cpu_loras=2), "E too_few_replicas"),
    (started_for(pb.PoolLimits(), *THREE, waits=(*pending("over_capacity"),), max_cpu_loras=2), "E over_capacity"),
    *(
        (replace(pool(replica()), tenants=[pb.Tenant(name="t", adapters=adapters, max_adapters=quota)]), told)
        for adapters, quota, told in ((3, 3, ""), (4, 3, "E over_quota"), (4, 0, ""))
    ),
    (pool(adapters=(adapter(),)), "E no_replicas"),
    (pool(), "W no_replicas"),
    (Survey((), ("p",), (), ("t",)), "E unreadable_record, E unreadable_record"),
    (replace(pool(replica()), insecure_admin=["--listen: anybody may change everything"]), "W insecure"),
    (pool(*OF_GPUS, adapters=(adapter(replicas=1, selector=GPU),)), "W replica_unused"),
    (pool(*OF_GPUS, adapters=(adapter(selector=GPU), adapter())), "I replicas_left_out"),
    (pool(*OF_GPUS, adapters=(switched_off(),)), ""),
    (pool(OF_GPUS[0], adapters=(switched_off(2),)), ""),
    *(
        (of_roles(roles, *plays), told)
        for roles, plays, told in (
            *((("prefill", "decode"), ("prefill", "decode"), ""), (("prefill",), ("both", ""), "")),
            *((("prefill",), ("decode",), "E role_not_served"), (("decode",), ("prefill-decode",), "")),
            *(((), ("decode",), ""), (("prefill", "decode"), ("",), "E role_not_served, E role_not_served")),
        )
    ),
    (of_roles(("prefill",), "decode", adapters=(switched_off(),)), ""),
    (pool(replica(), replica("r2"), adapters=(adapter(replicas=1),)), "I replicas_left_out"),
    (pool(replica(), replica("r2"), adapters=(adapter(replicas=2),)), ""),
    (pool(replica(), LEAVING, adapters=(adapter(replicas=1),)), "W draining"),
    *(
        (replace(pool(replica()), etcd=[pb.EtcdMember(endpoint="m:1", state=state)]), told)
        for state, told in (
            *(("up", ""), ("denied", "I status_denied"), ("down", "E member_down"), ("later", "")),
            *(("no_leader", "E no_leader"), ("unseen", "W member_unseen")),
        )
    ),
    *(
        (pool(replica(store=stored(9 << 30).model_copy(update={"damaged": damaged}))), told)
        for damaged, told in ((0, ""), (2, "E store_damaged"))
    ),
    (said(store={"damaged": "many"}), ""),
    (said(certificates=[{"flag": "--http-tls-cert", "begins": "?", "ends": BEGAN}]), ""),
    (leaves(hindered(note="it sleeps", warnings=of_all("engine_paused", "it sleeps"))), "W draining, W engine_paused"),
    (hindered(ready=True, note="it sleeps", warnings=of_all("engine_paused", "it sleeps")), "W engine_paused"),
    *(
        (pool(replica(certificates=[ReportedCertificate(flag="--http-tls-cert", begins=BEGAN, ends=end)])), told)
        for end, told in (
            *(("2026-01-31T00:00:00Z", ""), ("2026-01-30T23:59:59Z", "W certificate_expires")),
            *(("2026-01-01T00:00:00Z", "E certificate_expired"), ("some day", "")),
        )
    ),
    (pool(*OF_GPUS, adapters=(adapter(replicas=2, selector=GPU),)), "E too_few_replicas"),
    (pool(OF_GPUS[1], adapters=(adapter(selector=GPU),)), "E too_few_replicas"),
    (pool(replica(), LEAVING, adapters=(adapter(replicas=2),)), "E too_few_replicas, W draining"),
    (pool(replica(revision=0)), ""),
    (pool(replica(revision=0), adapters=(adapter(""),)), ""),
    (pool(replica(revision=8), adapters=(adapter("5"), adapter("9"), adapter("7"))), "W behind"),
    (pool(replica(revision=9), adapters=(adapter("5"), adapter("9"), adapter("7"))), ""),
    (pool(replica(revision=8, stale=True), adapters=(adapter("9"),)), "E stale"),
    (pool(near("r1", "h1"), near("r2", "h1", "http://localhost:8001")), ""),
    (pool(near("r1", "h1"), near("r2", "", "http://localhost:8001")), ""),
    (pool(near("r1", ""), far("r2", "h1")), ""),
    (pool(near("r1", "h1", "http://["), far("r2", "h2")), ""),
    (pool(near("r1", "h1"), far("r2", "h2")), "W engine_url_loopback"),
    *(
        (pool(replica(engine=engine_status(url="http://r1", swap=swap, kind=kind, names=names))), told)
        for swap, kind, names, told in (
            ("pipelined", "vllm", "plain", "W plugin_absent"),
            ("pipelined", "pegainfer", "plain", "W swap_has_gap"),
            ("refused", "vllm", "plain", "E engine_unsupported"),
            ("refused", "sglang", "plain", "E engine_unsupported"),
            ("refused", "vllm", "versioned", ""),
            ("pipelined", "vllm", "versioned", ""),
        )
    ),
    (driving(*[("http://a", "i")] * 3), "E engine_shared"),
    (driving(("http://a", "i"), ("http://a", "j")), ""),
    (driving(("http://a", "i"), ("http://b", "i")), ""),
    (driving(("", "i"), ("", "i")), ""),
    (on_hosts("http://127.0.0.1:8000", "h1", "h2", advertised="http://a"), ""),
    (on_hosts("http://127.0.0.1:8000", "h1", "h1", advertised="http://a"), "E engine_shared"),
    (on_hosts("http://a:8000", "h1", "h2"), "E engine_shared"),
    (said(lazy={"count": 2, "servable": False, "reason": "never heard of"}), "E lazy_not_servable"),
    (said(lazy={"count": 0, "servable": False, "reason": "no_room"}), ""),
    (said(lazy={"count": 2, "servable": True, "reason": ""}), ""),
    (said(lazy={"count": 2, "servable": False, "reason": "not_ready"}), ""),
    (said(lazy=[]), ""),
    (pool(replica(ready=False, lazy=Lazy(count=1, servable=False, reason="not_ready"))), "E not_ready"),
    (hindered(note="another base", warnings=of_all("etcd_proxy", "by it")), "E not_ready, W etcd_proxy"),
    (pool(replica(store=stored(300 * MIB, in_use_bytes=2000 * MIB, largest_bytes=40 * MIB))), ""),
    (pool(replica(store=stored(200 * MIB, in_use_bytes=2000 * MIB, largest_bytes=40 * MIB))), "W store_nearly_full"),
    (pool(replica(store=stored(40 * MIB, in_use_bytes=80 * MIB, largest_bytes=40 * MIB))), "W store_nearly_full"),
    (pool(replica(store=stored(0))), "W store_nearly_full"),
    (pool(replica(store=stored(1))), ""),
    (pool(replica(store=None)), ""),
    (pool(replica(store=stored(0), failed=failed("disk_full", "a"))), "E adapters_failed"),
    *((said(store=odd), "") for odd in ("full", [], {"room_bytes": "0"}, {"room_bytes": 0, "in_use_bytes": 1})),
    (living(2, expected=2), ""),
    (replace(pool(replace(replica(), version="2")), version_here="2", version_admin="2"), ""),
]


@pytest.mark.parametrize(("seen", "told"), ON_EDGES, ids=range(len(ON_EDGES)))
def test_a_finding_begins_on_its_edge_and_one_cause_is_one_finding(seen, told):
    """W5, R15, R18, R20, X2: what only just is well is well, and what a status says oddly is no finding of ours."""
    found = [f"{one.severity.value[0].upper()} {one.reason}" for one in map(checked, diagnose(seen, NOW))]
    assert sorted(found) == sorted(told.split(", ") if told else [])


def zones(*live: int) -> list[pb.GroupPresence]:
    return [
        pb.GroupPresence(expected=pb.ReplicaGroup(labels={"zone": zone}, replicas=3), live=one)
        for zone, one in zip("ab", live, strict=True)
    ]


CROWDED = of_all("over_capacity", "for 1")
ASLEEP = of_all("engine_paused", "it sleeps")
ENGINE_FULL = stored(2 * MIB, 64 * MIB, 2 * MIB, "budget")
MANY = pb.UnknownPool(name="p", replicas=21, names=[f"r{number}" for number in range(20)])
OF_VERSIONS = [replace(replica(f"r{number}"), version="1" if number else "2") for number in range(8)]
HELD = ["mass_removal: pool confirm-removals p --revision 7", "pool confirm-removals p --revision 19", "--revision 12"]


def held(*texts: str) -> Survey:
    return pool(*(replica(f"r{number}", held=text, stale=True) for number, text in enumerate(texts)))


# What is found, whole or its beginning, and what the remedy holds.
IN_WORDS: list[tuple[Survey, str, str]] = [
    *(
        (started_for(pb.PoolLimits(max_rank=allowed), max_lora_rank=16), "", f"--max-lora-rank {fitting},")
        for allowed, fitting in ((20, 32), (64, 64), (65, 128), (300, 320), (321, 512), (600, 600))
    ),
    (started_for(pb.PoolLimits(max_rank=20), max_lora_rank=16), "", "pool update p --max-rank 16"),
    (started_for(pb.PoolLimits(max_adapters=8), *THREE, max_cpu_loras=2), "", "--max-cpu-loras 3"),
    (ranked(256, 9), "", "--max-lora-rank 16"),
    (
        pool(replica(), adapters=(adapter(replicas=2),)),
        " asks for 2 replicas, and 1 that match live and do not",
        "undrain",
    ),
    (pool(replica(failed=failed("digest_mismatch", *"abcdefg"))), "a, b, c, d, e and 2 more: digest_mismatch", ""),
    (said(observed_revision=7, failed=[{"reason": "x"}]), "it cannot serve the newest of all adapters: x", ""),
    (pool(replica(updated_at="2026-01-01T01:00:00")), "its clock is 3600 s ahead of the one here", ""),
    (replace(pool(replica()), insecure_admin=["--listen: anybody may"]), "--listen: anybody may", ""),
    (pool(replica(failed=failed("source_not_allowed", "a"))), "", "--allow-source"),
    *(
        (pool(replica(lazy=Lazy(count=1, servable=False, reason=reason))), "", says)
        for reason, says in (
            ("needs_plugin", "LORAPLANE_PLUGIN=1"),
            ("needs_socket", "--resolver-socket"),
            ("no_room", "--max-cpu-loras"),
            ("names_versioned", "--engine-names plain"),
        )
    ),
    (pool(replica(engine=engine_status(kind="sglang", swap="refused"))), "", "pool update p --engine-names versioned"),
    (hindered(warnings=of_all("blocked", "another base"), note="another base"), "", "describe replica r1"),
    (hindered(warnings=ASLEEP, note="it sleeps", pending=pending("engine_paused")), "", "POST /wake_up"),
    (hindered(degraded="9 of 9 refused", note="9 of 9 refused"), "", "loraplane retry adapter NAME"),
    (hindered(degraded="2 of 9", ready=True), "it serves less than it should: 2 of 9", "loraplane retry adapter NAME"),
    (hindered(warnings=CROWDED, pending=pending("over_capacity"), ready=True), "", "--max-adapters"),
    (hindered(warnings=ASLEEP, pending=pending("engine_paused"), ready=True), "", "POST /wake_up"),
    (
        hindered(pending=pending("engine_cannot_see_store"), ready=True),
        "its engine does not see the files of ",
        "mount the store in the engine at the path of the sidecar's --store",
    ),
    (held("no word of it"), "", "--revision R, as they say"),
    (held("--revision 12345678901234567890"), "", "--revision R, as they say"),
    (held(HELD[0], "no word of it"), "2 replicas (r0, r1) do not follow etcd: ", "confirm-removals p --revision 7"),
    (held(*HELD), "3 replicas (r0, r1, r2) do not follow etcd: mass_removal", "--revision 19"),
    (living(1, gone=[missing("r2"), missing("r3", "?")]), "2 of 3 replicas do not live: r2 (last seen 40 s ago), ", ""),
    (living(0, gone=[missing("r2", "2025-12-31T20:00:00Z")]), "1 of 1 replicas do not live: r2 (last seen 4 h", ""),
    (living(2, expected=3), "1 of 3 replicas do not live", "or loraplane pool update p --expect 2"),
    (living(2, 4), "4 of 6 replicas do not live", "those that are not to come back: loraplane replica forget NAME"),
    (living(1, 1, expected=1), "1 of 2 replicas do not live", "replica forget NAME"),
    (living(2, 1, [missing("m0", "?"), missing("m1", "?")], expected=3), "2 of 4 replicas do not live: m0 (just", ""),
    (
        living(1, 2, [missing("r2")], groups=zones(3, 1)),
        "2 of 3 replicas do not live: r2 (last seen 40 s ago); zone=b: 1 of 3",
        "start their sidecars, or loraplane pool update p --expect-labels zone=b:1",
    ),
    (living(1, 2, groups=zones(3, 1), expected=4), "", "pool update p --expect 1 --expect-labels zone=b:1"),
    (pool(replica(store=ENGINE_FULL)), "has room for 2 MiB more within its budget; ", "larger --store-budget"),
    (pool(replica(store=stored(0))), "its store has room for 0 MiB more on its disk", "make room on the disk of"),
    (Survey((), (), (), (), unknown_pools=[MANY]), ", and 21 replicas are of it: r0, r1, ", ""),
    (Survey((), (), (), (), unknown_pools=[MANY]), ", r18, r19 and 1 more", ""),
    (
        replace(pool(*OF_VERSIONS), version_here="2"),
        (
            "parts are of several versions: not told: the admin service; 1: sidecar p/r1, sidecar p/r2, sidecar p/r3, "
            "sidecar p/r4, sidecar p/r5 and 2 more; 2: this program, sidecar p/r0"
        ),
        "",
    ),
]


@pytest.mark.parametrize(("seen", "words", "remedy"), IN_WORDS, ids=range(len(IN_WORDS)))
def test_what_is_found_is_told_with_what_helps(seen, words, remedy):
    """R15, R18 readiness-follows, X3: causes with their own remedies, and values that the engines take."""
    (finding,) = diagnose(seen, NOW)
    assert (words in finding.finding, remedy in finding.remedy) == (True, True), finding


def test_how_much_was_looked_at_is_told():
    seen = replace(pool(replica(), adapters=(adapter(), adapter())), tenants=[pb.Tenant(name="t")])
    whole = "1 pools, 1 replicas, 2 adapters, 1 tenants"
    assert looked_at(seen) == whole
    assert looked_at(replace(seen, etcd=[pb.EtcdMember()] * 3)) == f"{whole}, 3 members of etcd"


def test_what_replicas_warn_of_and_what_is_wrong_with_a_source_has_a_remedy():
    """And what service and program do not both know is told."""
    of_files = ("files_touched", "source_gone", "file_not_taken", "without_effect", "modules_missing", "unknown_field")
    for reason in of_files:
        (finding,) = diagnose(pool(replica(warnings=[Warned(name="a", generation=1, reason=reason, message="")])), NOW)
        assert (checked(finding).reason, finding.severity, "says why" in finding.remedy) == (reason, W, False)
    for of_source in ("other_format", "weights_not_safetensors", "rate_limited"):
        (finding,) = diagnose(pool(replica(failed=failed(of_source, "a"))), NOW)
        assert "says why" not in finding.remedy
    root = Path(__file__).parents[3]
    files = [path for part in ("registry", "sidecar") for path in (root / part).rglob("*.py")]
    given = "".join(path.read_text() for path in files if path != Path(replica_findings.__file__))
    assert [one for one in replica_findings.REMEDIES if f'"{one}"' not in given] == [], "that sidecars give"
    assert methods_differ("here", ["A", "B"], ["B", "A"]) == []
    (older,), (newer,) = methods_differ("here", ["A", "B"], ["A"]), methods_differ("here", ["A"], ["A", "B"])
    assert [(checked(one).reason, one.severity) for one in (older, newer)] == [("version_skew", E), ("version_skew", W)]
    assert older.finding.endswith("it has no B")


FIFTH = int(0.7 * 2 * 1024**3)


@pytest.mark.parametrize(
    ("members", "is_full", "told"),
    [
        *(([], False, ""), ([member(), member("m2")], False, ""), ([member()], True, "E no_space")),
        ([member(), MemberDown("m2", NoLeader("no"))], False, "E member_down"),
        ([member(), MemberDown("m2", EtcdPermissionDenied("no"))], False, "W status_denied"),
        ([member(), MemberDown("m2", EtcdUnauthenticated("no"))], False, "E unauthenticated"),
        *(([member(leader_id=0)], False, "E no_leader"), ([member(version="3.5.1")], False, "E etcd_version")),
        *(([member(db_size_bytes=FIFTH)], False, ""), ([member(db_size_bytes=FIFTH + 1)], False, "W space")),
        ([member(), member("m2", cluster_id=2, revision=9000, version="3.6.15")], False, "E other_cluster"),
        ([member(), member("m2", revision=1005)], False, ""),
        ([member(), member("m2", revision=1006)], False, "W behind"),
        ([member(), member("m2", version="3.6.15")], False, "W versions_differ"),
    ],
)
def test_etcd(members, is_full, told):
    """Members of different clusters are not compared: their revisions and releases say nothing of each other."""
    found = map(checked, etcd_findings(members, is_full=is_full))
    assert [f"{one.severity.value[0].upper()} {one.reason}" for one in found] == ([told] if told else [])


@pytest.mark.parametrize(
    ("begin", "end", "reason"),
    [
        ("Jan  1 00:00:00 2025", "Jan 31 00:00:00 2026", ""),
        ("Jan  1 00:00:00 2025", "Jan 30 23:59:59 2026", "certificate_expires"),
        ("Jan  1 00:00:00 2025", "Jan  1 00:00:01 2026", "certificate_expires"),
        ("Jan  1 00:00:00 2025", "Jan  1 00:00:00 2026", "certificate_expired"),
        ("Dec 24 00:00:00 2025", "Jan  3 00:00:00 2026", ""),
        ("Dec 24 00:00:00 2025", "Jan  2 23:59:50 2026", "certificate_expires"),
        ("Dec 31 23:50:00 2025", "Jan  1 00:50:00 2026", ""),
        ("Dec 31 23:05:00 2025", "Jan  1 00:05:00 2026", "certificate_expires"),
    ],
)
def test_a_certificate_ends_soon_within_thirty_days_or_a_fifth_of_its_life(begin, end, reason):
    """One of an hour is not told of while it is new."""
    one = {"notBefore": f"{begin} GMT", "notAfter": f"{end} GMT"}
    found = expiry_findings("a:1", {"the CA": one, "x": {"notBefore": "x"}, "y": {"notAfter": "x"}, "z": {}}, NOW)
    assert [(it.reason, it.severity, "--tls-cert" in it.remedy) for it in found] == (
        [(reason, E if reason == "certificate_expired" else W, True)] if reason else []
    )
    assert all(
        it.finding.startswith(f"the CA {'ends' if reason.endswith('s') else 'ended'} at 2026-01-") for it in found
    )


def folding(subject: str, part: CheckedPart = CheckedPart.REPLICA, **more: Any) -> DoctorFinding:
    parts = {"reason": "stale", "finding": "it is stale", "remedy": f"restart {subject.partition('/')[2]} now"}
    return error(part, subject, **{**parts, **more})


def test_findings_are_folded_where_all_but_the_replica_is_the_same():
    """Of eight replicas with one fault there are not eight rows to read; programs get each."""
    alike = [folding("p/r1"), folding("p/r2")]
    [both] = folded(alike)
    assert (both.subject, both.finding, both.remedy) == ("p", "2 replicas (r1, r2): it is stale", "restart NAME now")
    for other in (
        folding("q/r2"),
        folding("p/r2", reason="held"),
        folding("p/r2", finding="it is held"),
        folding("p/r2", remedy="restart r2 later"),
        replace(folding("p/r2"), severity=W),
        folding("p/r2", CheckedPart.POOL),
    ):
        assert folded([alike[0], other]) == [alike[0], other]
    tenants = [folding("t", CheckedPart.TENANT), folding("t", CheckedPart.TENANT, reason="held")]
    assert folded(tenants) == tenants
    every = [folding(f"p/r{number}") for number in range(7)]
    assert folded(every)[0].finding == "7 replicas (r0, r1, r2, r3, r4 and 2 more): it is stale"
    assert (named("abcde"), named("")) == ("a, b, c, d, e", "")


def test_one_bad_status_is_one_bad_status(cli, admin):
    """R14, X2: all replicas are listed, whatever one of them says, and each can be looked at."""
    whole = replica_status("r1", 7, engine=engine_status(), note="n").to_bytes()
    values = sorted({value.decode(errors="replace") for value in spoiled(whole)})
    hostile = [pb.Replica(name=f"r{number}", pool="dev", status_json=value) for number, value in enumerate(values)]
    views = [replica_view(one) for one in hostile]
    for seen in (*([one] for one in views), views):
        assert all(one.finding for one in diagnose(Survey([PoolSeen("dev", [], [], seen)], [], [], []), NOW))
    admin.answers["ListReplicas"] = [pb.ListReplicasResponse(replicas=hostile)]
    for form in ("table", "json", "yaml", "name"):
        ran = cli("-o", form, "get", "replicas", "--pool", "dev")
        assert (ran.code, form != "name" or len(ran.out.splitlines()) == len(hostile)) == (0, True), ran.err
        assert cli("-o", form, "describe", "pool", "dev").code == 0
        some = hostile if form == "table" else hostile[:: len(hostile) // 20]
        admin.answers["GetReplica"] = [*some]
        for one in some:
            ran = cli("-o", form, "describe", "replica", one.name, "--pool", "dev")
            assert ran.code == 0, (one.status_json[:200], ran.err)
