"""Everything about one adapter, replica or pool, whole; and what happened, from whatever tells of it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest
import yaml

from registry.cli.views.columns import ADAPTERS, GENERATIONS, POOL_ROWS, REPLICAS, TENANTS, expires
from registry.cli.views.describe import _end, _kept, _scaled
from registry.cli.views.differences import GenerationRow
from registry.cli.views.events import ShownEvent
from registry.cli.views.output import OutputView
from registry.cli.views.replica_view import ReplicaView, missing_view, replica_view
from registry.cli.views.residency_view import PoolRow, PoolStatus
from registry.model.messages import adapter_dict
from registry.residency.health import AdapterRow
from registry.v1 import registry_pb2 as pb
from tests.support.fake_admin import FakeAdmin, Refusal
from tests.unit.cli.test_rollout import LATE, SERVING, rollout

SPEC = {"load": "lazy", "priority": 3, "labels": {"team": "x"}, "placement": pb.Placement(replicas=2)}
ABOUT = {"name": "sql", "pool": "dev", "tenant": "default", "updated_by": "me", "request_id": "q1", "generation": 4}
ABOUT |= {"etag": "9", "spec": pb.AdapterSpec(source=pb.Source(uri="s3://b/sql"), **SPEC)}
SQL = pb.Adapter(**ABOUT)
DAY = "2026-01-01"
STABLE = pb.AdapterSpec(source=pb.Source(uri="s3://b/old"))
STATUS: dict[str, Any] = {
    "schema": 1,
    "replica": "r1",
    "pool": "dev",
    "ready": True,
    "note": "well",
    "stale": False,
    "observed_revision": 12,
    "updated_at": "2026-01-01T00:00:00Z",
    "served": {"count": 3, "hash": "x"},
    "pending": [{"name": "p", "generation": 1, "reason": "staging"}],
    "failed": [{"name": "law", "generation": 1, "reason": "bad", "message": "no", "attempts": 2, "retry_at": "soon"}],
    "kept": [{"name": "law", "generation": 7}, {"name": "k", "generation": 8, "counted": True}],
    "leaving": [{"name": "gone"}],
    "found": [{"name": "sql", "generation": 4, "digest": "sha256:1"}],
    "lazy": {"count": 2, "resident": [{"name": "z", "generation": 2, "last_used": "now"}]},
    "engine": {"kind": "vllm", "version": "1", "url": "http://in", "empty": "", "none": None},
}
OF_R1 = {"incarnation": "i1", "started_at": "2026-01-01T00:00:05Z", "version": "7", "engine_url": "http://out"}
OF_R1 |= {"labels": {"zone": "a", "gpu": "h"}, "leaving": True, "name": "r1", "pool": "dev"}
R1 = pb.Replica(**OF_R1, status_json=json.dumps(STATUS))
WHERE = pb.AdapterResidency(
    name="sql",
    generation=4,
    note="2 of 2",
    counts=[pb.ResidenceCount(replicas=1, state=SERVING), pb.ResidenceCount(replicas=1, state=1, reason="staging")],
    replicas=[
        pb.Residence(replica="r1", model="sql", generation=4, state=SERVING, loaded=True, last_used="now"),
        pb.Residence(replica="r2", model="sql", generation=4, state=SERVING, loaded=True),
        pb.Residence(replica="r1", model="sql-x", generation=3, state=SERVING),
    ],
)
LAW = pb.AdapterResidency(
    name="law", generation=1, replicas=[pb.Residence(replica="r1", model="law", generation=1, loaded=True)]
)
ADAPTER = """\
Name: sql of pool dev, tenant default
State: Progressing, 1/2 replicas serve it
Generation: 4, - old, by me at -, request q1
Etag: 9
Load: lazy
Spec source.uri: s3://b/sql
Spec priority: 3
Spec placement.replicas: 2
Spec labels.team: x

What is awaited:
REPLICA STATE REASON MESSAGE
r1 pending staging -

Where it is (2 of 2):
REPLICA MODEL GENERATION STATE REASON LOADED LAST USED ENGINE
r1 sql 4 serving - yes now -
r2 sql 4 serving - yes - -
r1 sql-x 3 serving - no - -

Where it is:
REPLICA MODEL GENERATION STATE REASON LOADED LAST USED ENGINE
r1 law 1 state_unspecified - yes - -

