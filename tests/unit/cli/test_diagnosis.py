"""Each finding of the doctor, provoked one at a time; and nothing, where nothing is wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from registry.cli.doctor import replica_findings
from registry.cli.doctor.collect import look_at_certificates
from registry.cli.doctor.diagnosis import Miscount, PoolSeen, Survey, diagnose, methods_differ, miscounts
from registry.cli.doctor.findings import (
    DoctorFinding,
    EtcdGrowth,
    Severity,
    etcd_findings,
    expiry_findings,
    folded,
    growth_findings,
)
from registry.cli.views.replica_view import ReplicaView, missing_view, replica_view
from registry.client.address import Tls
from registry.etcd3.client import MemberDown, MemberStatus
from registry.etcd3.errors import NoLeader
from registry.model.status import Failed, Found, Lazy, Pending, ReportedLimits, ReportedStore, Warned
from registry.v1 import registry_pb2 as pb
from tests.support.residency_world import engine_status, replica_status

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


def tenant(adapters: int, quota: int) -> Survey:
    return replace(pool(replica()), tenants=[pb.Tenant(name="t", adapters=adapters, max_adapters=quota)])


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


BLIND = Lazy(count=3, servable=False, reason="needs_plugin")
WARNED = [Warned(name="", generation=0, reason="base_unknown", message="")]
E, W = Severity.ERROR, Severity.WARNING


def warned(reason: str, **engine: Any) -> Survey:
    warnings = [Warned(name="", generation=0, reason=reason, message="")]
    return pool(replica(warnings=warnings, engine=engine_status(**{"swap": "plugin", **engine})))


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


PROVOKED = {
    "rank_limit_too_low": (W, started_for(pb.PoolLimits(max_rank=64), max_lora_rank=16)),
    "store_nearly_full": (W, pool(replica(store=stored(room_bytes=9, in_use_bytes=90)))),
    "room_too_small": (W, started_for(pb.PoolLimits(max_adapters=8), max_cpu_loras=4)),
    "engine_paused": (W, warned("engine_paused")),
    "kv_connector": (W, warned("kv_connector", swap="refused")),
    "rust_frontend": (W, warned("rust_frontend", swap="refused")),
    "kv_shared": (E, warned("kv_shared")),
    "etcd_proxy": (W, warned("etcd_proxy")),
    "rank_limit_too_high": (W, ranked(64, 9)),
    "no_status": (E, pool(raw("r1", ""))),
    "unreadable_status": (E, pool(raw("r1", "?"))),
    "held": (E, pool(replica(held="mass_removal", stale=True))),
    "stale": (E, pool(replica(stale=True))),
    "engine_unreachable": (E, pool(replica(engine=engine_status(incarnation=""), ready=False))),
    "not_ready": (E, pool(replica(ready=False))),
    "adapters_failed": (E, pool(replica(failed=failed("digest_mismatch", *"abcdefg")))),
    "over_capacity": (E, pool(replica(pending=pending("over_capacity")))),
    "adapters_pending": (W, pool(replica(pending=pending("staging")))),
    "names_omitted": (E, pool(replica(omitted=4))),
    "base_unknown": (W, pool(replica(warnings=WARNED))),
    "lazy_not_servable": (E, pool(replica(lazy=BLIND))),
    "plugin_absent": (W, pool(replica(engine=engine_status(swap="pipelined")))),
    "engine_unsupported": (E, pool(replica(engine=engine_status(swap="refused")))),
    "clock_skew": (W, pool(replica(updated_at="2026-01-01T01:00:00.000Z"))),
    "versions_differ": (W, replace(pool(replica()), version_here="2")),
    "no_pools": (W, Survey((), (), (), ())),
    "pool_unknown": (
        E,
        Survey((), (), (), (), unknown_pools=[pb.UnknownPool(name="p", replicas=2, names=["r1", "r2"])]),
    ),
    "unreadable_record": (E, pool(replica(), unreadable=("a",))),
    "too_few_replicas": (E, pool(replica(), adapters=(adapter(replicas=2),))),
    "behind": (W, pool(replica(), adapters=(adapter("8"),))),
    "digests_differ": (E, pool(replica(found=found("1")), replica("r2", found=found("2")))),
    "engine_versions_differ": (W, pool(replica(), replica("r2", engine=engine_status(url="http://r2", version="2")))),
    "engine_shared": (E, pool(replica(engine=engine_status()), replica("r2", engine=engine_status()))),
    "engine_url_not_allowed": (E, pool(replace(replica(), withheld_engine_url="http://evil.test"))),
    "insecure": (W, pool(replica(insecure=["--etcd-password-file: the password would go unencrypted"]))),
    "over_quota": (E, tenant(3, 2)),
    "draining": (W, pool(replace(replica(ready=False, note="it drains"), leaving=True))),
    "engine_url_loopback": (W, pool(near("r1", "h1"), near("r2", "h2", "http://[::1]:8000"), far("r3", "h2"))),
}


def check(finding: DoctorFinding, reason: str, severity: Severity) -> None:
    assert (finding.reason, finding.severity) == (reason, severity)
    assert finding.subject
    assert any(command in finding.remedy for command in COMMANDS), finding.remedy


@pytest.mark.parametrize("reason", PROVOKED)
def test_each_finding_is_found(reason):
    severity, seen = PROVOKED[reason]
    (finding,) = diagnose(seen, NOW)
    check(finding, reason, severity)


@pytest.mark.parametrize(("allowed", "fitting"), [(64, 64), (65, 128), (300, 320), (321, 512), (600, 600)])
def test_the_rank_that_is_advised_is_one_that_vllm_takes(allowed, fitting):
    """Any other it refuses at its start; of what it has no rank for, the pool's is told as it is."""
    (finding,) = diagnose(started_for(pb.PoolLimits(max_rank=allowed), max_lora_rank=16), NOW)
    assert f"--max-lora-rank {fitting}," in finding.remedy


