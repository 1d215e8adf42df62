"""Rollouts that are followed: what counts as served, what cannot come, what is told, and when it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from registry.cli.failure import CliError, CommandFailure, Exit, usage
from registry.cli.rollout import FollowedRollout, RolloutTarget, cannot_come, check_served, describe, follow_all, look
from registry.cli.views.report import Fate, fate_of, summary
from registry.model.errors import Reason
from registry.v1 import registry_pb2 as pb

SERVING, PENDING, FAILED, UNKNOWN = (
    pb.RolloutReplica.SERVING,
    pb.RolloutReplica.PENDING,
    pb.RolloutReplica.FAILED,
    pb.RolloutReplica.UNKNOWN,
)
FULL = (PENDING, "over_capacity")
LATE = (PENDING, "staging")


def rollout(*replicas: Any, canaries: int | None = None, **fields: Any) -> pb.Rollout:
    """A rollout of these replicas, of which so many first ones are canaries; None: it has none."""
    found = []
    for number, one in enumerate(replicas):
        state, reason = one if isinstance(one, tuple) else (one, "")
        found.append(
            pb.RolloutReplica(replica=f"r{number}", state=state, reason=reason, canary=number < (canaries or 0))
        )
    made = pb.Rollout(**{"name": "sql", "generation": 4, "replicas": found, **fields})
    if canaries is not None:
        made.canary.stable_generation = 3
    return made


def target(min_ready: int = 0, name: str = "sql") -> RolloutTarget:
    return RolloutTarget("dev", name, 4, min_ready)


@pytest.mark.parametrize(
    ("min_ready", "of", "is_served"),
    [
        (0, rollout(SERVING), False),
        (1, rollout(SERVING, LATE), True),
        (2, rollout(SERVING, LATE), False),
        (2, rollout(SERVING, SERVING, LATE), True),
        (1, rollout(SERVING, SERVING), True),
        (1, rollout(LATE), False),
        (1, rollout(SERVING, FAILED, done=True, failure="replicas_failed"), True),
        (1, rollout(SERVING, done=True, failure="superseded"), False),
        (1, rollout(SERVING, done=True, failure="deleted"), False),
        (1, rollout(SERVING, LATE, canaries=1), False),
        (1, rollout(SERVING, LATE, canaries=1, failure="replicas_failed"), False),
    ],
)
def test_when_so_many_suffice(min_ready, of, is_served):
    """Not of a generation that is no more, nor of one that only canaries have."""
    assert target(min_ready).is_served(of) is is_served


@pytest.mark.parametrize(
    ("of", "never"),
    [
        (rollout(), False),
        (rollout(SERVING), False),
        (rollout(FULL), True),
        (rollout(SERVING, FULL, FULL), True),
        (rollout(FULL, LATE), False),
        (rollout(FULL, FAILED), True),
        (rollout(FULL, UNKNOWN), False),
        (rollout(FAILED, FAILED), False),
        (rollout((FAILED, "over_capacity")), False),
        (rollout(FULL, FULL, FAILED, LATE), False),
        (rollout(FULL, LATE, canaries=1), True),
        (rollout(LATE, FULL, canaries=1), False),
        (rollout(SERVING, FULL, canaries=1), False),
    ],
)
def test_what_cannot_come_is_what_waits_for_room_alone(of, never):
    """Of a rollout with canaries only these count: nobody else is to serve it yet."""
    assert cannot_come(of) is never


@pytest.mark.parametrize(
    ("min_ready", "of", "fate"),
    [
        (0, rollout(SERVING, done=True), Fate.SERVED),
        (0, rollout(SERVING), Fate.PENDING),
        (0, rollout(FAILED, done=True, failure="replicas_failed"), Fate.FAILED),
        (1, rollout(SERVING, FAILED, done=True, failure="replicas_failed"), Fate.SERVED),
        (1, rollout(SERVING, LATE), Fate.SERVED),
        (2, rollout(SERVING, LATE), Fate.PENDING),
    ],
)
def test_the_fate_of_a_rollout(min_ready, of, fate):
    assert fate_of(target(min_ready), of) is fate


TOLD = {
    "sql generation 4: 1 of 3 replicas serve it (r1 pending: staging, r2 failed)": rollout(SERVING, LATE, FAILED),
    "sql generation 4: 2 of 2 replicas serve it": rollout(SERVING, SERVING),
    "sql generation 4: nobody lives": rollout(waiting="nobody lives"),
    "sql generation 4: 1 of 1 replicas serve it; 2 are gone": rollout(SERVING, note="2 are gone"),
    "sql generation 4: 1 of 2 canaries serve it, the others generation 3; 5 min left (r1 pending: staging)": rollout(
        SERVING, LATE, LATE, canaries=2, waiting="5 min left"
    ),
    "sql generation 4: canaries serve it: loraplane rollout promote sql --pool dev": rollout(
        SERVING, canaries=1, done=True, note="canaries serve it"
    ),
    "sql generation 4: replicas_failed (r0 failed)": rollout(FAILED, done=True, failure="replicas_failed"),
}


@pytest.mark.parametrize("line", TOLD)
def test_how_far_a_rollout_is_in_one_line(line):
    assert describe(FollowedRollout(target(), TOLD[line])) == line


def test_a_halted_rollout_says_what_halted_it():
    halted = rollout(FAILED, canaries=1, done=True, failure="halted")
    halted.canary.halted = "1 of 1 refused"
    assert describe(FollowedRollout(target(), halted)) == "sql generation 4: halted - 1 of 1 refused (r0 failed)"
    assert describe(FollowedRollout(target(), None)) == "sql: nothing was heard of it"


DONE = rollout(SERVING, done=True)
BAD = rollout(FAILED, done=True, failure="replicas_failed")


@pytest.mark.parametrize(
    ("followed", "code", "told"),
    [
        ([rollout(FULL), BAD, None], Exit.ROLLOUT_FAILED, "sql generation 4: replicas_failed (r0 failed)"),
        ([rollout(FULL), None, DONE], Exit.ROLLOUT_FAILED, "(r0 pending: over_capacity); there is no room for it"),
        ([None], Exit.UNAVAILABLE, "not served in time: sql: nothing was heard of it"),
        ([rollout(LATE), None, DONE], Exit.UNAVAILABLE, "(r0 pending: staging); sql: nothing was heard of it"),
    ],
)
def test_the_worst_of_several_rollouts_is_the_exit_code(followed, code, told):
    """7: something has to be changed; 6: it may still come."""
    with pytest.raises(CliError) as raised:
        check_served([FollowedRollout(target(), one) for one in followed])
    assert raised.value.failure.exit is code
    assert told in raised.value.failure.message
    assert "generation 4: 1 of 1" not in raised.value.failure.message, "what is served is no reason"


@pytest.mark.parametrize(
    ("of", "remedy"),
    [
        (
            rollout(SERVING, (FAILED, "not_finite"), done=True, failure="replicas_failed"),
            "loraplane check URI --pool dev",
        ),
        (rollout(SERVING, (FAILED, "not_finite")), "loraplane check URI --pool dev"),
        (rollout((FAILED, "not_finite"), (PENDING, "over_capacity")), "loraplane check URI --pool dev"),
        (rollout((FAILED, "disk_full"), done=True, failure="replicas_failed"), "loraplane describe replica r0"),
    ],
)
def test_a_wait_that_fails_names_the_command_of_each_reason(of, remedy):
    """R8 isolation: what waits for a change is never tried again by the same command, and the message names the one."""
    with pytest.raises(CliError) as raised:
        check_served([FollowedRollout(target(), of)])
    assert f": {remedy}" in raised.value.failure.message
    assert "loraplane retry adapter sql --pool dev" in raised.value.failure.message


def test_what_is_served_needs_no_more():
    check_served([])
    check_served([FollowedRollout(target(), DONE), FollowedRollout(target(1), rollout(SERVING, LATE))])
    check_served([FollowedRollout(target(1), rollout(SERVING, FULL))])


class Time:
    """A clock that goes on when something waits, and with each thing that is heard."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