Last events:
TIME EVENT GENERATION BY WHY
2026-01-01T00:00:06Z updated 4 me -
""".splitlines()
REPLICA = """\
Name: r1 of pool dev
Ready: yes, it drains
Note: well
Served: 2/3, pending 0, failed 0, unknown 1
Leaving: gone
Engine: vllm 1 at http://out
Labels: gpu=h,zone=a
Started: 2026-01-01T00:00:05Z, version 7
Incarnation: i1

Pending:
NAME GENERATION REASON MESSAGE ATTEMPTS RETRY AT
p 1 staging - - -

Failed:
NAME GENERATION REASON MESSAGE ATTEMPTS RETRY AT
law 1 bad no 2 soon

Answered with another generation:
NAME GENERATION
law 7
k 8

Loaded 2:
NAME GENERATION MODEL LAST USED
law 1 law -
sql 4 sql now

Lazy, asked for and loaded:
NAME GENERATION LAST USED
z 2 now

Found, where records have no digest:
NAME GENERATION DIGEST
sql 4 sha256:1

Last events:
TIME EVENT GENERATION BY WHY
2026-01-01T00:00:01Z drain - me -
2026-01-01T00:00:05Z started - - version 7

Status stale: no
Status observed_revision: 12
Status updated_at: 2026-01-01T00:00:00Z
Status served.count: 3
Status served.hash: x
Status lazy.count: 2
Status engine.kind: vllm
Status engine.version: 1
Status engine.url: http://in
""".splitlines()


@pytest.mark.parametrize(
    ("of", "title"),
    [
        (rollout(SERVING, (3, "bad")), "What is wrong:"),
        (rollout(SERVING, (4, "not_alive"), LATE), "What is wrong:"),
        (rollout(LATE), "What is awaited:"),
        (rollout(SERVING), "Nothing is wrong with it."),
        (rollout(SERVING, note="one is gone"), "one is gone"),
        (rollout(waiting="nobody lives"), "nobody lives"),
        (rollout(SERVING, canaries=1), "Its canaries:"),
    ],
)
def test_what_is_to_be_known_first_stands_first(cli, store, of, title):
    store.answers["WatchRollout"] = [[of]]
    found = cli("describe", "adapter", "sql").lines
    assert found[found.index("Spec labels.team: x") + 2] == title


def cells(view: OutputView[Any], item: Any) -> dict[str, str]:
    return {title: shown(item) for title, shown in view.all_columns.items()}


def halted(reason: str) -> pb.Adapter:
    return pb.Adapter(**ABOUT, rollout=pb.CanaryRollout(stable_generation=3, halted=reason, stable_spec=STABLE))


@pytest.fixture
def store(admin) -> FakeAdmin:
    """A service that knows one adapter, one replica and one pool."""
    me = {"principal": "me"}
    changes = [
        pb.RecordedChange(at=f"{DAY}T00:00:06Z", kind="adapter", name="sql", action="updated", generation=4, **me),
        pb.RecordedChange(at=f"{DAY}T00:00:01Z", kind="replica", name="r1", action="drain", **me),
        pb.RecordedChange(at=f"{DAY}T00:00:01Z", kind="adapter", name="law", action="created"),
    ]
    admin.answers |= {
        "GetAdapter": [SQL],
        "GetReplica": [R1],
        "GetPool": [pb.Pool(name="dev", base_models=["tiny"], etag="4")],
        "WatchRollout": [[rollout(SERVING, LATE)]],
        "WatchResidency": [[pb.WatchResidencyResponse(snapshot=True, adapters=[WHERE, LAW])]],
        "ListChanges": [pb.ListChangesResponse(changes=changes)],
    }
    return admin


def test_an_adapter_and_a_replica_whole(cli, store):
    """R9 status-truth: and programs are told what people are."""
    for line, whole in (("adapter sql", ADAPTER), ("replica r1", REPLICA)):
        ran = cli("describe", *line.split())
        assert (ran.code, ran.lines) == (0, whole)
        assert cli("-o", "name", "describe", *line.split()).out == f"{line.split()[1]}\n"
    told = cli("-o", "json", "describe", "adapter", "sql").json
    assert yaml.safe_load(cli("-o", "yaml", "describe", "adapter", "sql").out) == told
    assert (told["status"]["state"], told["status"]["serving"], told["warnings"]) == ("Progressing", 1, [])
    assert [(one["event"], one["name"], one["by"]) for one in told["events"]] == [("updated", "sql", "me")]
    assert told["rollout"]["replicas"][1]["reason"] == "staging"
    assert [one["state"] for one in told["residency"][0]["replicas"]] == ["serving"] * 3
    told = cli("-o", "json", "describe", "replica", "r1").json
    assert (told["engine_url"], [one["event"] for one in told["events"]]) == ("http://out", ["drain", "started"])
    first = {"name": "law", "generation": 1, "model": "law", "last_used": None}
    assert told["serves"] == [first, {"name": "sql", "generation": 4, "model": "sql", "last_used": "now"}]


@pytest.mark.parametrize(("reason", "told"), [("", "no"), ("2 of 2 refused", "2 of 2 refused")])
def test_an_adapter_that_only_canaries_have(cli, store, reason, told):
    store.answers["GetAdapter"] = [halted(reason)]
    store.answers["WatchRollout"] = [[rollout(SERVING, LATE, canaries=1, waiting="5 min left")]]
    found = cli("describe", "adapter", "sql").lines
    begun = found.index("Rollout: only canaries serve generation 4, all others 3")
    assert found[begun + 1 : begun + 3] == [f"Halted: {told}", "Others' source: s3://b/old"]
    awaited = ["5 min left", "REPLICA CANARY GENERATION STATE REASON MESSAGE", "r0 yes 0 serving - -"]
    begun = found.index("What is awaited:") + 1
    assert found[begun : begun + 4] == [*awaited, "r1 no 0 pending staging -"]
    for_whom = "canaries, halted" if reason else "canaries"
    assert (
        cells(GENERATIONS, GenerationRow(halted(reason)))["FOR"],
        cells(GENERATIONS, GenerationRow(SQL))["FOR"],
    ) == (for_whom, "all")
    pinned = pb.Adapter(spec=pb.AdapterSpec(source=pb.Source(digest="sha256:1")))
    assert [cells(GENERATIONS, GenerationRow(one))["DIGEST"] for one in (SQL, pinned)] == ["-", "sha256:1"]


def test_what_replicas_warn_of_is_told_of_the_adapter_and_of_the_replica(cli, store, monkeypatch):
    """Nothing is wrong with it, and still somebody should know: a table, as of what failed. What cannot be seen is no
    reason to say nothing.
    """
    warned = {"warnings": [{"name": "sql", "generation": 4, "reason": "without_effect", "message": "zeros"}]}
    others = {"warnings": [{"name": "law", "generation": 1, "reason": "modules_missing", "message": "lost"}]}
    replicas = [
        pb.Replica(name=name, pool="dev", status_json=json.dumps({**STATUS, **said}))
        for name, said in (("r1", warned), ("r2", warned), ("r3", others))
    ]
    store.answers |= {"WatchRollout": [[rollout(SERVING)]], "GetReplica": [replicas[0]]}
    store.answers["ListReplicas"] = [pb.ListReplicasResponse(replicas=replicas)]
    for line, table in (
        ("adapter sql", ["REPLICA REASON MESSAGE", "r1, r2 without_effect zeros", ""]),
        ("replica r1", ["NAME GENERATION REASON MESSAGE", "sql 4 without_effect zeros", ""]),
    ):
        told = cli("describe", *line.split()).lines
        start = told.index("Warnings:")
        assert told[start + 1 : start + 4] == table
        assert not [one for one in told if one.startswith(("Status warnings", "Nothing is wrong"))]
    (said,) = cli("-o", "json", "describe", "adapter", "sql").json["warnings"]
    assert said == {"reason": "without_effect", "message": "zeros", "replicas": ["r1", "r2"]}
    denied = Refusal(grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED", "not yours")
    store.answers |= {"ListReplicas": [denied], "ListChanges": [denied]}
    monkeypatch.setattr("registry.cli.views.describe.look", lambda _client, _target: None)
    ran = cli("describe", "adapter", "sql")
    told = ("Warnings could not be read: ", "Where it is", "The states of its replicas could not be read in time.")
    assert (ran.code, [one for one in told if one not in ran.out]) == (0, [])
    ran = cli("-o", "json", "describe", "adapter", "sql")
    assert (ran.json["warnings"], ran.json["rollout"], "Warnings could not be read: " in ran.err) == (None, None, True)
    ran = cli("describe", "replica", "r1")
    assert (ran.code, "What was done to it could not be read: " in ran.out) == (0, True)
    assert "Last events" not in ran.out, "nobody knows whether there are any"


@pytest.mark.parametrize("kind", ["pool dev", "replica r1"])
def test_who_sees_no_adapter_is_told_the_rest_of_a_pool_or_a_replica(cli, store, kind):
    """That nothing is told of what is served does not read as if nothing were."""
    denied = Refusal(grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED", "not yours")
    store.answers |= {"WatchResidency": [denied], "ListChanges": [denied]}
    store.answers["ListReplicas"] = [pb.ListReplicasResponse(replicas=[R1])]
    ran = cli("describe", *kind.split())
    assert (ran.code, "http://out" in ran.out) == (0, True)
    assert "What it serves could not be read: not yours" in ran.lines
    ran = cli("-o", "json", "describe", *kind.split())
    assert (ran.code, "note: What it serves could not be read: not yours\n" in ran.err) == (0, True)
    assert ran.json["adapters" if kind == "pool dev" else "serves"] is None


def test_the_newest_ten_events_are_shown(cli, store):
    changes = [
        pb.RecordedChange(at=f"{DAY}T00:00:{at:02}Z", kind="adapter", name="SQL", action="updated", generation=at)
        for at in range(12)
    ]
    store.answers["ListChanges"] = [pb.ListChangesResponse(changes=changes)]
    told = cli("describe", "adapter", "sql").lines
    shown = told[told.index("Last events:") + 2 :]
    assert [line.split()[2] for line in shown] == [str(at) for at in range(2, 12)]
    (asked,) = store.asked("ListChanges")
    ago = datetime.now(UTC) - datetime.fromisoformat(asked.since)
    assert timedelta(days=1) <= ago < timedelta(days=2)
    store.answers["ListChanges"] = [pb.ListChangesResponse()]
    store.answers["WatchRollout"] = [[rollout(SERVING, *[LATE] * 10)]]
    told = cli("describe", "adapter", "sql").lines
    assert "Last events: none within a day" in told
    assert "r1, r2, r3, r4, r5, r6, r7, r8, … (10) pending staging -" in told, "who is behind alike stands in one line"


def test_what_others_wrote_has_no_power_over_the_terminal(cli, store):
    """X2: adapters' files and engines say what they like; tables, rows and errors show it harmlessly."""
    hostile = STATUS | {"failed": [{"name": "law", "generation": 1, "reason": "x", "message": "\x1b]0;mine\x07\rok"}]}
    evil = pb.Adapter(name="a\n\x1b[31mb\u202e", pool="dev", updated_by="中 [red]")
    store.answers["GetReplica"] = [pb.Replica(name="r1", pool="dev", status_json=json.dumps(hostile))]
    store.answers["ListAdapters"] = [pb.ListAdaptersResponse(adapters=[evil], unreadable=["\x1b[2J"])]
    store.answers["GetAdapter"] = [Refusal(grpc.StatusCode.NOT_FOUND, "ADAPTER_NOT_FOUND", "no \x1b[2J")]
    for line, shown in (
        ("describe replica r1", r"\x1b]0;mine\x07\rok"),
        ("get adapters -o wide", r"a\n\x1b[31mb\u202e"),
        ("get adapters -o wide", "中 [red]"),
        ("get adapters a", r"error: ADAPTER_NOT_FOUND: no \x1b[2J; "),
    ):
        ran = cli(*line.split())
        assert shown in ran.out + ran.err
        assert (ran.out + ran.err).replace("\n", "").isprintable()
    assert cli("-o", "json", "get", "adapters").json["items"][0]["name"] == evil.name


