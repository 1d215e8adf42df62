"""Waiting for replicas: what is told, and how it ends."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event

import grpc
import pytest

from registry.cli.failure import usage
from registry.cli.rollout import RolloutTarget, follow_all
from registry.cli.views.report import summary
from registry.v1 import registry_pb2 as pb
from tests.unit.cli.conftest import Cli
from tests.unit.cli.fake_admin import Hold, Refusal, applied

PENDING, SERVING, FAILED = pb.RolloutReplica.PENDING, pb.RolloutReplica.SERVING, pb.RolloutReplica.FAILED


def rollout(*states: int, done: bool = False, failure: str = "", reason: str = "", message: str = "") -> pb.Rollout:
    replicas = [
        pb.RolloutReplica(replica=f"r{number}", state=state, reason=reason if state != SERVING else "", message=message)
        for number, state in enumerate(states, start=1)
    ]
    return pb.Rollout(name="sql", generation=2, replicas=replicas, done=done, failure=failure)


SERVED = rollout(SERVING, SERVING, done=True)
REFUSED = rollout(
    SERVING, FAILED, done=True, failure="replicas_failed", reason="digest_mismatch", message="sha256 differs"
)


def test_a_rollout_that_ends_well(cli, admin):
    admin.answers["WatchRollout"] = [[rollout(PENDING, PENDING), rollout(SERVING, PENDING), SERVED]]
    ran = cli("rollout", "sql")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines() == [
        "sql generation 2: 0 of 2 replicas serve it (r1 pending, r2 pending)",
        "sql generation 2: 1 of 2 replicas serve it (r2 pending)",
        "sql generation 2: 2 of 2 replicas serve it",
    ]


def test_a_rollout_that_is_refused_names_replica_reason_and_message(cli, admin):
    admin.answers["WatchRollout"] = [[rollout(PENDING, PENDING), REFUSED]]
    ran = cli("rollout", "sql")
    assert ran.code == 7
    assert ran.err == (
        "error: ROLLOUT_FAILED: sql generation 2: replicas_failed (r2 failed: digest_mismatch - sha256 differs); "
        "digest_mismatch: loraplane digest URI, then loraplane retry adapter sql --pool dev\n"
    )


@pytest.mark.parametrize("failure", ["superseded", "deleted"])
def test_every_other_failure_is_told_too(cli, admin, failure):
    admin.answers["WatchRollout"] = [[rollout(done=True, failure=failure)]]
    ran = cli("rollout", "sql")
    assert ran.code == 7
    assert failure in ran.err


# A first look may take a while, and so may each call before it: with so little time that nothing was seen in it, a test
# looks again with more.
TIMEOUTS = ("0.5", "5", "50")
NOT_SERVED = "error: DEADLINE_EXCEEDED: not served in time: "


def told_when_the_time_is_up(cli: Cli, *command: str, hears: bool) -> str:
    """What a command tells that waits for too short a time, in which it hears of the rollout or does not."""
    for timeout in TIMEOUTS:
        ran = cli(*command, "--timeout", timeout)
        assert ran.code == 6
        if ran.err.startswith(NOT_SERVED) and ("nothing was heard of it" not in ran.err) == hears:
            break
    return ran.err


def test_at_the_deadline_those_who_are_behind_are_named(cli, admin):
    admin.answers["WatchRollout"] = [[rollout(SERVING, PENDING, reason="staging"), Hold()]]
    assert told_when_the_time_is_up(cli, "rollout", "sql", hears=True) == (
        f"{NOT_SERVED}sql generation 2: 1 of 2 replicas serve it (r2 pending: staging)\n"
    )


def test_a_rollout_of_which_nothing_was_heard_is_not_served(cli, admin, manifest):
    admin.answers["ApplyAdapters"] = [applied]
    admin.answers["WatchRollout"] = [[Hold()]]
    for waits in ("rollout", "sql"), ("apply", "-f", manifest("sql"), "--wait"):
        assert told_when_the_time_is_up(cli, *waits, hears=False) == f"{NOT_SERVED}sql: nothing was heard of it\n"


def test_without_replicas_what_is_waited_for_is_told(cli, admin):
    nobody = pb.Rollout(name="sql", generation=2, waiting="no replica of the pool is alive")
    admin.answers["WatchRollout"] = [[nobody, Hold()]]
    told = told_when_the_time_is_up(cli, "rollout", "sql", hears=True)
    assert "sql generation 2: no replica of the pool is alive" in told


def test_a_broken_stream_is_taken_up_again(cli, admin):
    broken = Refusal(grpc.StatusCode.UNAVAILABLE, "ETCD_UNAVAILABLE")
    admin.answers["WatchRollout"] = [[rollout(PENDING), broken], [SERVED]]
    assert cli("rollout", "sql").code == 0
    assert len(admin.asked("WatchRollout")) == 2


def test_a_stream_that_ends_early_is_taken_up_again(cli, admin):
    admin.answers["WatchRollout"] = [[rollout(PENDING)], [SERVED]]
    assert cli("rollout", "sql").code == 0


def test_no_such_adapter(cli, admin):
    admin.answers["WatchRollout"] = [[Refusal(grpc.StatusCode.NOT_FOUND, "ADAPTER_NOT_FOUND", "no sql")]]
    ran = cli("rollout", "sql")
    assert (ran.code, ran.err) == (
        3,
        "error: ADAPTER_NOT_FOUND: no sql; loraplane get adapters lists those there are\n",
    )


def test_json_is_one_value(cli, admin):
    admin.answers["WatchRollout"] = [[rollout(PENDING, PENDING), REFUSED]]
    ran = cli("-o", "json", "rollout", "sql")
    assert ran.code == 7
    assert (ran.json["done"], ran.json["failure"]) == (True, "replicas_failed")
    assert [one["state"] for one in ran.json["replicas"]] == ["serving", "failed"]
    assert ran.error["reason"] == "ROLLOUT_FAILED"


def test_apply_waits_for_each_adapter_at_its_generation(cli, admin, manifest):
    admin.answers["ApplyAdapters"] = [applied]
    admin.answers["WatchRollout"] = [[SERVED]]
    assert cli("apply", "-f", manifest("a", "b"), "--wait").code == 0
    asked = {(one.pool, one.name, one.generation) for one in admin.asked("WatchRollout")}
    assert asked == {("dev", "a", 1), ("dev", "b", 1)}


def target(name: str) -> RolloutTarget:
    return RolloutTarget("dev", name, 2)


def test_how_far_many_rollouts_are_is_one_line():
    """Of 500 adapters nobody reads 500 lines."""
    staging = rollout(SERVING, PENDING, PENDING, reason="staging")
    staging.replicas[1].reason = "over_capacity"
    rollouts = {
        target("a"): SERVED,
        target("b"): REFUSED,
        target("c"): rollout(SERVING, PENDING, reason="staging"),
        target("d"): rollout(SERVING, PENDING),
        target("e"): staging,
        target("f"): rollout(),
    }
    told = summary([*rollouts, target("g")], rollouts)
    assert told == (
        "1/7 served, 1 failed, 1 staging, 1 pending, 1 over_capacity, 1 waiting, 1 not heard of, slowest r2"
    )
    assert summary([target("a")], {target("a"): SERVED}) == "1/1 served"
    few = RolloutTarget("dev", "a", 2, min_ready=1)
    assert summary([few], {few: rollout(SERVING, PENDING)}) == "1/1 served"


def test_in_a_pipe_many_rollouts_are_told_every_few_seconds_and_at_the_end(cli, admin, manifest, monkeypatch):
    admin.answers["ApplyAdapters"] = [applied]
    admin.answers["WatchRollout"] = [[rollout(PENDING, reason="staging"), SERVED]]
    out = cli("apply", "-f", manifest("a", "b"), "--wait").out
    assert out.splitlines()[-1] == "2/2 served"
    assert "sql generation" not in out
    monkeypatch.setattr("registry.cli.views.report._EVERY_SECONDS", 0.0)
    lines = cli("apply", "-f", manifest("a", "b"), "--wait").out.splitlines()
    assert lines[-1] == "2/2 served"
    assert len(lines) == len(set(lines)), "nothing is printed twice"
    assert any("1 staging" in line for line in lines)


def test_apply_that_waits_tells_the_change_even_if_it_is_not_served(cli, admin, manifest):
    admin.answers["ApplyAdapters"] = [applied]
    admin.answers["WatchRollout"] = [[REFUSED]]
    ran = cli("-o", "json", "apply", "-f", manifest("a"), "--wait", "--request-id", "q1")
    assert ran.code == 7
    assert (ran.json["request_id"], ran.json["revision"]) == ("q1", 7)
    assert ran.json["rollouts"][0]["failure"] == "replicas_failed"


def test_one_failure_does_not_hide_behind_one_that_is_pending(cli, admin, manifest):
    admin.answers["ApplyAdapters"] = [applied]
    admin.answers["WatchRollout"] = [lambda request: [REFUSED] if request.name == "b" else [rollout(PENDING), Hold()]]
    path = manifest("a", "b")
    assert 7 in (cli("apply", "-f", path, "--wait", "--timeout", timeout).code for timeout in TIMEOUTS)


def test_a_dry_run_waits_for_nothing(cli, admin, manifest):
    admin.answers["ApplyAdapters"] = [applied]
    assert cli("apply", "-f", manifest("a"), "--wait", "--dry-run").code == 0
    assert admin.asked("WatchRollout") == []


@pytest.mark.parametrize(("generation", "told"), [(1, "serving generation 1"), (0, "serving an earlier generation")])
def test_what_is_served_instead_is_told(cli, admin, generation, told):
    """R9 status-truth: a rollout that fails takes nothing away."""
    bad = rollout(FAILED, done=True, failure="replicas_failed", reason="digest_mismatch")
    bad.replicas[0].serving_generation = generation
    bad.replicas[0].generation = 2
    admin.answers["WatchRollout"] = [[bad]]
    ran = cli("rollout", "sql")
    assert ran.code == 7
    assert f"(r1 {told}, generation 2 failed: digest_mismatch)" in ran.err


@pytest.mark.parametrize(("suffice", "code"), [("1", 0), ("2", 7), ("0", 7)])
def test_so_many_replicas_may_suffice(cli, admin, suffice, code):
    admin.answers["WatchRollout"] = [[REFUSED]]
    assert cli("rollout", "sql", "--min-ready", suffice).code == code


def test_who_has_enough_replicas_waits_for_no_other(cli, admin):
    admin.answers["WatchRollout"] = [[rollout(PENDING, PENDING), rollout(SERVING, PENDING), Hold()]]
    assert cli("rollout", "sql", "--min-ready", "1").code == 0


def test_what_cannot_come_is_not_waited_for(cli, admin):
    """Room comes by somebody's change alone: exit 7 at once, and what would help."""
    full = rollout(SERVING, PENDING, reason="over_capacity")
    admin.answers["WatchRollout"] = [[rollout(PENDING, PENDING, reason="staging"), full, Hold()]]
    ran = cli("rollout", "sql")
    assert ran.code == 7
    assert "(r2 pending: over_capacity); there is no room for it" in ran.err
    assert "--max-cpu-loras" in ran.err


def test_who_may_still_come_is_waited_for(cli, admin):
    mixed = rollout(PENDING, PENDING, reason="over_capacity")
    mixed.replicas[0].reason = "staging"
    admin.answers["WatchRollout"] = [[mixed, SERVED]]
    assert cli("rollout", "sql").code == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, BrokenPipeError, RuntimeError])
def test_what_ends_the_wait_for_one_rollout_ends_all(error):
    """A reader that left, for one, is no reason to follow the others until the deadline."""
    begun, closed, ends = Event(), Event(), list[bool]()

    class Admin:
        def watch_rollout(self, request: pb.WatchRolloutRequest, _seconds: float) -> Iterator[pb.Rollout]:
            if request.name == "sql":
                assert begun.wait(120)
                yield rollout(PENDING)
            begun.set()
            ends.append(closed.wait(120))
            raise usage("it was closed")

        def close(self) -> None:
            closed.set()

    def seen(_target: RolloutTarget, _rollout: pb.Rollout) -> None:
        raise error

    targets = [RolloutTarget("dev", name, 1, 0) for name in ("sql", "law")]
    with pytest.raises(error):
        follow_all(Admin(), targets, 600, seen)
    assert ends == [True]
