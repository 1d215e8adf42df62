"""get, describe and history."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta

import grpc
import pytest
import yaml

from registry.cli.views.replica_view import missing_view, short_span, span
from registry.v1 import registry_pb2 as pb
from tests.unit.cli.fake_admin import FakeAdmin, Refusal

SPEC = pb.AdapterSpec(source=pb.Source(uri="file:///adapters/" + "long/" * 40), load="eager")
SQL = pb.Adapter(name="sql", pool="dev", tenant="default", generation=2, spec=SPEC, etag="9", updated_by="me")
STATUS = {
    "schema": 1,
    "ready": True,
    "stale": False,
    "observed_revision": 12,
    "served": {"count": 3, "hash": "x"},
    "pending": [],
    "failed": [{"name": "law", "generation": 1, "reason": "not_found", "message": "no files", "attempts": 2}],
    "engine": {"kind": "vllm", "version": "0.32.0", "url": "http://127.0.0.1:8000"},
}
R1 = pb.Replica(name="r1", pool="dev", status_json=json.dumps(STATUS))
MISSING = Refusal(grpc.StatusCode.NOT_FOUND, "ADAPTER_NOT_FOUND", "none")


def counted(name: str, *counts: pb.ResidenceCount, **fields) -> list[object]:
    one = pb.AdapterResidency(**{"name": name, "generation": 2, "load": "eager", "counts": counts, **fields})
    return [pb.WatchResidencyResponse(snapshot=True, adapters=[one])]


def ways(state: int, replicas: int, reason: str = "", **wanted) -> pb.ResidenceCount:
    return pb.ResidenceCount(replicas=replicas, state=state, reason=reason, **wanted)


SERVED, BAD = pb.RolloutReplica.SERVING, pb.RolloutReplica.FAILED
LATER = pb.RolloutReplica.PENDING


@pytest.mark.parametrize(
    ("counts", "fields", "expected"),
    [
        ([ways(SERVED, 8)], {}, "Healthy 8/8 -"),
        ([ways(SERVED, 8), ways(SERVED, 2, "leaving")], {}, "Healthy 8/8 -"),
        ([ways(LATER, 8, "over_capacity")], {}, "Progressing 0/8 8 × over_capacity"),
        ([ways(SERVED, 5), ways(LATER, 1, "staging"), ways(BAD, 2, "x")], {}, "Degraded 5/8 2 × x, 1 × staging"),
        ([ways(SERVED, 7), ways(pb.RolloutReplica.UNKNOWN, 1, "not_alive")], {}, "Degraded 7/8 1 × not_alive"),
        ([ways(SERVED, 2, wanted_state=BAD, wanted_reason="x")], {}, "Degraded 2/2 2 × x"),
        ([ways(SERVED, 2, wanted_state=LATER, wanted_reason="staging")], {}, "Progressing 2/2 2 × staging"),
        ([ways(LATER, 2)], {}, "Progressing 0/2 2 × pending"),
        ([ways(SERVED, 8)], {"generation": 1}, "Progressing 8/8 -"),
        ([], {"note": "no replica is alive"}, "Progressing 0/0 no replica is alive"),
    ],
)
def test_the_table_says_how_each_adapter_is(cli, admin, counts, fields, expected):
    """R9 status-truth: how many serve it of those that should, the dead among them, and why the others do not."""
    admin.answers["ListAdapters"] = [pb.ListAdaptersResponse(adapters=[SQL])]
    admin.answers["WatchResidency"] = [counted("sql", *counts, **fields)]
    header, row = cli("get", "adapters").out.splitlines()
    assert header.split() == ["NAME", "POOL", "STATE", "SERVING", "GENERATION", "LOAD", "AGE", "REASONS"]
    _, _, state, serving, generation, load, age, why = row.split(None, 7)
    assert (f"{state} {serving} {why}", generation, load, age) == (expected, "2", "eager", "-")
    assert admin.asked("WatchResidency")[-1].detail == pb.WatchResidencyRequest.COUNTS


def test_a_halted_rollout_is_halted(cli, admin):
    halted = pb.Adapter(name="sql", pool="dev", generation=2, rollout={"halted": "3 of 4 failed"})
    admin.answers["GetAdapter"] = [halted]
    admin.answers["WatchResidency"] = [counted("sql", ways(SERVED, 3), ways(BAD, 1, "x"))]
    row = cli("get", "adapter", "sql", "--pool", "dev").out.splitlines()[1]
    assert row.split()[2:4] == ["Halted", "3/4"]
    assert row.endswith("3 of 4 failed, 1 × x")


def test_where_nothing_is_known_nothing_is_said(cli, admin):
    admin.answers["ListAdapters"] = [pb.ListAdaptersResponse(adapters=[SQL])]
    row = cli("get", "adapters", "-o", "wide").out.splitlines()[1]
    assert row.split()[2:10] == ["-", "-", "2", "eager", "-", "-", "-", "-"]
    assert "status" not in cli("-o", "json", "get", "adapters").json["items"][0]
    asked = len(admin.asked("WatchResidency"))
    for form in ("name", "manifest"):
        assert cli("-o", form, "get", "adapters").code == 0
    assert len(admin.asked("WatchResidency")) == asked, "what is not shown is not asked for"


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0, "0s"),
        (59, "59s"),
        (60, "1m"),
        (90, "1m30s"),
        (600, "10m"),
        (9 * 3600 + 59, "9h"),
        (90061, "1d1h"),
        (864000, "10d"),
    ],
)
def test_an_age_is_told_in_one_word(seconds, told):
    assert short_span(seconds) == told


@pytest.mark.parametrize(
    ("seconds", "told"), [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "119 min"), (7200, "2 h"), (86400, "24 h")]
)
def test_a_time_is_told_in_words(seconds, told):
    assert span(seconds) == told


@pytest.mark.parametrize("at", ["", "yesterday", "2026-01-01T00:00:00"])
def test_a_time_that_cannot_be_compared_is_no_age(cli, admin, at):
    """X2 unbreakable: whatever stands in a record, such as a time without a zone."""
    admin.answers["ListAdapters"] = [pb.ListAdaptersResponse(adapters=[pb.Adapter(name="a", updated_at=at)])]
    ran = cli("get", "adapters", "--sort-by", "age")
    assert (ran.code, ran.out.splitlines()[1].split()[6]) == (0, "-")
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert missing_view("p", pb.MissingReplica(name="r", last_seen=at)).seen_ago(now) == "just gone"


def test_a_replica_as_programs_see_it(cli, admin):
    """All that is known of it, null where nothing is; of one that does not live, when it was seen last."""
    whole = pb.Replica(
        name="r1",
        pool="dev",
        labels={"zone": "b", "gpu": "a10"},
        incarnation="i1",
        started_at="2026-01-01T00:00:00Z",
        version="1.2.3",
        leaving=True,
        withheld_engine_url="http://e:8000",
        status_json=json.dumps(STATUS),
    )
    gone = [pb.MissingReplica(name="r3", labels={"zone": "c"}), pb.MissingReplica(name="r4", last_seen="2026-01-02")]
    found = pb.ListReplicasResponse(replicas=[whole, pb.Replica(name="r2", pool="dev")], missing=gone)
    admin.answers["ListReplicas"] = [found]
    first, second, third, fourth = cli("-o", "json", "get", "replicas").json["items"]
    assert first == {
        "name": "r1",
        "pool": "dev",
        "labels": {"gpu": "a10", "zone": "b"},
        "incarnation": "i1",
        "started_at": "2026-01-01T00:00:00Z",
        "version": "1.2.3",
        "leaving": True,
        "engine_url": STATUS["engine"]["url"],
        "withheld_engine_url": "http://e:8000",
        "status": STATUS,
    }
    nothing = {"incarnation": "", "started_at": "", "version": None, "leaving": False}
    nothing |= {"engine_url": None, "withheld_engine_url": None}
    assert second == {"name": "r2", "pool": "dev", "labels": {}, "status": None, **nothing}
    assert third == second | {"name": "r3", "labels": {"zone": "c"}, "missing": True, "last_seen": None}
    assert fourth["last_seen"] == "2026-01-02"


def test_a_rollout_as_programs_see_it(cli, admin):
    """What nothing is said of is null, never an empty text."""
    admin.answers["WatchRollout"] = [[pb.Rollout(name="sql", generation=2, done=True)]]
    assert cli("-o", "json", "rollout", "sql").json == {
        "name": "sql",
        "generation": 2,
        "done": True,
        "failure": None,
        "waiting": None,
        "note": None,
        "canaries": None,
        "replicas": [],
    }
    behind = pb.RolloutReplica(replica="r1", state=pb.RolloutReplica.FAILED, reason="x", message="y", generation=2)
    kept = pb.RolloutReplica(replica="r2", state=pb.RolloutReplica.SERVING, canary=True, serving_generation=1)
    said = {"failure": "replicas_failed", "waiting": "w", "note": "n"}
    told = pb.Rollout(name="sql", generation=2, done=True, replicas=[behind, kept], **said)
    admin.answers["WatchRollout"] = [[told]]
    ran = cli("-o", "json", "rollout", "sql")
    assert (ran.code, {name: ran.json[name] for name in said}) == (7, said)
    first, second = ran.json["replicas"]
    assert first == {
        "replica": "r1",
        "state": "failed",
        "reason": "x",
        "message": "y",
        "canary": False,
        "generation": 2,
        "serving_generation": None,
    }
    assert (second["canary"], second["serving_generation"]) == (True, 1)


def test_the_youngest_can_come_first(cli, admin):
    now = datetime.now(UTC)
    ages = {
        "old": timedelta(days=3),
        "new": timedelta(seconds=1),
        "mid": timedelta(hours=5),
        "later": -timedelta(hours=1),
    }
    found = [pb.Adapter(name=name, pool="dev", updated_at=(now - age).isoformat()) for name, age in ages.items()]
    admin.answers["ListAdapters"] = [pb.ListAdaptersResponse(adapters=found)]
    lines = [line.split() for line in cli("get", "adapters", "--sort-by", "-age").out.splitlines()[1:]]
    assert [line[0] for line in lines] == ["old", "mid", "new", "later"]
    assert [line[6] for line in lines][::3] == ["3d", "0s"]


def two_pools(admin: FakeAdmin) -> None:
    admin.answers["ListPools"] = [pb.ListPoolsResponse(pools=[pb.Pool(name="a"), pb.Pool(name="b")])]


def test_tables_are_not_cut_where_there_is_no_terminal(cli, admin):
    admin.answers["ListAdapters"] = [pb.ListAdaptersResponse(adapters=[SQL])]
    header, row = cli("get", "adapters", "-o", "wide").out.splitlines()
    assert header.split()[-4:] == ["PLACED", "SOURCE", "UPDATED", "BY"]
    assert SPEC.source.uri in row


def test_pages_without_end_are_refused(cli, admin):
    """X2 unbreakable: one clear error."""
    page = pb.ListPoolsResponse(pools=[pb.Pool(name="dev")])
    page.next_page_token = "p"  # noqa: S105 - no password
    admin.answers["ListPools"] = [page]
    ran = cli("get", "pools")
    assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1)
    assert "page_token came twice" in ran.err
    assert len(admin.asked("ListPools")) == 2


def test_all_pages_are_read(cli, admin):
    first, second = pb.ListAdaptersResponse(adapters=[SQL]), pb.ListAdaptersResponse(adapters=[pb.Adapter(name="law")])
    first.next_page_token = "p2"  # noqa: S105 - no password
    admin.answers["ListAdapters"] = [first, second]
    assert cli("-o", "name", "get", "adapters").out == "sql\nlaw\n"
    assert [one.page_token for one in admin.asked("ListAdapters")] == ["", "p2"]


def many(admin: FakeAdmin) -> None:
    def one(name: str, team: str, generation: int) -> pb.Adapter:
        return pb.Adapter(name=name, pool="dev", generation=generation, spec=pb.AdapterSpec(labels={"team": team}))

    found = [one("a10", "ml", 2), one("a9", "bi", 10), one("b", "ml", 1)]
    admin.answers["ListAdapters"] = [pb.ListAdaptersResponse(adapters=found)]
    admin.answers["GetAdapter"] = [lambda asked: next((it for it in found if it.name == asked.name), MISSING)]
    serving, failed = pb.RolloutReplica.SERVING, pb.RolloutReplica.FAILED
    well = pb.Residence(replica="r1", state=serving, loaded=True, model="m", generation=2)
    bad = pb.Residence(replica="r2", state=failed, reason="over_capacity")
    kept = pb.Residence(replica="r3", state=serving, wanted_state=failed, wanted_reason="over_capacity", loaded=True)
    waits = pb.Residence(replica="r1", state=pb.RolloutReplica.PENDING, reason="staging")
    homes = {"a10": [well], "a9": [well, bad, kept], "b": [well, waits], "c": []}
    generations = {one.name: one.generation for one in found}
    found_at = [
        pb.AdapterResidency(name=name, generation=generations.get(name, 1), replicas=parts)
        for name, parts in homes.items()
    ]
    admin.answers["WatchResidency"] = [[pb.WatchResidencyResponse(snapshot=True, adapters=found_at)]]


def names_told(cli, *arguments: str) -> list[str]:
    ran = cli("get", "adapters", *arguments, "--pool", "dev")
    assert (ran.code, ran.err) == (0, "")
    return [line.split()[0] for line in ran.out.splitlines()[1:]]


def test_what_is_listed_can_be_chosen_and_ordered(cli, admin):
    """Of 500 adapters those that matter: by label, by what a column says, the worst first."""
    many(admin)
    assert names_told(cli, "-l", "team=ml") == ["a10", "b"]
    assert names_told(cli, "-l", "team=ml,stage=test") == names_told(cli, "-l", "team=ml", "-l", "stage=test") == []
    assert names_told(cli, "--sort-by", "name") == ["a9", "a10", "b"]
    assert names_told(cli, "--sort-by", "-generation") == ["a9", "a10", "b"]
    assert names_told(cli, "b", "a9") == ["b", "a9"]
    for form in ("table", "wide"):
        assert names_told(cli, "-o", form, "--field-selector", "state=degraded") == ["a9"]
        assert names_told(cli, "-o", form, "--field-selector", "state=Progressing") == ["b"]
        assert names_told(cli, "-o", form, "-l", "team=bi") == ["a9"]
        assert names_told(cli, "-o", form, "--sort-by", "serving") == ["b", "a9", "a10"]
        assert "2 × over_capacity" in cli("-o", form, "get", "adapters", "--pool", "dev").out
    assert names_told(cli, "--field-selector", "source=") == ["a10", "a9", "b"]
    degraded = ("get", "adapters", "--field-selector", "state=degraded", "--pool", "dev")
    assert cli("-o", "name", *degraded).out == "a9\n"
    assert cli("-o", "json", *degraded).json["items"][0]["status"] == {
        "state": "Degraded",
        "serving": 2,
        "replicas": 3,
        "reasons": {"over_capacity": 2},
        "note": "",
    }
    assert [one["name"] for one in cli("-o", "json", "get", "adapters", "a9", "b", "--pool", "dev").json["items"]] == [
        "a9",
        "b",
    ]
    admin.answers["ListReplicas"] = [pb.ListReplicasResponse(replicas=[R1, pb.Replica(name="r2", labels={"z": "1"})])]
    assert cli("-o", "name", "get", "replicas", "-l", "z=1", "--pool", "dev").out == "r2\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["adapters", "-l", "team"], "write KEY=VALUE"),
        (["adapters", "--field-selector", "load"], "--field-selector load: write COLUMN=VALUE"),
        (["pools", "-l", "a=b"], "nothing else has labels"),
        (["adapters", "--sort-by", "size"], "--sort-by size: there is no such column; choose one of NAME"),
        (["adapters", "--field-selector", "size=1"], "choose one of NAME"),
        (["adapters", "-w", "--sort-by", "name"], "leave out"),
        (["adapters", "-w", "a", "b"], "leave out"),
        (["adapters", "-w", "-l", "team"], "write KEY=VALUE"),
        (["adapters", "-w", "--field-selector", "size=1"], "choose one of NAME"),
        (["pools", "-w", "-l", "a=b"], "nothing else has labels"),
    ],
)
def test_what_cannot_be_chosen_by_is_told(cli, admin, arguments, told):
    many(admin)
    ran = cli("get", *arguments)
    assert (ran.code, told in ran.err) == (2, True)


def test_what_a_replica_serves_is_listed(cli, admin):
    many(admin)
    admin.answers["GetReplica"] = [R1]
    out = cli("describe", "replica", "r1", "--pool", "dev").out
    assert "Serves 3:" in out
    serves = cli("-o", "json", "describe", "replica", "r1", "--pool", "dev").json["serves"]
    assert serves[0] == {"name": "a10", "generation": 2, "model": "m", "last_used": None}
    assert [one["name"] for one in serves] == ["a10", "a9", "b"]
    assert cli("-o", "name", "describe", "replica", "r1", "--pool", "dev").out == "r1\n"


def test_without_a_pool_all_pools_are_shown(cli, admin):
    two_pools(admin)
    admin.answers["ListAdapters"] = [
        lambda asked: pb.ListAdaptersResponse(adapters=[pb.Adapter(name=f"x-{asked.pool}")])
    ]
    assert cli("-o", "name", "get", "adapters").out == "x-a\nx-b\n"


def test_a_name_is_looked_for_in_all_pools(cli, admin):
    two_pools(admin)
    admin.answers["GetAdapter"] = [lambda asked: SQL if asked.pool == "b" else MISSING]
    value = cli("-o", "json", "get", "adapter", "sql").json
    assert (value["name"], value["spec"]["placement"]) == ("sql", {"replicas": "all", "selector": {}})
    admin.answers["GetAdapter"] = [MISSING]
    ran = cli("get", "adapter", "sql")
    assert ran.code == 3
    assert "in any pool (a, b)" in ran.err


def test_replicas_show_what_they_say_of_themselves(cli, admin):
    admin.answers["ListReplicas"] = [pb.ListReplicasResponse(replicas=[R1, pb.Replica(name="r2", pool="dev")])]
    header, r1, r2 = cli("get", "replicas").out.splitlines()
    assert header.split() == "NAME POOL READY STALE SERVED PENDING FAILED REVISION ENGINE URL NOTE".split()
    assert r1.split() == "r1 dev yes no 3 0 1 12 vllm 0.32.0 http://127.0.0.1:8000 -".split()
    assert r2.split()[:4] == ["r2", "dev", "-", "-"]


@pytest.mark.parametrize("status", ["not json", "[1]", '{"served": 3, "failed": "x", "engine": null}'])
def test_a_status_that_cannot_be_read_spoils_nothing(cli, admin, status):
    admin.answers["ListReplicas"] = [pb.ListReplicasResponse(replicas=[pb.Replica(name="r1", status_json=status)])]
    assert cli("get", "replicas").code == 0


def test_yaml_is_yaml(cli, admin):
    admin.answers["ListAdapters"] = [pb.ListAdaptersResponse(adapters=[SQL])]
    value = yaml.safe_load(cli("-o", "yaml", "get", "adapters").out)
    assert value["items"][0]["generation"] == 2


def test_describe_adapter_shows_spec_request_and_each_replica(cli, admin):
    admin.answers["GetAdapter"] = [SQL]
    behind = pb.RolloutReplica(replica="r2", state=pb.RolloutReplica.FAILED, reason="not_found", message="no files")
    admin.answers["WatchRollout"] = [[pb.Rollout(name="sql", generation=2, replicas=[behind])]]
    out = cli("describe", "adapter", "sql").out
    assert re.search(r"^Name: +sql of pool dev, tenant default$", out, re.MULTILINE)
    assert re.search(r"^Generation: +2, - old, by me at -, request -$", out, re.MULTILINE)
    assert "Spec source.uri:" in out
    assert "Spec prepare.remap:" not in out, "what is so by default"
    assert "What is wrong:\nREPLICA  STATE   REASON     MESSAGE\nr2       failed  not_found  no files\n" in out
    assert "Last events: none within a day" in out
    admin.answers["WatchRollout"] = [[pb.Rollout(name="sql", generation=2, replicas=[behind])]]
    assert cli("-o", "json", "describe", "adapter", "sql").json["rollout"]["replicas"][0]["reason"] == "not_found"


def test_describe_replica_shows_what_it_does_not_serve_and_why(cli, admin):
    admin.answers["GetReplica"] = [R1]
    out = cli("describe", "replica", "r1").out
    assert re.search(r"^Ready: +yes$", out, re.MULTILINE)
    assert re.search(r"^Served: +3, pending 0, failed 1$", out, re.MULTILINE)
    assert re.search(r"^Engine: +vllm 0.32.0 at http://127.0.0.1:8000$", out, re.MULTILINE)
    assert "Status served.hash:" in out
    assert "law   1           not_found  no files  2" in out


def test_what_a_status_repeats_has_no_power_over_the_terminal(cli, admin):
    """Adapters' files and engines say what they like; tables, rows and errors show it harmlessly."""
    hostile = STATUS | {"failed": [{"name": "law", "generation": 1, "reason": "x", "message": "\x1b]0;mine\x07\rok"}]}
    admin.answers["GetReplica"] = [pb.Replica(name="r1", pool="dev", status_json=json.dumps(hostile))]
    out = cli("describe", "replica", "r1").out
    assert r"\x1b]0;mine\x07\rok" in out
    assert "\x1b" not in out
    admin.answers["GetReplica"] = [Refusal(grpc.StatusCode.NOT_FOUND, "REPLICA_NOT_FOUND", "no \x1b[31mr1")]
    assert r"no \x1b[31mr1" in cli("describe", "replica", "r1").err


