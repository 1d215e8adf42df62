"""Rollouts that canaries began: followed, ended by hand, and shown."""

from __future__ import annotations

import grpc
import pytest

from registry.v1 import registry_pb2 as pb
from tests.unit.cli.fake_admin import Hold, Refusal, applied

PENDING, SERVING, FAILED = pb.RolloutReplica.PENDING, pb.RolloutReplica.SERVING, pb.RolloutReplica.FAILED
STABLE = pb.CanaryRollout(stable_generation=6, stable_spec=pb.AdapterSpec(source=pb.Source(uri="file:///a/v1")))
HALTED = pb.CanaryRollout(stable_generation=6, stable_spec=STABLE.stable_spec, halted="1 of 1 canaries refuse it")
SPEC = pb.AdapterSpec(
    source=pb.Source(uri="file:///a/v2"),
    strategy=pb.Strategy(canary_replicas="25%", promote="manual", soak_seconds=5),
    placement=pb.Placement(selector={"zone": "a"}),
)
SQL = pb.Adapter(name="sql", pool="dev", generation=7, spec=SPEC, etag="9", rollout=STABLE)


def rollout(state: int, canary: pb.CanaryRollout | None = STABLE, **fields) -> pb.Rollout:
    """One canary in a state, and one other that serves."""
    replicas = [
        pb.RolloutReplica(replica="r1", state=state, canary=canary is not None, generation=7),
        pb.RolloutReplica(replica="r2", state=SERVING, generation=6 if canary else 7),
    ]
    return pb.Rollout(name="sql", generation=7, replicas=replicas, canary=canary, **fields)


SERVED = rollout(SERVING, None, done=True)


def ended(request) -> pb.ApplyAdaptersResponse:
    now = pb.Adapter(name="sql", pool="dev", generation=7)
    result = pb.AdapterResult(outcome=pb.AdapterResult.UPDATED, adapter=now)
    return pb.ApplyAdaptersResponse(results=[result], revision=11, request_id=request.request_id)


def test_only_canaries_are_counted(cli, admin):
    soaking = rollout(SERVING, waiting="it comes to all later")
    admin.answers["WatchRollout"] = [[rollout(PENDING, waiting="one is behind"), soaking, SERVED]]
    ran = cli("rollout", "sql")
    assert ran.code == 0
    assert ran.out.splitlines() == [
        "sql generation 7: 0 of 1 canaries serve it, the others generation 6; one is behind (r1 pending)",
        "sql generation 7: 1 of 1 canaries serve it, the others generation 6; it comes to all later",
        "sql generation 7: 2 of 2 replicas serve it",
    ]


def test_a_rollout_by_hand_ends_with_what_to_do(cli, admin, manifest):
    admin.answers["ApplyAdapters"] = [applied]
    admin.answers["WatchRollout"] = [[rollout(SERVING, done=True, note="its canaries serve it")]]
    ran = cli("apply", "-f", manifest("sql"), "--wait")
    assert ran.code == 0
    assert "sql generation 7: its canaries serve it: loraplane rollout promote sql --pool dev" in ran.out


def test_a_halted_rollout_says_why(cli, admin):
    admin.answers["WatchRollout"] = [[rollout(FAILED, HALTED, done=True, failure="halted")]]
    ran = cli("rollout", "sql")
    assert ran.code == 7
    assert "sql generation 7: halted - 1 of 1 canaries refuse it (r1 failed)" in ran.err


def test_what_else_is_to_be_known_is_told(cli, admin):
    note = "placed on 3 replicas, 2 are alive: served by all of them"
    admin.answers["WatchRollout"] = [[rollout(SERVING, None, done=True, note=note)]]
    assert cli("rollout", "sql").out == f"sql generation 7: 2 of 2 replicas serve it; {note}\n"
    assert cli("-o", "json", "rollout", "sql").json["note"] == note


@pytest.mark.parametrize(("verb", "method"), [("promote", "PromoteRollout"), ("abort", "AbortRollout")])
def test_it_is_ended_by_hand(cli, admin, verb, method):
    admin.answers[method] = [ended]
    ran = cli("rollout", verb, "sql", "--generation", "7", "--etag", "9", "--request-id", "q1", "--pool", "dev")
    assert ran.code == 0
    assert "updated  sql   dev   7" in ran.out
    assert "revision 11, request id q1" in ran.out
    (asked,) = admin.asked(method)
    assert (asked.pool, asked.name, asked.generation, asked.etag) == ("dev", "sql", 7, "9")
    assert (asked.request_id, asked.validate_only) == ("q1", False)


