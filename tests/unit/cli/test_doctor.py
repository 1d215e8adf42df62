"""The doctor's command: what it looks at, how it ends, and what a watch of it tells."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from registry.cli.doctor import collect, command
from registry.cli.doctor.collect import look_at_counters
from registry.cli.doctor.diagnosis import PoolSeen, Survey
from registry.cli.doctor.findings import CheckedPart, DoctorFinding, error, warning
from registry.cli.failure import CliError, CommandFailure, Exit
from registry.cli.session import Session
from registry.cli.views.output import Format, Printer
from registry.client.address import Tls
from registry.etcd3.errors import EtcdError, EtcdUnavailable, NoSpace
from registry.model.errors import Reason
from registry.v1 import registry_pb2 as pb

BAD = error(CheckedPart.REPLICA, "dev/r1", "stale", "it is stale", "restart it")
ODD = warning(CheckedPart.POOL, "dev", "no_replicas", "it has none", "start some")
DOWN = error(CheckedPart.ETCD, "e:1", "member_down", "it is down", "start it")
Seen = tuple[list[DoctorFinding], str, bool]


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
        ([], True, ([], True), 0),
        ([ODD], True, ([], True), 0),
        ([BAD], True, ([], True), 4),
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


def test_etcd_is_looked_at_only_where_it_is_named(cli, world):
    world(etcd=([DOWN], False))
    ran = cli("doctor")
    assert (ran.code, ran.out) == (
        0,
        "nothing is wrong; looked at: the admin service, not etcd (--etcd HOST:PORT)\n",
    )
    world(etcd=([], True))
    assert cli("doctor", "--etcd", "127.0.0.1:1").out.endswith("the admin service, etcd\n")


def test_that_etcds_password_goes_unencrypted_is_told(cli, world, tmp_path):
    world(etcd=([], True))
    (tmp_path / "password").write_text("x")
    user = ["--etcd-user", "me", "--etcd-password-file", "password", "--insecure"]
    (one,) = cli("-o", "json", "doctor", "--etcd", "etcd.example:2379", *user).json["findings"]
    assert (one["part"], one["reason"], one["severity"]) == ("etcd", "plain_text", "error")
    assert "--etcd-tls-ca" in one["remedy"]


@pytest.mark.parametrize(
    ("address", "tls", "is_told"),
    [
        ("admin.example:7600", Tls(), True),
        ("10.0.0.1:7600", Tls(), True),
        ("admin.example:7600", Tls(ca="ca.pem"), False),
        ("127.0.0.1:7600", Tls(), False),
        ("[::1]:7600", Tls(), False),
        ("unix:/run/admin", Tls(), False),
    ],
)
def test_that_the_admin_service_is_spoken_to_in_plain_text_is_told(address, tls, is_told):
    """Where others may listen, and change everything."""
    found = command._plain_text(Session(address, Format.TABLE, tls))
    assert [(one.reason, one.subject) for one in found] == ([("plain_text", address)] if is_told else [])


class Interrupted(Exception):
    """The end of a watch."""


@pytest.fixture
def watched(monkeypatch, capsys) -> Callable[..., list[str]]:
    """What each look of a watch prints, of these findings one after the other."""

    def watch(form: Format, *looks: list[DoctorFinding]) -> list[str]:
        printed: list[str] = []
        seen: Iterator[Seen] = ((found, "all", True) for found in looks)

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


def test_a_watch_tells_what_comes_and_goes(watched):
    """Not that it goes on: neither another word for it nor how long it lasts."""
    printed = watched(Format.TABLE, [], [], [BAD], [LATER], [BAD, ODD], [])
    assert [one.splitlines()[1:] != [] for one in printed] == [True, False, True, False, True, True]
    assert [one.partition("\n")[2].split()[:1] for one in printed] == [
        ["nothing"],
        [],
        ["SEVERITY"],
        [],
        ["SEVERITY"],
        ["nothing"],
    ]


@pytest.mark.parametrize("other", ["severity", "part", "subject", "reason"])
def test_another_finding_is_told_by_whatever_it_differs(watched, other):
    fields = {"severity": "error", "part": CheckedPart.REPLICA, "subject": "dev/r1", "reason": "stale"}
    changed = {"severity": "warning", "part": CheckedPart.POOL, "subject": "dev/r2", "reason": "held"}
    found = []
    for one in (fields, fields | {other: changed[other]}):
        make = error if one["severity"] == "error" else warning
        found.append([make(one["part"], one["subject"], one["reason"], "it is so", "change it")])
    assert [bool(one) for one in watched(Format.TABLE, *found)] == [True, True]


def test_a_watch_for_programs_is_one_line_for_each_change(watched):
    printed = watched(Format.JSON, [], [BAD], [BAD])
    assert [one.count("\n") for one in printed] == [1, 1, 0]
    assert [one["reason"] for one in json.loads(printed[1])["findings"]] == ["stale"]


def test_a_watch_on_a_terminal_draws_each_look_anew(watched, monkeypatch):
    monkeypatch.setattr(Printer, "is_live", property(lambda _self: True))
    printed = watched(Format.TABLE, [BAD], [BAD])
    assert all("dev/r1" in one for one in printed)


class Leases:
    """An etcd that gives leases, or refuses."""

    def __init__(self, refusal: EtcdError | None = None) -> None:
        self.refusal, self.held = refusal, set[int]()

    async def lease_grant(self, _ttl_seconds: int) -> int:
        if self.refusal is not None:
            raise self.refusal
        self.held.add(7)
        return 7

    async def lease_revoke(self, lease: int) -> None:
        self.held.remove(lease)


@pytest.mark.parametrize(
    ("refusal", "is_full"),
    [(None, False), (NoSpace("full"), True), (EtcdUnavailable("away", maybe_applied=False), False)],
)
async def test_an_etcd_is_full_that_says_so(refusal, is_full):
    """The lease that was asked for to see it is given back."""
    leases = Leases(refusal)
    assert await collect._is_full(leases) is is_full
    assert leases.held == set()


class Counters:
    """Of a client: what the admin service answers to repairs, one after the other."""

    def __init__(self, *answers: pb.RepairTenantResponse | CliError) -> None:
        self._answers = iter(answers)
        self.asked: list[pb.RepairTenantRequest] = []

    def repair_tenant(self, request: pb.RepairTenantRequest) -> pb.RepairTenantResponse:
        self.asked.append(request)
        answer = next(self._answers)
        if isinstance(answer, CliError):
            raise answer
        return answer


def survey(counter: int, adapters: int) -> Survey:
    """A tenant whose counter says so, and who has so many adapters."""
    found = [pb.Adapter(name=f"acme/a{number}", pool="p", tenant="acme") for number in range(adapters)]
    return Survey([PoolSeen("p", found, (), ())], (), [pb.Tenant(name="acme", adapters=counter)], ())


GONE = pb.Adapter(name="acme/x", pool="p", generation=3)
RIGHT = pb.RepairTenantResponse(tenant=pb.Tenant(name="acme", adapters=1))
WRONG = pb.RepairTenantResponse(tenant=pb.Tenant(name="acme", adapters=1), changed=True, retired=[GONE])
AWAY = CliError(CommandFailure(Exit.UNAVAILABLE, Reason.ETCD_UNAVAILABLE, "no quorum"))


def test_a_counter_that_is_right_is_not_asked_about():
    client = Counters()
    assert look_at_counters(client, survey(1, 1), repair=True) == []
    assert client.asked == []


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (WRONG, "its counter says 2, and it has 1 adapters; history lacks generation 3 of acme/x in pool p"),
        (AWAY, "its counter says 2, and it has 1 adapters; the admin service cannot say more: no quorum"),
        (RIGHT, None),
    ],
)
def test_a_counter_that_differs_is_told(answer, told):
    """W5: by the admin service's own count, which changes nothing; a race with a change is none."""
    client = Counters(answer)
    found = look_at_counters(client, survey(2, 1), repair=False)
    assert [(one.reason, one.severity.value, one.subject, one.finding) for one in found] == (
        [("counter_differs", "error", "acme", told)] if told else []
    )
    assert [(one.name, one.validate_only, one.request_id) for one in client.asked] == [("acme", True, "")]