def test_describe_replica_says_what_is_loaded_lazily_and_when_it_was_used(cli, admin):
    used = {"name": "sql", "generation": 2, "last_used": "2026-01-01T12:34:00.000Z"}
    lazy = {"count": 20000, "servable": True, "reason": "", "resident": [used, {**used, "name": "law"}, "odd"]}
    admin.answers["GetReplica"] = [pb.Replica(name="r1", pool="dev", status_json=json.dumps({**STATUS, "lazy": lazy}))]
    out = cli("describe", "replica", "r1").out
    assert "Lazy, asked for and loaded:\n" in out
    assert ["law", "2", "2026-01-01T12:34:00.000Z"] in [line.split() for line in out.splitlines()]
    assert "lazy.resident" not in out


def test_who_is_behind_alike_stands_in_one_line(cli, admin):
    admin.answers["GetAdapter"] = [SQL]
    states = {"r1": SERVED, **{f"r{number}": LATER for number in range(2, 12)}}
    parts = [pb.RolloutReplica(replica=name, state=state, reason="staging") for name, state in states.items()]
    seen = pb.Rollout(name="sql", generation=2, replicas=parts, waiting="10 of 11 replicas do not serve it yet")
    admin.answers["WatchRollout"] = [[seen]]
    out = cli("describe", "adapter", "sql").out
    assert "What is awaited:\n10 of 11 replicas do not serve it yet\n" in out
    assert "r2, r3, r4, r5, r6, r7, r8, r9, … (10)  pending  staging  -" in out
    well = [pb.RolloutReplica(replica="r1", state=SERVED)]
    admin.answers["WatchRollout"] = [[pb.Rollout(name="sql", generation=2, replicas=well, done=True)]]
    assert "\nNothing is wrong with it.\n" in cli("describe", "adapter", "sql").out


