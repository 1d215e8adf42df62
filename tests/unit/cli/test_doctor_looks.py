"""The doctor's looks at a service that answers, and at one that does not; and the bounds of its findings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from registry.cli.doctor import command
from registry.cli.doctor.diagnosis import PoolSeen, Survey, diagnose
from registry.cli.doctor.findings import (
    CheckedPart,
    DoctorFinding,
    Severity,
    error,
    etcd_findings,
    expiry_findings,
    folded,
    named,
)
from registry.cli.main import run
from registry.cli.views.replica_view import ReplicaView
from registry.v1 import registry_pb2 as pb
from registry.v1.registry_pb2_grpc import add_AdapterRegistryServicer_to_server
from tests.support.ran import Ran
from tests.support.residency_world import engine_status, replica_status
from tests.unit.cli.conftest import Cli
from tests.unit.cli.fake_admin import Refusal
from tests.unit.cli.test_diagnosis import NOW, adapter, far, member, near, pool, ranked, raw, replica, started_for

SERVICE = pb.DESCRIPTOR.services_by_name["AdapterRegistry"]
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def state() -> health.HealthServicer:
    return health.HealthServicer()


@pytest.fixture
def doctor(admin, state, capsys, monkeypatch, tmp_path) -> Iterator[Cli]:
    """The doctor against a service that says how it is, and of which release."""
    monkeypatch.chdir(tmp_path)
    admin.answers["ListTenants"] = [pb.ListTenantsResponse()]
    admin.answers["ListPools"] = [pb.ListPoolsResponse(pools=[pb.Pool(name="dev")], admin_version="")]
    admin.answers["ListAdapters"] = [pb.ListAdaptersResponse()]
    monkeypatch.setattr("registry.cli.doctor.collect.release_version", lambda: "")
    state.set(SERVICE.full_name, SERVING)
    with ThreadPoolExecutor(8) as threads:
        server = grpc.server(threads)
        add_AdapterRegistryServicer_to_server(admin, server)
        health_pb2_grpc.add_HealthServicer_to_server(state, server)
        reflection.enable_server_reflection([SERVICE.full_name], server)
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()

        def call(*arguments: str) -> Ran:
            code = run(["--admin", address, "-o", "json", "doctor", *arguments])
            captured = capsys.readouterr()
            return Ran(int(code), captured.out, captured.err)

        try:
            yield call
        finally:
            server.stop(None).wait()


def reasons(ran: Ran) -> list[str]:
    return [one["reason"] for one in ran.json["findings"]]


def test_a_service_that_is_well_and_of_our_release_is_no_finding(doctor):
    ran = doctor()
    assert (ran.code, reasons(ran)) == (0, ["no_replicas"])


def test_a_service_that_cannot_work_is_told(doctor, state):
    state.set(SERVICE.full_name, NOT_SERVING)
    ran = doctor()
    assert (ran.code, reasons(ran)) == (4, ["not_serving", "no_replicas"])
    [first, _] = ran.json["findings"]
    assert (first["part"], first["severity"], first["subject"].startswith("127.0.0.1:")) == ("admin", "error", True)


def test_what_service_and_program_do_not_both_know_is_told(doctor, monkeypatch):
    """By reflection, so that it is known before a call fails."""
    known = [one.name for one in SERVICE.methods]
    monkeypatch.setattr("registry.cli.doctor.collect._methods_here", lambda: [*known, "Newer"])
    [finding, _] = doctor().json["findings"]
    assert (finding["reason"], finding["finding"].endswith("it has no Newer")) == ("version_skew", True)
    monkeypatch.setattr("registry.cli.doctor.collect._methods_here", lambda: known[1:])
    [finding, _] = doctor().json["findings"]
    assert (finding["severity"], finding["finding"].endswith(f"does not know {known[0]}")) == ("warning", True)


def test_all_pages_of_all_pools_and_tenants_are_looked_at(doctor, admin):
    admin.answers["ListPools"] = [
        pb.ListPoolsResponse(
            pools=[pb.Pool(name="a", limits=pb.PoolLimits(expected_replicas=3))],
            unreadable=["torn"],
            admin_version="7",
            admin_insecure=["--listen: anybody"],
            next_page_token="n",  # noqa: S106 - of a listing
        ),
        pb.ListPoolsResponse(pools=[pb.Pool(name="b")], unknown=[pb.UnknownPool(name="u", replicas=1, names=["r9"])]),
    ]
    admin.answers["ListAdapters"] = [pb.ListAdaptersResponse(unreadable=["bad"])]
    admin.answers["ListTenants"] = [pb.ListTenantsResponse(unreadable=["t"])]
    missing = pb.ListReplicasResponse(
        replicas=[pb.Replica(name="r1", pool="a", version="")], missing=[pb.MissingReplica(name="r2")], lacking=4
    )
    admin.answers["ListReplicas"] = [missing]
    admin.answers["RepairTenant"] = [pb.RepairTenantResponse()]
    found = [(one["reason"], one["subject"]) for one in doctor().json["findings"]]
    assert found == [
        ("versions_differ", "versions"),
        ("insecure", "its settings"),
        ("pool_unknown", "u"),
        ("unreadable_record", "torn"),
        ("unreadable_record", "a"),
        ("replicas_missing", "a"),
        ("no_status", "a/r1"),
        ("unreadable_record", "b"),
        ("replicas_missing", "b"),
        ("no_status", "a/r1"),
        ("unreadable_record", "t"),
    ]
    assert admin.asked("ListPools")[0].show_unknown
    assert [one.pool for one in admin.asked("ListReplicas")] == ["a", "b"]
    assert [one.pool for one in admin.asked("ListAdapters")] == ["a", "b"]


def test_a_counter_is_repaired_only_where_that_is_asked_for(doctor, admin):
    admin.answers["ListTenants"] = [pb.ListTenantsResponse(tenants=[pb.Tenant(name="t", adapters=3)])]
    right = pb.RepairTenantResponse(tenant=pb.Tenant(name="t"))
    admin.answers["RepairTenant"] = [pb.RepairTenantResponse(tenant=pb.Tenant(name="t"), changed=True), right]
    assert reasons(doctor()) == ["no_replicas", "counter_differs"]
    assert [one.validate_only for one in admin.asked("RepairTenant")] == [True]
    admin.answers["RepairTenant"] = [pb.RepairTenantResponse(tenant=pb.Tenant(name="t"), changed=True), right]
    ran = doctor("--repair")
    assert (ran.code, reasons(ran)) == (0, ["no_replicas", "counter_repaired"])
    assert {one.validate_only for one in admin.asked("RepairTenant")[1:]} == {False}


def test_a_watch_repairs_nothing(doctor, admin):
    ran = doctor("--watch", "--repair")
    assert (ran.code, admin.requests) == (2, [])


@pytest.mark.parametrize(
    ("status", "reason", "part"),
    [
        (NOT_SERVING, "ADMIN_UNAVAILABLE", "etcd"),
        (SERVING, "ETCD_UNAVAILABLE", "etcd"),
        (SERVING, "ADMIN_UNAVAILABLE", "admin"),
    ],
)
def test_who_does_not_answer_is_named(doctor, admin, state, clock, status, reason, part):
    """The service says that it has no etcd, or the refusal does; else it is the service itself."""
    state.set(SERVICE.full_name, status)
    away = Refusal(grpc.StatusCode.UNAVAILABLE, reason, "away")
    admin.answers["ListPools"] = [clock.late(away)]
    ran = doctor("--timeout", "1000")
    assert (ran.code, [(one["part"], one["reason"]) for one in ran.json["findings"]]) == (6, [(part, "unreachable")])


def test_a_refusal_is_no_part_that_does_not_answer(doctor, admin):
    admin.answers["ListPools"] = [Refusal(grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED", "not you")]
    ran = doctor()
    assert (ran.code, ran.out, ran.error["reason"]) == (4, "", "PERMISSION_DENIED")


def test_options_of_etcd_that_do_not_fit_are_a_wrong_line(doctor, admin):
    ran = doctor("--etcd", "e:1", "--etcd-tls-cert", "c.pem")
    assert (ran.code, admin.requests) == (2, [])
    assert command.EtcdOptions().settings() is None


# What is on the edge of a finding, and what is not.
def found(seen: Survey) -> list[tuple[str, str]]:
    return [(str(one.severity), one.reason) for one in diagnose(seen, NOW)]


@pytest.mark.parametrize(("ahead", "is_told"), [(60, False), (61, True)])
def test_a_clock_may_be_a_minute_ahead(ahead, is_told):
    at = (NOW + timedelta(seconds=ahead)).isoformat()
    seen = diagnose(pool(replica(updated_at=at)), NOW)
    assert [one.finding for one in seen] == ([f"its clock is {ahead} s ahead of the one here"] if is_told else [])
    started = replace(replica(), started_at=at)
    assert len(diagnose(pool(started), NOW)) == is_told, "the same by when it says that it started"
    both = replace(replica(updated_at=at), started_at=at)
    assert len(diagnose(pool(both), NOW)) == is_told, "once"


@pytest.mark.parametrize(
    ("limit", "highest", "is_told"), [(64, 9, True), (63, 9, False), (32, 8, True), (31, 8, False)]
)
def test_a_rank_limit_is_far_above_from_four_times_on(limit, highest, is_told):
    assert found(ranked(limit, highest)) == ([("warning", "rank_limit_too_high")] if is_told else [])


@pytest.mark.parametrize(
    ("max_rank", "max_adapters", "limits", "told"),
    [
        (17, 0, {"max_lora_rank": 16}, [("warning", "rank_limit_too_low")]),
        (16, 0, {"max_lora_rank": 16}, []),
        (17, 0, {}, []),
        (0, 5, {"max_cpu_loras": 4}, [("warning", "room_too_small")]),
        (0, 4, {"max_cpu_loras": 4}, []),
        (0, 5, {}, []),
    ],
)
def test_an_engine_is_too_small_from_one_below_on(max_rank, max_adapters, limits, told):
    allowed = pb.PoolLimits(max_rank=max_rank, max_adapters=max_adapters)
    assert found(started_for(allowed, **limits)) == told


def test_an_engine_has_room_for_exactly_what_is_for_every_replica():
    adapters = [adapter(), adapter()]
    assert found(started_for(pb.PoolLimits(), *adapters, max_cpu_loras=2)) == []
    assert found(started_for(pb.PoolLimits(), *adapters, max_cpu_loras=1)) == [("error", "room_too_small")]


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ([member(), member("m2", revision=1005)], []),
        ([member(), member("m2", revision=1006)], ["behind"]),
        ([member(db_size_bytes=int(0.7 * 2 * 1024**3))], []),
        ([member(db_size_bytes=int(0.7 * 2 * 1024**3) + 1)], ["space"]),
        ([], []),
    ],
)
def test_members_of_etcd_are_behind_or_full_from_a_bound_on(members, told):
    assert [one.reason for one in etcd_findings(members, is_full=False)] == told


def test_members_of_different_clusters_are_not_compared():
    """Their revisions and releases say nothing of each other."""
    seen = [member(), member("m2", cluster_id=2, revision=9000, version="3.6.15")]
    assert [one.reason for one in etcd_findings(seen, is_full=False)] == ["other_cluster"]


def expires(end: str, begin: str = "Jan  1 00:00:00 2025 GMT") -> list[tuple[str, Severity]]:
    seen = expiry_findings("a:1", {"the CA": {"notBefore": begin, "notAfter": end}}, NOW)
    return [(one.reason, one.severity) for one in seen]


def test_a_certificate_ends_soon_within_thirty_days_or_a_fifth_of_its_life():
    soon, gone = [("certificate_expires", Severity.WARNING)], [("certificate_expired", Severity.ERROR)]
    assert expires("Jan 31 00:00:00 2026 GMT") == [], "exactly thirty days"
    assert expires("Jan 30 23:59:59 2026 GMT") == soon
    assert expires("Jan  1 00:00:00 2026 GMT") == gone, "just now"
    assert expires("Jan  1 00:00:01 2026 GMT") == soon
    assert expires("Jan  3 00:00:00 2026 GMT", "Dec 24 00:00:00 2025 GMT") == [], "exactly a fifth of ten days"
    assert expires("Jan  2 23:59:50 2026 GMT", "Dec 24 00:00:00 2025 GMT") == soon
    assert expiry_findings("a:1", {"x": {"notBefore": "x"}, "y": {"notAfter": "x"}}, NOW) == []


@pytest.mark.parametrize(
    ("names", "told"),
    [("abcde", "a, b, c, d, e"), ("abcdef", "a, b, c, d, e and 1 more"), ("", "")],
)
def test_five_names_are_named(names, told):
    assert named(list(names)) == told


def finding(subject: str, part: CheckedPart = CheckedPart.REPLICA, **more: Any) -> DoctorFinding:
    said = {"reason": "stale", "finding": "it is stale", "remedy": f"restart {subject.partition('/')[2]} now"}
    return error(part, subject, **{**said, **more})


def test_findings_are_folded_where_all_but_the_replica_is_the_same():
    alike = [finding("p/r1"), finding("p/r2")]
    [both] = folded(alike)
    assert (both.subject, both.finding, both.remedy) == ("p", "2 replicas (r1, r2): it is stale", "restart NAME now")
    for other in (
        finding("q/r2"),
        finding("p/r2", reason="held"),
        finding("p/r2", finding="it is held"),
        finding("p/r2", remedy="restart r2 later"),
        replace(finding("p/r2"), severity=Severity.WARNING),
        finding("p/r2", CheckedPart.POOL),
    ):
        assert folded([alike[0], other]) == [alike[0], other]
    tenants = [finding("t", CheckedPart.TENANT), finding("t", CheckedPart.TENANT, reason="held")]
    assert folded(tenants) == tenants


def test_names_of_a_status_without_any_are_all_adapters():
    seen = raw(
        "r1", '{"observed_revision": 7, "ready": true, "engine": {"incarnation": "e"}, "failed": [{"reason": "x"}]}'
    )
    assert "it cannot serve all adapters: x" in [one.finding for one in diagnose(pool(seen), NOW)]


def test_hosts_of_the_loopback_are_compared_once_there_are_two():
    assert found(pool(near("r1", "h1"), near("r2", "", "http://localhost:8001"))) == []
    assert found(pool(near("r1", "h1"), far("r2", "h2"))) == [("warning", "engine_url_loopback")]


@pytest.mark.parametrize(
    ("lived", "expected", "lacking", "missing", "told"),
    [
        (2, 2, 0, 0, None),
        (2, 3, 0, 0, "1 of 3 replicas do not live"),
        (2, 0, 4, 0, "4 of 6 replicas do not live"),
        (2, 3, 1, 2, "2 of 4 replicas do not live: m0 (just gone), m1 (just gone)"),
    ],
)
def test_as_many_replicas_lack_as_the_most_that_is_known(lived, expected, lacking, missing, told):
    from tests.unit.cli.test_diagnosis import missing as gone

    live = [replace(replica(f"r{number}"), host="h") for number in range(lived)]
    seen = PoolSeen(
        "p", (), (), live, [gone(f"m{number}", "?") for number in range(missing)], expected, lacking=lacking
    )
    assert [one.finding for one in diagnose(Survey([seen], (), (), ()), NOW)] == ([told] if told else [])


@pytest.mark.parametrize(("replicas", "fitting", "is_told"), [(1, 1, False), (2, 1, True), (0, 0, True), (2, 2, False)])
def test_a_placement_needs_as_many_as_it_asks_for_and_one_at_least(replicas, fitting, is_told):
    live = [replace(replica(f"r{number}"), labels={"gpu": "a10"}) for number in range(fitting)]
    others = [replace(replica("other"), labels={"gpu": "b"})]
    seen = pool(*live, *others, adapters=(adapter(replicas=replicas, selector={"gpu": "a10"}),))
    assert [one.reason for one in diagnose(seen, NOW)] == (["too_few_replicas"] if is_told else [])


@pytest.mark.parametrize(("adapters", "quota", "is_told"), [(3, 3, False), (4, 3, True), (4, 0, False)])
def test_a_tenant_is_over_its_quota_from_one_more_on(adapters, quota, is_told):
    """W5."""
    seen = replace(pool(replica()), tenants=[pb.Tenant(name="t", adapters=adapters, max_adapters=quota)])
    assert [one.reason for one in diagnose(seen, NOW)] == (["over_quota"] if is_told else [])


def test_a_time_is_compared_by_its_zone():
    assert diagnose(pool(replica(updated_at="2026-01-01T01:00:30+01:00")), NOW) == []
    assert diagnose(pool(replica(updated_at="2025-12-31T23:30:00-01:00")), NOW) != []


def test_what_to_do_where_replicas_do_not_live_depends_on_why_they_are_expected():
    seen = PoolSeen("p", (), (), [replica()], [], lacking=1)
    [finding] = diagnose(Survey([seen], (), (), ()), NOW)
    assert finding.remedy == "start their sidecars; those that are not to come back: loraplane replica forget NAME"
    [finding] = diagnose(Survey([replace(seen, expected=2)], (), (), ()), NOW)
    assert finding.remedy == "start their sidecars, or loraplane pool update p --expect 1"
    [finding] = diagnose(Survey([replace(seen, expected=1)], (), (), ()), NOW)
    assert "forget" in finding.remedy


def held(*texts: str) -> list[DoctorFinding]:
    return diagnose(pool(*(replica(f"r{at}", held=text, stale=True) for at, text in enumerate(texts))), NOW)


@pytest.mark.parametrize(
    ("texts", "revision"),
    [
        (("no word of it",), "--revision R, as they say"),
        (("--revision 7", "no word of it"), "--revision 7"),
        (("--revision 7", "--revision 19", "--revision 8"), "--revision 19"),
        (("--revision 12345678901234567890",), "--revision R, as they say"),
    ],
)
def test_the_revision_to_confirm_is_the_highest_that_is_told(texts, revision):
    """R15."""
    [finding] = held(*texts)
    assert finding.remedy.endswith(revision)


@pytest.mark.parametrize(
    ("swap", "kind", "names", "told"),
    [
        ("plugin", "vllm", "plain", None),
        ("pipelined", "vllm", "plain", "plugin_absent"),
        ("pipelined", "pegainfer", "plain", "swap_has_gap"),
        ("pipelined", "dynamo", "plain", "swap_has_gap"),
        ("pipelined", "axolotl", "plain", "plugin_absent"),
        ("refused", "vllm", "plain", "engine_unsupported"),
        ("refused", "vllm", "versioned", None),
        ("pipelined", "vllm", "versioned", None),
    ],
)
def test_how_an_engine_replaces_weights(swap, kind, names, told):
    seen = pool(replica(engine=engine_status(url="http://r1", swap=swap, kind=kind, names=names)))
    assert [one.reason for one in diagnose(seen, NOW)] == ([told] if told else [])


def test_engines_are_shared_where_address_and_incarnation_are_the_same():
    """Addresses of the loopback are equal on every host, and one that is not known is nobody's."""

    def drives(name: str, url: str, incarnation: str) -> ReplicaView:
        return replica(name, engine=engine_status(url=url, incarnation=incarnation, swap="plugin"))

    def shared(*seen: ReplicaView) -> list[str]:
        return [one.subject for one in diagnose(pool(*seen), NOW) if one.reason == "engine_shared"]

    one = drives("r1", "http://a", "i")
    assert shared(one, drives("r2", "http://a", "i"), drives("r3", "http://a", "i")) == ["p/r1"]
    assert shared(one, drives("r2", "http://a", "j")) == []
    assert shared(one, drives("r2", "http://b", "i")) == []
    assert shared(drives("r1", "", "i"), drives("r2", "", "i")) == []


@pytest.mark.parametrize(
    ("lazy", "told"),
    [
        ({"count": 2, "servable": False, "reason": "no_room"}, True),
        ({"count": 0, "servable": False, "reason": "no_room"}, False),
        ({"count": 2, "servable": True, "reason": ""}, False),
        ({"count": 2, "servable": False, "reason": "not_ready"}, False),
        ({"count": 2, "servable": False, "reason": "never heard of"}, True),
        ([], False),
    ],
)
def test_lazy_adapters_that_cannot_be_served(lazy, told):
    status = {**json.loads(replica_status("r1", 7, engine=engine_status(swap="plugin")).to_bytes()), "lazy": lazy}
    found = [one for one in diagnose(pool(raw("r1", json.dumps(status))), NOW) if one.reason == "lazy_not_servable"]
    assert len(found) == told
    assert all(one.remedy for one in found)