def test_it_is_ended_and_waited_for(cli, admin):
    admin.answers["PromoteRollout"] = [ended]
    admin.answers["WatchRollout"] = [[rollout(SERVING, None), SERVED]]
    assert cli("rollout", "promote", "sql", "--wait").code == 0
    assert [one.generation for one in admin.asked("WatchRollout")] == [7]
    assert cli("rollout", "promote", "sql", "--dry-run").code == 0
    assert admin.asked("PromoteRollout")[-1].validate_only


def test_an_adapter_may_be_called_promote(cli, admin):
    admin.answers["WatchRollout"] = [[SERVED]]
    admin.answers["AbortRollout"] = [ended]
    assert cli("rollout", "promote").code == 0
    assert admin.asked("WatchRollout")[0].name == "promote"
    assert cli("rollout", "abort", "abort").code == 0
    assert admin.asked("AbortRollout")[0].name == "abort"


@pytest.mark.parametrize(
    "line",
    ["rollout halt sql", "rollout promote sql law", "rollout sql --etag 3", "rollout sql --generation 3", "rollout"],
)
def test_a_wrong_line_is_told(cli, admin, line):
    ran = cli(*line.split())
    assert (ran.code, ran.err.startswith("error: USAGE: ")) == (2, True)


def test_a_refusal_is_told(cli, admin):
    admin.answers["PromoteRollout"] = [Refusal(grpc.StatusCode.FAILED_PRECONDITION, "NO_ROLLOUT", "there is none")]
    ran = cli("rollout", "promote", "sql")
    assert (ran.code, ran.err) == (4, "error: NO_ROLLOUT: there is none\n")


def test_apply_says_that_only_canaries_take_it(cli, admin, manifest):
    result = pb.AdapterResult(outcome=pb.AdapterResult.UPDATED, adapter=SQL)
    admin.answers["ApplyAdapters"] = [pb.ApplyAdaptersResponse(results=[result], revision=9)]
    for flags in ((), ("--dry-run",)):
        ran = cli("apply", "-f", manifest("sql"), *flags)
        assert "sql: only canaries take generation 7 for now, all others keep 6" in ran.out


def test_adapters_and_history_show_who_serves_what(cli, admin):
    admin.answers["ListAdapters"] = [pb.ListAdaptersResponse(adapters=[SQL, pb.Adapter(name="law", generation=3)])]
    out = cli("get", "adapters").out
    assert "7 (canaries; others 6)" in out
    generations = [
        pb.Adapter(name="sql", generation=8),
        pb.Adapter(name="sql", generation=7, rollout=HALTED),
        pb.Adapter(name="sql", generation=6, rollout=STABLE),
    ]
    admin.answers["ListAdapterHistory"] = [pb.ListAdapterHistoryResponse(generations=generations)]
    header, *rows = cli("history", "sql").out.splitlines()
    assert header.split()[:2] == ["GENERATION", "FOR"]
    assert [row.split("  ")[0].strip() for row in rows] == ["8", "7", "6"]
    assert ["all" in rows[0], "canaries, halted" in rows[1], "canaries" in rows[2]] == [True, True, True]
    assert cli("-o", "json", "history", "sql").json["items"][1]["canaries"]["halted"] == "1 of 1 canaries refuse it"


def test_describe_shows_a_running_rollout(cli, admin):
    admin.answers["GetAdapter"] = [pb.Adapter(name="sql", pool="dev", generation=7, spec=SPEC, rollout=HALTED)]
    admin.answers["WatchRollout"] = [[rollout(FAILED, HALTED, done=True, failure="halted"), Hold()]]
    out = cli("describe", "adapter", "sql").out
    assert "only canaries serve generation 7, all others 6" in out
    assert "1 of 1 canaries refuse it" in out
    assert "Spec strategy.canary.replicas:" in out
    assert "What is wrong:" in out
    rows = [line.split() for line in out.splitlines()]
    start = next(number for number, row in enumerate(rows) if row[:1] == ["REPLICA"])
    assert rows[start : start + 3] == [
        ["REPLICA", "CANARY", "GENERATION", "STATE", "REASON", "MESSAGE"],
        ["r1", "yes", "7", "failed", "-", "-"],
        ["r2", "no", "6", "serving", "-", "-"],
    ]
    told = cli("-o", "json", "describe", "adapter", "sql").json
    assert told["spec"]["strategy"] == {
        "canary": {"replicas": "25%"},
        "promote": "manual",
        "max_failures": 0,
        "soak_seconds": 5,
    }
    assert told["canaries"]["stable_generation"] == 6
    assert told["rollout"]["replicas"][0]["canary"] is True