def test_nothing_is_wrong():
    seen = pool(replica(), replica("r2"), adapters=(adapter(), adapter(replicas=2), adapter(selector={})))
    assert diagnose(replace(seen, tenants=[pb.Tenant(name="t", adapters=2, max_adapters=2)]), NOW) == []


def test_flags_of_an_engine_that_cannot_hold_its_pool():
    """The remedies name values that do; nothing is said of limits that an engine does not tell, or twice."""
    (rank,) = diagnose(started_for(pb.PoolLimits(max_rank=20), max_lora_rank=16), NOW)
    assert "--max-lora-rank 32" in rank.remedy
    assert "pool update p --max-rank 16" in rank.remedy
    three = [adapter(), adapter(), adapter()]
    (room,) = diagnose(started_for(pb.PoolLimits(max_adapters=8), *three, max_cpu_loras=2), NOW)
    check(room, "room_too_small", E)
    assert "--max-cpu-loras 3" in room.remedy
    lazy = pb.Adapter(name="z", etag="7", spec=pb.AdapterSpec(load="lazy"))
    for others in ([lazy], [adapter(replicas=1)]):
        assert diagnose(started_for(pb.PoolLimits(), *three[:2], *others, max_cpu_loras=2), NOW) == []
    assert (
        diagnose(started_for(pb.PoolLimits(max_rank=16, max_adapters=2), max_cpu_loras=2, max_lora_rank=16), NOW) == []
    )
    assert diagnose(started_for(pb.PoolLimits(max_rank=512, max_adapters=512), *three), NOW) == []
    told = diagnose(started_for(pb.PoolLimits(), *three, waits=(*pending("over_capacity"),), max_cpu_loras=2), NOW)
    assert [one.reason for one in told] == ["over_capacity"]
    seen = started_for(pb.PoolLimits(max_rank=64), max_lora_rank=16)
    leaving = [replace(one, leaving=True, status={**one.status, "ready": False}) for one in seen.pools[0].replicas]
    told = diagnose(replace(seen, pools=[replace(seen.pools[0], replicas=leaving)]), NOW)
    assert [one.reason for one in told] == ["draining"]