def test_cells_of_adapters_pools_tenants_and_events():
    """What still is so is one event whenever it is told."""
    bare = cells(ADAPTERS, AdapterRow(pb.Adapter(name="a", updated_at="2100-01-01T00:00:00Z")))
    nothing = {"LOAD": "eager", "PLACED": "all", "AGE": "0s", "STATE": "-", "SERVING": "-", "REASONS": "-"}
    assert {title: bare[title] for title in nothing} == nothing
    whole = cells(ADAPTERS, AdapterRow(SQL, WHERE))
    assert [whole[title] for title in ("PLACED", "REPLICAS", "SOURCE")] == ["2", "r1 used now, r2, r1@3", "s3://b/sql"]
    of_halted = [cells(ADAPTERS, AdapterRow(halted(why)))["GENERATION"] for why in ("", "no")]
    assert of_halted == ["4 (canaries; others 3)", "4 (canaries, halted; others 3)"]
    plain = ADAPTERS.plain(AdapterRow(SQL))
    assert (plain["name"], "status" in plain, ADAPTERS.order["AGE"](AdapterRow(SQL))) == ("sql", False, "0")
    row, bare = PoolRow(pb.Pool(name="p"), PoolStatus("Degraded", 1, 3, 2, 5)), PoolRow(pb.Pool(name="p"))
    assert {title: shown(row) for title, shown in POOL_ROWS.order.items()} == {"REPLICAS": "333", "ADAPTERS": "400"}
    for one in (PoolRow(pb.Pool(name="p"), PoolStatus("Healthy", 0, 0, 0, 0)), bare):
        assert {shown(one) for shown in POOL_ROWS.order.values()} == {"0"}
    assert (cells(POOL_ROWS, bare)["STATE"], "status" in POOL_ROWS.plain(bare)) == ("-", False)
    assert cells(TENANTS, pb.Tenant(name="t", adapters=3)) == {"NAME": "t", "ADAPTERS": "3", "MAX ADAPTERS": "-"}
    one, again = (ShownEvent(f"t{at}", "held", "replica", "r1", message=str(at), current=True) for at in (13, 14))
    assert one.key == again.key
    first, second = (ShownEvent(at, "updated", "adapter", "a", message="M") for at in ("t1", "t2"))
    assert first.key != second.key
    others = ShownEvent("", "", "", "", reason="r", message="m"), ShownEvent("", "", "", "")
    assert [shown.why() for shown in (one, *others)] == ["13", "r: m", "-"]