def test_the_last_events_are_shown(cli, admin):
    """Of it alone, the newest ten of a day; where the audit trail cannot be read, the rest is shown all the same."""
    admin.answers |= {
        "GetAdapter": [SQL],
        "GetReplica": [pb.Replica(name="r1", pool="dev", started_at="2026-01-01T00:00:05Z")],
    }
    admin.answers["WatchRollout"] = [[pb.Rollout(name="sql", generation=2, done=True)]]
    changes = [
        pb.RecordedChange(
            at=f"2026-01-01T00:00:{at:02}Z", kind=kind, name=name, action=action, generation=at, principal="me"
        )
        for at, (kind, name, action) in enumerate(
            [("adapter", "SQL", "updated"), ("adapter", "law", "created"), ("replica", "r1", "drain")]
            + [("adapter", "sql", "updated")] * 10
        )
    ]
    admin.answers["ListChanges"] = [pb.ListChangesResponse(changes=changes)]
    shown = cli("describe", "adapter", "sql").out.partition("Last events:\n")[2].splitlines()
    assert shown[0].split() == ["TIME", "EVENT", "GENERATION", "BY", "WHY"]
    assert [line.split()[2] for line in shown[1:]] == [str(at) for at in range(3, 13)]
    told = cli("describe", "replica", "r1").out.partition("Last events:\n")[2].partition("\n\n")[0].splitlines()[1:]
    assert [line.split()[1] for line in told] == ["drain", "started"]
    admin.answers["ListChanges"] = [Refusal(grpc.StatusCode.UNIMPLEMENTED, "UNSUPPORTED", "not yet")]
    ran = cli("describe", "replica", "r1")
    assert (ran.code, "What was done to it could not be read: " in ran.out) == (0, True)