class Admin:
    """Streams by turn, the last one again and again: what comes, after so many seconds each."""

    def __init__(self, time: Time, *streams: list[tuple[float, pb.Rollout | CliError]]) -> None:
        self._time, self._streams = time, list(streams)
        self.given: list[float] = []
        self.asked: list[pb.WatchRolloutRequest] = []

    def watch_rollout(self, request: pb.WatchRolloutRequest, seconds: float) -> Iterator[pb.Rollout]:
        self.asked.append(request)
        self.given.append(seconds)
        for later, one in self._streams.pop(0) if len(self._streams) > 1 else self._streams[0]:
            self._time.now += later
            if isinstance(one, CliError):
                raise one
            yield one

    def close(self) -> None:
        pass


@pytest.fixture
def time(monkeypatch) -> Time:
    clock = Time()
    monkeypatch.setattr("registry.cli.rollout.time", clock)
    return clock


BROKEN = CliError(CommandFailure(Exit.UNAVAILABLE, Reason.ETCD_UNAVAILABLE, "away"))
Follow = Callable[..., pb.Rollout | None]


def followed(admin: Admin, seconds: float = 60.0, min_ready: int = 0) -> tuple[pb.Rollout | None, list[pb.Rollout]]:
    """The last that was heard, and all that was told."""
    told: list[pb.Rollout] = []
    [one] = follow_all(admin, [target(min_ready)], seconds, lambda _target, rollout: told.append(rollout))
    return one.rollout, told