def test_a_counter_is_repaired_until_nothing_is_left():
    """W5, W3: each transaction takes so much; each has a request id of its own."""
    client = Counters(WRONG, WRONG, RIGHT)
    (found,) = look_at_counters(client, survey(4, 1), repair=True)
    lacked = "history has generation 3 of acme/x in pool p"
    assert found.finding == f"repaired: its counter said 4, and says 1 now; {lacked}; {lacked}"
    assert (found.reason, found.severity.value) == ("counter_repaired", "warning")
    assert {one.validate_only for one in client.asked} == {False}
    assert len({one.request_id for one in client.asked} - {""}) == 3
    assert look_at_counters(Counters(RIGHT), survey(4, 1), repair=True) == []


@pytest.mark.parametrize(("tls", "is_looked_at"), [(Tls(), False), (Tls(ca="ca.pem"), True)])
@pytest.mark.parametrize("repair", [False, True])
def test_all_that_the_admin_service_shows_is_looked_at(monkeypatch, tls, is_looked_at, repair):
    """Certificates only where there are any; and what is repaired is what was asked for."""
    made = {name: error(CheckedPart.ADMIN, "a", name, "it is so", "change it") for name in ("admin", "ends", "counter")}
    asked: list[object] = []

    class Connected(Session):
        def client(self, timeout_seconds: float) -> object:
            asked.append(timeout_seconds)
            return nullcontext("client")

    seen = Survey((), (), (), ())
    monkeypatch.setattr(command, "collect", lambda _client: seen)
    monkeypatch.setattr(command, "look_at_admin", lambda _client: [made["admin"]])
    monkeypatch.setattr(
        command, "look_at_certificates", lambda address, of, _now: asked.append((address, of)) or [made["ends"]]
    )
    monkeypatch.setattr(
        command,
        "look_at_counters",
        lambda _client, of, *, repair: asked.append((of is seen, repair)) or [made["counter"]],
    )
    found, looked, is_reached = command._through_admin(Connected("127.0.0.1:1", Format.TABLE, tls), 7.0, repair=repair)
    expected = ["admin", "no_pools", *(["ends"] if is_looked_at else []), "counter"]
    assert [one.reason for one in found] == expected
    assert asked == [7.0, *([("127.0.0.1:1", tls)] if is_looked_at else []), (True, repair)]
    assert (looked, is_reached) == (
        "the admin service at 127.0.0.1:1, 0 pools, 0 replicas, 0 adapters, 0 tenants",
        True,
    )


def test_a_watch_on_a_terminal_begins_each_look_at_its_top(watched, monkeypatch):
    """And nowhere else: in a file each look follows the last."""
    cleared: list[bool] = []
    console = SimpleNamespace(clear=lambda: cleared.append(True))
    monkeypatch.setattr(Printer, "console", console)
    watched(Format.JSON, [BAD], [])
    assert cleared == []
    monkeypatch.setattr(Printer, "is_live", property(lambda _self: True))
    watched(Format.TABLE, [BAD], [BAD])
    assert len(cleared) == 2