@pytest.mark.parametrize(
    ("status", "title", "told"),
    [
        ({"note": "well"}, "NOTE", "well"),
        ({"note": "well", "degraded": "half"}, "NOTE", "half"),
        ({"note": "well", "degraded": "half", "held": "13 would go"}, "NOTE", "13 would go"),
        ({}, "NOTE", "-"),
        ({"served": {"count": 3}, "kept": []}, "SERVED", "3"),
        ({"served": {"count": 3}, "kept": [{"counted": True}]}, "SERVED", "3"),
        ({"served": {"count": 3}, "kept": [{}, {"counted": True}, {}]}, "SERVED", "5 (2 not as desired)"),
        ({"served": {"count": "many"}, "kept": [{}]}, "SERVED", "many"),
        ({"served": {"count": None}, "kept": [{}]}, "SERVED", "-"),
        ({"pending": [{}], "pending_count": 384}, "PENDING", "384"),
    ],
)
def test_cells_of_a_replica(status, title, told):
    """R9 status-truth: what an operator has to know goes first, and what is served with other weights is apart."""
    assert cells(REPLICAS, replica_view(pb.Replica(name="r", status_json=json.dumps(status))))[title] == told


def test_a_pool_whole(cli, store):
    expected = [pb.ReplicaGroup(labels={"zone": zone}, replicas=2) for zone in "ab"]
    groups = [pb.GroupPresence(expected=one, live=live) for live, one in enumerate(expected, 1)]
    limits = pb.PoolLimits(max_rank=16, max_adapters=8, expected_replicas=3, expected_groups=expected)
    whole = pb.Pool(name="dev", base_models=["tiny", "t"], engine="vllm", engine_names="plain", etag="4", limits=limits)
    missing = [pb.MissingReplica(name="r2", last_seen="")]
    store.answers["GetPool"] = [whole]
    store.answers["ListReplicas"] = [pb.ListReplicasResponse(replicas=[R1], missing=missing, lacking=2, groups=groups)]
    assert cli("describe", "pool", "dev").lines == [
        *("Name: dev", "State: Degraded", "Replicas: 0/2", "Adapters: 1/2", "Base models: tiny, t"),
        *("Expected: 3, zone=a: 2, zone=b: 2", "Engines: vllm", "Engine names: plain", "Max rank: 16"),
        *("Max adapters: 8", "Living: zone=a: 1 of 2, zone=b: 2 of 2", "Etag: 4", ""),
        "NAME POOL READY SERVED PENDING FAILED URL NOTE",
        "r1 dev yes 2/3 0 0 http://out well",
        "r2 dev no 1/1 0 0 - just gone",
    ]
    value = cli("-o", "json", "describe", "pool", "dev").json
    assert (value["adapters"], value["lacking"], value["disagreements"]) == (2, 2, [])
    assert value["groups"] == [
        {"labels": {"zone": zone}, "replicas": 2, "live": live} for live, zone in enumerate("ab", 1)
    ]
    assert [one["name"] for one in value["replicas"]] == ["r1", "r2"]
    assert cli("-o", "name", "describe", "pool", "dev").out == "dev\n"