def test_history_lists_generations(cli, admin):
    old = pb.Adapter(name="sql", pool="dev", generation=1, request_id="q0")
    admin.answers["ListAdapterHistory"] = [pb.ListAdapterHistoryResponse(generations=[SQL, old])]
    assert cli("-o", "name", "history", "sql").out == "2\n1\n"


def test_who_restored_a_generation_is_told_wherever_it_is_shown(cli, admin):
    """W7 audit-complete: in the history, in what is said of the adapter, and for programs."""
    by = pb.Restoration(principal="mallory\n", at="2026-01-01T00:00:00Z")
    old = [pb.Adapter(name="sql", pool="dev", generation=number, restored_by=by) for number in (3, 2)]
    mine = pb.Adapter(name="sql", pool="dev", generation=1)
    admin.answers |= {"GetAdapter": [SQL], "WatchRollout": [[pb.Rollout(name="sql", generation=2, done=True)]]}
    admin.answers["ListAdapterHistory"] = [pb.ListAdapterHistoryResponse(generations=[SQL, *old, mine])]
    header, present, *rows = cli("history", "sql").out.splitlines()
    assert header.endswith("RESTORED BY")
    assert [row.split("  ")[-1].strip() for row in (present, *rows)] == [
        "-",
        "mallory\\n at 2026-01-01T00:00:00Z",
        "mallory\\n at 2026-01-01T00:00:00Z",
        "-",
    ]
    told = cli("-o", "json", "history", "sql").json["items"]
    assert [one["restored_by"] for one in told] == [None, *[{"principal": "mallory\n", "at": by.at}] * 2, None]
    shown = cli("describe", "adapter", "sql").out
    line = "generation 3, 2 by mallory\\n at 2026-01-01T00:00:00Z; rollback takes them with --restored"
    assert line in shown
    of_adapter = cli("-o", "json", "describe", "adapter", "sql").json
    assert [one["generation"] for one in of_adapter["restored"]] == [3, 2]


