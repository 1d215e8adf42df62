"""What is told of changes and of rollouts that are waited for: on a terminal, in a pipe, and to programs."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from rich.console import Console

from registry.cli.change_set import Applied, Change, ChangeBatch, NotApplied
from registry.cli.failure import CliError, CommandFailure, Exit
from registry.cli.rollout import FollowedRollout, RolloutTarget
from registry.cli.views.output import Format, Printer
from registry.cli.views.report import check_applied, follow_shown, print_plain, print_table
from registry.v1 import registry_pb2 as pb
from tests.unit.cli.test_followed import BAD, DONE, LATE, SERVING, rollout, target

CREATED, UPDATED, UNCHANGED, DELETED = (
    pb.AdapterResult.CREATED,
    pb.AdapterResult.UPDATED,
    pb.AdapterResult.UNCHANGED,
    pb.AdapterResult.DELETED,
)


def result(outcome: int, name: str, stable: int = 0) -> pb.AdapterResult:
    adapter = pb.Adapter(name=name, pool="dev", generation=4)
    if stable:
        adapter.rollout.stable_generation = stable
    return pb.AdapterResult(outcome=outcome, adapter=adapter)


def batch(request_id: str, *names: str) -> ChangeBatch:
    return ChangeBatch("dev", tuple(Change("dev", pb.AdapterChange(delete=name), name) for name in names), request_id)


def applied(request_id: str, revision: int, *results: pb.AdapterResult) -> Applied:
    names = [one.adapter.name for one in results]
    response = pb.ApplyAdaptersResponse(results=results, revision=revision, request_id=request_id)
    return Applied(batch(request_id, *names), response)


FULL = CommandFailure(Exit.REFUSED, "QUOTA_EXCEEDED", "full", "a.yaml", {"k": "v"}, "q2")
AWAY = CommandFailure(Exit.UNAVAILABLE, "ETCD_UNAVAILABLE", "away")
GOOD = applied("q1", 7, result(CREATED, "a"), result(UPDATED, "b", stable=3), result(UNCHANGED, "c", stable=3))
LATER = applied("q3", 9, result(DELETED, "d"))
REFUSED = NotApplied(batch("q2", "e", "f"), FULL)


def test_people_read_each_change_each_transaction_and_what_failed(capsys):
    print_table(Printer(Format.TABLE), [GOOD, REFUSED, LATER], dry_run=False)
    assert capsys.readouterr().out.splitlines() == [
        "OUTCOME    NAME  POOL  GENERATION",
        "created    a     dev   4",
        "updated    b     dev   4",
        "unchanged  c     dev   4",
        "deleted    d     dev   4",
        "revision 7, request id q1",
        "revision 9, request id q3",
        "2 of 3 transactions applied",
        "b: only canaries take generation 4 for now, all others keep 3",
        "error: QUOTA_EXCEEDED: a.yaml: full (request id q2)",
    ]


def test_of_one_transaction_nothing_is_counted_and_a_dry_run_says_that_it_is_one(capsys):
    print_table(Printer(Format.TABLE), [LATER], dry_run=True)
    assert capsys.readouterr().out.splitlines()[2:] == ["dry run, nothing was changed; revision 9, request id q3"]


def test_programs_read_the_same(capsys):
    seen = [FollowedRollout(target(), DONE), FollowedRollout(target(), None)]
    taken: list[Any] = []
    printer = Printer(Format.JSON)
    printer.plain = taken.append  # type: ignore[method-assign]
    print_plain(printer, [REFUSED, LATER, GOOD], seen, dry_run=False)
    [value] = taken
    assert (value["request_id"], value["revision"], value["dry_run"]) == ("q2", 9, False)
    assert [(one["outcome"], one["adapter"]["name"]) for one in value["results"]] == [
        ("deleted", "d"),
        ("created", "a"),
        ("updated", "b"),
        ("unchanged", "c"),
    ]
    about = {"pool": "dev", "error": None}
    assert value["transactions"] == [
        {"request_id": "q2", "pool": "dev", "changes": 2, "revision": None, "error": FULL.as_dict()},
        {"request_id": "q3", **about, "changes": 1, "revision": 9},
        {"request_id": "q1", **about, "changes": 3, "revision": 7},
    ]
    assert [one["done"] for one in value["rollouts"]] == [True]
    print_plain(printer, [REFUSED], [], dry_run=True)
    assert (taken[1]["revision"], taken[1]["dry_run"]) == (None, True)
    print_plain(Printer(Format.NAME), [GOOD, REFUSED, LATER], [], dry_run=False)
    assert capsys.readouterr().out.split() == ["a", "b", "c", "d"]


def test_the_first_failure_is_the_outcome_and_says_how_many_there_were():
    check_applied([GOOD, LATER])
    check_applied([])
    with pytest.raises(CliError) as raised:
        check_applied([REFUSED])
    assert raised.value.failure == FULL
    with pytest.raises(CliError) as raised:
        check_applied([GOOD, REFUSED, NotApplied(batch("q4"), AWAY)])
    message = (
        "2 of 3 transactions were not applied; the first: full; once that is mended, the same command goes on with the "
        "rest"
    )
    expected = CommandFailure(Exit.REFUSED, "QUOTA_EXCEEDED", message, "a.yaml", {"k": "v"}, "q2")
    assert raised.value.failure == expected


class Admin:
    """Rollouts by the names of their adapters, each heard in turn."""

    def __init__(self, **rollouts: Sequence[pb.Rollout]) -> None:
        self._rollouts = rollouts

    def watch_rollout(self, request: pb.WatchRolloutRequest, _seconds: float) -> Iterator[pb.Rollout]:
        yield from self._rollouts[request.name]

    def close(self) -> None:
        pass


class Time:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def named(name: str) -> RolloutTarget:
    return target(name=name)


def test_in_a_pipe_one_rollout_is_told_as_it_changes(capsys):
    """And no line twice."""
    news = [rollout(LATE), rollout(LATE), rollout(SERVING), DONE]
    found = follow_shown(Admin(sql=news), [named("sql")], 60, Printer(Format.TABLE))
    assert [one.rollout for one in found] == [DONE]
    assert capsys.readouterr().out.splitlines() == [
        "sql generation 4: 0 of 1 replicas serve it (r0 pending: staging)",
        "sql generation 4: 1 of 1 replicas serve it",
    ]


@pytest.mark.parametrize("form", [Format.JSON, Format.YAML, Format.NAME])
def test_programs_get_no_progress(capsys, form):
    follow_shown(Admin(sql=[rollout(LATE), DONE]), [named("sql")], 60, Printer(form))
    follow_shown(Admin(a=[DONE], b=[DONE]), [named("a"), named("b")], 60, Printer(form))
    assert capsys.readouterr().out == ""


def test_in_a_pipe_several_rollouts_are_told_every_five_seconds(capsys, monkeypatch):
    time = Time()
    monkeypatch.setattr("registry.cli.views.report.time", time)

    class Slow(Admin):
        def watch_rollout(self, request: pb.WatchRolloutRequest, _seconds: float) -> Iterator[pb.Rollout]:
            if request.name == "b":
                yield DONE
                return
            for at, one in self._rollouts["a"]:  # type: ignore[misc]
                time.now = at
                yield one

    named_by = {
        at: rollout((pb.RolloutReplica.PENDING, reason))
        for at, reason in ((10.0, "staging"), (14.9, "loading"), (15.0, "checking"))
    }
    news = [*named_by.items(), (19.0, DONE)]
    monkeypatch.setattr("registry.cli.rollout._AT_ONCE", 1)
    follow_shown(Slow(a=news), [named("a"), named("b")], 60, Printer(Format.TABLE))
    assert capsys.readouterr().out.splitlines() == [
        "0/2 served, 1 staging, 1 not heard of, slowest r0",
        "0/2 served, 1 checking, 1 not heard of, slowest r0",
        "2/2 served",
    ]


@pytest.fixture
def terminal(monkeypatch) -> io.StringIO:
    """What a person sees who waits there."""
    seen = io.StringIO()
    console = Console(file=seen, force_terminal=True, width=200, height=60, color_system="standard")
    monkeypatch.setattr(Printer, "console", console)
    return seen


STYLES = {"bold": "\x1b[1m", "red": "\x1b[31m", "green": "\x1b[32m"}


def last_drawn(seen: io.StringIO) -> list[tuple[str, str]]:
    """The lines of the last drawing, with their styles."""
    found = []
    for line in seen.getvalue().replace("\x1b[2K", "").replace("\x1b[1A", "").replace("\r", "\n").splitlines():
        style = next((name for name, begun in STYLES.items() if line.startswith(begun)), "")
        bare = line.removeprefix(STYLES.get(style, "")).partition("\x1b[0m")[0].rstrip()
        if bare and not bare.startswith("\x1b[?"):
            found.append((bare, style))
    return found


def test_on_a_terminal_one_rollout_is_green_once_it_is_served(terminal):
    follow_shown(Admin(sql=[DONE]), [named("sql")], 60, Printer(Format.TABLE))
    assert last_drawn(terminal)[-1] == ("sql generation 4: 1 of 1 replicas serve it", "green")


def test_on_a_terminal_one_rollout_that_waits_has_no_colour(terminal):
    follow_shown(Admin(sql=[rollout((1, "over_capacity"))]), [named("sql")], 60, Printer(Format.TABLE))
    told = ("sql generation 4: 0 of 1 replicas serve it (r0 pending: over_capacity)", "")
    assert last_drawn(terminal)[-1] == told


def test_on_a_terminal_one_rollout_that_failed_is_red_and_stands_there_once(terminal):
    follow_shown(Admin(sql=[BAD]), [named("sql")], 60, Printer(Format.TABLE))
    assert last_drawn(terminal)[-1] == ("sql generation 4: replicas_failed (r0 failed)", "red")
    assert len({line for line, _ in last_drawn(terminal)}) == 1


@pytest.mark.parametrize(("bad", "more"), [(2, None), (20, None), (21, 1), (23, 3)])
def test_on_a_terminal_several_rollouts_are_a_sum_and_their_failures(terminal, bad, more):
    """Of very many failures the first are named, and the rest counted."""
    rollouts = {f"a{number:02}": [BAD] for number in range(bad)} | {"z": [DONE]}
    follow_shown(Admin(**rollouts), list(map(named, rollouts)), 60, Printer(Format.TABLE))
    drawn = last_drawn(terminal)
    expected = [(f"1/{bad + 1} served, {bad} failed", "bold")]
    expected += [("sql generation 4: replicas_failed (r0 failed)", "red")] * min(bad, 20)
    expected += [(f"and {more} more failed", "red")] if more else []
    assert drawn[-len(expected) :] == expected