def test_which_generations_are_served_by_name_is_told_where_any_are():
    one = pb.Adapter(name="a", spec=pb.AdapterSpec(keep=3), kept_generations=[8, 7])
    assert _kept(one) == {"Keeps": "3 generations by name; beside the newest: a@8, a@7"}
    assert _kept(pb.Adapter(spec=pb.AdapterSpec(keep=2)))["Keeps"].endswith("beside the newest: none yet")
    assert _kept(pb.Adapter()) == {}


def test_a_number_of_replicas_that_follows_requests_is_told_with_its_reason():
    placement = pb.Placement(replicas=2, by_load=pb.ByLoad(max=8, per_replica=50))
    one = pb.Adapter(name="sql", spec=pb.AdapterSpec(placement=placement))
    assert _scaled(pb.Adapter()) == {}
    assert _scaled(one) == {"Replicas": "2 (2 to 8 by load), 50 requests at once on each"}
    one.scaled.MergeFrom(pb.ScaledReplicas(replicas=3, reason="101.0 requests at once", at="2026-01-01T00:00:00Z"))
    why = "since 2026-01-01T00:00:00Z: 101.0 requests at once"
    assert _scaled(one) == {"Replicas": f"3 (2 to 8 by load), 50 requests at once on each; {why}"}
    assert ADAPTERS.more["PLACED"](AdapterRow(one)) == "3 (2 to 8 by load)"
    one.scaled.replicas = 99
    assert ADAPTERS.more["PLACED"](AdapterRow(one)) == "8 (2 to 8 by load)"
    assert adapter_dict(one)["scaled"] == {"replicas": 99, "reason": "101.0 requests at once", "at": one.scaled.at}