def test_certificates_that_end_soon():
    """The last fifth of a life, at most 30 days: a certificate of an hour is not told of while it is new."""

    def found(begin: str, end: str) -> list[tuple[str, Severity]]:
        one = {"notBefore": begin, "notAfter": end}
        return [(it.reason, it.severity) for it in expiry_findings("a:1", {"the CA": one, "none": {}}, NOW)]

    soon, gone = [("certificate_expires", W)], [("certificate_expired", E)]
    assert found("Jan  1 00:00:00 2025 GMT", "Jan 20 00:00:00 2026 GMT") == soon
    assert found("Jan  1 00:00:00 2025 GMT", "Feb  2 00:00:00 2026 GMT") == []
    assert found("Dec 31 23:50:00 2025 GMT", "Jan  1 00:50:00 2026 GMT") == []
    assert found("Dec 31 23:05:00 2025 GMT", "Jan  1 00:05:00 2026 GMT") == soon
    assert found("Jan  1 00:00:00 2025 GMT", "Dec 31 23:59:00 2025 GMT") == gone
    (one,) = expiry_findings(
        "a:1", {"the CA": {"notBefore": "Jan  1 00:00:00 2025 GMT", "notAfter": "Jan  2 00:00:00 2026 GMT"}}, NOW
    )
    assert one.finding == "the CA ends at 2026-01-02 00:00 UTC"
    assert "--tls-cert" in one.remedy


@pytest.mark.parametrize("address", ["127.0.0.1:1", "unix:/nowhere", "dns:///a.invalid:1"])
def test_without_a_handshake_nothing_is_known_of_certificates(address):
    """What hinders it is told by the connection itself."""
    assert look_at_certificates(address, Tls(), NOW) == []


def test_an_admin_service_that_bears_what_is_unprotected():
    (finding,) = diagnose(replace(pool(replica()), insecure_admin=["--listen: anybody may change everything"]), NOW)
    check(finding, "insecure", W)
    assert "anybody may change everything" in finding.finding


def test_pools_without_replicas():
    """What is to be served and is not needs action; an empty pool may be new."""
    for adapters, severity in (((adapter(),), E), ((), W)):
        (finding,) = diagnose(pool(adapters=adapters), NOW)
        check(finding, "no_replicas", severity)


def test_a_selector_that_nobody_matches():
    (finding,) = diagnose(pool(replica(), adapters=(adapter(selector={"gpu": "h100"}),)), NOW)
    check(finding, "too_few_replicas", E)


def test_records_that_cannot_be_read():
    for finding in diagnose(Survey((), ("p",), (), ("t",)), NOW):
        check(finding, "unreadable_record", E)


def test_names_are_counted_where_there_are_many():
    (finding,) = diagnose(PROVOKED["adapters_failed"][1], NOW)
    assert finding.finding == "it cannot serve a, b, c, d, e and 2 more: digest_mismatch"


def test_remedies_are_for_reasons_that_sidecars_give():
    root = Path(__file__).parents[3]
    files = [path for part in ("registry", "sidecar") for path in (root / part).rglob("*.py")]
    given = "".join(path.read_text() for path in files if path != Path(replica_findings.__file__))
    assert [reason for reason in replica_findings.REMEDIES if f'"{reason}"' not in given] == []


@pytest.mark.parametrize("reason", ["files_touched", "without_effect", "modules_missing", "unknown_field"])
def test_what_replicas_warn_of_has_a_remedy(reason):
    (finding,) = diagnose(pool(replica(warnings=[Warned(name="a", generation=1, reason=reason, message="")])), NOW)
    check(finding, reason, W)
    assert "says why" not in finding.remedy


@pytest.mark.parametrize("reason", ["other_format", "weights_not_safetensors", "rate_limited"])
def test_what_is_wrong_with_a_source_has_a_remedy(reason):
    (finding,) = diagnose(pool(replica(failed=failed(reason, "a"))), NOW)
    assert "says why" not in finding.remedy


