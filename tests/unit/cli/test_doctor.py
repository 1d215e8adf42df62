"""The doctor's command: what it looks at, how it ends, and what a watch of it tells."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import AsyncMock, Mock

import grpc
import pytest
import yaml
from grpc_health.v1 import health_pb2

from registry.cli.doctor import collect, command
from registry.cli.doctor.collect import look_at_certificates, look_at_counters
from registry.cli.doctor.diagnosis import PoolSeen, Survey
from registry.cli.doctor.findings import CheckedPart, DoctorFinding, EtcdGrowth, error, info, warning
from registry.cli.failure import unavailable
from registry.cli.session import Session
from registry.cli.views.output import Format, Printer
from registry.client.address import Tls
from registry.etcd3.client import MemberDown
from registry.etcd3.errors import Compacted, EtcdUnavailable, NoSpace
from registry.etcd3.ops import Range
from registry.model.errors import Reason
from registry.runtime.settings import DaemonSettings
from registry.v1 import registry_pb2 as pb
from tests.support.fake_admin import SERVICE, Refusal
from tests.support.ran import Ran
from tests.support.tls import Authority
from tests.unit.cli.conftest import Cli
from tests.unit.cli.test_diagnosis import NOW, member
from tests.unit.cli.test_pod_findings import deployment, engine_of, having, spec_of
from tests.unit.client.test_handshake import service

BAD = error(CheckedPart.REPLICA, "dev/r1", "stale", "it is stale", "restart it")
ODD = warning(CheckedPart.POOL, "dev", "no_replicas", "it has none", "start some")
DOWN = error(CheckedPart.ETCD, "e:1", "member_down", "it is down", "start it")
DOWN_THERE = error(CheckedPart.ETCD, "e:1", "member_down", "the admin service gets no answer", "start it")
MEANT = info(CheckedPart.POOL, "dev", "replicas_left_out", "some are left out", "nothing if that is meant")
HELD = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.NOT_SERVING)


@pytest.fixture
def world(monkeypatch) -> Callable[..., None]:
    """Lays down what is found through the admin service, and of etcd."""

    def lay_down(*found: DoctorFinding, reached: bool = True, etcd: tuple[list[DoctorFinding], bool]) -> None:
        seen = list(found), "the admin service", reached
        monkeypatch.setattr(command, "_through_admin", lambda *_arguments, **_options: seen)
        monkeypatch.setattr(command, "look_at_etcd", lambda _settings, _told: etcd)

    return lay_down


@pytest.mark.parametrize(
    ("found", "reached", "etcd", "code"),
    [
        *(([], True, ([], True), 0), ([ODD], True, ([], True), 0), ([BAD], True, ([], True), 4)),
        ([ODD], True, ([DOWN], True), 4),
        ([], True, ([DOWN], False), 6),
        ([BAD], False, ([], True), 6),
    ],
)
def test_its_end_says_what_is_to_be_done(cli, world, found, reached, etcd, code):
    """A part that cannot be reached goes before what is wrong with the others."""
    world(*found, reached=reached, etcd=etcd)
    ran = cli("-o", "json", "doctor", "--etcd", "127.0.0.1:1")
    told = [one.reason for one in (*found, *etcd[0])]
    assert (ran.code, [one["reason"] for one in ran.json["findings"]]) == (code, told)
    assert cli("-o", "name", "doctor", "--etcd", "127.0.0.1:1").out == "".join(f"{one}\n" for one in told)


def test_etcd_is_looked_at_only_where_it_is_named(cli, world, tmp_path):
    """And whether its password goes unencrypted."""
    world(etcd=([DOWN], False))
    ran = cli("doctor")
    told = "nothing is wrong; looked at: the admin service, not etcd itself (--etcd HOST:PORT)\n"
    assert (ran.code, ran.out) == (0, told)
    world(etcd=([], True))
    assert cli("doctor", "--etcd", "127.0.0.1:1").out.endswith("the admin service, etcd\n")
    world(MEANT, etcd=([], True))
    ran = cli("doctor", "--etcd", "127.0.0.1:1")
    assert (ran.code, [one.split()[0] for one in ran.out.splitlines()]) == (0, ["nothing", "SEVERITY", "info"])
    world(DOWN_THERE, etcd=([DOWN], True))
    assert cli("-o", "name", "doctor", "--etcd", "e:1").out == "member_down\n", "what both see is told once"
    world(BAD, replace(BAD, subject="dev/r2"), etcd=([], True))
    assert [line.split()[:3] for line in cli("doctor").out.splitlines()[1:]] == [["error", "replica", "dev"]], "folded"
    assert len(cli("-o", "json", "doctor").json["findings"]) == 2
    world(etcd=([], True))
    (tmp_path / "password").write_text("x")
    user = ["--etcd-user", "me", "--etcd-password-file", "password", "--insecure"]
    (one,) = cli("-o", "json", "doctor", "--etcd", "etcd.example:2379", *user).json["findings"]
    assert (one["part"], one["reason"], one["severity"]) == ("etcd", "plain_text", "error")
    assert "--etcd-tls-ca" in one["remedy"]
    assert command.EtcdOptions().settings() is None


@pytest.mark.parametrize(
    ("address", "tls", "is_told"),
    [
        *(("admin.example:7600", Tls(), True), ("10.0.0.1:7600", Tls(), True)),
        *((address, Tls(), False) for address in ("127.0.0.1:7600", "[::1]:7600", "unix:/run/admin")),
        ("admin.example:7600", Tls(ca="ca.pem"), False),
    ],
)
def test_that_the_admin_service_is_spoken_to_in_plain_text_is_told(address, tls, is_told):
    """Where others may listen, and change everything. Without a handshake nothing is known of certificates: what
    hinders it is told by the connection itself.
    """
    found = command._plain_text(Session(address, Format.TABLE, tls))
    assert [(one.reason, one.subject) for one in found] == ([("plain_text", address)] if is_told else [])
    for nowhere in ("127.0.0.1:1", "unix:/nowhere", "dns:///a.invalid:1"):
        assert look_at_certificates(nowhere, Tls(), NOW) == []


@pytest.mark.parametrize(("days", "reason"), [(0, ""), (1.8, "certificate_expires"), (2.1, "certificate_expired")])
def test_the_callers_own_certificate_is_told_of_before_it_ends(tmp_path, days, reason):
    """A file that is none, or is not there, is told by the call itself."""
    own = Authority(tmp_path, "ca").issue("me", days=2)
    before, at = Tls(cert=own.certificate, key=own.key), datetime.now(UTC) + timedelta(days=days)
    found = look_at_certificates("127.0.0.1:1", before, at)
    assert [one.reason for one in found] == ([reason] if reason else [])
    assert all(f"your certificate {own.certificate} end" in one.finding for one in found)
    Path(own.certificate).write_text("none")
    assert look_at_certificates("127.0.0.1:1", before, at) == []
    Path(own.certificate).unlink()
    assert look_at_certificates("127.0.0.1:1", before, at) == []


def test_certificates_that_end_are_told_of_a_service_its_authorities_and_the_caller(doctor, tmp_path, monkeypatch):
    """Those alone that are named: authorities of this host are none of ours."""
    ours = Authority(tmp_path, "ca")
    shown, later = ours.issue("me", days=-1), datetime.now(UTC) + timedelta(days=3)
    flags = {"--tls-ca": shown.ca, "--tls-cert": shown.certificate, "--tls-key": shown.key}
    assert "certificate_expired" in reasons(doctor(*(str(word) for flag in flags.items() for word in flag)))
    monkeypatch.setenv("SSL_CERT_FILE", str(ours.certificate))
    whose, authority = "the certificate of the admin service", f"certificate 1 of {ours.certificate}"
    with service(ours.issue("admin")) as address:
        for tls, names in ((Tls(), [whose]), (Tls(ca=f"{ours.certificate}"), [authority, whose])):
            assert [one.finding.partition(" ended")[0] for one in look_at_certificates(address, tls, later)] == names


class Interrupted(Exception):
    """The end of a watch, or of a look."""


@pytest.fixture
def watched(monkeypatch, capsys) -> Callable[..., list[str]]:
    """What each look of a watch prints, of these findings one after the other."""

    def watch(form: Format, *looks: list[DoctorFinding]) -> list[str]:
        printed: list[str] = []
        seen: Iterator[tuple[list[DoctorFinding], str, bool]] = ((found, "all", True) for found in looks)

        def pause(_seconds: float) -> None:
            printed.append(capsys.readouterr().out)
            if len(printed) == len(looks):
                raise Interrupted

        monkeypatch.setattr(command.time, "sleep", pause)
        with pytest.raises(Interrupted):
            command._watch(Printer(form), lambda: next(seen))
        return printed

    return watch


LATER = error(CheckedPart.REPLICA, "dev/r1", "stale", "it is stale for longer", "restart it")


def test_a_watch_tells_what_comes_and_goes(watched, monkeypatch):
    """Not that it goes on: neither another word for it nor how long it lasts. Programs get a line for each change. On a
    terminal, and nowhere else, each look is drawn anew from its top.
    """
    printed = watched(Format.TABLE, [], [], [BAD], [LATER], [BAD, ODD], [])
    heads = [one.partition("\n")[2].split()[:1] for one in printed]
    assert heads == [["nothing"], [], ["SEVERITY"], [], ["SEVERITY"], ["nothing"]]
    printed = watched(Format.JSON, [], [BAD], [BAD])
    assert [one.count("\n") for one in printed] == [1, 1, 0]
    assert [one["reason"] for one in json.loads(printed[1])["findings"]] == ["stale"]
    for one in ({"severity": ODD.severity}, {"part": ODD.part}, {"subject": "dev/r2"}, {"reason": "held"}):
        assert all(watched(Format.TABLE, [BAD], [replace(BAD, **one)])), one
    cleared: list[bool] = []
    monkeypatch.setattr(Printer, "console", SimpleNamespace(clear=lambda: cleared.append(True)))
    watched(Format.JSON, [BAD], [])
    assert cleared == []
    monkeypatch.undo()
    monkeypatch.setattr(Printer, "is_live", property(lambda _self: True))
    assert all("dev/r1" in one for one in watched(Format.TABLE, [BAD], [BAD]))


@pytest.mark.parametrize(
    ("refusal", "is_full"),
    [(None, False), (NoSpace("full"), True), (EtcdUnavailable("away", maybe_applied=False), False)],
)
async def test_an_etcd_is_full_that_says_so(refusal, is_full):
    """The lease that was asked for to see it is given back."""
    etcd = AsyncMock(lease_grant=AsyncMock(side_effect=refusal, return_value=7))
    assert await collect._is_full(etcd) == is_full
    assert [one.args for one in etcd.lease_revoke.await_args_list] == ([] if refusal else [(7,)])


def test_after_a_look_at_etcd_that_fails_no_connection_is_left(monkeypatch):
    """X3 given-back."""
    client = AsyncMock(status=AsyncMock(side_effect=Interrupted))
    monkeypatch.setattr(collect, "EtcdClient", lambda _: client)
    with pytest.raises(Interrupted):
        collect.look_at_etcd(Mock(), Mock())
    client.aclose.assert_awaited_once_with()


@pytest.mark.parametrize(
    ("revision", "is_compacted", "refusal", "told"),
    [
        *((10_000, False, None, []), (10_001, False, None, ["revision 2 can still be read"])),
        *((300_000, False, None, ["revision 100000 can still be read"]), (300_000, True, None, [])),
        (300_000, True, NoSpace("full"), ["it refuses writes: it is out of space"]),
        (300_000, False, EtcdUnavailable("away", maybe_applied=False), []),
    ],
)
def test_an_etcd_that_is_full_or_that_nothing_compacts_is_told(monkeypatch, revision, is_compacted, refusal, told):
    """Of one that does not answer its members alone are told of."""
    is_away = isinstance(refusal, EtcdUnavailable)

    async def answer(asked: Range, **_: object) -> SimpleNamespace:
        if asked.revision and is_compacted:
            raise Compacted("gone", compact_revision=revision)
        return SimpleNamespace(revision=revision, kvs=[], count=0)

    members = [MemberDown("m1", refusal) if is_away else member()]
    etcd = AsyncMock(status=AsyncMock(return_value=members), range=answer, lease_grant=AsyncMock(side_effect=refusal))
    monkeypatch.setattr(collect, "EtcdClient", lambda _: etcd)
    monkeypatch.setattr(collect, "excess_found", AsyncMock(return_value=((), False)))
    monkeypatch.setattr(collect, "found_trouble", AsyncMock(return_value=None))
    found, is_up = collect.look_at_etcd(DaemonSettings(etcd=["m1:2379"]), EtcdGrowth())
    assert is_up is not is_away
    others = [one.finding for one in found if one.reason != "member_down"]
    assert [one.partition(": nothing compacts")[0] for one in others] == told


def survey(counter: int, adapters: int) -> Survey:
    """A tenant whose counter says so, and who has so many adapters."""
    found = [pb.Adapter(name=f"acme/a{number}", pool="p", tenant="acme") for number in range(adapters)]
    return Survey([PoolSeen("p", found, (), ())], (), [pb.Tenant(name="acme", adapters=counter)], ())


def test_who_sees_a_part_of_a_tenants_adapters_is_not_told_that_its_counter_is_wrong(client, admin):
    """R9 status-truth: others may be in pools that they do not see, and that is nothing to mend."""
    admin.answers["RepairTenant"] = [DENIED]
    (found,) = look_at_counters(client, survey(2, 1), repair=False)
    assert (found.severity.value, found.finding.endswith("of others you may not know")) == ("info", True)


GONE = pb.Adapter(name="acme/x", pool="p", generation=3)
RIGHT = pb.RepairTenantResponse(tenant=pb.Tenant(name="acme", adapters=1))
WRONG = pb.RepairTenantResponse(tenant=pb.Tenant(name="acme", adapters=1), changed=True, retired=[GONE])
DENIED = Refusal(grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED", "not you")
AWAY = Refusal(grpc.StatusCode.INTERNAL, "INTERNAL", "see its log")


@pytest.mark.parametrize(
    ("counter", "answer", "told"),
    [
        (1, RIGHT, None),
        (2, RIGHT, None),
        (2, WRONG, "its counter says 2, and it has 1 adapters; history lacks generation 3 of acme/x in pool p"),
        (2, AWAY, "its counter says 2, and it has 1 adapters; the admin service cannot say more: see its log"),
    ],
)
def test_a_counter_that_differs_is_told(client, admin, counter, answer, told):
    """W5: by the admin service's own count, which changes nothing; a race with a change is none. W3: it is repaired
    until nothing is left: each transaction takes so much, and has a request id of its own.
    """
    admin.answers["RepairTenant"] = [answer]
    found = look_at_counters(client, survey(counter, 1), repair=False)
    assert [(one.reason, one.severity.value, one.subject, one.finding) for one in found] == (
        [("counter_differs", "error", "acme", told)] if told else []
    )
    asked = [pb.RepairTenantRequest(name="acme", validate_only=True)] if counter == 2 else []
    assert admin.asked("RepairTenant") == asked
    admin.answers["RepairTenant"] = [WRONG, WRONG, RIGHT]
    admin.requests.clear()
    (found,) = look_at_counters(client, survey(4, 1), repair=True)
    lacked = "history has generation 3 of acme/x in pool p"
    assert found.finding == f"repaired: its counter said 4, and says 1 now; {lacked}; {lacked}"
    assert (found.reason, found.severity.value) == ("counter_repaired", "warning")
    repaired = admin.asked("RepairTenant")
    assert ({one.validate_only for one in repaired}, len({one.request_id for one in repaired} - {""})) == ({False}, 3)
    assert look_at_counters(client, survey(4, 1), repair=True) == []


@pytest.fixture
def doctor(cli, monkeypatch) -> Cli:
    """The doctor, of the release of the service."""
    monkeypatch.setattr("registry.cli.doctor.collect.release_version", lambda: "")
    return lambda *arguments: cli("-o", "json", "doctor", *arguments)


def reasons(ran: Ran) -> list[str]:
    return [one["reason"] for one in ran.json["findings"]]


def test_whether_a_service_is_well_and_of_our_release_is_told(doctor, admin, monkeypatch):
    """By reflection, so that it is known before a call fails."""
    ran = doctor()
    assert (ran.code, reasons(ran)) == (0, ["no_replicas"])
    known = [one.name for one in SERVICE.methods]
    for here, severity, told in (
        ([*known, "Newer"], "error", "it has no Newer"),
        (known[1:], "warning", f"does not know {known[0]}"),
    ):
        monkeypatch.setattr("registry.cli.doctor.collect._methods_here", lambda here=here: here)
        [finding, _] = doctor().json["findings"]
        assert (finding["reason"], finding["severity"]) == ("version_skew", severity)
        assert finding["finding"].endswith(told)
    monkeypatch.setattr("registry.cli.doctor.collect._methods_here", lambda: known)
    admin.answers["Check"] = [HELD]
    ran = doctor()
    assert (ran.code, reasons(ran)) == (4, ["not_serving", "no_replicas"])
    [first, _] = ran.json["findings"]
    assert (first["part"], first["severity"], first["subject"].startswith("127.0.0.1:")) == ("admin", "error", True)


def test_a_service_that_tells_no_methods_is_not_compared_and_one_that_fails_is_not_well(doctor, admin):
    admin.answers["ServerReflectionInfo"] = [Refusal(grpc.StatusCode.UNIMPLEMENTED, "", "Method not found!")]
    ran = doctor()
    assert (ran.code, reasons(ran)) == (0, ["no_replicas"])
    admin.answers["ServerReflectionInfo"] = [Refusal(grpc.StatusCode.INTERNAL, "INTERNAL", "broken")]
    assert doctor().code != 0


def test_all_pages_of_all_pools_and_tenants_are_looked_at(doctor, admin):
    first = pb.ListPoolsResponse(unreadable=["torn"], admin_version="7", admin_insecure=["--listen: anybody"])
    first.pools.add(name="a").limits.expected_replicas = 3
    first.next_page_token = "n"  # noqa: S105 - of a listing
    unknown = [pb.UnknownPool(name="u", replicas=1, names=["r9"])]
    admin.answers |= {
        "ListPools": [first, pb.ListPoolsResponse(pools=[pb.Pool(name="b")], unknown=unknown)],
        "ListAdapters": [pb.ListAdaptersResponse(unreadable=["bad"])],
        "ListTenants": [pb.ListTenantsResponse(unreadable=["t"])],
    }
    live, gone = [pb.Replica(name="r1", pool="a", version="")], [pb.MissingReplica(name="r2")]
    admin.answers["ListReplicas"] = [pb.ListReplicasResponse(replicas=live, missing=gone, lacking=4)]
    told = doctor().json["findings"]
    assert told[2]["finding"] == "it does not exist, and 1 replicas are of it: r9"
    assert [(one["reason"], one["subject"]) for one in told] == [
        *(("versions_differ", "versions"), ("insecure", "its settings"), ("pool_unknown", "u")),
        *(("unreadable_record", "torn"), ("unreadable_record", "a"), ("replicas_missing", "a"), ("no_status", "a/r1")),
        *(("unreadable_record", "b"), ("replicas_missing", "b"), ("no_status", "a/r1"), ("unreadable_record", "t")),
    ]
    assert admin.asked("ListPools")[0].show_unknown
    assert [one.pool for method in ("ListReplicas", "ListAdapters") for one in admin.asked(method)] == [*"abab"]


def test_a_counter_is_repaired_only_where_that_is_asked_for(doctor, admin):
    admin.answers["ListTenants"] = [pb.ListTenantsResponse(tenants=[pb.Tenant(name="t", adapters=3)])]
    for flags, reason, is_dry in ((["--repair"], "counter_repaired", False), ([], "counter_differs", True)):
        changed = pb.RepairTenantResponse(tenant=pb.Tenant(name="t"), changed=True)
        admin.answers["RepairTenant"] = [changed, pb.RepairTenantResponse(tenant=pb.Tenant(name="t"))]
        admin.requests.clear()
        ran = doctor(*flags)
        assert (ran.code, reasons(ran)) == (4 if is_dry else 0, ["no_replicas", reason])
        assert {one.validate_only for one in admin.asked("RepairTenant")} == {is_dry}


@pytest.mark.parametrize(
    ("health", "reason", "part"),
    [(HELD, "ADMIN_UNAVAILABLE", "etcd"), (None, "ETCD_UNAVAILABLE", "etcd"), (None, "ADMIN_UNAVAILABLE", "admin")],
)
def test_who_does_not_answer_is_named(doctor, admin, clock, health, reason, part):
    """The service says that it has no etcd, or the refusal does; else it is the service itself."""
    admin.answers["Check"] = [health] if health else admin.answers["Check"]
    admin.answers["ListPools"] = [clock.late(Refusal(grpc.StatusCode.UNAVAILABLE, reason, "away"))]
    ran = doctor("--timeout", "1000")
    assert (ran.code, [(one["part"], one["reason"]) for one in ran.json["findings"]]) == (6, [(part, "unreachable")])
    admin.answers["ListPools"] = [DENIED]
    ran = doctor()
    assert (ran.code, ran.out, ran.error["reason"]) == (4, "", "PERMISSION_DENIED"), "a refusal is an answer"


def test_a_service_that_speaks_tls_where_we_do_not_or_the_other_way_is_named(tmp_path, monkeypatch):
    files = Authority(tmp_path, "ca").issue("admin")
    away = unavailable(Reason.ADMIN_UNAVAILABLE, "away")
    for speaks, tls, told in ((files, Tls(), "speaks TLS, and"), (None, Tls(ca=Path(files.ca)), "speaks no TLS")):
        with service(speaks) as address:
            found = command._unreachable(Session(address, Format.TABLE, tls), away)
        assert (found.reason, told in found.finding) == ("no_handshake", True)
    monkeypatch.setattr(Session, "shown_tls", Tls(ca=Path(files.ca)))
    with service(None) as address:
        found = command._unreachable(Session(address, Format.TABLE, Tls()), away)
    assert "speaks no TLS" in found.finding, "the calls were made with the certificates of a stack"
    asked: list[tuple[str | None, Tls]] = []
    monkeypatch.setattr(command, "access_of", lambda *_: None)
    monkeypatch.setattr(Session, "client", lambda one, _: asked.append((one.named_admin, one.tls)) or nullcontext())
    assert command._look_at_access(Session("a:1", Format.TABLE, Tls()), Mock(), ["o:1"], 1.0) == []
    assert asked == [("o:1", Tls(ca=Path(files.ca)))], "as those of its other admin services are"


@pytest.mark.parametrize(
    ("spoil", "code", "told"),
    [
        (lambda _pod: None, 0, ""),
        (having(engine_of, "readinessProbe", "httpGet", "path", "/health"), 0, "readiness_elsewhere\n"),
        (having(spec_of, "containers", []), 4, "no_engine\n"),
        (None, 4, "manifests.yaml: document 1, line 2, column 1: not a YAML manifest"),
    ],
    ids=["right", "warned of", "wrong", "no YAML"],
)
def test_it_looks_at_manifests_without_asking_any_service(cli, tmp_path, spoil, code, told):
    pod, file = deployment(), tmp_path / "manifests.yaml"
    if spoil:
        spoil(pod)
    file.write_text(yaml.safe_dump(pod) if spoil else "{{")
    ran = cli("-o", "name", "doctor", "--manifests", str(file))
    assert (ran.code, told in ran.out + ran.err) == (code, True), ran


def test_admin_services_with_other_access_files_or_an_earlier_one_are_told(doctor, admin, monkeypatch):
    """Whom one asks must not decide who may do what. A release that does not tell is told of elsewhere."""
    monkeypatch.setattr("registry.client.transport._open", admin.open)
    one, two = pb.WhoAmIResponse(access_digest="sha256:1"), pb.WhoAmIResponse(access_digest="sha256:2")
    old = pb.WhoAmIResponse(access_digest="sha256:1", access_trouble="line 3: role: no such role")
    lost = pb.UnknownBound(binding=3, kind="pool", name="gone")
    bound = pb.WhoAmIResponse(access_digest="sha256:1", access_unknown=[lost])
    refused = Refusal(grpc.StatusCode.UNIMPLEMENTED)
    away = Refusal(grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED")
    here, other = "127.0.0.1:1", "127.0.0.1:2"
    for answers, found in (
        ([one, one], []),
        ([one, two], [(other, "access_differs")]),
        ([old, one], [(here, "access_not_taken")]),
        ([one, old], [(other, "access_not_taken")]),
        ([bound, one], [(here, "access_unknown")]),
        ([pb.WhoAmIResponse(), one], [(other, "access_differs")]),
        ([refused, one], []),
        ([one, away], [(other, "unreachable")]),
    ):
        admin.answers["WhoAmI"] = [*answers]
        told = doctor("--admin", here, "--other-admin", other).json["findings"]
        assert [(each["subject"], each["reason"]) for each in told if each["part"] == "admin"] == found