def telling(name: str, *, uses: bool = True) -> ReplicaView:
    status = {**STATUS, "uses": {"since": 1, "until": 2, "names": []} if uses else None}
    return replica_view(pb.Replica(name=name, pool="p", status_json=json.dumps(status)))


def test_when_an_adapter_is_deleted_is_told_where_it_is(monkeypatch):
    """R25: a time that nobody can read is told as none."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    one = pb.Adapter(spec=pb.AdapterSpec(ttl_seconds=604_800), expires_at="2026-01-03T12:00:00Z")
    assert (expires(one, now), expires(one, now + timedelta(days=9))) == ("in 2d12h", "in 0s")
    assert [expires(pb.Adapter(expires_at=odd), now) for odd in ("", "soon", "2026-01-01")] == ["-"] * 3
    told = _end(one, ())["Expires"]
    assert (told.startswith("2026-01-03T12:00:00Z, in "), told.endswith("unless it is changed before: ttl 7d")) == (
        *(True, True),
    )
    assert _end(pb.Adapter(), ()) == {}
    one.spec.ttl_from = "use"
    assert (expires(one, now), _end(one, [telling("r1")])) == (
        "unused 7d",
        {"Expires": "once it was neither used nor changed for 7d, as all replicas tell"},
    )


def test_a_replica_that_keeps_an_adapter_from_ending_is_named_with_what_to_do():
    """R25: one that does not tell uses; of one that is gone it is known."""
    one = pb.Adapter(name="sql", pool="p", spec=pb.AdapterSpec(ttl_seconds=60, ttl_from="use"), expires_at="…")
    gone = missing_view("p", pb.MissingReplica(name="r4"))
    told = _end(one, [telling("r1"), telling("r3", uses=False), telling("r2", uses=False), gone])["Does not expire"]
    assert told.startswith("while uses are not told by r2, r3: its engine has to answer and to have the plugin")
    assert told.endswith("loraplane set sql --pool p --ttl-from change")