def test_reasons_have_remedies_of_their_own():
    (finding,) = diagnose(pool(replica(failed=failed("source_not_allowed", "a"))), NOW)
    assert "--allow-source" in finding.remedy


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        ("needs_plugin", "LORAPLANE_PLUGIN=1"),
        ("needs_socket", "--resolver-socket"),
        ("no_room", "--max-cpu-loras"),
        ("names_versioned", "--engine-names plain"),
    ],
)
def test_lazy_adapters_have_the_remedy_of_what_they_lack(reason, says):
    (finding,) = diagnose(pool(replica(lazy=Lazy(count=1, servable=False, reason=reason))), NOW)
    check(finding, "lazy_not_servable", E)
    assert says in finding.remedy


def of_all(reason: str, message: str) -> list[Warned]:
    return [Warned(name="", generation=0, reason=reason, message=message)]


@pytest.mark.parametrize(
    ("seen", "reason", "remedy"),
    [
        ({"warnings": of_all("blocked", "another base"), "note": "another base"}, "not_ready", "describe replica r1"),
        (
            {
                "warnings": of_all("engine_paused", "it sleeps"),
                "note": "it sleeps",
                "pending": pending("engine_paused"),
            },
            "not_ready",
            "POST /wake_up",
        ),
        ({"degraded": "9 of 9 refused", "note": "9 of 9 refused"}, "not_ready", "loraplane retry adapter NAME"),
        (
            {"warnings": of_all("over_capacity", "for 1"), "pending": pending("over_capacity"), "ready": True},
            "over_capacity",
            "--max-adapters",
        ),
        (
            {"warnings": of_all("engine_paused", "it sleeps"), "pending": pending("engine_paused"), "ready": True},
            "engine_paused",
            "POST /wake_up",
        ),
    ],
)
def test_one_cause_is_one_finding(seen, reason, remedy):
    """R18 readiness-follows: who reads what hinders a replica reads it once, with the remedy of that cause."""
    (finding,) = diagnose(pool(replica(**{"ready": False, **seen})), NOW)
    assert finding.reason == reason
    assert remedy in finding.remedy


def test_a_warning_of_something_else_stands_beside_what_hinders_a_replica():
    found = diagnose(pool(replica(ready=False, note="another base", warnings=of_all("etcd_proxy", "by a proxy"))), NOW)
    assert [one.reason for one in found] == ["not_ready", "etcd_proxy"]


def test_lazy_adapters_of_a_replica_that_is_not_ready_are_no_finding_of_their_own():
    (finding,) = diagnose(pool(replica(ready=False, lazy=Lazy(count=1, servable=False, reason="not_ready"))), NOW)
    check(finding, "not_ready", E)


@pytest.mark.parametrize(("swap", "reason"), [("pipelined", "swap_has_gap"), ("refused", "engine_unsupported")])
def test_other_engines_are_not_told_to_install_what_is_vllms(swap, reason):
    (finding,) = diagnose(pool(replica(engine=engine_status(kind="sglang", swap=swap))), NOW)
    assert finding.reason == reason
    assert finding.remedy == "loraplane pool update p --engine-names versioned"


@pytest.mark.parametrize("swap", ["pipelined", "refused"])
def test_nothing_is_wrong_with_versioned_names_where_no_name_gets_other_weights(swap):
    assert diagnose(pool(replica(engine=engine_status(swap=swap, names="versioned"))), NOW) == []


def test_a_held_list_has_a_command_that_is_complete():
    (finding,) = diagnose(PROVOKED["held"][1], NOW)
    assert "confirm-removals p --revision R" in finding.remedy


def test_clocks():
    """A clock that is behind cannot be told from an old status; a time without a zone is UTC, and no time is none."""
    behind = NOW - timedelta(days=3)
    assert diagnose(pool(replica(updated_at=behind.isoformat())), NOW) == []
    assert diagnose(pool(replica(updated_at="now")), NOW) == []
    (finding,) = diagnose(pool(replica(updated_at="2026-01-01T01:00:00")), NOW)
    assert "3600 s ahead" in finding.finding