def test_watch_resumes_after_the_last_revision_seen(cli, admin):
    """R2 replay-equal, for who watches from outside: nothing twice, nothing lost when the stream breaks."""
    first = pb.WatchAdaptersResponse(revision=5, events=[pb.AdapterEvent(put=SQL)], snapshot=True)
    second = pb.WatchAdaptersResponse(revision=6, events=[pb.AdapterEvent(deleted="sql")])
    broken = Refusal(grpc.StatusCode.UNAVAILABLE, "ETCD_UNAVAILABLE")
    end = Refusal(grpc.StatusCode.PERMISSION_DENIED, "ETCD_PERMISSION", "enough")
    admin.answers["WatchAdapters"] = [[first, broken], [second, end]]
    ran = cli("-o", "json", "get", "adapters", "-w")
    assert ran.code == 4
    lines = [json.loads(line) for line in ran.out.splitlines()]
    assert [line["change"] for line in lines] == ["put", "deleted"]
    assert [one.start_revision for one in admin.asked("WatchAdapters")] == [0, 6]


def test_watching_replicas_tells_changes_only(cli, admin):
    one = pb.ListReplicasResponse(replicas=[R1, pb.Replica(name="r2", pool="dev")])
    two = pb.ListReplicasResponse(replicas=[R1])
    end = Refusal(grpc.StatusCode.PERMISSION_DENIED, "ETCD_PERMISSION", "enough")
    admin.answers["ListReplicas"] = [one, two, end]
    out = cli("get", "replicas", "-w").out.splitlines()
    assert [line.split()[0] for line in out] == ["NAME", "r1", "r2", "r2"]
    assert out[-1] == "r2  deleted"


