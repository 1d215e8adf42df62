"""Each finding of the doctor, provoked one at a time; and nothing, where nothing is wrong."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from registry.cli import replica_findings
from registry.cli.diagnosis import PoolSeen, Seen, diagnose, methods_differ
from registry.cli.etcd_findings import etcd_findings
from registry.cli.finding import Finding, Severity
from registry.cli.replica_view import ReplicaView, replica_view
from registry.etcd3.client import MemberDown, MemberStatus
from registry.etcd3.errors import NoLeader
from registry.model.status import Failed, Found, Lazy, Pending, Warned
from registry.v1 import registry_pb2 as pb
from tests.support.replicas import engine_status, replica_status

NOW = datetime(2026, 1, 1, tzinfo=UTC)
# What a remedy is made of: our programs and flags, and those of others that an operator has at hand.
COMMANDS = ("loraplane", "--", "pip install", "etcdctl", "timedatectl", "VLLM_PLUGINS", "GET /readyz")


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


def pool(*replicas: ReplicaView, adapters: tuple[pb.Adapter, ...] = (), unreadable: tuple[str, ...] = ()) -> Seen:
    return Seen([PoolSeen("p", adapters, unreadable, replicas)], (), (), ())


def tenant(adapters: int, quota: int) -> Seen:
    return replace(pool(replica()), tenants=[pb.Tenant(name="t", adapters=adapters, max_adapters=quota)])


def failed(reason: str, *names: str) -> list[Failed]:
    return [Failed(name=name, generation=1, reason=reason, message="", attempts=1, retry_at=None) for name in names]


def pending(reason: str) -> list[Pending]:
    return [Pending(name="a", generation=1, reason=reason)]


def found(char: str) -> list[Found]:
    return [Found(name="a", generation=1, digest=f"sha256:{char}")]


BLIND = Lazy(count=3, servable=False, reason="needs_plugin")
WARNED = [Warned(name="", generation=0, reason="base_unknown", message="")]
E, W = Severity.ERROR, Severity.WARNING
PROVOKED = {
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
    "no_pools": (W, Seen((), (), (), ())),
    "unreadable_record": (E, pool(replica(), unreadable=("a",))),
    "too_few_replicas": (E, pool(replica(), adapters=(adapter(replicas=2),))),
    "behind": (W, pool(replica(), adapters=(adapter("8"),))),
    "digests_differ": (E, pool(replica(found=found("1")), replica("r2", found=found("2")))),
    "engine_versions_differ": (W, pool(replica(), replica("r2", engine=engine_status(url="http://r2", version="2")))),
    "engine_shared": (E, pool(replica(engine=engine_status()), replica("r2", engine=engine_status()))),
    "over_quota": (E, tenant(3, 2)),
}


def check(finding: Finding, reason: str, severity: Severity) -> None:
    assert (finding.reason, finding.severity) == (reason, severity)
    assert finding.subject
    assert any(command in finding.remedy for command in COMMANDS), finding.remedy


@pytest.mark.parametrize("reason", PROVOKED)
def test_each_finding_is_found(reason):
    severity, seen = PROVOKED[reason]
    (finding,) = diagnose(seen, NOW)
    check(finding, reason, severity)


def test_nothing_is_wrong():
    seen = pool(replica(), replica("r2"), adapters=(adapter(), adapter(replicas=2), adapter(selector={})))
    assert diagnose(replace(seen, tenants=[pb.Tenant(name="t", adapters=2, max_adapters=2)]), NOW) == []


def test_pools_without_replicas():
    """What is to be served and is not needs action; an empty pool may be new."""
    for adapters, severity in (((adapter(),), E), ((), W)):
        (finding,) = diagnose(pool(adapters=adapters), NOW)
        check(finding, "no_replicas", severity)


def test_a_selector_that_nobody_matches():
    (finding,) = diagnose(pool(replica(), adapters=(adapter(selector={"gpu": "h100"}),)), NOW)
    check(finding, "too_few_replicas", E)


def test_records_that_cannot_be_read():
    for finding in diagnose(Seen((), ("p",), (), ("t",)), NOW):
        check(finding, "unreadable_record", E)


def test_names_are_counted_where_there_are_many():
    (finding,) = diagnose(PROVOKED["adapters_failed"][1], NOW)
    assert finding.finding == "it cannot serve a, b, c, d, e and 2 more: digest_mismatch"


def test_remedies_are_for_reasons_that_sidecars_give():
    root = Path(__file__).parents[3]
    files = [path for part in ("registry", "sidecar") for path in (root / part).rglob("*.py")]
    given = "".join(path.read_text() for path in files if path != Path(replica_findings.__file__))
    assert [reason for reason in replica_findings.REMEDIES if f'"{reason}"' not in given] == []


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


def test_etcd_is_well():
    assert etcd_findings([member(), member("m2")], is_full=False) == []