def test_a_rollout_is_followed_until_it_is_done_over_breaks_and_ends_of_streams(time):
    later = rollout(LATE)
    admin = Admin(time, [(1, later), (1, BROKEN)], [], [(1, rollout(SERVING)), (1, DONE), (1, later)])
    assert followed(admin) == (DONE, [later, rollout(SERVING), DONE])
    assert admin.asked == [pb.WatchRolloutRequest(pool="dev", name="sql", generation=4)] * 3
    assert admin.given == pytest.approx([60.0, 58.0 - time.pauses[0], 58.0 - sum(time.pauses)])
    assert len(time.pauses) == 2
    assert all(0 < one < 2 for one in time.pauses)


@pytest.mark.parametrize(("min_ready", "last"), [(1, rollout(SERVING, LATE)), (0, rollout(FULL))])
def test_a_rollout_is_not_followed_once_enough_serve_it_or_nobody_else_will(time, min_ready, last):
    assert followed(Admin(time, [(1, rollout(LATE)), (1, last), (1, DONE)]), min_ready=min_ready)[0] == last


def test_at_the_deadline_the_last_that_was_heard_is_the_outcome(time):
    """A stream that never pauses does not go on for ever."""
    admin = Admin(time, [(7, rollout(LATE))] * 20)
    assert followed(admin, 20.0)[0] == rollout(LATE)
    assert time.now == 21.0
    silent = Admin(time, [(30, BROKEN)])
    assert followed(silent, 20.0) == (None, [])
    assert len(silent.given) == 1


def test_each_rollout_is_looked_at_once_even_when_the_time_is_up(time):
    """So that whoever waited knows what is pending."""
    admin = Admin(time, [(0.5, rollout(LATE))])
    assert look(admin, target()) == rollout(LATE)
    assert admin.given == [2.0], "a moment, though none is left"
    assert look(Admin(time, [(2.0, BROKEN)]), target()) is None


@pytest.mark.parametrize(("left", "given"), [(0.1, 2.0), (0.2, 2.0), (0.3, 0.3), (5.0, 5.0)])
def test_a_stream_is_given_what_is_left_unless_that_is_too_little_to_hear_anything(time, left, given):
    admin = Admin(time, [(0, DONE)])
    followed(admin, left)
    assert admin.given == [pytest.approx(given)]


def test_an_error_that_stays_ends_it(time):
    with pytest.raises(CliError, match="it is wrong"):
        followed(Admin(time, [(1, rollout(LATE)), (1, usage("it is wrong"))]))
    assert time.pauses == []


def test_of_several_rollouts_each_has_its_own_outcome_in_their_order(time):
    class Named(Admin):
        def watch_rollout(self, request: pb.WatchRolloutRequest, _seconds: float) -> Iterator[pb.Rollout]:
            yield pb.Rollout(name=request.name, generation=4, done=True)

    found = follow_all(Named(time, []), [target(name=name) for name in "cab"], 60, lambda *_: None)
    assert [(one.target.name, one.rollout.name) for one in found] == [("c", "c"), ("a", "a"), ("b", "b")]
    assert follow_all(Named(time, []), [], 60, lambda *_: None) == []


def test_of_many_rollouts_reasons_come_the_most_first_and_the_slowest_is_named():
    rollouts = {
        target(name="a"): rollout(LATE, FULL, FULL),
        target(name="b"): rollout(SERVING, LATE),
        target(name="c"): rollout(SERVING, FULL, LATE),
        target(name="d"): rollout(SERVING, FULL),
    }
    assert summary(list(rollouts), rollouts) == "0/4 served, 3 over_capacity, 1 staging, slowest r1"
    assert summary([target(name="a")], {target(name="a"): BAD}) == "0/1 served, 1 failed"
    assert summary([target(name="a")], {}) == "0/1 served, 1 not heard of"