def test_releases():
    assert methods_differ("here", ["A", "B"], ["B", "A"]) == []
    (older,) = methods_differ("here", ["A", "B"], ["A"])
    check(older, "version_skew", E)
    assert older.finding.endswith("it has no B")
    (newer,) = methods_differ("here", ["A"], ["A", "B"])
    check(newer, "version_skew", W)


def test_versions_that_differ_are_one_finding():
    replicas = [replace(replica(f"r{number}"), version="1" if number else "2") for number in range(8)]
    seen = replace(pool(*replicas), version_here="2")
    (finding,) = (one for one in diagnose(seen, NOW) if one.reason == "versions_differ")
    assert finding.finding == (
        "parts are of several versions: not told: the admin service; "
        "1: sidecar p/r1, sidecar p/r2, sidecar p/r3, sidecar p/r4, sidecar p/r5 and 2 more; "
        "2: this program, sidecar p/r0"
    )
    alike = replace(pool(replace(replica(), version="2")), version_here="2", version_admin="2")
    assert diagnose(alike, NOW) == []


def member(name: str = "m1", **fields: Any) -> MemberStatus:
    said = {"version": "3.6.14", "cluster_id": 1, "member_id": 1, "leader_id": 1, "raft_term": 1, "revision": 5}
    return MemberStatus(**{"endpoint": name, "db_size_bytes": 1, **said, **fields})


@pytest.mark.parametrize(
    ("reason", "severity", "members", "is_full"),
    [
        ("member_down", E, [member(), MemberDown("m2", NoLeader("no"))], False),
        ("no_leader", E, [member(leader_id=0)], False),
        ("etcd_version", E, [member(version="3.5.1")], False),
        ("space", W, [member(db_size_bytes=2 << 30)], False),
        ("other_cluster", E, [member(), member("m2", cluster_id=2, revision=5000)], False),
        ("behind", W, [member(), member("m2", revision=5000)], False),
        ("versions_differ", W, [member(), member("m2", version="3.6.15")], False),
        ("no_space", E, [member()], True),
    ],
)
def test_etcd(reason, severity, members, is_full):
    (finding,) = etcd_findings(members, is_full=is_full)
    check(finding, reason, severity)


def test_counters_that_differ_from_what_is_listed():
    """W5: over all pools; records that cannot be read count, and tenants that cannot be read are left out."""
    adapters = [pb.Adapter(name=name) for name in ("Acme/a", "x", "other/a", "odd/a")]
    pools = [PoolSeen("p", adapters, ("acme/b",), ()), PoolSeen("q", [pb.Adapter(name="acme/a")], (), ())]
    tenants = [pb.Tenant(name="acme", adapters=4), pb.Tenant(name="default", adapters=1), pb.Tenant(name="gone")]
    assert miscounts(Survey(pools, (), tenants, ("odd",))) == [Miscount("acme", 4, 3), Miscount("other", 0, 1)]


def test_etcd_is_well():
    assert etcd_findings([member(), member("m2")], is_full=False) == []


def test_a_limit_of_ranks_is_compared_with_the_highest_of_the_pool():
    """Any replica may get any adapter of it; where some rank is not known, nothing is said."""
    assert diagnose(ranked(64, 9, 17), NOW) == [], "twice what is needed is not far above"
    assert [one.subject for one in diagnose(ranked(256, 8, 16, None), NOW)] == ["p/r0", "p/r1", "p/r2"]
    (finding,) = diagnose(ranked(256, 9), NOW)
    assert "--max-lora-rank 16" in finding.remedy
    assert diagnose(ranked(256, None), NOW) == []
    assert [one.reason for one in diagnose(ranked(256, 8, pending=pending("staging")), NOW)] == ["adapters_pending"]
    lazy = pb.Adapter(name="a", pool="p", etag="7", spec=pb.AdapterSpec(load="lazy"))
    seen = ranked(256, 8)
    assert diagnose(replace(seen, pools=[replace(seen.pools[0], adapters=(lazy,))]), NOW) == []
    assert diagnose(ranked(2048, 1000), NOW) == [], "above all that vLLM takes"


