"""Rollouts: what counts as served, what cannot come, how they are followed, told, and ended by hand."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event
from typing import Any

import grpc
import pytest

from registry.cli.client import AdminClient
from registry.cli.failure import CliError
from registry.cli.rollout import FollowedRollout, RolloutTarget, cannot_come, check_served, describe, follow_all, look
from registry.cli.views.report import Fate, fate_of, summary
from registry.v1 import registry_pb2 as pb
from tests.support.fake_admin import BUSY, Hold, Refusal

SERVING, PENDING, FAILED, UNKNOWN = (
    *(pb.RolloutReplica.SERVING, pb.RolloutReplica.PENDING, pb.RolloutReplica.FAILED, pb.RolloutReplica.UNKNOWN),
)
FULL = (PENDING, "over_capacity")
LATE = (PENDING, "staging")


def rollout(*replicas: Any, canaries: int | None = None, halted: str = "", **fields: Any) -> pb.Rollout:
    """A rollout of these replicas, of which so many first ones are canaries; None: it has none."""
    found = []
    for number, one in enumerate(replicas):
        state, *why = one if isinstance(one, tuple) else (one,)
        said = dict(zip(("reason", "message"), why, strict=False))
        canary = number < (canaries or 0)
        found.append(pb.RolloutReplica(replica=f"r{number}", state=state, canary=canary, **said))
    made = pb.Rollout(**{"name": "sql", "generation": 4, "replicas": found, **fields})
    if canaries is not None:
        made.canary.stable_generation, made.canary.halted = 3, halted
    return made


def target(min_ready: int = 0, name: str = "sql") -> RolloutTarget:
    return RolloutTarget("dev", name, 4, min_ready)


def test_of_many_that_are_not_served_a_few_are_told_and_where_the_rest_is():
    """A failed wait for 500 adapters is no page of text."""
    with pytest.raises(CliError) as raised:
        check_served([FollowedRollout(target(name=f"a{number}"), None) for number in range(500)])
    told = raised.value.failure.message
    assert (told.count("no report on it"), len(told) < 2000) == (5, True)
    assert told.endswith("; and 495 more: loraplane get adapters --pool dev --sort-by STATE")


DONE = rollout(SERVING, done=True)
BAD = rollout(FAILED, done=True, failure="replicas_failed")
HALF_BAD = rollout(SERVING, FAILED, done=True, failure="replicas_failed")


@pytest.mark.parametrize(
    ("min_ready", "of", "is_served", "fate"),
    [
        *((0, DONE, False, Fate.SERVED), (0, rollout(SERVING), False, Fate.PENDING), (0, BAD, False, Fate.FAILED)),
        (1, rollout(SERVING, LATE), True, Fate.SERVED),
        (2, rollout(SERVING, LATE), False, Fate.PENDING),
        (2, rollout(SERVING, SERVING, LATE), True, Fate.SERVED),
        (1, rollout(SERVING, SERVING), True, Fate.SERVED),
        (1, rollout(LATE), False, Fate.PENDING),
        (1, HALF_BAD, True, Fate.SERVED),
        (2, HALF_BAD, False, Fate.FAILED),
        (1, rollout(SERVING, done=True, failure="superseded"), False, Fate.FAILED),
        (1, rollout(SERVING, done=True, failure="deleted"), False, Fate.FAILED),
        (1, rollout(SERVING, LATE, canaries=1), False, Fate.PENDING),
        (1, rollout(SERVING, LATE, canaries=1, failure="replicas_failed"), False, Fate.PENDING),
    ],
)
def test_when_it_is_served(min_ready, of, is_served, fate):
    """By fewer than all where so many suffice; by no generation that is no more, nor one that only canaries have."""
    assert (target(min_ready).is_served(of), fate_of(target(min_ready), of)) == (is_served, fate)


@pytest.mark.parametrize(
    ("of", "never"),
    [
        *((rollout(), False), (rollout(SERVING), False), (rollout(FULL), True), (rollout(SERVING, FULL, FULL), True)),
        *((rollout(FULL, LATE), False), (rollout(FULL, FAILED), True), (rollout(FULL, UNKNOWN), False)),
        *((rollout(FAILED, FAILED), False), (rollout((FAILED, "over_capacity")), False)),
        *((rollout((UNKNOWN, "over_capacity")), False), (rollout(FULL, (FAILED, "over_capacity")), True)),
        *((rollout(FULL, FULL, FAILED, LATE), False), (rollout(FULL, LATE, canaries=1), True)),
        *((rollout(LATE, FULL, canaries=1), False), (rollout(SERVING, FULL, canaries=1), False)),
    ],
)
def test_what_cannot_come_is_what_waits_for_room_alone(of, never):
    """Of a rollout with canaries only these count: nobody else is to serve it yet."""
    assert cannot_come(target(), of) is never


GONE = (PENDING, "source_missing", "not there")


def back(name: str = "sql") -> RolloutTarget:
    return RolloutTarget("dev", name, 4, goes_back=True)


def test_a_roll_back_to_what_nobody_has_does_not_come_by_itself(client, admin, time):
    """Files of an earlier generation do not; those of a new one may be on their way."""
    nowhere, somewhere = rollout(GONE, GONE), rollout(GONE, LATE)
    for of in (somewhere, rollout(GONE, SERVING), rollout(), rollout(SERVING, GONE, canaries=1)):
        assert not cannot_come(back(), of)
    assert (cannot_come(back(), nowhere), cannot_come(target(), nowhere)) == (True, False)
    assert cannot_come(back(), rollout(GONE, SERVING, canaries=1))
    admin.answers["WatchRollout"] = [[somewhere, nowhere], [nowhere, DONE]]
    found = follow_all(client, [back()], 60, lambda *_: None)
    assert [one.rollout for one in found] == [nowhere]
    with pytest.raises(CliError) as raised:
        check_served(found)
    failure = raised.value.failure
    assert (failure.exit, failure.message.count("no replica has the files")) == (7, 1)
    with pytest.raises(CliError, match="not served in time") as raised:
        check_served([FollowedRollout(target(), nowhere)])
    assert "no replica has the files" not in raised.value.failure.message


def test_one_call_too_many_is_no_end_of_a_wait(client, admin):
    """R9 status-truth: a change that is made is not told as refused, since somebody asks too often how it goes."""
    admin.answers["WatchRollout"] = [[BUSY], [rollout(LATE), BUSY], [DONE]]
    found = follow_all(client, [target()], 60, lambda *_: None)
    assert ([one.rollout for one in found], len(admin.asked("WatchRollout"))) == ([DONE], 3)
    admin.answers["WatchRollout"] = [[BUSY]]
    assert look(client, target()) is None


def instead(serving_generation: int) -> pb.Rollout:
    made = rollout((FAILED, "bad"))
    made.replicas[0].generation, made.replicas[0].serving_generation = 4, serving_generation
    return made


NO = (FAILED, "bad", "no")
TOLD = {
    "1 of 4 replicas serve it (r1, r3 pending: staging; r2 failed: bad - no)": rollout(SERVING, LATE, NO, LATE),
    "0 of 7 replicas serve it (r0, r1, r2, r3, r4 and 2 more pending: staging)": rollout(*[LATE] * 7),
    "2 of 2 replicas serve it": rollout(SERVING, SERVING),
    "nobody lives": rollout(waiting="nobody lives"),
    "1 of 1 replicas serve it; 2 are gone": rollout(SERVING, note="2 are gone"),
    "1 of 2 canaries serve it, the others generation 3; 5 min left (r1 pending: staging)": rollout(
        SERVING, LATE, LATE, canaries=2, waiting="5 min left"
    ),
    "canaries serve it: loraplane rollout promote sql --pool dev": rollout(
        SERVING, canaries=1, done=True, note="canaries serve it"
    ),
    "it is disabled": rollout(done=True, note="it is disabled"),
    "it is disabled, so by nobody": rollout(done=True, canaries=1, note="it is disabled, so by nobody"),
    "replicas_failed (r0 failed)": BAD,
    "halted - 1 of 1 refused (r0 failed)": rollout(FAILED, canaries=1, halted="1 of 1 refused", failure="halted"),
    "0 of 1 replicas serve it (r0 serving generation 3, generation 4 failed: bad)": instead(3),
    "0 of 1 replicas serve it (r0 serving an earlier generation, generation 4 failed: bad)": instead(0),
}


def test_how_far_rollouts_are_in_one_line():
    """R9 status-truth: a rollout that fails takes nothing away. Of 500 adapters nobody reads 500 lines: reasons come
    the most first, and the slowest is named.
    """
    lines = [describe(FollowedRollout(target(), one)) for one in TOLD.values()]
    assert lines == [f"sql generation 4: {line}" for line in TOLD]
    assert describe(FollowedRollout(target(), None)) == "sql: no report on it"
    waiting = [(LATE, FULL, FULL), (SERVING, LATE), (SERVING, FULL, LATE), (SERVING, FULL), (SERVING, PENDING), ()]
    of = [*(rollout(*one) for one in waiting), DONE, BAD]
    rollouts = {target(name=name): one for name, one in zip("abcdefgh", of, strict=True)}
    told = "1/9 served, 1 failed, 3 over_capacity, 1 staging, 1 pending, 1 waiting, 1 without a report, slowest r1"
    assert summary([*rollouts, target(name="i")], rollouts) == told
    assert summary([target(1)], {target(1): rollout(SERVING, PENDING)}) == "1/1 served"


CHECK, ONE = "loraplane check URI --pool dev", "loraplane describe replica r0"


@pytest.mark.parametrize(
    ("followed", "code", "told"),
    [
        ([rollout(FULL), BAD, None], 7, "sql generation 4: replicas_failed (r0 failed)"),
        ([rollout(FULL), None, DONE], 7, "(r0 pending: over_capacity); there is no room for it"),
        ([None], 6, "not served in time: sql: no report on it"),
        ([rollout(LATE), None, DONE], 6, "(r0 pending: staging); sql: no report on it"),
        ([rollout(SERVING, (FAILED, "not_finite"), done=True, failure="replicas_failed")], 7, f": {CHECK}"),
        ([rollout(SERVING, (FAILED, "not_finite"))], 6, f": {CHECK}"),
        ([rollout((FAILED, "not_finite"), FULL)], 7, f": {CHECK}"),
        ([rollout((FAILED, "disk_full"), done=True, failure="replicas_failed")], 7, f": {ONE}"),
    ],
)
def test_the_worst_of_several_rollouts_is_the_exit_code(followed, code, told):
    """7: something has to be changed, R8 isolation: by the command that is named; 6: it may still come."""
    with pytest.raises(CliError) as raised:
        check_served([FollowedRollout(target(), one) for one in followed])
    failure = raised.value.failure
    assert (failure.exit, told in failure.message) == (code, True)
    assert ("loraplane retry adapter sql --pool dev" in failure.message) == told.startswith(": ")
    assert "generation 4: 1 of 1" not in failure.message, "what is served is no reason"


BROKEN = Refusal(grpc.StatusCode.UNAVAILABLE, "ETCD_UNAVAILABLE", "away")


def followed(client: AdminClient, seconds: float = 60.0, min_ready: int = 0) -> tuple[pb.Rollout | None, list[Any]]:
    """The last that was heard, and all that was told."""
    told: list[pb.Rollout] = []
    [one] = follow_all(client, [target(min_ready)], seconds, lambda _target, rollout: told.append(rollout))
    return one.rollout, told


def test_a_rollout_is_followed_until_it_is_done_over_breaks_and_ends_of_streams(client, admin, time):
    late, here = rollout(LATE), rollout(SERVING)
    admin.answers["WatchRollout"] = [
        time.later((1, late), (1, BROKEN)),
        [],
        time.later((1, here), (1, DONE), (1, late)),
    ]
    assert followed(client) == (DONE, [late, here, DONE])
    assert admin.asked("WatchRollout") == [pb.WatchRolloutRequest(pool="dev", name="sql", generation=4)] * 3
    first, second = time.pauses
    assert admin.channels[0].timeouts == pytest.approx([60.0, 58.0 - first, 58.0 - first - second])
    assert 0 < first < 2 > second > 0


@pytest.mark.parametrize(("min_ready", "last"), [(1, rollout(SERVING, LATE)), (0, rollout(FULL))])
def test_a_rollout_is_not_followed_once_enough_serve_it_or_nobody_else_will(client, admin, time, min_ready, last):
    admin.answers["WatchRollout"] = [[rollout(LATE), last], [last, DONE]]
    assert followed(client, min_ready=min_ready)[0] == last
    admin.answers["WatchRollout"] = [lambda request: [rollout(SERVING, done=True, name=request.name)]]
    found = follow_all(client, [target(name=name) for name in "cab"], 60, lambda *_: None)
    assert [(one.target.name, one.rollout.name) for one in found] == [("c", "c"), ("a", "a"), ("b", "b")]
    assert follow_all(client, [], 60, lambda *_: None) == []


def test_at_the_deadline_the_last_that_was_heard_is_the_outcome(client, admin, time):
    """A stream that never pauses does not go on for ever; and each is looked at, even when the time is up."""
    admin.answers["WatchRollout"] = [time.later(*[(7, rollout(LATE))] * 20)]
    assert (followed(client, 20.0)[0], time.now) == (rollout(LATE), 21.0)
    admin.answers["WatchRollout"] = [time.later((30, BROKEN))]
    assert (followed(client, 20.0), len(admin.asked("WatchRollout"))) == ((None, []), 2)
    assert look(client, target()) is None
    admin.answers["WatchRollout"] = [[rollout(LATE)]]
    assert (look(client, target()), admin.channels[0].timeouts[-2:]) == (rollout(LATE), [2.0, 2.0])
    for left, given in ((0.1, 2.0), (0.2, 2.0), (0.3, 0.3), (5.0, 5.0)):
        admin.answers["WatchRollout"], time.now = [[DONE]], 0.0
        followed(client, left)
        assert admin.channels[0].timeouts[-1] == pytest.approx(given), "less is too little to hear anything"
    gone = Refusal(grpc.StatusCode.NOT_FOUND, "ADAPTER_NOT_FOUND", "gone")
    admin.answers["WatchRollout"] = [[rollout(LATE), gone]]
    time.pauses.clear()
    with pytest.raises(CliError, match="gone"):
        followed(client)
    assert time.pauses == [], "an error that stays ends it"


@pytest.mark.parametrize("error", [KeyboardInterrupt, BrokenPipeError, RuntimeError])
def test_what_ends_the_wait_for_one_rollout_ends_all(client, admin, error):
    """A reader that left, for one, is no reason to follow the others until the deadline."""
    begun = Event()

    def streams(request: pb.WatchRolloutRequest) -> Iterator[object]:
        if request.name == "sql":
            yield rollout(LATE)
        begun.set()
        yield Hold()

    def seen(_target: RolloutTarget, _rollout: pb.Rollout) -> None:
        assert begun.wait(120)
        raise error

    admin.answers["WatchRollout"] = [streams]
    with pytest.raises(error):
        follow_all(client, [target(name=name) for name in ("sql", "law")], 600, seen)


def test_what_keeps_a_rollout_from_coming_is_looked_at_once_more(client, admin, time):
    """R9 status-truth: a replica that has not heard of room that was just made says over_capacity for a moment yet."""
    full = rollout(FULL)
    admin.answers["WatchRollout"] = [[full], [BROKEN], [rollout(LATE), full], [DONE]]
    assert (followed(client)[0], time.pauses) == (DONE, [2.0, 2.0, 2.0])
    admin.answers["WatchRollout"] = [[full], [full, DONE]]
    assert followed(client)[0] == full


def test_a_rollout_as_programs_see_it(cli, admin):
    """What nothing is said of is null, never an empty text."""
    nothing = dict.fromkeys(("failure", "waiting", "note", "canaries"))
    whole = {"name": "sql", "generation": 0, "done": True, "replicas": []}
    assert cli("-o", "json", "rollout", "sql").json == whole | nothing
    assert cli("-o", "name", "rollout", "sql").out == "sql\n"
    assert "{" not in cli("rollout", "sql").out
    said = {"failure": "replicas_failed", "waiting": "w", "note": "n"}
    kept = pb.RolloutReplica(replica="r2", state=SERVING, canary=True, serving_generation=1)
    admin.answers["WatchRollout"] = [[rollout((FAILED, "x", "y"), done=True, **said)]]
    admin.answers["WatchRollout"][0][0].replicas.append(kept)
    ran = cli("-o", "json", "rollout", "sql")
    assert (ran.code, ran.error["reason"], {name: ran.json[name] for name in said}) == (7, "ROLLOUT_FAILED", said)
    first, second = ran.json["replicas"]
    keys = ("replica", "state", "reason", "message", "canary", "generation", "serving_generation")
    assert first == dict(zip(keys, ("r0", "failed", "x", "y", False, 0, None), strict=True))
    assert (second["canary"], second["serving_generation"]) == (True, 1)


@pytest.mark.parametrize(
    ("stream", "flags", "code", "told"),
    [
        (HALF_BAD, [], 7, "error: ROLLOUT_FAILED: sql generation 4: replicas_failed (r1 failed)"),
        (HALF_BAD, ["--min-ready", "1"], 0, ""),
        (rollout(SERVING, FULL), [], 7, "over_capacity); there is no room for it, and waiting brings none: "),
        (Hold(), ["--timeout", "0.5"], 6, "error: DEADLINE_EXCEEDED: not served in time: sql: no report on it"),
        (Refusal(grpc.StatusCode.NOT_FOUND, "ADAPTER_NOT_FOUND", "no"), [], 3, "error: ADAPTER_NOT_FOUND: no; "),
    ],
)
def test_how_a_rollout_ends(cli, admin, stream, flags, code, told):
    admin.answers["WatchRollout"] = [[stream, Hold()]]
    ran = cli("rollout", "sql", *flags)
    assert (ran.code, told in ran.err) == (code, True)


def changed(outcome: int = pb.AdapterResult.UPDATED, **fields: Any) -> pb.ApplyAdaptersResponse:
    spec = pb.AdapterSpec(source=pb.Source(uri="file:///adapters/sql"))
    adapter = pb.Adapter(name="sql", pool="dev", generation=7, spec=spec, **fields)
    return pb.ApplyAdaptersResponse(results=[pb.AdapterResult(outcome=outcome, adapter=adapter)], revision=11)


def test_apply_waits_for_each_adapter_and_tells_the_change_even_if_it_is_not_served(cli, admin, manifest):
    """One failure does not hide behind one that is pending, and several are told in one line. One by hand ends with
    what to do, and whoever applies is told that only canaries take it.
    """
    path = manifest("a", "b")
    assert cli("apply", "-f", path, "--wait").out.splitlines()[-1] == "2/2 served"
    asked = {(one.pool, one.name, one.generation) for one in admin.asked("WatchRollout")}
    assert asked == {("dev", "a", 1), ("dev", "b", 1)}
    admin.answers["WatchRollout"] = [lambda request: [BAD] if request.name == "b" else [rollout(LATE), Hold()]]
    ran = cli("-o", "json", "apply", "-f", path, "--wait", "--timeout", "0.5", "--request-id", "q1")
    assert (ran.code, ran.json["request_id"], ran.json["revision"]) == (7, "q1", 7)
    assert [one["failure"] for one in ran.json["rollouts"]] == [None, "replicas_failed"]
    admin.answers["WatchRollout"] = [Refusal(grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED", "not you")]
    ran = cli("-o", "json", "apply", "-f", path, "--wait")
    assert (ran.code, ran.json["revision"]) == (4, 7), "W8 no-false-fail: it was applied, though it cannot be followed"
    admin.requests.clear()
    assert (cli("apply", "-f", path, "--wait", "--dry-run").code, admin.asked("WatchRollout")) == (0, [])
    canaries = pb.CanaryRollout(stable_generation=6)
    admin.answers |= {"ApplyAdapters": [changed(rollout=canaries)]}
    admin.answers["WatchRollout"] = [[rollout(SERVING, canaries=1, done=True, note="its canaries serve it")]]
    for flags, told in (
        (["--wait"], "sql generation 4: its canaries serve it: loraplane rollout promote sql --pool dev"),
        (["--dry-run"], "sql: only canaries take generation 7 for now, all others keep 6"),
    ):
        ran = cli("apply", "-f", manifest("sql"), *flags)
        assert (ran.code, told in ran.out) == (0, True)
    switched = changed(rollout=canaries)
    switched.results[0].adapter.spec.enabled = False
    admin.answers |= {"ApplyAdapters": [switched]}
    assert "only canaries" not in cli("disable", "sql", "--pool", "dev").out, "nobody takes what is disabled"


@pytest.mark.parametrize(("verb", "method"), [("promote", "PromoteRollout"), ("abort", "AbortRollout")])
def test_it_is_ended_by_hand_and_waited_for(cli, admin, verb, method):
    """Also where an adapter has the name of a verb."""
    admin.answers |= {method: [changed()], "WatchRollout": [[rollout(LATE), DONE]]}
    ran = cli("rollout", verb, "sql", "--request-id", "q1")
    assert (ran.code, "updated  sql   dev   7" in ran.out, "revision 11" in ran.out) == (0, True, True)
    assert cli("rollout", verb, verb, "--wait").code == 0
    assert ([one.name for one in admin.asked(method)], admin.asked("WatchRollout")[0].generation) == (["sql", verb], 7)
    assert cli("rollout", verb, "sql", "--generation", str(2**63)).code == 2
    assert (cli("rollout", verb).code, admin.asked("WatchRollout")[1].name) == (0, verb)
    admin.answers[method] = [Refusal(grpc.StatusCode.FAILED_PRECONDITION, "NO_ROLLOUT", "there is none")]
    ran = cli("rollout", verb, "sql")
    assert (ran.code, ran.err) == (4, "error: NO_ROLLOUT: there is none\n")