def test_describe_as_a_name_is_the_name(cli, admin):
    admin.answers |= {"GetAdapter": [SQL], "GetPool": [pb.Pool(name="dev")], "GetReplica": [R1]}
    admin.answers["WatchRollout"] = [[pb.Rollout(name="sql", generation=2)]]
    assert cli("-o", "name", "describe", "adapter", "sql").out == "sql\n"
    assert cli("-o", "name", "describe", "pool", "dev").out == "dev\n"
    assert cli("-o", "name", "describe", "replica", "r1").out == "r1\n"
    assert cli("describe", "tenant", "acme").code == 2


def test_one_replica_by_its_name(cli, admin):
    admin.answers["GetReplica"] = [R1]
    assert cli("-o", "json", "get", "replica", "r1").json["status"]["served"]["count"] == 3
    admin.answers["GetReplica"] = [Refusal(grpc.StatusCode.NOT_FOUND, "REPLICA_NOT_FOUND", "none")]
    admin.answers["ListReplicas"] = [pb.ListReplicasResponse(replicas=[R1])]
    ran = cli("get", "replica", "r9")
    assert (ran.code, ran.err) == (3, "error: REPLICA_NOT_FOUND: none\n")
    admin.answers["GetReplica"] = [Refusal(grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED", "no")]
    assert cli("get", "replica", "r9").code == 4


def test_numbers_of_a_replica_count_what_its_lists_leave_out(cli, admin):
    """R9: 384 names wait for room, of which 200 are listed; of 18 names that are answered to, 2 are not as desired."""
    full = STATUS | {"served": {"count": 16}, "pending_count": 384, "failed_count": 3}
    full |= {"kept": [{"name": "a", "generation": 1}, {"name": "b", "generation": 1}, {"name": "c", "counted": True}]}
    admin.answers["ListReplicas"] = [
        pb.ListReplicasResponse(replicas=[pb.Replica(name="r1", status_json=json.dumps(full))])
    ]
    _, row = cli("get", "replicas").out.splitlines()
    assert "yes    no     18 (2 not as desired)  384      3" in row


GONE = pb.MissingReplica(name="r3", labels={"zone": "a"}, last_seen="2026-01-01T00:00:00Z")


def test_replicas_that_are_expected_and_do_not_live_are_shown(cli, admin):
    """A sidecar that dies does not vanish."""
    first = pb.ListReplicasResponse(replicas=[R1], next_page_token="2")  # noqa: S106 - no password
    admin.answers["ListReplicas"] = [
        lambda asked: pb.ListReplicasResponse(missing=[GONE]) if asked.page_token else first
    ]
    _, _, gone = cli("get", "replicas").out.splitlines()
    assert gone.split()[:4] == ["r3", "dev", "NotReady", "-"]
    assert "last seen" in gone
    _, shown = cli("-o", "json", "get", "replicas").json["items"]
    assert (shown["name"], shown["missing"], shown["status"]) == ("r3", True, None)
    admin.answers["GetReplica"] = [Refusal(grpc.StatusCode.NOT_FOUND, "REPLICA_NOT_FOUND", "none")]
    assert "NotReady" in cli("get", "replica", "r3").out
    assert cli("get", "replica", "r4").code == 3


@pytest.mark.parametrize(
    ("arguments", "is_asked"),
    [
        ([], True),
        (["-o", "json"], True),
        (["-o", "yaml"], True),
        (["-o", "custom-columns=NAME:.name"], True),
        (["-o", "name"], False),
    ],
)
def test_where_adapters_are_is_asked_for_whoever_is_told_of_it(cli, admin, arguments, is_asked):
    """Programs too; a list of names costs one question."""
    admin.answers["ListAdapters"] = [pb.ListAdaptersResponse(adapters=[pb.Adapter(name="a", pool="dev")])]
    assert cli("get", "adapters", *arguments).code == 0
    assert bool(admin.asked("WatchResidency")) is is_asked


def test_describe_replica_says_what_it_answers_with_another_generation(cli, admin):
    """R9: a name that answers is not one that serves what was asked for."""
    kept = [{"name": "sql", "generation": 2}]
    admin.answers["GetReplica"] = [pb.Replica(name="r1", pool="dev", status_json=json.dumps({**STATUS, "kept": kept}))]
    lines = [line.split() for line in cli("describe", "replica", "r1").out.splitlines()]
    assert "Answered all the same, with another generation:".split() in lines
    assert ["sql", "2"] in lines


def test_describe_adapter_tells_of_a_rollout_where_there_is_one(cli, admin):
    admin.answers["WatchRollout"] = [[pb.Rollout(name="sql", generation=2, done=True)]]
    admin.answers["GetAdapter"] = [pb.Adapter(name="sql", pool="dev", generation=2)]
    out = cli("describe", "adapter", "sql").out
    assert not re.search("^(Rollout|Halted):", out, re.MULTILINE)
    admin.answers["GetAdapter"] = [
        pb.Adapter(name="sql", pool="dev", generation=2, rollout=pb.CanaryRollout(stable_generation=1))
    ]
    out = cli("describe", "adapter", "sql").out
    assert re.search("^Halted: +no$", out, re.MULTILINE)
    assert "all others 1" in out