@pytest.mark.parametrize(
    ("etags", "revision", "more", "is_behind"),
    [
        ((), 0, {}, False),
        (("",), 0, {}, False),
        (("5", "9", "7"), 8, {}, True),
        (("5", "9", "7"), 9, {}, False),
        (("5",), 8, {}, False),
        (("9",), 8, {"stale": True}, False),
    ],
)
def test_a_replica_is_behind_the_newest_adapter(etags, revision, more, is_behind):
    """By what it has seen; one that is stale says so itself."""
    seen = pool(replica(revision=revision, **more), adapters=tuple(map(adapter, etags)))
    told = [one for one in diagnose(seen, NOW) if one.reason == "behind"]
    assert [one.finding for one in told] == (
        [f"it has seen revision {revision}, and the newest adapter is of 9"] if is_behind else []
    )


def test_addresses_of_the_loopback_are_fit_for_one_host():
    """R20: and what is no address at all says nothing."""
    assert diagnose(pool(near("r1", "h1"), near("r2", "h1", "http://localhost:8001")), NOW) == []
    assert diagnose(pool(near("r1", ""), far("r2", "h1")), NOW) == []
    assert diagnose(pool(near("r1", "h1", "http://["), far("r2", "h2")), NOW) == []


def test_a_replica_that_drains_serves_nothing_that_is_placed():
    """R20 drain."""
    seen = pool(replica(), replace(replica("r2"), leaving=True), adapters=(adapter(replicas=2),))
    assert {one.reason for one in diagnose(seen, NOW)} == {"draining", "too_few_replicas"}


def missing(name: str, last_seen: str = "2025-12-31T23:59:20Z") -> ReplicaView:
    return missing_view("p", pb.MissingReplica(name=name, last_seen=last_seen))


def test_replicas_that_do_not_live_are_one_finding():
    """A sidecar that dies is not forgotten: somebody has to act."""
    seen = Survey([PoolSeen("p", (), (), [replica()], [missing("r2"), missing("r3", "?")])], (), (), ())
    (finding,) = diagnose(seen, NOW)
    check(finding, "replicas_missing", E)
    assert finding.finding == "2 of 3 replicas do not live: r2 (last seen 40 s ago), r3 (just gone)"
    (nobody,) = diagnose(Survey([PoolSeen("p", (), (), [], [missing("r2", "2025-12-31T20:00:00Z")])], (), (), ()), NOW)
    assert nobody.finding == "1 of 1 replicas do not live: r2 (last seen 4 h ago)"


def test_a_pool_that_is_to_have_more_replicas_says_so():
    (finding,) = diagnose(Survey([PoolSeen("p", (), (), [replica()], [], 3)], (), (), ()), NOW)
    check(finding, "replicas_missing", E)
    assert (finding.finding, "--expect 1" in finding.remedy) == ("2 of 3 replicas do not live", True)


def test_of_which_labels_replicas_lack_is_told_in_the_same_finding():
    zones = [
        pb.GroupPresence(expected=pb.ReplicaGroup(labels={"zone": zone}, replicas=3), live=live)
        for zone, live in (("a", 3), ("b", 1))
    ]
    seen = PoolSeen("p", (), (), [replica()], [missing("r2")], lacking=2, groups=zones)
    (finding,) = diagnose(Survey([seen], (), (), ()), NOW)
    check(finding, "replicas_missing", E)
    assert finding.finding == "2 of 3 replicas do not live: r2 (last seen 40 s ago); zone=b: 1 of 3"
    assert finding.remedy == "start their sidecars, or loraplane pool update p --expect-labels zone=b:1"
    (both,) = diagnose(Survey([replace(seen, expected=4)], (), (), ()), NOW)
    assert both.remedy.endswith("pool update p --expect 1 --expect-labels zone=b:1")


MIB = 1 << 20


@pytest.mark.parametrize(
    ("store", "told"),
    [
        (stored(300 * MIB, in_use_bytes=2000 * MIB, largest_bytes=40 * MIB), False),
        (stored(200 * MIB, in_use_bytes=2000 * MIB, largest_bytes=40 * MIB), True),
        (stored(40 * MIB, in_use_bytes=80 * MIB, largest_bytes=40 * MIB), True),
        (stored(0), True),
        (stored(1), False),
        (None, False),
    ],
)
def test_a_store_with_room_for_little_more_is_told(store, told):
    found = diagnose(pool(replica(store=store)), NOW)
    assert [one.reason for one in found] == (["store_nearly_full"] if told else [])


def test_what_ends_the_room_of_a_store_is_told_once_for_all_replicas_of_it():
    full = stored(2 * MIB, 64 * MIB, 2 * MIB, "budget")
    (finding,) = folded(diagnose(pool(replica("r1", store=full), replica("r2", store=full)), NOW))
    assert finding.finding == (
        "2 replicas (r1, r2): its store has room for 2 MiB more within its budget; engines may read 64 MiB in it"
    )
    assert finding.remedy == "start the sidecar with a larger --store-budget"
    (disk,) = diagnose(pool(replica(store=stored(0))), NOW)
    assert ("on its disk" in disk.finding, disk.remedy) == (True, "make room on the disk of --store")


def test_a_store_of_which_an_adapter_says_that_it_is_full_is_no_second_finding():
    (finding,) = diagnose(pool(replica(store=stored(0), failed=failed("disk_full", "a"))), NOW)
    assert finding.reason == "adapters_failed"


@pytest.mark.parametrize("store", ["full", [], {"room_bytes": "0"}, {"room_bytes": 0, "in_use_bytes": 1}])
def test_a_store_of_another_release_says_nothing(store):
    status = {**json.loads(replica_status("r1", 7).to_bytes()), "store": store}
    reasons = [one.reason for one in diagnose(pool(raw("r1", json.dumps(status))), NOW)]
    assert "store_nearly_full" not in reasons


def test_replicas_whose_pool_does_not_exist_are_told():
    """They are in no listing of any pool's replicas; and nobody is told that there is no pool at all besides."""
    many = pb.UnknownPool(name="p", replicas=21, names=[f"r{number}" for number in range(20)])
    (finding,) = diagnose(Survey((), (), (), (), unknown_pools=[many]), NOW)
    assert finding.finding.startswith("it does not exist, and 21 replicas are of it: r0, r1, ")
    assert finding.finding.endswith("r19 and 1 more")


def test_one_cause_is_one_finding_for_people():
    """Of eight replicas with one fault there are not eight rows to read; programs get each."""
    far = [replica(f"r{number}", stale=True) for number in range(1, 8)]
    every = diagnose(pool(*far, replica("r9", ready=False, note="it waits")), NOW)
    assert len(every) == 8
    stale, other = folded(every)
    assert (stale.subject, stale.reason) == ("p", "stale")
    assert stale.finding == "7 replicas (r1, r2, r3, r4, r5 and 2 more): it does not reach etcd"
    assert other == every[-1]
    unready = [replica(name, ready=False, note="it waits") for name in ("r1", "r2")]
    (both,) = folded(diagnose(pool(*unready), NOW))
    assert both.remedy == "loraplane describe replica NAME --pool p"
    assert folded(etcd_findings([member(version="3.5.0")], is_full=True)) == etcd_findings(
        [member(version="3.5.0")], is_full=True
    )


def test_one_revision_lets_all_replicas_follow_what_they_hold():
    """R15: each names the revision of its own list, and a confirmation holds for all up to it."""
    texts = [f"mass_removal …: loraplane pool confirm-removals p --revision {revision}" for revision in (7, 19, 12)]
    (finding,) = diagnose(pool(*(replica(f"r{i}", held=one, stale=True) for i, one in enumerate(texts))), NOW)
    check(finding, "held", E)
    assert "--revision 19" in finding.remedy
    assert finding.finding.startswith("3 replicas (r0, r1, r2) do not follow etcd: mass_removal")


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
